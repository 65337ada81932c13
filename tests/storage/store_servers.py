"""Real S3 servers for tests, on loopback ports of their own: moto and SeaweedFS.

They are installed by `make stores`, in an environment of their own; `CTRPIPE_STORES` may name
another one. A command runs beside one of them, with its variables in the environment, by

    python -m tests.storage.store_servers seaweedfs ctrpipe run CONFIG --set output=s3://BUCKET/run

where BUCKET is `runs-of-tests`.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import obstore
from obstore.store import S3Store

from ctr_pipeline.distributed.launchers.processes import parent_death

_START_SECONDS = 60.0
BUCKET = "runs-of-tests"
KEY_ID = "AKIDOFTESTS"
SECRET = "secret-of-tests"  # noqa: S105
SERVERS = ("moto", "seaweedfs")


def find_program(name: str) -> Path | None:
    """A program of the environment of servers; None where it is not installed."""
    folder = Path(os.environ.get("CTRPIPE_STORES") or Path(sys.prefix, "stores"))
    program = folder / "bin" / name
    return program if program.exists() else None


@contextmanager
def serve(server: str, folder: Path) -> Iterator[str]:
    """Runs one of `SERVERS` with an empty bucket and yields its `host:port`."""
    port, *others = free_ports(10)
    if server == "moto":
        program, arguments = "moto_server", ["-H", "127.0.0.1", "-p", str(port)]
    else:
        program, arguments = "weed", _seaweedfs_arguments(folder, port, others)
    path = find_program(program)
    assert path is not None
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            # gRPC's handlers of forks may hang a child that runs Python before it is the program.
            [sys.executable, "-I", parent_death.__file__, str(os.getpid()), path, *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        _create_bucket(server, f"127.0.0.1:{port}", process)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def variables_of(address: str) -> dict[str, str]:
    """What the environment of a client of a server holds.

    Args:
        address: `host:port`.
    """
    return {
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody has, and that the system gives to nobody."""
    found: set[int] = set()
    while len(found) < count:
        # Below those that it takes for connections, of which tests open many.
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)


def _seaweedfs_arguments(folder: Path, port: int, others: list[int]) -> list[str]:
    rights = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
        "actions": rights,
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    names = (
        "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
        "filer.port", "filer.port.grpc", "s3.port.grpc",
    )  # fmt: skip
    return [
        "server", "-filer", "-s3", f"-s3.port={port}", f"-dir={folder / 'data'}",
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64", "-volume.max=100", f"-s3.config={folder / 's3.json'}",
        "-s3.port.iceberg=0", "-s3.port.lance=0",
        *(f"-{name}={other}" for name, other in zip(names, others, strict=False)),
    ]  # fmt: skip


def _create_bucket(server: str, address: str, process: "subprocess.Popen[bytes]") -> None:
    """Waits for the server, and for its bucket."""
    end = time.monotonic() + _START_SECONDS
    while True:
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < end, "the server does not start"
        try:
            if server == "moto":
                request = urllib.request.Request(f"http://{address}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()  # noqa: S310
            else:
                # It creates the bucket of the first object that its administrator puts.
                _put_first_object(address)
        except (OSError, obstore.exceptions.BaseError):
            time.sleep(0.2)
        else:
            return


def _put_first_object(address: str) -> None:
    store = S3Store(
        BUCKET,
        endpoint=f"http://{address}",
        access_key_id=KEY_ID,
        secret_access_key=SECRET,
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    obstore.put(store, "first", b"")
    obstore.delete(store, "first")


def _main() -> int:
    server, *command = sys.argv[1:]
    if find_program("weed" if server == "seaweedfs" else "moto_server") is None:
        sys.exit("There are no servers: run 'make stores'")
    with tempfile.TemporaryDirectory() as folder, serve(server, Path(folder)) as address:
        return subprocess.run(
            command, check=False, env={**os.environ, **variables_of(address)}
        ).returncode


if __name__ == "__main__":
    sys.exit(_main())
