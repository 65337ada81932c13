"""Where the config wants the ledger of a job. A new kind is a file of its own, and a line here."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.master.ledger.etcd import EtcdLocation
from ctr_pipeline.distributed.master.ledger.sqlite import SqliteLocation
from ctr_pipeline.distributed.master.ledger.store import LedgerIdentity, LedgerLocation

LEDGERS: Mapping[str, Callable[[Any, Path], LedgerLocation]] = {
    "sqlite": SqliteLocation,
    "etcd": EtcdLocation,
}
"""Places by the kinds that `runtime.ledger` names, of its value and the job's folder."""


def locate_ledger(runtime: RuntimeConfig, job_folder: Path) -> LedgerLocation:
    """The place that the config names; nothing is opened or looked for yet."""
    return LEDGERS[runtime.ledger_kind](runtime.ledger, job_folder)


def identify_ledger(spec: JobSpec) -> LedgerIdentity:
    """The identity of a job's ledger."""
    return LedgerIdentity(spec.job, spec.config_fingerprint, spec.rows_fingerprint)
