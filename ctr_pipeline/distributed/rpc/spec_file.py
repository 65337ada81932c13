"""The job's spec on disk: `job/spec.json` in the run folder."""

import json
from pathlib import Path

from ctr_pipeline import durable
from ctr_pipeline.distributed.coordination.codec import MalformedMessage, decode, to_record
from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION, JobSpec
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.specs.launchers import MODES_WITH_MEMBERS

_FILE = "spec.json"


def save_spec(job_folder: Path, spec: JobSpec) -> None:
    """Writes the spec as a whole, readable by a person.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    durable.write_text(job_folder / _FILE, json.dumps(to_record(spec), indent=2) + "\n")


def load_spec(job_folder: Path) -> JobSpec:
    """Reads the spec.

    Raises:
        RunFolderError: There is none, it is damaged, or it is of another version.
    """
    path = job_folder / _FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RunFolderError(
            "no job was prepared here",
            place=str(path),
            remedy=f"Start it with 'ctrpipe run' and runtime.mode: {MODES_WITH_MEMBERS}",
        ) from None
    except OSError as error:
        raise RunFolderError(f"cannot be read ({error.strerror})", place=str(path)) from error
    try:
        found = json.loads(data)
        version = found.get("protocol") if isinstance(found, dict) else None
        if isinstance(version, int) and version != PROTOCOL_VERSION:
            raise RunFolderError(
                f"is of protocol {version}, and this program speaks {PROTOCOL_VERSION}",
                place=str(path),
                remedy="Go on with the version of ctrpipe that began the job",
            )
        return decode(JobSpec, data)
    except (ValueError, MalformedMessage) as error:
        raise RunFolderError(
            f"is damaged ({error})", place=str(path), remedy="Start the job again"
        ) from None
