"""Specs of jobs, plain but for what a test is about."""

from ctr_pipeline.distributed.coordination.spec import PROTOCOL_VERSION, JobSpec, UpdateRule
from ctr_pipeline.specs.optimizer import OptimizerSpec


def job_spec(**facts):
    """Of a job without tables and rows, unless they are given."""
    plain = {
        "job": "job-1",
        "protocol": PROTOCOL_VERSION,
        "config_fingerprint": "config",
        "rows_fingerprint": "rows",
        "plan_fingerprint": "plan",
        "seed": 0,
        "tables": (),
        "segments": (),
        "counts_file": "",
        "num_dense": 10,
        "dense_optimizer": OptimizerSpec("adam", 0.01),
        "num_partitions": 8,
        "num_parameter_servers": 1,
        "update": UpdateRule("async", 1, 4, False),
        "splits": (),
        "batch_size": 16,
        "epochs": 1,
        "shuffle": True,
        "checkpoint_seconds": 30.0,
        "keep_checkpoints": 2,
        "checkpoints_folder": "checkpoints",
    }
    return JobSpec(**{**plain, **facts})
