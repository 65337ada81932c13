"""The process that forks workers; the launcher starts this module."""

import sys

from ctr_pipeline.cli.failures import exit_code_of
from ctr_pipeline.cli.main import main, set_up_libraries
from ctr_pipeline.cli.session import CommandSession


def serve() -> int:
    """Serves until the launcher ends; returns the exit code."""
    set_up_libraries()
    session = CommandSession()
    session.start_logging()

    def run() -> None:
        from ctr_pipeline.distributed.launchers.processes.fork_server import serve_forks
        from ctr_pipeline.pipeline.job.members import load_worker_code

        serve_forks(load_worker_code, main)

    return exit_code_of(run, session)


if __name__ == "__main__":
    sys.exit(serve())
