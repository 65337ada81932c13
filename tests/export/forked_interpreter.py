"""Stands in for an interpreter whose scripts import TensorFlow: it is there already.

Importing TensorFlow takes more processor time than all else of a small run. `serve` imports a
script once and forks a process for each `ask`, which hands over its standard streams and folder and
ends with the status of that process.
"""

import importlib.util
import os
import resource
import select
import signal
import socket
import sys
import traceback
from pathlib import Path

_LONGEST_FOLDER = 4096


def serve(listening: str, script: str) -> None:
    """Runs a script for all who ask at a Unix socket, an open file, until standard input ends."""
    # Who asks first may be a test of a full disk, whose limit is not that of the others.
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    with socket.socket(fileno=int(listening)) as listener:
        spec = importlib.util.spec_from_file_location("script", script)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forked ones
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
            with listener.accept()[0] as connection:
                if os.fork() == 0:
                    run(module, connection)


def run(module, connection: socket.socket) -> None:
    """Runs the script in this process with the streams and folder of who asks, and ends it."""
    folder, streams, _, _ = socket.recv_fds(connection, _LONGEST_FOLDER, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    status = 1
    try:
        os.chdir(folder)
        module.run()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the status tells
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        connection.send(bytes([status]))
        os._exit(status)


def ask(address: str) -> int:
    """Has the script run; returns its status, or 70 if it ended without one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [os.fsencode(Path.cwd())], [0, 1, 2])
        return (connection.recv(1) or b"F")[0]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        sys.exit(ask(sys.argv[2]))
