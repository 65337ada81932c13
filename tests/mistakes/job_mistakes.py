"""Mistakes about jobs of several processes: their settings, and the commands that steer them."""

import json
from typing import Any

from tests.mistakes.spoiled_world import CHECK, Case, World, nothing, setting


def _runtime(**values: Any) -> Any:
    """The config describes a job of several processes."""
    return setting(runtime={"mode": "processes", **values})


def _workers(least: object, most: object) -> Any:
    return _runtime(workers={"min": least, "max": most})


def _empty_job(world: World) -> None:
    """A job whose preparation was cut short."""
    (world.folder / "run" / "job").mkdir(parents=True)


def _replicas_without_a_run(world: World) -> None:
    """Workers that each hold all parameters have trained here."""
    world.config(runtime={"mode": "processes", "strategy": "allreduce"})
    world.write("run/logs/worker-0.log", "")
    (world.folder / "run" / "replicas").mkdir()


def _job_without_a_master(world: World) -> None:
    """A job whose master is gone and whose address leads nowhere."""
    endpoint = {"address": "127.0.0.1:9", "metrics_address": "", "host": "x", "pid": 1}
    world.write("run/job/endpoint.json", json.dumps(endpoint))
    world.write("run/job/token", "0" * 64)
    (world.folder / "run" / "job" / "token").chmod(0o600)


def _job_with_a_log(world: World) -> None:
    """A job of which one member has written something."""
    _empty_job(world)
    world.write("run/logs/worker-0.log", "")


_FIRST = ("--config", "c.yaml", "--index", "0")
_NOT_PREPARED = ("run: no job has been prepared here", "ctrpipe run")
_ADDRESS = "http://127.0.0.1:2379"
_NO_JOB = ("run: holds no job of several processes", "runtime.mode: processes")


MEMBER_CASES = (
    Case(
        "logs_of_one_process",
        nothing,
        _NO_JOB,
        ("logs", "run", "ps-0"),
        trained=True,
        unset="the run is of one process",
    ),
    Case(
        "logs_before_members",
        _empty_job,
        ("no member 'worker-0'", "No member has started yet"),
        ("logs", "run", "worker-0"),
    ),
    Case(
        "logs_of_a_member_that_is_none",
        _job_with_a_log,
        ("no member 'worker-9'", "did you mean 'worker-0'?", "There are worker-0"),
        ("logs", "run", "worker-9"),
    ),
    Case(
        "logs_leave_the_folder",
        _job_with_a_log,
        ("no member '../job/token'",),
        ("logs", "run", "../job/token"),
    ),
    Case(
        "logs_of_a_replica_that_is_none",
        _replicas_without_a_run,
        ("no member 'ps-0'", "There are worker-0"),
        ("logs", "run", "ps-0"),
    ),
    Case(
        "master_of_replicas",
        _replicas_without_a_run,
        ("allreduce has no master, and no parameter servers", "'ctrpipe run' starts its workers"),
        ("master", "--config", "c.yaml"),
        unfollowed="the job is made up",
    ),
    Case(
        "server_of_replicas",
        _replicas_without_a_run,
        ("no parameter servers unless runtime.embeddings is hybrid",),
        ("ps", *_FIRST),
        unfollowed="the job is made up",
    ),
    Case(
        "worker_of_replicas_that_nobody_started",
        _replicas_without_a_run,
        ("nobody has started a training", "'ctrpipe run'"),
        ("worker", *_FIRST),
        unfollowed="the job is made up",
    ),
    Case(
        "master_without_job",
        _runtime(),
        _NOT_PREPARED,
        ("master", "--config", "c.yaml"),
        unfollowed="the job is made up",
    ),
    Case(
        "server_without_job",
        _runtime(),
        _NOT_PREPARED,
        ("ps", *_FIRST),
        unfollowed="the job is made up",
    ),
    Case(
        "worker_without_job",
        _runtime(),
        _NOT_PREPARED,
        ("worker", *_FIRST),
        unfollowed="the job is made up",
    ),
    Case("worker_without_config", nothing, ("--config",), ("worker",)),
    Case("worker_without_index", _runtime(), ("--index",), ("worker", "--config", "c.yaml")),
)
"""Of commands that have no --json: they write for people, or for as long as a job lasts."""

CONFIG_MISTAKES = (
    Case("workers_backwards", _workers(3, 1), ("runtime.workers.min", "3 is above max 1"), CHECK),
    Case("no_workers", _workers(0, 2), ("runtime.workers.min", "at least 1", "0"), CHECK),
    Case("too_many_workers", _workers(1, 9999), ("runtime.workers.max", "at most 1000"), CHECK),
    Case("workers_a_number", _runtime(workers=3), ("runtime.workers", "auto", "min, max"), CHECK),
    Case("workers_misspelt", _runtime(workers="atuo"), ("did you mean 'auto'?",), CHECK),
    Case("half_a_worker", _workers(1, 1.5), ("runtime.workers.max", "whole number"), CHECK),
    Case(
        "no_parameter_servers",
        _runtime(parameter_servers=0),
        ("runtime.parameter_servers", "at least 1", "0"),
        CHECK,
    ),
    Case(
        "more_servers_than_partitions",
        _runtime(parameter_servers=5, partitions=4),
        ("runtime.parameter_servers", "raise runtime.partitions"),
        CHECK,
    ),
    Case("no_partitions", _runtime(partitions=0), ("runtime.partitions", "at least 1"), CHECK),
    Case(
        "mode_misspelt",
        setting(runtime={"mode": "process"}),
        ("runtime.mode", "local | processes", "did you mean 'processes'?"),
        CHECK,
    ),
    Case(
        "servers_misspelt",
        _runtime(parameter_server=2),
        ("runtime.parameter_server", "did you mean 'parameter_servers'?"),
        CHECK,
    ),
    Case("update_misspelt", _runtime(update="asynch"), ("did you mean 'async'?",), CHECK),
    Case("staleness_negative", _runtime(max_staleness=-1), ("runtime.max_staleness", "0"), CHECK),
    Case("no_gradients", _runtime(grads_to_wait=0), ("runtime.grads_to_wait", "1"), CHECK),
    Case("tls_of_its_own", _runtime(tls="yes"), ("runtime.tls", "auto | always | off"), CHECK),
    Case(
        "lease_below_heartbeats",
        _runtime(heartbeat_seconds=10),
        ("runtime.silence_seconds", "three heartbeats of 10 s"),
        CHECK,
    ),
    Case(
        "dropped_negative",
        _runtime(max_dropped_tasks=-1),
        ("runtime.max_dropped_tasks", "at least 0"),
        CHECK,
    ),
    Case(
        "standby_negative",
        _runtime(standby_workers=-2),
        ("runtime.standby_workers", "at least 0"),
        CHECK,
    ),
    Case("ledger_by_name", _runtime(ledger="etcd"), ("runtime.ledger", "sqlite"), CHECK),
    Case(
        "etcd_without_scheme",
        _runtime(ledger={"etcd": "127.0.0.1:2379"}),
        ("runtime.ledger.etcd", _ADDRESS),
        CHECK,
    ),
    Case(
        "ledger_key_misspelt",
        _runtime(ledger={"etcd": _ADDRESS, "prefx": "a"}),
        ("runtime.ledger.prefx", "did you mean 'prefix'?"),
        CHECK,
    ),
    Case(
        "allreduce_in_one_process",
        setting(runtime={"strategy": "allreduce"}),
        ("runtime.strategy", "set runtime.mode: processes"),
        CHECK,
    ),
    Case(
        "allreduce_of_any_number",
        _runtime(strategy="allreduce", workers="auto"),
        ("runtime.workers", "{min: 1, max: 2}"),
        CHECK,
    ),
    Case(
        "allreduce_with_servers",
        _runtime(strategy="allreduce", parameter_servers=2, update="sync"),
        ("2 problems", "runtime.parameter_servers", "runtime.update", "leave it out"),
        CHECK,
    ),
    Case(
        "hybrid_embeddings_with_an_update_rule",
        _runtime(strategy="allreduce", embeddings="hybrid", parameter_servers=2, partitions=8),
        ("runtime.partitions", "belongs to strategy: parameter_servers", "leave it out"),
        CHECK,
    ),
    Case(
        "hybrid_embeddings_of_parameter_servers",
        _runtime(embeddings="hybrid"),
        ("runtime.embeddings", "belongs to strategy: allreduce", "leave it out"),
        CHECK,
    ),
    Case(
        "allreduce_from_another_run",
        setting(
            runtime={"mode": "processes", "strategy": "allreduce"},
            train={"init_from": "runs/yesterday"},
        ),
        ("train.init_from", "allreduce trains from the start"),
        CHECK,
    ),
    Case(
        "allreduce_of_an_ensemble_that_is_refitted",
        setting(
            runtime={"mode": "processes", "strategy": "allreduce"},
            train={"ensemble": 2, "refit": True},
        ),
        ("2 problems", "train.ensemble", "train.refit", "runtime.mode: local"),
        CHECK,
    ),
    Case(
        "fixed_global_batch_of_servers",
        setting(train={"global_batch": "fixed"}),
        ("train.global_batch", "belongs to runtime.strategy: allreduce"),
        CHECK,
    ),
    Case("runtime_a_list", setting(runtime=[]), ("runtime", "expected a mapping"), CHECK),
    Case(
        "several_mistakes_in_runtime",
        _runtime(parameter_servers=0, update="asynch"),
        ("2 problems", "runtime.parameter_servers", "runtime.update"),
        CHECK,
    ),
)

COMMAND_MISTAKES = (
    Case("status_without_run", nothing, ("nowhere", "no such run folder"), ("status", "nowhere")),
    Case("status_without_config", nothing, ("no such config",), ("status", "nowhere.yaml")),
    Case(
        "stop_of_one_process",
        nothing,
        _NO_JOB,
        ("stop", "run"),
        trained=True,
        unset="the run is of one process",
    ),
    Case(
        "stop_of_replicas",
        _replicas_without_a_run,
        ("runtime.strategy: allreduce, which has no master to ask", "Ctrl-C"),
        ("stop", "run"),
        unfollowed="the job is made up",
    ),
    Case(
        "scale_of_replicas",
        _replicas_without_a_run,
        ("run/replicas/token", "is missing", "ctrpipe run --resume"),
        ("scale", "run", "--workers", "2"),
        unfollowed="the job is made up",
    ),
    Case(
        "replicas_by_hand",
        _replicas_without_a_run,
        ("runtime.strategy", "--prepare-only", "leave --prepare-only out"),
        ("train", "c.yaml", "--prepare-only", "--overwrite"),
        unfollowed="the job is made up",
    ),
    Case(
        "members_of_one_process",
        nothing,
        ("runtime.mode", "--prepare-only", "runtime.mode: processes"),
        ("train", "c.yaml", "--prepare-only"),
    ),
    Case(
        "profile_of_a_job",
        _runtime(),
        ("runtime.mode", "--profile", "'local'"),
        ("train", "c.yaml", "--profile"),
    ),
    Case(
        "status_by_config", setting(), ("run: there is no such run folder",), ("status", "c.yaml")
    ),
    Case(
        "status_of_empty_job",
        _empty_job,
        ("run/job/spec.json", "ctrpipe run"),
        ("status", "run"),
        unfollowed="the job is made up",
    ),
    Case(
        "stop_of_empty_job",
        _empty_job,
        ("no master", "--resume"),
        ("stop", "run"),
        unfollowed="the job is made up",
    ),
    Case(
        "scale_without_master",
        _job_without_a_master,
        ("127.0.0.1:9", "does not answer", "--resume"),
        ("scale", "run", "--workers", "2"),
        unfollowed="the job is made up",
    ),
    Case("scale_to_nothing", _empty_job, ("--workers", "1"), ("scale", "run", "--workers", "0")),
    Case(
        "scale_to_text",
        _empty_job,
        ("--workers", "valid integer"),
        ("scale", "run", "--workers", "two"),
    ),
    Case("scale_without_number", _empty_job, ("one of --workers, --min, --max",), ("scale", "run")),
)
