"""Specs of jobs, plain but for what a test is about."""

from dataclasses import replace

from ctr_pipeline.distributed.coordination.ledger import Ledger, frozen_without_job
from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION, JobSpec
from ctr_pipeline.specs.course import RowLifecycle, Supervision, TrainingCourse, UpdateRule
from ctr_pipeline.specs.optimizer import OptimizerSpec

PLAIN = JobSpec(
    job="job-1",
    protocol=PROTOCOL_VERSION,
    config_fingerprint="config",
    rows_fingerprint="rows",
    plan_fingerprint="plan",
    tables=(),
    segments=(),
    counts_file="",
    num_dense=10,
    dense_optimizer=OptimizerSpec(name="adam", learning_rate=0.01),
    num_partitions=8,
    num_parameter_servers=1,
    update_rule=UpdateRule(),
    supervision=Supervision(),
    splits=(),
    course=TrainingCourse(batch_size=16, epochs=1),
    rows=RowLifecycle(),
    checkpoints_folder="checkpoints",
)


def job_spec(**facts):
    """Of a job without tables and rows, unless they are given."""
    return change_spec(PLAIN, **facts)


def frozen_before_training(cut):
    """`TakeCut.frozen` of a cut that counts nothing yet."""
    return frozen_without_job(Ledger(), cut)


def change_spec(spec, **changes):
    """A spec with other facts, those of its sections among them."""
    for name in ("course", "rows", "update_rule", "supervision"):
        section = changes.get(name, getattr(spec, name))
        keys = type(section).model_fields.keys() & changes.keys()
        values = {key: changes.pop(key) for key in keys}
        changes[name] = type(section)(**{**section.model_dump(), **values})
    return replace(spec, **changes)
