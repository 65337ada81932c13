"""The members of a job as programs: the code that runs for each role.

The code of a role is imported when it runs: a master stays small because it never loads what a
worker needs.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline.errors import CtrPipelineError, RunFolderError
from ctr_pipeline.specs.launchers import MODES_WITH_MEMBERS
from ctr_pipeline.tracebacks import render_traceback

if TYPE_CHECKING:
    from ctr_pipeline.config import LoadedConfig
    from ctr_pipeline.distributed.master.program import PagesOfJob
    from ctr_pipeline.distributed.rpc.certificates import Role

LOOPBACK_HOST = "127.0.0.1"

WAIT_SECONDS = 60.0
"""Longest wait for the first master, by default."""


class MemberOutOfMemory(CtrPipelineError):  # noqa: N818  named as the `ExitReason`
    """A member could not get the memory it needs; by its exit code, the launcher knows."""

    exit_code = 71


def run_as_master(
    loaded: "LoadedConfig",
    *,
    bind: str,
    launcher_address: str | None,
    pages: "PagesOfJob | None" = None,
) -> int:
    """Runs the master of a prepared job until the job ends; returns the exit code.

    Args:
        bind: `host:port` to serve on.
        launcher_address: `host:port` of the launcher; None: people start the other members.
        pages: Makes the pages that it serves; None: it serves none.

    Raises:
        CtrPipelineError: No job is prepared, its files cannot be read, or another master runs.
    """
    folder = require_job(loaded)

    def run() -> int:
        from ctr_pipeline.distributed.launchers.remote import RemoteLauncher
        from ctr_pipeline.distributed.master.program import run_master
        from ctr_pipeline.distributed.rpc.access import Access

        if launcher_address is None:
            with _in_use(folder):
                return run_master(folder, bind, pages=pages)
        launcher = RemoteLauncher(launcher_address, Access.load(folder / "job", "master"))
        try:
            return run_master(folder, bind, launcher, pages=pages)
        finally:
            launcher.close()

    return _with_traceback(run, "master")


@contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    """Locks the folder, so that other commands see that a job trains there.

    Where a launcher starts the master, `ctrpipe run` has locked it. If another process holds the
    lock, such as the master before this one, the ledger decides which of them is master. No
    leftovers are deleted: other members may be writing.
    """
    from ctr_pipeline.pipeline.run_folder import RunFolder

    with ExitStack() as stack:
        with suppress(RunFolderError):
            stack.enter_context(RunFolder(folder).locked(sweeps=False))
        yield


def run_as_parameter_server(
    loaded: "LoadedConfig",
    index: int,
    *,
    bind: str,
    advertise: str | None = None,
    master_address: str | None,
    incarnation: str | None,
    wait_seconds: float = WAIT_SECONDS,
) -> int:
    """Runs a parameter server until the master dismisses it; returns the exit code.

    Args:
        bind: `host:port` to serve on.
        advertise: `host:port` for other members; None: the address that it serves on.
        master_address: `host:port`; None: as announced in the run folder.
        incarnation: Name of this start, drawn by the launcher; None: a person started it.
        wait_seconds: Longest wait for the first master, if a person started it.

    Raises:
        CtrPipelineError: It cannot serve, the master refuses it, or there is no job to join.
    """
    if loaded.config.runtime.num_row_servers:
        return _with_traceback(
            lambda: _run_row_server(
                loaded, index, bind=bind, advertise=advertise, incarnation=incarnation
            ),
            f"ps-{index}",
        )
    folder = require_job(loaded)

    def run() -> int:
        if incarnation is None and not _can_join(folder, "ps", master_address, wait_seconds):
            return 0
        from ctr_pipeline.distributed.ps.program import run_ps

        return run_ps(
            folder, index, master_address, bind, advertise=advertise, incarnation=incarnation
        )

    return _with_traceback(run, f"ps-{index}")


def run_as_worker(
    loaded: "LoadedConfig",
    index: int,
    *,
    master_address: str | None,
    metrics_host: str = LOOPBACK_HOST,
    incarnation: str | None,
    wait_seconds: float = WAIT_SECONDS,
) -> int:
    """Runs a worker until nothing is left or the master dismisses it; returns the exit code.

    Args:
        master_address: `host:port`; None: as announced in the run folder.
        metrics_host: Address that its metrics are served on; with allreduce, what other workers
            ask it for.
        incarnation: Name of this start, drawn by the launcher; None: a person started it.
        wait_seconds: Longest wait for the first master, if a person started it.

    Raises:
        CtrPipelineError: The model or the data is wrong, the master refuses the worker, or there is
            no job to join.
    """
    if loaded.config.runtime.has_replicas:
        return _with_traceback(
            lambda: _run_replica(loaded, index, incarnation, host=metrics_host), f"worker-{index}"
        )
    folder = require_job(loaded)

    def run() -> int:
        if incarnation is None and not _can_join(folder, "worker", master_address, wait_seconds):
            return 0
        from ctr_pipeline.distributed.worker.program import run_worker
        from ctr_pipeline.pipeline.job.worker_model import build_worker_model

        return run_worker(
            folder,
            index,
            master_address,
            build=lambda: build_worker_model(loaded),
            incarnation=incarnation,
            host=metrics_host,
        )

    return _with_traceback(run, f"worker-{index}")


def run_on_units(loaded: "LoadedConfig", index: int, folder: Path, *, incarnation: str) -> int:
    """Runs a worker that prepares rows, or finishes a run, and does not train.

    Args:
        folder: Where the process that gives it units has announced itself.
        incarnation: Name of this start, drawn by the launcher.

    Returns:
        The exit code.

    Raises:
        CtrPipelineError: Nobody gives it units.
    """

    def run() -> int:
        from ctr_pipeline.pipeline.job.unit_work import work_for_run

        work_for_run(loaded, folder, incarnation)
        return 0

    return _with_traceback(run, f"worker-{index}")


def _run_replica(loaded: "LoadedConfig", index: int, incarnation: str | None, *, host: str) -> int:
    from ctr_pipeline.pipeline.job.replicas import run_replica

    return run_replica(loaded, index, incarnation, host=host)


def _run_row_server(
    loaded: "LoadedConfig",
    index: int,
    *,
    bind: str,
    advertise: str | None,
    incarnation: str | None,
) -> int:
    from ctr_pipeline.pipeline.job.row_servers import run_row_server

    return run_row_server(loaded, index, bind=bind, advertise=advertise, incarnation=incarnation)


def _can_join(folder: Path, role: "Role", master_address: str | None, wait_seconds: float) -> bool:
    """Waits for a job that a member can join; False if the job is finished."""
    from ctr_pipeline.pipeline.job import waiting
    from ctr_pipeline.pipeline.job.control import Job

    job = Job(folder, role)
    probe = waiting.JobProbe(job, master_address)
    return waiting.await_job(job, probe, wait_seconds=wait_seconds)


def load_worker_code() -> None:
    """Imports everything that a worker needs; starts no thread and computes nothing."""
    import ctr_pipeline.distributed.worker.program
    import ctr_pipeline.pipeline.job.worker_model  # noqa: F401


def require_job(loaded: "LoadedConfig") -> Path:
    """The run folder, if a job has been prepared there.

    Raises:
        RunFolderError: No job has been prepared.
    """
    folder = loaded.config.run_folder
    if loaded.config.runtime.has_replicas:
        raise RunFolderError(
            "runtime.strategy: allreduce has no master, and no parameter servers unless "
            "runtime.embeddings is hybrid",
            place=str(folder),
            remedy="'ctrpipe run' starts its workers; set strategy: parameter_servers for the "
            "others",
        )
    if not (folder / "job" / "spec.json").is_file():
        raise RunFolderError(
            "no job has been prepared here",
            place=str(folder),
            remedy=f"'ctrpipe run' with runtime.mode: {MODES_WITH_MEMBERS} prepares it and starts "
            "all members; 'ctrpipe train --prepare-only' starts none",
        )
    return folder


def _with_traceback(run: Callable[[], int], member: str) -> int:
    """Runs a member; writes the traceback of what ends it to its log, as the launcher shows it."""
    try:
        return run()
    except MemoryError as error:
        sys.stderr.write(render_traceback(error))
        raise MemberOutOfMemory(
            f"{member} is out of memory", remedy="Give it more, or lower train.batch_size"
        ) from None
    except CtrPipelineError:
        raise
    except Exception as error:
        # The command line shows only its last line, which is enough for people at a terminal.
        sys.stderr.write(render_traceback(error))
        raise
