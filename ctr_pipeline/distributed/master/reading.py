"""The status of a job whose master does not answer, from its ledger."""

import time
from pathlib import Path

from ctr_pipeline.config import load_config
from ctr_pipeline.distributed.coordination.codec import from_record
from ctr_pipeline.distributed.coordination.events import Phase
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.job.head import JobHead
from ctr_pipeline.distributed.master.ledger.opening import identify_ledger, locate_ledger
from ctr_pipeline.distributed.master.ledger.store import LedgerError
from ctr_pipeline.distributed.master.manifests import Cuts
from ctr_pipeline.distributed.master.recovery import (
    find_newest_cut,
    read_events,
    read_timeline,
    records_of_job,
)
from ctr_pipeline.distributed.master.settings import plan_job
from ctr_pipeline.distributed.master.status import JobView, view_job
from ctr_pipeline.distributed.rpc.spec_file import load_spec
from ctr_pipeline.embeddings.cut_storage import CutStorage


def read_status(run_folder: Path) -> JobView:
    """What the ledger last held; how members are is not known.

    Raises:
        CtrPipelineError: There is no job here, or no ledger of it that can be read.
    """
    job_folder = run_folder / "job"
    spec = load_spec(job_folder)
    config = load_config(run_folder / "config.resolved.yaml").config
    records = locate_ledger(config.runtime, job_folder).read(identify_ledger(spec))
    settings = plan_job(spec, scores_folder="scores")
    job = Job.from_ledger(settings, records_of_job(records), 0.0)
    status = job.status()
    cuts = Cuts(CutStorage.at(spec.within(run_folder).checkpoints_folder), spec)
    train = spec.split("train")
    return view_job(
        status,
        job=spec.job,
        epochs=spec.course.epochs,
        records_per_epoch=train.num_rows if train else 0,
        newest_cut=find_newest_cut(cuts, status.last_cut),
        unix_time=time.time(),
        samples_per_second=0.0,
        events=read_events(records),
        timeline=read_timeline(records),
        tables=spec.tables,
        table_features=spec.table_features,
        master=None,
    )


def read_phase(run_folder: Path) -> Phase | None:
    """Where the ledger says that the job is; None if there is no ledger that can be read now.

    Raises:
        CtrPipelineError: There is no job here, or its spec or config cannot be read.
    """
    job_folder = run_folder / "job"
    spec = load_spec(job_folder)
    config = load_config(run_folder / "config.resolved.yaml").config
    try:
        records = locate_ledger(config.runtime, job_folder).read(identify_ledger(spec))
    except LedgerError:
        return None
    return from_record(JobHead, records["head"]).phase if "head" in records else None
