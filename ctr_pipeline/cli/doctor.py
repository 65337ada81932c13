"""`ctrpipe doctor`: what works on this machine, and what to do about what does not."""

import typer

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.session import CommandSession


@command(Panel.MACHINE)
def doctor(session: CommandSession) -> None:
    """Check this machine: versions, cores, memory, disk, caches, and whether TensorFlow starts.

    Exits with 1 if something that a run needs does not work.

    For example:

    ctrpipe doctor
    """
    from dataclasses import asdict

    from ctr_pipeline.cli.machine_checks import Verdict, check_machine
    from ctr_pipeline.cli.tables import print_checks

    checks = check_machine(session.progress)
    failed = any(check.verdict is Verdict.FAILS for check in checks)
    payload = {"works": not failed, "checks": [asdict(check) for check in checks]}
    session.show(payload, lambda: print_checks(checks))
    raise typer.Exit(1 if failed else 0)
