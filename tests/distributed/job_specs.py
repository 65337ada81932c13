"""Specs of jobs, plain but for what a test is about."""

from ctr_pipeline.distributed.coordination.spec import (
    PROTOCOL_VERSION,
    JobSpec,
    OptimizerShape,
    UpdateRule,
)


def optimizer_shape(name="adam", learning_rate=0.01, **constants):
    known = {
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-7,
        "initial_accumulator": 0.1,
        "l1": 0.0,
        "l2": 0.0,
    }
    return OptimizerShape(name=name, learning_rate=learning_rate, **{**known, **constants})


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
        "dense_optimizer": optimizer_shape(),
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
