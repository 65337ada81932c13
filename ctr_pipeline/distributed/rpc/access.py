"""The secrets of one job: a token that every call carries, and certificates for mutual TLS.

They are made when the job starts and live in files of its run folder that only its owner can read.
The authority that signs the job's certificate is made for this job and forgotten at once: nothing
else can ever be signed by it.
"""

import datetime
import hmac
import os
import secrets
import shutil
import socket
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from ctr_pipeline.durable import os_errors_explained, sync_folder
from ctr_pipeline.errors import RunFolderError

JOB_HOST_NAME = "job.ctrpipe.internal"
"""What a member's certificate proves: it belongs to this job, wherever it runs."""

_VALID_FOR = datetime.timedelta(days=30)
_CLOCKS_DIFFER_BY = datetime.timedelta(minutes=10)
_TLS_PREFIX = "tls-"
_REMEDY = "Start the job again with 'ctrpipe run --resume', which makes new ones"


@dataclass(frozen=True)
class TlsFiles:
    """Certificates of a job, PEM.

    Attributes:
        authority: Certificate of the job's own authority.
        certificate: Of its members.
        key: Theirs, secret.
    """

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Access:
    """What a member needs to be let in, and to let others in.

    Attributes:
        token: Shared by all members of the job, secret.
        tls: For mutual TLS; None: the loopback device is enough.
    """

    token: str = field(repr=False)
    tls: TlsFiles | None

    @classmethod
    def create(cls, job_folder: Path, tls: bool) -> "Access":
        """Makes new secrets; those of an earlier start of the job are void from then on.

        Raises:
            RunFolderError: The folder cannot be written.
        """
        # The token itself says whether TLS is meant, so that lost files are no way around it.
        token = (_TLS_PREFIX if tls else "open-") + secrets.token_urlsafe(32)
        made = _make_certificates() if tls else None
        folder = job_folder / "tls"
        with os_errors_explained(job_folder):
            job_folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            if made is not None:
                folder.mkdir(mode=0o700)
                _write_secret(folder / "ca.pem", made.authority)
                _write_secret(folder / "member.pem", made.certificate)
                _write_secret(folder / "member.key", made.key)
            _write_secret(job_folder / "token", token.encode("ascii") + b"\n")
        return cls(token=token, tls=made)

    @classmethod
    def load(cls, job_folder: Path) -> "Access":
        """The secrets of a job that was started.

        Raises:
            RunFolderError: A file is missing, unreadable or damaged, or a certificate has expired.
        """
        path = job_folder / "token"
        token = _read(path).decode("ascii", "replace").strip()
        if not token or not token.isascii() or not token.isprintable():
            raise RunFolderError("holds no token", place=str(path), remedy=_REMEDY)
        if not token.startswith(_TLS_PREFIX):
            return cls(token=token, tls=None)
        folder = job_folder / "tls"
        files = TlsFiles(
            authority=_read(folder / "ca.pem"),
            certificate=_read(folder / "member.pem"),
            key=_read(folder / "member.key"),
        )
        _check_certificates(files, folder)
        return cls(token=token, tls=files)

    def admits(self, token: str) -> bool:
        """Whether it is this job's token; takes as long for any wrong one."""
        return hmac.compare_digest(self.token.encode(), token.encode("utf-8", "replace"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        message = "is missing, so the members of the job cannot be reached"
        raise RunFolderError(message, place=str(path), remedy=_REMEDY) from None
    except OSError as error:
        message = f"cannot be read ({error.strerror or error})"
        remedy = "Run as the user who started the job, or check the permissions"
        raise RunFolderError(message, place=str(path), remedy=remedy) from error


def _write_secret(path: Path, content: bytes) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def _make_certificates() -> TlsFiles:
    """An authority, and one certificate of it that all members of the job show."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    member_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ctrpipe job authority")])
    member_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, JOB_HOST_NAME)])
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
            .not_valid_after(now + _VALID_FOR)
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
    host = socket.gethostname()
    names: list[x509.GeneralName] = [
        x509.DNSName(name)
        for name in dict.fromkeys((JOB_HOST_NAME, "localhost", host))
        if name and name.isascii()
    ]
    names += [x509.IPAddress(IPv4Address("127.0.0.1")), x509.IPAddress(IPv6Address("::1"))]
    member = (
        build(member_name, member_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **usage),
            critical=True,
        )
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_identifier),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return TlsFiles(
        authority=authority.public_bytes(pem),
        certificate=member.public_bytes(pem),
        key=member_key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def _check_certificates(files: TlsFiles, folder: Path) -> None:
    """Refuses what gRPC would only answer with a handshake that never succeeds."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    place = str(folder)
    try:
        authority = x509.load_pem_x509_certificate(files.authority)
        certificate = x509.load_pem_x509_certificate(files.certificate)
        key = load_pem_private_key(files.key, password=None)
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        message = "the certificates of the job are damaged"
        raise RunFolderError(message, place=place, remedy=_REMEDY) from None
    if key.public_key() != certificate.public_key():
        message = "member.key is not the key of member.pem"
        raise RunFolderError(message, place=place, remedy=_REMEDY)
    if datetime.datetime.now(datetime.UTC) > certificate.not_valid_after_utc:
        message = f"the certificates of the job expired on {certificate.not_valid_after_utc:%F}"
        raise RunFolderError(message, place=place, remedy=_REMEDY)
