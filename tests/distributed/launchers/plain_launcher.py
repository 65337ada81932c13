"""A launcher as somebody would add one: the port and nothing else, with one thread."""

import os
import secrets
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    LauncherContext,
    MemberStart,
    ProcessState,
)
from ctr_pipeline.distributed.launchers.exits import classify_exit
from ctr_pipeline.distributed.launchers.restarts import KeptRunning

TAIL_BYTES = 4096


LOOK_SECONDS = 0.02


@dataclass
class Started:
    """The newest process of a member."""

    start: MemberStart
    process: subprocess.Popen
    log_path: Path
    log_begin: int
    restarts: int
    began: float
    is_stopped: bool = False
    kill_at: float | None = None
    end: tuple | None = None

    def tail(self):
        with self.log_path.open("rb") as file:
            file.seek(max(self.log_begin, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()

    def state(self):
        exit_code, reason, tail = self.end or (None, None, "")
        return ProcessState(
            role=self.start.role,
            index=self.start.index,
            incarnation=self.start.incarnation,
            pid=self.process.pid,
            running=self.end is None,
            exit_code=exit_code,
            reason=reason,
            traceback=tail,
            restarts=self.restarts,
        )


class PlainLauncher:
    """Members are children of this process."""

    def __init__(self, context: LauncherContext) -> None:
        self._context = context
        self._lock = threading.RLock()
        self._members = {}
        self._master = KeptRunning("master-0")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        context.logs_folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def start(self, role, index):
        with self._lock:
            earlier = self._members.get((role, index))
            if self._over.is_set() or (earlier is not None and earlier.end is None):
                return
            restarts = 0 if earlier is None else earlier.restarts + 1
            start = MemberStart(role, index, secrets.token_hex(8))
            path = self._context.logs_folder / f"{role}-{index}.log"
            with path.open("ab") as log:
                # Before it starts: what it writes moves this position too.
                begin = log.tell()
                try:
                    process = subprocess.Popen(
                        [sys.executable, *self._context.commands.member(start)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={**os.environ, **self._context.environment},
                        start_new_session=True,
                    )
                except BlockingIOError as error:
                    raise LauncherBusyError(str(error)) from error
                except OSError as error:
                    raise CannotLaunchError(str(error)) from error
            self._members[role, index] = Started(
                start, process, path, begin, restarts, time.monotonic()
            )
            if role == "master":
                self._master.start()

    def stop(self, role, index, incarnation, *, grace_seconds):
        with self._lock:
            member = self._members.get((role, index))
            if member is not None and member.start.incarnation == incarnation:
                self._stop(member, grace_seconds)

    def observe(self):
        with self._lock:
            return tuple(member.state() for member in self._members.values())

    def failure(self):
        with self._lock:
            return self._master.failure

    def is_followed(self):
        return False

    def publish(self, news):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self._lock:
            self._over.set()
            for member in self._members.values():
                self._stop(member, self._context.closing_seconds)
        self._thread.join()

    def _stop(self, member, grace_seconds):
        if member.start.role == "master":
            self._master.stop()
        if member.end is None:
            member.is_stopped = True
            member.process.terminate()
            member.kill_at = time.monotonic() + grace_seconds

    def _watch(self):
        while True:
            with self._lock:
                for member in self._members.values():
                    if member.end is None:
                        self._look(member, time.monotonic())
                if self._over.is_set() and all(one.end for one in self._members.values()):
                    return
                due = self._master.restart_at
                if due is not None and due <= time.monotonic():
                    self._master.restart_at = None
                    self.start("master", 0)
            time.sleep(LOOK_SECONDS)

    def _look(self, member, now):
        if member.kill_at is not None and member.kill_at <= now:
            member.process.kill()
        exit_code = member.process.poll()
        if exit_code is None:
            return
        reason = classify_exit(exit_code, stopped=member.is_stopped, oom_kills=0)
        member.end = (exit_code, reason, member.tail())
        if member.start.role == "master":
            self._master.end(
                reason,
                exit_code,
                lived_seconds=now - member.began,
                now=now,
                tail=member.end[2],
            )
