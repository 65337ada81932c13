"""Which launcher starts the members of a job: an entry for each `runtime.mode` with members."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.pipeline.run_folder import RunFolder

if TYPE_CHECKING:
    from ctr_pipeline.distributed.rpc.access import Access
    from ctr_pipeline.pipeline.job.following import JobLauncher

LauncherFactory = Callable[[RunFolder, "Access"], AbstractContextManager["JobLauncher"]]
"""The folder of a job and the secrets of its members → a launcher, which ends them when it ends."""


def _local(folder: RunFolder, access: "Access") -> "AbstractContextManager[JobLauncher]":
    from ctr_pipeline.distributed.launchers.processes.launcher import ProcessLauncher
    from ctr_pipeline.pipeline.job.members import CommandLines

    return ProcessLauncher(CommandLines(folder.config), logs_folder=folder.logs, access=access)


LAUNCHERS: dict[str, LauncherFactory] = {"processes": _local}


def has_members(runtime: RuntimeConfig) -> bool:
    """Whether a master, parameter servers and workers train, not this process."""
    return runtime.mode in LAUNCHERS


def launch(
    runtime: RuntimeConfig, folder: RunFolder, access: "Access"
) -> "AbstractContextManager[JobLauncher]":
    """The launcher that a config asks for.

    Args:
        runtime: Whose mode has members.
        folder: Of the job.
        access: Secrets of its members.
    """
    return LAUNCHERS[runtime.mode](folder, access)
