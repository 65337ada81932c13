"""The access folder of an elastic run."""

from pathlib import Path

from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.certificates import Role
from ctr_pipeline.errors import CtrPipelineError, RunFolderError


def make_access(folder: Path) -> bool:
    """Makes a token and TLS keys in a folder, unless it has a token.

    Returns:
        Whether they are new.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    if (folder / "token").exists():
        return False
    Access.create(folder, tls=True)
    return True


def load_access(folder: Path, role: Role) -> Access:
    """The secrets of one role.

    Raises:
        CtrPipelineError: They are missing, damaged or expired.
    """
    try:
        return Access.load(folder, role)
    except RunFolderError as error:
        raise CtrPipelineError(
            error.message,
            place=error.place,
            remedy="Copy the access folder that 'ctrpipe elastic-rendezvous' made, or make a new "
            "one in an empty folder",
        ) from error
