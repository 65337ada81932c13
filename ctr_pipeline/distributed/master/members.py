"""The members of a job, started, stopped and watched through its launcher."""

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial

from ctr_pipeline.distributed.coordination.events import (
    ProcessesSeen,
    StartMember,
    StartRefused,
    StopMember,
)
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    MemberControl,
)
from ctr_pipeline.distributed.master.durable_job import LEDGER_AGAIN_SECONDS, DurableJob
from ctr_pipeline.distributed.master.ledger.store import LedgerLostError, LedgerUnavailableError
from ctr_pipeline.distributed.master.serial_executor import SerialExecutor
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable

_LOGGER = logging.getLogger(__name__)
_OBSERVE_EVERY_SECONDS = 0.2
_CLOSE_SECONDS = 5.0
_REPLACE_GRACE_SECONDS = 10.0
_AT_ONCE = 8
"""Calls of a launcher at a time: in a cluster, each takes a while."""


class Members:
    """Starts and stops members; tells the job which processes there are.

    Args:
        job: Is told of them.
        launcher: Starts and stops members; None: people do.
        delays: Pauses between tries, as of `backoff.delays`.
    """

    def __init__(
        self,
        job: DurableJob,
        launcher: MemberControl | None,
        delays: Callable[..., Iterator[float]],
    ) -> None:
        self._job = job
        self._launcher = launcher
        self._delays = delays
        # Changes of one member follow each other; those of others do not wait for them.
        self._executors = tuple(
            SerialExecutor("members", partial(job.stumble, "starting or stopping members"))
            for _ in range(_AT_ONCE)
        )
        self._starting: set[StartMember] = set()
        """Starts that wait or are under way."""
        self._observer: threading.Thread | None = None

    def watch(self) -> None:
        """Begins to tell the job of processes."""
        if self._launcher is not None:
            self._observer = threading.Thread(
                target=self._observe, args=(self._launcher,), name="observer", daemon=True
            )
            self._observer.start()

    def close(self) -> None:
        """Ends its threads; waits for what they are doing, but not for ever."""
        for executor in self._executors:
            executor.close(_CLOSE_SECONDS)
        if self._observer is not None:
            self._observer.join(_CLOSE_SECONDS)

    def change_soon(self, action: StartMember | StopMember) -> None:
        """Starts or stops a member; returns at once."""
        # A start that waits behind hundreds is asked for again meanwhile.
        if action in self._starting:
            return
        if isinstance(action, StartMember):
            self._starting.add(action)

        def change() -> None:
            try:
                self._change(action)
            finally:
                if isinstance(action, StartMember):
                    self._starting.discard(action)

        self._executor_of(action.index).put(change)

    def replace_soon(self, worker: int) -> None:
        """Has a worker's process end, after which the job asks for another one."""

        def replace() -> None:
            members = self._job.status().members
            name = next(
                (one.incarnation for one in members if (one.role, one.index) == ("worker", worker)),
                "",
            )
            self._change(StopMember("worker", worker, name, _REPLACE_GRACE_SECONDS))

        self._executor_of(worker).put(replace)

    def _executor_of(self, index: int) -> SerialExecutor:
        return self._executors[index % _AT_ONCE]

    def _change(self, action: StartMember | StopMember) -> None:
        launcher = self._launcher
        if launcher is None:
            verb = "start" if isinstance(action, StartMember) else "stop"
            _LOGGER.warning(
                "there is no launcher: please %s %s %d", verb, action.role, action.index
            )
            return
        pauses = self._delays(0.1, 2.0, 2.0, seed=action.index)
        while not self._job.closing.is_set():
            try:
                self._job.require_lock()
                if isinstance(action, StartMember):
                    launcher.start(action.role, action.index)
                else:
                    launcher.stop(
                        action.role,
                        action.index,
                        action.incarnation,
                        grace_seconds=action.grace_seconds,
                    )
            except LedgerUnavailableError:
                self._job.closing.wait(LEDGER_AGAIN_SECONDS)
            except PeerUnavailable as error:
                _LOGGER.warning("the launcher does not answer: %s", error)
                self._job.closing.wait(next(pauses))
            except (LauncherBusyError, CannotLaunchError) as error:
                if isinstance(action, StopMember):
                    # It is asked for again.
                    _LOGGER.warning("%s %d cannot be ended: %s", action.role, action.index, error)
                    return
                is_final = isinstance(error, CannotLaunchError)
                _LOGGER.warning("%s %d cannot be started: %s", action.role, action.index, error)
                self._job.submit_unless_gone(
                    StartRefused(action.role, action.index, str(error), is_final)
                )
                return
            except LedgerLostError:
                raise
            except Exception as error:
                if isinstance(action, StartMember):
                    self._job.submit_unless_gone(
                        StartRefused(action.role, action.index, str(error), is_final=False)
                    )
                raise
            else:
                return

    def _observe(self, launcher: MemberControl) -> None:
        is_silent, pauses, pause = False, self._observe_pauses(), _OBSERVE_EVERY_SECONDS
        while not self._job.closing.wait(pause):
            try:
                processes = launcher.observe()
            except PeerUnavailable as error:
                if not is_silent:
                    _LOGGER.warning("the launcher does not answer: %s", error)
                is_silent = True
            except Exception as error:  # noqa: BLE001  its next answer may be a better one
                self._job.stumble("watching processes", error)
                pause = next(pauses)
            else:
                is_silent, pauses, pause = False, self._observe_pauses(), _OBSERVE_EVERY_SECONDS
                self._job.submit_unless_gone(ProcessesSeen(processes))

    def _observe_pauses(self) -> Iterator[float]:
        return self._delays(_OBSERVE_EVERY_SECONDS, 2.0, 5.0, seed=0)
