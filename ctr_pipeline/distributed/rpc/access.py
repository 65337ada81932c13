"""The secrets of one job: a token that every call carries, and certificates for mutual TLS.

They are made when the job starts, anew at each start, and live in files of its run folder that only
its owner can read. There is a key for each role, so that a worker's cannot serve as the master. The
authority that signs the certificates is made for this job and forgotten at once: nothing else can
ever be signed by it.
"""

import hashlib
import hmac
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from ctr_pipeline.distributed.rpc.certificates import (
    Role,
    TlsFiles,
    fault_of,
    make_certificates,
)
from ctr_pipeline.durable import open_temporary, os_errors_explained, sync_folder
from ctr_pipeline.errors import CtrPipelineError, RunFolderError

SECRETS_VARIABLE = "CTRPIPE_SECRETS"
"""Environment variable with the folder of a job's secrets, where not its run folder holds them."""

_LAUNCH = "launch"
_TLS_PREFIX = "tls-"
_PLAIN_PREFIX = "plain-"
_LOOPBACK_PREFIX = "open-"
_REMEDY = "Start the job again with 'ctrpipe run --resume', which makes new ones"


@dataclass(frozen=True)
class Access:
    """What a member needs to be let in, and to let others in.

    Attributes:
        token: Shared by all members of the job, secret.
        tls: For mutual TLS; None: calls are not encrypted.
    """

    token: str = field(repr=False)
    tls: TlsFiles | None

    @classmethod
    def create(cls, job_folder: Path, tls: bool, *, insecure: bool = False) -> "Access":
        """Makes new secrets; those of an earlier start of the job are void from then on.

        Where whoever started this process gave it the secrets of its job, these are used. They stay
        the same from start to start, so a file tells the starts apart, until `end_launch`.

        Args:
            job_folder: Where they are kept.
            tls: Make certificates.
            insecure: Without them, let members talk across hosts all the same.

        Returns:
            The launcher's.

        Raises:
            RunFolderError: The folder cannot be written.
        """
        if SECRETS_VARIABLE in os.environ:
            with os_errors_explained(job_folder):
                job_folder.mkdir(parents=True, exist_ok=True)
                if not (job_folder / _LAUNCH).exists():
                    _write_secret(job_folder / _LAUNCH, secrets.token_hex(8).encode())
            return cls.load(job_folder, "launcher")
        # The token itself says whether TLS is meant, so that lost files are no way around it.
        prefix = _TLS_PREFIX if tls else _PLAIN_PREFIX if insecure else _LOOPBACK_PREFIX
        token = _draw_token(prefix)
        made = make_certificates() if tls else {}
        folder = job_folder / "tls"
        with os_errors_explained(job_folder):
            job_folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            if made:
                folder.mkdir(mode=0o700)
                _write_secret(folder / "ca.pem", made["launcher"].authority)
            for role, files in made.items():
                _write_secret(folder / f"{role}.pem", files.certificate)
                _write_secret(folder / f"{role}.key", files.key)
            _write_secret(job_folder / "token", token.encode("ascii") + b"\n")
        return cls(token=token, tls=made.get("launcher"))

    @classmethod
    def within_process(cls) -> "Access":
        """New secrets that are written nowhere, for threads of this process."""
        return cls(token=_LOOPBACK_PREFIX + secrets.token_urlsafe(32), tls=None)

    @classmethod
    def load(cls, job_folder: Path, role: Role) -> "Access":
        """The secrets of one role in a job that was started; those of the others may be absent.

        Raises:
            RunFolderError: A file is missing, unreadable or damaged, or a certificate has expired.
        """
        given = os.environ.get(SECRETS_VARIABLE)
        job_folder = Path(given) if given else job_folder
        path = job_folder / "token"
        token = _read(path).decode("ascii", "replace").strip()
        if not token or not token.isascii() or not token.isprintable():
            raise RunFolderError("holds no token", place=str(path), remedy=_REMEDY)
        if not token.startswith(_TLS_PREFIX):
            return cls(token=token, tls=None)
        folder = job_folder / "tls"
        files = TlsFiles(
            authority=_read(folder / "ca.pem"),
            certificate=_read(folder / f"{role}.pem"),
            key=_read(folder / f"{role}.key"),
        )
        fault = fault_of(files, role)
        if fault is not None:
            raise RunFolderError(fault, place=str(folder), remedy=_REMEDY)
        return cls(token=token, tls=files)

    @classmethod
    def of_files(cls, files: Mapping[str, bytes], role: Role = "client") -> "Access":
        """The secrets of one role, from what `make_secrets` made."""
        tls = TlsFiles(files["ca.pem"], files[f"{role}.pem"], files[f"{role}.key"])
        return cls(token=files["token"].decode("ascii").strip(), tls=tls)

    def require_protected(self, address: str) -> None:
        """Refuses an address beyond this machine for calls that are not encrypted.

        Raises:
            CtrPipelineError: The token would travel where others can read it.
        """
        if self.tls is not None or self.token.startswith(_PLAIN_PREFIX) or is_loopback(address):
            return
        raise CtrPipelineError(
            "is not an address of this machine alone, and the job has no TLS",
            place=address,
            remedy="Prepare the job with runtime.tls: auto, or with --insecure to send its secrets "
            "unencrypted",
        )

    def admits(self, token: str) -> bool:
        """Whether it is this job's token; takes as long for any wrong one."""
        return hmac.compare_digest(self.token.encode(), token.encode("utf-8", "replace"))


def name_launch(job_folder: Path, access: Access) -> str:
    """Names a start of the whole job; a master that is restarted finds the same name."""
    drawn = job_folder / _LAUNCH
    name = access.token.encode() + (drawn.read_bytes() if drawn.exists() else b"")
    return hashlib.sha256(name).hexdigest()[:16]


def end_launch(job_folder: Path) -> None:
    """The job ends or pauses, and not by a kill: what starts it again is another start."""
    (job_folder / _LAUNCH).unlink(missing_ok=True)


def make_secrets() -> dict[str, bytes]:
    """New secrets of a job with TLS, by the names of the files that `Access.load` reads."""
    made = make_certificates()
    files = {"token": _draw_token(_TLS_PREFIX).encode(), "ca.pem": made["launcher"].authority}
    for role, tls in made.items():
        files |= {f"{role}.pem": tls.certificate, f"{role}.key": tls.key}
    return files


def is_loopback(address: str) -> bool:
    """Whether what is sent to `host:port` stays on this machine; of names, `localhost` says so."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _draw_token(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(32)


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
    temporary, descriptor = open_temporary(path, mode=0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
