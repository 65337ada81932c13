"""`ctrpipe ps`: a parameter server of a job, as a process of its own."""

from ctr_pipeline.cli.command import Panel, command
from ctr_pipeline.cli.options import (
    Advertise,
    Bind,
    Incarnation,
    MasterAddress,
    MemberConfig,
    MemberIndex,
    Overrides,
    WaitForMaster,
)
from ctr_pipeline.cli.session import CommandSession


@command(Panel.MEMBERS, has_json=False)
def ps(
    session: CommandSession,
    config: MemberConfig,
    index: MemberIndex,
    overrides: Overrides = None,
    *,
    bind: Bind = "127.0.0.1:0",
    advertise: Advertise = None,
    master: MasterAddress = None,
    wait_seconds: WaitForMaster = 60,
    incarnation: Incarnation = None,
) -> int:
    """Run a parameter server of a job.

    For example, by hand:

    ctrpipe ps --config runs/criteo/config.resolved.yaml --index 0
    """
    session.start_member_logging()
    from ctr_pipeline.pipeline.job.members import run_as_parameter_server

    return run_as_parameter_server(
        session.load(config, overrides),
        index,
        bind=bind,
        advertise=advertise,
        master_address=master,
        incarnation=incarnation,
        wait_seconds=wait_seconds,
    )
