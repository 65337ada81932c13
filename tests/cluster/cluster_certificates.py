"""The certificates of a test cluster: one authority, the API server, and its client of kubelets."""

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM
_PLAIN = serialization.NoEncryption()


def make_certificates(folder: Path, addresses: list[str]) -> None:
    """Writes `ca`, `apiserver` and `kubelet-client` (`.crt`, `.key`), and `service-accounts.key`.

    Args:
        folder: Is made.
        addresses: IP addresses of the API server.
    """
    folder.mkdir(parents=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("ctrpipe test cluster")
    authority = (
        _certificate(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    _save(folder, "ca", authority, authority_key)
    hosts = x509.SubjectAlternativeName(
        [x509.DNSName("kubernetes.default.svc"), x509.DNSName("localhost")]
        + [x509.IPAddress(ip_address(address)) for address in addresses]
    )
    for file, subject in (
        ("apiserver", _name("kube-apiserver")),
        ("kubelet-client", _name("kube-apiserver-kubelet-client", "system:masters")),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(subject, authority_name, key).add_extension(hosts, critical=False)
        _save(folder, file, builder.sign(authority_key, hashes.SHA256()), key)
    signer = rsa.generate_private_key(65537, 2048)
    _save_key(folder / "service-accounts.key", signer)


def _name(common: str, organization: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
    )


def _save(
    folder: Path, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    (folder / f"{file}.crt").write_bytes(certificate.public_bytes(_PEM))
    _save_key(folder / f"{file}.key", key)


def _save_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    traditional = serialization.PrivateFormat.TraditionalOpenSSL
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(_PEM, traditional, _PLAIN))
