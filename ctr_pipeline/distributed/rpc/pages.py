"""Pages over HTTP behind a secret: a master serves those of its job, `ctrpipe ui` those of a run.

A server answers `GET` and nothing else, and only to whoever its gate lets through.
"""

import hmac
import http.client
import logging
import secrets
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import TlsFiles, role_name
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.errors import CtrPipelineError

_LOGGER = logging.getLogger(__name__)
_SECONDS = 10.0
"""Time in which a request comes, and an answer goes."""
_LOOK_SECONDS = 0.05
"""Within which a server sees that it is to end."""
_MOST_CALLERS = 16
_LONGEST_PAGE = 1 << 26
_KEPT_SECONDS = 1.0
_TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
        kind: Its media type.
        headers: Beside those of every answer.
    """

    body: bytes
    kind: str = _TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Pages = Mapping[str, Callable[[], Reply]]
"""Pages by their paths; one is made when it is asked for."""


class Gate(Protocol):
    """The rule of who may see pages."""

    def stop(self, path: str, headers: Mapping[str, str]) -> Reply | None:
        """The answer to a request that goes no further; None lets it through."""


class TokenGate:
    """Lets through whoever shows the token of a job, as `Authorization: Bearer TOKEN`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def stop(self, path: str, headers: Mapping[str, str]) -> Reply | None:
        """As `Gate.stop`."""
        del path
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._access.admits(token.strip()):
            return None
        return Reply(
            b"The token of the job is missing or wrong; 'ctrpipe ui' opens this page\n",
            status=401,
            headers={"WWW-Authenticate": "Bearer"},
        )


class SessionGate:
    """Lets through the browser that opened `opening_path`, which works once.

    So an address that stays in a history or a log opens nothing.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(32)
        self._cookie = f"ctrpipe-{secrets.token_hex(4)}"
        self._code = secrets.token_urlsafe(32)
        self._lock = threading.Lock()

    @property
    def opening_path(self) -> str:
        """What a browser opens first."""
        return f"/open/{self._code}"

    def stop(self, path: str, headers: Mapping[str, str]) -> Reply | None:
        """As `Gate.stop`."""
        if self._is_known(headers.get("Cookie", "")):
            return _MOVE_ON if path.startswith("/open/") else None
        with self._lock:
            is_first = bool(self._code) and _are_equal(path, self.opening_path)
            if is_first:
                self._code = ""
        if not is_first:
            text = b"This address was opened before: run 'ctrpipe ui' again for another one\n"
            return Reply(text, status=401)
        cookie = f"{self._cookie}={self._secret}; Path=/; HttpOnly; SameSite=Strict"
        return Reply(
            _MOVE_ON.body, _MOVE_ON.kind, headers={"Set-Cookie": cookie, **_MOVE_ON.headers}
        )

    def _is_known(self, cookies: str) -> bool:
        try:
            found = SimpleCookie(cookies).get(self._cookie)
        except CookieError:
            return False
        return found is not None and _are_equal(found.value, self._secret)


_MOVE_ON = Reply(
    # Not a redirection: after one from another site, a browser would keep the cookie back.
    b'<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>ctrpipe</title>\n',
    "text/html; charset=utf-8",
    headers={"Content-Security-Policy": "default-src 'none'"},
)


def _are_equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def kept_for_a_moment(
    make: Callable[[], Reply], *, clock: Callable[[], float] = time.monotonic
) -> Callable[[], Reply]:
    """Makes a page once a second at most, however many look at it."""
    lock, made = threading.Lock(), list[tuple[float, Reply]]()

    def make_or_take() -> Reply:
        with lock:
            if not made or clock() - made[0][0] >= _KEPT_SECONDS:
                made[:] = [(clock(), make())]
            return made[0][1]

    return make_or_take


@contextmanager
def serve_pages(
    pages: Pages, gate: Gate, *, host: str, port: int = 0, tls: TlsFiles | None = None
) -> Iterator[str]:
    """Serves pages while the block runs; gives `host:port`.

    Args:
        host: To bind.
        port: 0: a free one.
        tls: For mutual TLS, where others than this machine reach the host.

    Raises:
        CtrPipelineError: The address cannot be bound.
    """
    try:
        server = _Server((host, port), pages, gate, tls)
    except OSError as error:
        raise CtrPipelineError(
            f"pages cannot be served on ({error.strerror})", place=f"{host}:{port}"
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, args=(_LOOK_SECONDS,), name="pages", daemon=True
    )
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A page that is being sent does not keep its server from ending.
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], pages: Pages, gate: Gate, tls: TlsFiles | None
    ) -> None:
        self.pages, self.gate = pages, gate
        self._tls = None if tls is None else _context(tls, ssl.PROTOCOL_TLS_SERVER)
        self._places = threading.BoundedSemaphore(_MOST_CALLERS)
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        found, address = super().get_request()
        found.settimeout(_SECONDS)
        if self._tls is not None:
            # With the first byte that is read, in the thread of the call.
            found = self._tls.wrap_socket(found, server_side=True, do_handshake_on_connect=False)
        return found, address

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # The system allows no more threads.
            self._places.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        _LOGGER.debug("a caller of pages at %s failed: %s", client_address, sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "ctrpipe"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        reply = self.server.gate.stop(path, dict(self.headers.items()))
        if reply is None:
            reply = self._make(path)
        self._send(reply)

    def _make(self, path: str) -> Reply:
        make = self.server.pages.get(path)
        if make is None:
            return Reply(b"There is no such page\n", status=404)
        try:
            return make()
        except CtrPipelineError as error:
            return Reply(f"{error}\n".encode("utf-8", "replace"), status=503)
        except Exception:
            _LOGGER.exception("a page could not be made")
            return Reply(b"The page could not be made; the log says why\n", status=500)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in {**_HEADERS, **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def _refuse_method(self) -> None:
        self._send(Reply(b"Pages are only read\n", status=405, headers={"Allow": "GET"}))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _refuse_method

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the path that opens a session is a secret."""


def fetch_page(access: Access, path: str, *, connect: Callable[[], socket.socket]) -> Reply:
    """A page of a master.

    Args:
        access: Secrets of the job.
        connect: A new connection to where its pages are served.

    Raises:
        PeerUnavailable: Nobody serves it there.
    """
    try:
        connection = http.client.HTTPConnection("localhost", timeout=_SECONDS)
        connection.sock = _secured(connect(), access)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {access.token}"})
            answer = connection.getresponse()
            body = answer.read(_LONGEST_PAGE)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise PeerUnavailable(f"the page of the job cannot be reached ({error})") from error
    headers = {name: value for name, value in answer.getheaders() if name in _PASSED_ON}
    return Reply(body, answer.headers.get("Content-Type", _TEXT), answer.status, headers)


_PASSED_ON = frozenset({"Content-Security-Policy"})


def _secured(found: socket.socket, access: Access) -> socket.socket:
    if access.tls is None:
        return found
    context = _context(access.tls, ssl.PROTOCOL_TLS_CLIENT)
    return context.wrap_socket(found, server_hostname=role_name("master"))


def _context(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    """Mutual TLS among the members of a job."""
    context = ssl.SSLContext(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=files.authority.decode("ascii"))
    # OpenSSL reads keys from files only; this one is its owner's alone, for a moment.
    with tempfile.NamedTemporaryFile() as file:
        file.write(files.certificate + files.key)
        file.flush()
        context.load_cert_chain(file.name)
    return context
