"""Certificates of a job: one for each role, of an authority that lives for a moment."""

import datetime
import socket
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Literal, get_args

Role = Literal["master", "ps", "worker", "launcher", "client"]
"""What a process is in a job; `client`: a command such as `ctrpipe status`."""

ROLES: tuple[Role, ...] = get_args(Role)

SERVING_ROLES: dict[str, Role] = {
    "MasterService": "master",
    "PsService": "ps",
    "LauncherService": "launcher",
    "RendezvousService": "master",
    "ReplicaService": "worker",
    "RowService": "ps",
}
"""Roles that may serve a service."""

_JOB_NAME = "job.ctrpipe.internal"
VALID_FOR = datetime.timedelta(days=3652)
"""Ten years, longer than any job: each start of a job makes new ones, and nothing else has to."""

_CLOCKS_DIFFER_BY = datetime.timedelta(minutes=10)


def role_name(role: Role) -> str:
    """The host name that a certificate of the role proves, wherever its owner runs."""
    return f"{role}.{_JOB_NAME}"


@dataclass(frozen=True)
class TlsFiles:
    """Certificates of one role in a job, PEM.

    Attributes:
        authority: Certificate of the job's own authority.
        key: Its key, secret.
    """

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)


def make_certificates() -> dict[Role, TlsFiles]:
    """An authority whose key nobody keeps, and a certificate of it for each role."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ctrpipe job authority")])
    key_identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    usage = {
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "encipher_only": False,
        "decipher_only": False,
    }

    def build(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCKS_DIFFER_BY)
            .not_valid_after(now + VALID_FOR)
        )

    authority = (
        build(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=True, **usage),
            critical=True,
        )
        .add_extension(key_identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    host = socket.gethostname()

    def certify(role: Role) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role_name(role))])
        names: list[x509.GeneralName] = [x509.DNSName(role_name(role))]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role in SERVING_ROLES.values():
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names += [
                x509.DNSName(name)
                for name in dict.fromkeys(("localhost", host))
                if name and name.isascii()
            ]
            names += [x509.IPAddress(IPv4Address("127.0.0.1")), x509.IPAddress(IPv6Address("::1"))]
        certificate = (
            build(subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **usage),
                critical=True,
            )
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_identifier),
                critical=False,
            )
            .sign(authority_key, hashes.SHA256())
        )
        return TlsFiles(
            authority=authority.public_bytes(pem),
            certificate=certificate.public_bytes(pem),
            key=key.private_bytes(
                pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    return {role: certify(role) for role in ROLES}


def fault_of(files: TlsFiles, role: Role) -> str | None:
    """What gRPC would only answer with a handshake that never succeeds; None if all is well."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        authority = x509.load_pem_x509_certificate(files.authority)
        certificate = x509.load_pem_x509_certificate(files.certificate)
        key = load_pem_private_key(files.key, password=None)
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return "the certificates of the job are damaged"
    if key.public_key() != certificate.public_key():
        return f"{role}.key is not the key of {role}.pem"
    if role_name(role) not in names.value.get_values_for_type(x509.DNSName):
        return f"{role}.pem is not the certificate of a {role}"
    if datetime.datetime.now(datetime.UTC) > certificate.not_valid_after_utc:
        return f"the certificates of the job expired on {certificate.not_valid_after_utc:%F}"
    return None
