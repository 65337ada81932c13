"""Calls of etcd's JSON gateway, and what goes into its transactions."""

import base64
import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from ctr_pipeline.distributed.master.ledger.store import (
    LedgerDamagedError,
    LedgerError,
    LedgerUnavailableError,
)

Operation = dict[str, Any]
"""A condition, or an operation, of a transaction."""

_DEFAULT_PORT = 2379
_PAGE_KEYS = 1000
_TOKEN_HEADER = "Authorization"  # noqa: S105  names a header


@dataclass(frozen=True)
class EtcdAccess:
    """What etcd wants to see before it answers.

    Attributes:
        authority: PEM file of the authorities that may have signed etcd's certificate; None: those
            that requests knows.
        certificate: PEM file of our own certificate; None: there is none.
        key: PEM file of its key.
        user: The user of etcd; empty: etcd asks for none.
    """

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    def as_user_of_environment(self) -> "EtcdAccess":
        """The access of the user and password in the environment, which no file should hold."""
        return replace(
            self,
            user=os.environ.get("CTRPIPE_ETCD_USER", ""),
            password=os.environ.get("CTRPIPE_ETCD_PASSWORD", ""),
        )


OPEN_TO_ALL = EtcdAccess()


class EtcdGateway:
    """Calls of etcd's JSON gateway, with errors of ours; for one thread at a time.

    Args:
        url: URL of etcd's client port.
        call_seconds: For etcd to answer a call.
        access: Certificates and credentials.

    Raises:
        LedgerError: The address is none.
    """

    def __init__(self, url: str, call_seconds: float, access: EtcdAccess = OPEN_TO_ALL) -> None:
        # 12 MB and a fifth of a second that only a job with etcd pays.
        try:
            import requests
            from etcd3gw.client import Etcd3Client
        except ImportError as error:
            raise LedgerError(
                "a ledger in etcd needs the package etcd3gw, which is not installed",
                place=url,
                remedy="Run: pip install 'ctrpipe[etcd]'",
            ) from error

        host, port, scheme = _parse_url(url)
        session = requests.Session()
        # Variables of the environment send nothing of the ledger through a proxy.
        session.trust_env = False
        if access.authority is not None:
            session.verify = access.authority
        if access.certificate is not None and access.key is not None:
            session.cert = (access.certificate, access.key)
        self._access = access
        self._url = url
        self._session = session
        self._client = Etcd3Client(
            host=host, port=port, protocol=scheme, timeout=call_seconds, session=session
        )
        self.was_reset = False
        """The last call ended with its connection: etcd may have restarted and be there again."""

    def close(self) -> None:
        """Closes connections."""
        self._session.close()

    def call(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """One POST; its answer."""
        if not self._access.user:
            return self._post(path, body)
        was_known = _TOKEN_HEADER in self._session.headers
        if not was_known:
            self._log_in()
        try:
            return self._post(path, body)
        except LedgerUnavailableError as error:
            # Tokens are forgotten after some minutes, and when etcd is started again.
            if not was_known or "auth" not in error.message:
                raise
        self._log_in()
        return self._post(path, body)

    def _log_in(self) -> None:
        self._session.headers.pop(_TOKEN_HEADER, None)
        answer = self._post(
            "/auth/authenticate", {"name": self._access.user, "password": self._access.password}
        )
        self._session.headers[_TOKEN_HEADER] = str(answer.get("token", ""))

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        client = self._client
        return self._explained(lambda: client.post(client.get_url(path), json=body))

    def compact(self, revision: int) -> None:
        """Has etcd forget what was overwritten before a revision."""
        self.call("/kv/compaction", {"revision": revision})

    def transact(
        self,
        conditions: Sequence[Operation],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> Mapping[str, Any]:
        """One transaction; `succeeded` says which way it went."""
        body = {"compare": [*conditions], "success": [*then], "failure": [*otherwise]}
        return self.call("/kv/txn", body)

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Value and revision of creation of a key."""
        found = self.call("/kv/range", {"key": _base64(key)}).get("kvs", [])
        if not found:
            return None
        return base64.b64decode(found[0].get("value", "")), int(found[0]["create_revision"])

    def read_version(self, key: str) -> int:
        """How often a key was put since it was made; 0 if there is none."""
        found = self.call("/kv/range", {"key": _base64(key)}).get("kvs", [])
        return int(found[0]["version"]) if found else 0

    def _explained(self, call: Callable[[], Any]) -> Mapping[str, Any]:
        import requests
        from etcd3gw import exceptions

        self.was_reset = False
        try:
            answer = call()
        except exceptions.ConnectionTimeoutError as error:
            raise LedgerUnavailableError(
                "etcd does not answer in time", place=self._url, remedy="See whether it is well"
            ) from error
        except exceptions.ConnectionFailedError as error:
            self.was_reset = "aborted" in str(error) or "reset" in str(error)
            raise LedgerUnavailableError(
                "etcd cannot be reached",
                place=self._url,
                remedy="Start it, or correct runtime.ledger.etcd",
            ) from error
        except exceptions.Etcd3Exception as error:
            raise _refusal(error, self._url) from error
        except OSError as error:
            if isinstance(error, requests.RequestException):
                raise _no_etcd(error, self._url) from error
            # Of a file of certificates, before anything is sent.
            raise LedgerError(
                f"etcd cannot be asked ({error})",
                place="runtime.ledger",
                remedy="Correct its paths",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise _no_etcd(error, self._url) from error
        if not isinstance(answer, dict):
            raise LedgerUnavailableError("something that is not etcd answers", place=self._url)
        return answer


def _no_etcd(error: Exception, url: str) -> LedgerError:
    return LedgerUnavailableError(
        f"something that is not etcd answers ({type(error).__name__})",
        place=url,
        remedy="Correct runtime.ledger.etcd",
    )


def _refusal(error: Exception, url: str) -> LedgerError:
    detail = str(getattr(error, "detail_text", None) or error).strip()
    with contextlib.suppress(ValueError, AttributeError):
        detail = str(json.loads(detail).get("error", detail))
    if "space exceeded" in detail:
        return LedgerUnavailableError(
            "etcd has no space left",
            place=url,
            remedy="Compact and defragment it, or raise its --quota-backend-bytes",
        )
    return LedgerUnavailableError(f"etcd refuses: {detail[:300]}", place=url)


def _parse_url(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    wrong = LedgerError(
        "is no address of etcd",
        place=f"runtime.ledger.etcd, '{url}'",
        remedy="Write it as http://127.0.0.1:2379",
    )
    try:
        port = parts.port or _DEFAULT_PORT
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
        raise wrong
    if parts.username or parts.password or parts.query or parts.fragment:
        raise wrong
    return parts.hostname, port, parts.scheme


def read_folder(gateway: EtcdGateway, folder: str, place: str) -> dict[str, bytes]:
    """Values of all keys below a folder, by the rest of their name, as of one moment."""
    found: dict[str, bytes] = {}
    first, revision = folder.encode(), 0
    while True:
        body: dict[str, Any] = {
            "key": _base64(first),
            "range_end": _base64(_end_of(folder)),
            "limit": _PAGE_KEYS,
        }
        if revision:
            body["revision"] = revision
        page = gateway.call("/kv/range", body)
        try:
            revision = revision or int(page["header"]["revision"])
            for entry in page.get("kvs", []):
                key = base64.b64decode(entry["key"])
                found[key[len(folder.encode()) :].decode()] = base64.b64decode(
                    entry.get("value", "")
                )
                first = key + b"\0"
        except (KeyError, ValueError) as error:
            raise LedgerDamagedError(
                f"etcd's answer makes no sense ({error})", place=place
            ) from error
        if not page.get("more"):
            return found


def equals(key: str, target: str, field: str, value: int) -> Operation:
    """A condition on a field of a key."""
    return {"key": _base64(key), "target": target, "result": "EQUAL", field: value}


def put(key: str, value: bytes, *, lease: str | None = None) -> Operation:
    """Puts a value, under a lease if one is given."""
    body = {"key": _base64(key), "value": _base64(value)}
    if lease is not None:
        body["lease"] = lease
    return {"request_put": body}


def get(key: str) -> Operation:
    """Reads a key."""
    return {"request_range": {"key": _base64(key)}}


def delete(key: str) -> Operation:
    """Deletes a key."""
    return {"request_delete_range": {"key": _base64(key)}}


def delete_folder(folder: str) -> Operation:
    """Deletes all keys below a folder, whose name ends with a slash."""
    return {"request_delete_range": {"key": _base64(folder), "range_end": _base64(_end_of(folder))}}


def size_of(operation: Operation) -> int:
    """Bytes that an operation adds to its transaction."""
    (body,) = operation.values()
    # Base64 is a third longer than what it stands for.
    return sum(len(text) for text in body.values() if isinstance(text, str)) * 3 // 4


def _end_of(folder: str) -> bytes:
    """The first key after all below a folder, whose name ends with a slash."""
    return folder.encode()[:-1] + b"0"


def _base64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode("ascii")
