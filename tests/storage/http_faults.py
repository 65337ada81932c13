"""An HTTP proxy that answers some requests as a troubled object store does.

It stands in front of a `FaultyProxy`, which knows bytes and not requests.
"""

import http.client
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_CODES = {409: "ConditionalRequestConflict", 412: "PreconditionFailed", 500: "InternalError",
          503: "SlowDown", 403: "SignatureDoesNotMatch"}  # fmt: skip


@dataclass
class Fault:
    """What befalls the next requests of a method.

    Attributes:
        status: The proxy answers so, and the store sees nothing; 0: the store answers.
        code: As S3 names the error; empty: that which goes with the status.
        more: XML that the answer holds beside the code.
        loses_answer: The store does it, and the connection is reset before its answer.
        cuts_body: The connection is reset in the middle of the answer's body.
    """

    method: str
    times: int = 1
    status: int = 0
    code: str = ""
    more: str = ""
    loses_answer: bool = False
    cuts_body: bool = False


@dataclass
class _Plan:
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.method == method and fault.times:
                    fault.times -= 1
                    return fault
        return None


class FaultyStore:
    """Forwards requests to `target` and does to them what `plan` says."""

    def __init__(self, target: Callable[[], str]) -> None:
        self._plan = _Plan()
        plan = self._plan

        class Handler(_Handler):
            pass

        Handler.plan, Handler.target = plan, staticmethod(target)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[str]:
        """Method and path of each request since `calm`."""
        return list(self._plan.requests)

    def trouble(self, *faults: Fault) -> None:
        """Plans faults for the requests that come, and forgets earlier ones."""
        with self._plan.lock:
            self._plan.faults = list(faults)
            self._plan.requests.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else an answer of two pieces takes 40 ms.
    disable_nagle_algorithm = True
    plan: Any
    target: Any

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.plan.next(self.command, self.path)
        if fault is not None and fault.status:
            self._answer(fault)
            return
        host, _, port = self.target().rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            # The signature covers the name that the caller used.
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._reset()
            return
        finally:
            connection.close()
        if fault is not None and fault.loses_answer:
            self._reset()
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if fault is not None and fault.cuts_body:
            self.wfile.write(content[: len(content) // 2])
            self._reset()
            return
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _answer(self, fault: Fault) -> None:
        code = fault.code or _CODES[fault.status]
        content = f"<Code>{code}</Code><Message>planned</Message>{fault.more}"
        body = f"<Error>{content}</Error>".encode()
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        pass

    def finish(self) -> None:
        if self.connection.fileno() != -1:
            super().finish()
