"""A real etcd server for tests, on loopback ports of its own, killed and stalled at will.

`find_etcd` looks for a binary: `CTRPIPE_ETCD`, the PATH, and the cache that `obtain_etcd` fills.
`obtain_etcd` installs nothing: it unpacks Debian's package, or builds the Go module, in the cache.

    python -m tests.etcd.etcd_server     # obtains one and prints where it is
"""

import base64
import contextlib
import datetime
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ctr_pipeline.distributed.launchers.processes import parent_death

GO_MODULE = "go.etcd.io/etcd/server/v3"
GO_VERSION = "v3.6.8"
_GO_MAIN = f"""package main

import (
	"os"

	"{GO_MODULE}/etcdmain"
)

func main() {{ etcdmain.Main(os.Args) }}
"""
_START_SECONDS = 30.0


class NoEtcd(Exception):
    """There is no etcd to be had; says what was tried."""


def cache_folder() -> Path:
    """Where an obtained binary is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ctrpipe" / "etcd"


def find_etcd() -> Path | None:
    """A binary that is there already.

    Raises:
        NoEtcd: `CTRPIPE_ETCD` names something that cannot be run.
    """
    if named := os.environ.get("CTRPIPE_ETCD"):
        path = shutil.which(named)
        if path is None:
            raise NoEtcd(f"CTRPIPE_ETCD names '{named}', which cannot be run")
        return Path(path)
    if found := shutil.which("etcd"):
        return Path(found)
    cached = cache_folder() / "bin" / "etcd"
    return cached if cached.exists() else None


def obtain_etcd() -> Path:
    """A binary that is there, or made now: from Debian's package, or from the Go module.

    Raises:
        NoEtcd: None of the ways worked.
    """
    if found := find_etcd():
        return found
    failures = []
    target = cache_folder() / "bin" / "etcd"
    target.parent.mkdir(parents=True, exist_ok=True)
    for make in (_from_debian, _from_go):
        with tempfile.TemporaryDirectory(prefix="etcd-", dir=cache_folder()) as folder:
            try:
                made = make(Path(folder))
            except (OSError, NoEtcd, subprocess.TimeoutExpired) as error:
                failures.append(f"{make.__name__.removeprefix('_')}: {error}")
                continue
            made.replace(target)
            return target
    raise NoEtcd("no etcd can be had: " + "; ".join(failures))


def _from_debian(folder: Path) -> Path:
    # 'apt-get download' needs no rights, only lists of packages; those only root can renew.
    command = ["apt-get", "download", "etcd-server"]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        _run(command, folder, environment)
    except NoEtcd:
        if os.geteuid() != 0:
            raise
        _run(["apt-get", "update"], folder, environment)
        _run(command, folder, environment)
    (package,) = folder.glob("*.deb")
    _run(["dpkg-deb", "--extract", str(package), "content"], folder, environment)
    return folder / "content" / "usr" / "bin" / "etcd"


def _from_go(folder: Path) -> Path:
    go = shutil.which("go") or "/usr/local/go/bin/go"
    (folder / "main.go").write_text(_GO_MAIN, encoding="utf-8")
    environment = {**os.environ, "GOFLAGS": "-mod=mod"}
    _run([go, "mod", "init", "example.com/etcd"], folder, environment)
    _run([go, "get", f"{GO_MODULE}@{GO_VERSION}"], folder, environment)
    _run([go, "build", "-o", "etcd", "."], folder, environment)
    return folder / "etcd"


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise NoEtcd(f"'{' '.join(command)}' failed: {lines[-1]}")


def make_certificates(folder: Path) -> None:
    """An authority, and a certificate of 127.0.0.1 that servers and clients may use."""
    folder.mkdir(parents=True)
    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=10)
    ends = begins + datetime.timedelta(days=1)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "etcd for tests")])
    signer, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def build(public: ec.EllipticCurvePublicKey, subject: x509.Name) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )

    authority = (
        build(signer.public_key(), name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(signer, hashes.SHA256())
    )
    member_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "member")])
    hosts = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    member = build(key.public_key(), member_name).add_extension(hosts, critical=False)
    signed = member.sign(signer, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(authority.public_bytes(pem))
    (folder / "member.pem").write_bytes(signed.public_bytes(pem))
    (folder / "member.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def free_port() -> int:
    """A loopback port that nobody has at this moment, and that the system gives to nobody."""
    while True:
        # Below those that it takes for connections, of which tests open many.
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def call_gateway(url: str, path: str, body: object) -> dict[str, Any]:
    """A call of etcd's JSON gateway, by other means than the product's."""
    request = urllib.request.Request(f"{url}/v3{path}", json.dumps(body).encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
        content: dict[str, Any] = json.load(answer)
        return content


def as_base64(text: str) -> str:
    """Keys and values as the gateway wants them."""
    return base64.b64encode(text.encode()).decode()


def read_keys(url: str, prefix: str) -> dict[str, bytes]:
    """All keys that begin with a prefix that ends with a slash."""
    body = {"key": as_base64(prefix), "range_end": as_base64(prefix[:-1] + "0")}
    return {
        base64.b64decode(entry["key"]).decode(): base64.b64decode(entry.get("value", ""))
        for entry in call_gateway(url, "/kv/range", body).get("kvs", [])
    }


def delete_keys(url: str, prefix: str, *, ending: str) -> int:
    """Deletes the keys below a prefix that end so; returns how many there were."""
    found = [key for key in read_keys(url, prefix) if key.endswith(ending)]
    for key in found:
        call_gateway(url, "/kv/deleterange", {"key": as_base64(key)})
    return len(found)


class EtcdServer:
    """One etcd member; its data outlive `kill` and `start`, and go with `close`.

    Args:
        binary: From `find_etcd` or `obtain_etcd`.
        folder: For its data and its log.
        tls: Where `make_certificates` has been: it lets in only those with a certificate.
    """

    def __init__(self, binary: Path, folder: Path, tls: Path | None = None) -> None:
        self._binary = binary
        self._tls = tls
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._client_port = free_port()
        self._peer_port = free_port()

    @property
    def url(self) -> str:
        """Of its clients."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._client_port}"

    @property
    def port(self) -> int:
        """Of its clients."""
        return self._client_port

    @property
    def log(self) -> Path:
        """What it printed."""
        return self._folder / "etcd.log"

    def __enter__(self) -> "EtcdServer":
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts it, or starts it again on the same ports and data; returns once it answers."""
        assert self._process is None, "it runs already"
        self._folder.mkdir(parents=True, exist_ok=True)
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = [
            str(self._binary),
            *("--name", "test", "--data-dir", str(self._folder / "data")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"test={peer}"),
            # A member alone elects itself; the shorter, the sooner it answers.
            *("--heartbeat-interval", "50", "--election-timeout", "500"),
        ]
        if self._tls is not None:
            certificate = ("--cert-file", str(self._tls / "member.pem"))
            key = ("--key-file", str(self._tls / "member.key"))
            authority = ("--trusted-ca-file", str(self._tls / "ca.pem"))
            command += [*certificate, *key, *authority, "--client-cert-auth"]
        environment = {key: value for key, value in os.environ.items() if key[:5] != "ETCD_"}
        # The signal comes with the end of the thread that started the process.
        in_main = threading.current_thread() is threading.main_thread()
        # gRPC's handlers of forks may hang a child that runs Python before it is the program.
        if in_main:
            command = [sys.executable, "-I", parent_death.__file__, str(os.getpid()), *command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=environment,
            )
        self._wait_until_it_answers()

    def kill(self) -> None:
        """`kill -9`."""
        process = self._take_process()
        process.kill()
        process.wait()

    def restart(self) -> None:
        """`kill -9` and start."""
        self.kill()
        self.start()

    def stall(self) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # The signal takes effect thread by thread; until all have stopped it may still answer.
        tasks = Path(f"/proc/{self._process.pid}/task")
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            states = [
                (task / "stat").read_text().rpartition(")")[2].split()[0]
                for task in tasks.iterdir()
            ]
            if all(state in "Tt" for state in states):
                return
            time.sleep(0.005)
        raise TimeoutError("etcd did not stop")

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends it, whatever state it is in."""
        if self._process is not None:
            self.kill()

    def _take_process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "it does not run"
        process, self._process = self._process, None
        return process

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        context = None
        if self._tls is not None:
            context = ssl.create_default_context(cafile=str(self._tls / "ca.pem"))
            context.load_cert_chain(self._tls / "member.pem", self._tls / "member.key")
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                self._process = None
                break
            try:
                health = f"{self.url}/health"
                with urllib.request.urlopen(health, timeout=1, context=context) as answer:  # noqa: S310
                    if b'"true"' in answer.read():
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        self.close()
        raise RuntimeError(f"etcd does not start: {self.log.read_text(errors='replace')[-2000:]}")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{obtain_etcd()}\n")
    except NoEtcd as error:
        sys.exit(str(error))
