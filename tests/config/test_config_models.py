"""Every key has a description, takes a valid value that is not its default, refuses a wrong one."""

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ctr_pipeline.config import config_from_mapping
from ctr_pipeline.config.explanations import models_in
from ctr_pipeline.config.key_paths import parse_key_path, value_at
from ctr_pipeline.config.models import Config
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.specs.model_kinds import MODELS
from ctr_pipeline.specs.section import NamedSection
from ctr_pipeline.transforms import TRANSFORMS

OPTIMIZER_KEYS = {
    "name": ("ftrl", "adamm"),
    "learning_rate": (0.5, 0),
    "beta_1": (0.5, 1),
    "beta_2": (0.5, -0.1),
    "epsilon": (1e-3, 0),
    "initial_accumulator": (0.5, -1),
    "l1": (0.5, -1),
    "l2": (0.5, "much"),
    "momentum": (0.5, 1),
    "rho": (0.5, -0.1),
}
SEGMENT_KEYS = {
    **{f"optimizer.{key}": values for key, values in OPTIMIZER_KEYS.items()},
    "l2.strength": (3.0, -1),
    "l2.count_power": (0, 3),
    "initializer.name": ("normal", "warm"),
    "initializer.scale": (0.5, -1),
}

# By key: a valid value that is not the default, and a wrong one.
KEYS = {
    "name": ("job", ""),
    "data.train": (["a", "b"], 3),
    "data.query": ("SELECT * FROM 'a'", 3),
    "data.connection.driver": ("sqlite", "Post SQL"),
    "data.connection.uri_env": ("SHOP_URI", "shop uri"),
    "data.attach": ({"shop": "shop.duckdb"}, ["shop.duckdb"]),
    "data.valid": ("v.csv", 3),
    "data.test": ("t.csv", {}),
    "data.format": ("parquet", "xml"),
    "data.record": ("example", "lines"),
    "data.columns": (["label", "x"], ["label"]),
    "data.key_value.column": ("profile", ""),
    "data.key_value.pairs": (";", ""),
    "data.key_value.value": ("=", ""),
    "data.key_value.keys": (["age"], "age"),
    "data.delimiter": (";", ";;"),
    "data.quote": (None, '""'),
    "data.escape": ("\\", "ab"),
    "data.skip_lines": (2, -1),
    "data.label": ("click", 1),
    "data.positive": ("yes", ["yes"]),
    "data.negative": ("no", ["no"]),
    "data.weight": ("importance", 1),
    "data.sample.negatives": (0.1, 0),
    "data.split.valid": (0.2, 1),
    "data.split.test": (0.2, -0.1),
    "data.split.by": ("random", "day"),
    "data.split.column": ("user", 3),
    "data.split.time_format": ("epoch_seconds", "%D"),
    "data.missing_values": (["NA"], "NA"),
    "data.bad_rows": ("skip", "ignore"),
    "data.max_bad_fraction": (0.5, 1.5),
    "data.key_columns": (["user"], "user"),
    "features": ([{"columns": "x"}], "automatic"),
    "features[0].columns": (["x", "y"], 3),
    "features[0].cross": (["a", "b"], 3),
    "features[0].name": ("xy", ""),
    "features[0].embedding.share": ("items", ""),
    "features[0].embedding.dimension": (4, 0),
    **{
        f"features[0].embedding.{part}.{key}": values
        for part in ("linear", "vector")
        for key, values in (SEGMENT_KEYS | {"reduction": ("sum", "max")}).items()
    },
    "features[0].sequence.delimiter": (";", ""),
    "features[0].sequence.max_length": (5, 0),
    "features[0].sequence.keep": ("first", "middle"),
    "features[0].sequence.pooling": ("sum", "attention"),
    "features[0].sequence.weights": (True, "yes"),
    "features[0].sequence.weight_delimiter": ("=", "::"),
    "features[0].vector.length": (16, 0),
    "features[0].vector.delimiter": (";", ""),
    "features[0].number": ("log", "logg"),
    "features[0].id": ({"hash": {"buckets": 9}}, {"hash": 9}),
    "features[0].type": ("numeric", "number"),
    "features[0].sensitive": (True, "yes"),
    "model.name": ("dcn", 3),
    "model.embedding_dim": (16, 0),
    "model.hidden_units": ([32], [0]),
    "model.dropout": (0.5, 1),
    "model.cross_layers": (3, 17),
    "model.cross_rank": (8, 0),
    "model.cin_layers": ([8], 8),
    "model.attention_layers": (3, 0),
    "model.attention_heads": (4, 0),
    "model.attention_units": (8, 0),
    "model.senet_reduction": (2, 0),
    "model.bilinear": ("all", "some"),
    "model.mask_blocks": (2, 0),
    "model.mask_block_units": (32, 0),
    "model.mask_units": (32, 0),
    "model.mask_structure": ("serial", "both"),
    "model.second_hidden_units": ([32], [0]),
    "model.fusion_heads": (2, 0),
    "model.bottom_units": ([32], [0]),
    "model.target": ("item", 3),
    "model.activation_units": ([64, 16], [0]),
    "model.file": ("model.py", 3),
    "model.options": ({"a": 1}, [1]),
    "kubernetes.namespace": ("ads", "Ads"),
    "kubernetes.image": ("ctrpipe:1", ""),
    "kubernetes.image_pull_policy": ("Always", "always"),
    "kubernetes.image_pull_secrets": (["registry"], "registry"),
    "kubernetes.claim": ("runs", ""),
    "kubernetes.folder": ("/runs", "runs"),
    "kubernetes.environment": ({"A": "1"}, {"A": 1}),
    "kubernetes.environment_from_secrets": (["keys"], "keys"),
    "kubernetes.metrics_from": ("monitoring", "Monitoring"),
    "kubernetes.queue": ("nightly", "Nightly"),
    "kubernetes.user": (1000, 0),
    "kubernetes.master.cpu": ("500m", "fast"),
    "kubernetes.master.cpu_limit": (2, "2 cores"),
    "kubernetes.master.memory": ("4Gi", "4 GB"),
    "kubernetes.master.node_selector": ({"disk": "ssd"}, {"disk": 1}),
    "kubernetes.master.tolerations": ([{"key": "spot", "operator": "Exists"}], ["spot"]),
    "kubernetes.master.priority_class": ("high", ""),
    "kubernetes.master.patch": ({"spec": {"hostNetwork": False}}, 3),
    "kubernetes.parameter_servers.cpu": ("500m", "fast"),
    "kubernetes.parameter_servers.cpu_limit": (2, "2 cores"),
    "kubernetes.parameter_servers.memory": ("4Gi", "4 GB"),
    "kubernetes.parameter_servers.max_memory": ("8Gi", "8 GB"),
    "kubernetes.parameter_servers.node_selector": ({"disk": "ssd"}, {"disk": 1}),
    "kubernetes.parameter_servers.tolerations": ([{"key": "spot", "operator": "Exists"}], ["spot"]),
    "kubernetes.parameter_servers.priority_class": ("high", ""),
    "kubernetes.parameter_servers.patch": ({"spec": {"hostNetwork": False}}, 3),
    "kubernetes.workers.cpu": ("500m", "fast"),
    "kubernetes.workers.cpu_limit": (2, "2 cores"),
    "kubernetes.workers.memory": ("4Gi", "4 GB"),
    "kubernetes.workers.max_memory": ("8Gi", "8 GB"),
    "kubernetes.workers.node_selector": ({"disk": "ssd"}, {"disk": 1}),
    "kubernetes.workers.tolerations": ([{"key": "spot", "operator": "Exists"}], ["spot"]),
    "kubernetes.workers.priority_class": ("high", ""),
    "kubernetes.workers.high": (2, -1),
    "kubernetes.workers.high_priority_class": ("first", ""),
    "kubernetes.workers.patch": ({"spec": {"hostNetwork": False}}, 3),
    "kubernetes.volumes": ({"/data": "claim:rows"}, {"/data": "rows"}),
    "train.init_from.run": ("runs/day1", 3),
    "train.init_from.checkpoint": ("last", "first"),
    "train.epochs": (2, 0),
    "train.batch_size": (64, 10**7),
    "train.seed": (7, -1),
    "train.shuffle": (False, "no"),
    **{f"train.optimizer.{key}": values for key, values in OPTIMIZER_KEYS.items()},
    **{f"train.embeddings.linear.{key}": values for key, values in SEGMENT_KEYS.items()},
    "train.embeddings.linear.reduction": ("mean", "max"),
    **{f"train.embeddings.vector.{key}": values for key, values in SEGMENT_KEYS.items()},
    "train.embeddings.vector.reduction": ("sum", "max"),
    "train.learning_rate_schedule.name": ("cosine", "linear"),
    "train.learning_rate_schedule.warmup_steps": (10, -1),
    "train.learning_rate_schedule.decay_steps": (10, 0),
    "train.embeddings.shrink_by_column": (False, 3),
    "train.embeddings.admit_after": (3, 0),
    "train.embeddings.evict_after": (1000, 0),
    "train.embeddings.memory_limit_gb": (0.5, 0),
    "train.learning_rate_schedule.decay_rate": (0.5, 0),
    "train.learning_rate_schedule.floor": (0.1, 2),
    "train.learning_rate_schedule.metric": ("auc", "loss"),
    "train.learning_rate_schedule.patience": (2, 0),
    "train.learning_rate_schedule.min_delta": (0.001, -1),
    "train.learning_rate_schedule.reduction": (0.5, 1),
    "train.scale_learning_rate": ("sqrt", "square"),
    "train.global_batch": ("fixed", "shrinking"),
    "train.gradient_clip_norm": (1.0, 0),
    "train.early_stopping.metric": ("auc", "loss"),
    "train.early_stopping.tolerance": (0.1, -1),
    "train.early_stopping.patience": (5, 0),
    "train.checkpoint_seconds": (5.0, 0),
    "train.keep_checkpoints": (5, 0),
    "train.precision": ("auto", "float16"),
    "train.deterministic": (True, "on"),
    "train.refit": (True, "yes"),
    "train.ensemble": (4, 0),
    "train.ensemble_models": (["deepfm", {"name": "dcnv2"}], "deepfm"),
    "evaluation.gauc_column": ("user", 3),
    "evaluation.group_by": (["user"], "user"),
    "evaluation.calibration_bins": (10, 1),
    "report.importance": (True, "true"),
    "report.importance_rows": (1000, 1),
    "report.importance_repeats": (5, 0),
    "export.model_version": (2, 0),
    "export.parity_rows": (10, 0),
    "runtime.mode": ("processes", "cluster"),
    "runtime.strategy": ("allreduce", "ring"),
    "runtime.embeddings": ("hybrid", "sharded"),
    "runtime.threads": (2, 0),
    "runtime.memory_limit_gb": (0.5, 0),
    "runtime.checkpoints": ("s3://bucket/runs/clicks", "s4://bucket"),
    "runtime.scratch": ("scratch", 1),
    "runtime.parameter_servers": (2, 0),
    "runtime.workers.min": (2, 0),
    "runtime.workers.max": (4, 0),
    "runtime.partitions": (128, 0),
    "runtime.move_partitions_after_seconds": (None, 1.0),
    "runtime.update": ("sync", "synchronous"),
    "runtime.grads_to_wait": (2, 0),
    "runtime.max_staleness": (0, -1),
    "runtime.scale_learning_rate_by_staleness": (True, "yes"),
    "runtime.tls": ("always", "on"),
    "runtime.ledger.etcd": ("http://127.0.0.1:2379", ""),
    "runtime.ledger.prefix": ("/jobs/", ""),
    "runtime.ledger.ca": ("ca.pem", 1),
    "runtime.ledger.certificate": ("mine.pem", 1),
    "runtime.ledger.key": ("mine.key", 1),
    "runtime.max_task_failures": (5, 0),
    "runtime.max_dropped_tasks": (1, -1),
    "runtime.standby_workers": (1, -1),
    "runtime.heartbeat_seconds": (0.5, 0),
    "runtime.silence_seconds": (10.0, 0),
    "runtime.startup_timeout_seconds": (300.0, 0),
    "runtime.termination_grace_seconds": (60.0, -1),
    "runtime.bytes_per_reading_task": (5000, 0),
    "runtime.rows_per_encoding_task": (5000, 0),
    "runtime.work_ahead_seconds": (10.0, 0),
    "runtime.storage_timeout_seconds": (60.0, -1),
    "analysis.engine": ("spark", "dask"),
    "analysis.master": ("local[8]", "mesos://host"),
    "analysis.conf": ({"spark.executor.cores": 2}, {"spark.executor.cores": [2]}),
    "analysis.start_seconds": (30.0, 0),
    "output": ("runs/x", ""),
    "tune.trials": (5, 0),
    "tune.seed": (1, -1),
    "tune.metric": ("auc", "loss"),
    "tune.startup_trials": (3, 0),
    "tune.pruner": ("none", "mean"),
    "tune.space": ({"model.dropout": {"low": 0, "high": 0.5}}, {}),
}
SPACE = {"space": {"model.dropout": {"low": 0, "high": 0.5}}}

# What else a key needs to be valid.
COMPANIONS = {
    "runtime.strategy": {"mode": "processes"},
    "runtime.embeddings": {"mode": "processes", "strategy": "allreduce"},
    "data.query": {"train": None},
    "data.connection.driver": {"uri_env": "DATABASE"},
    "data.connection.uri_env": {"driver": "postgresql"},
    "data.negative": {"positive": "yes"},
    "data.split.by": {"by": "random"},
    "data.split.column": {"by": "hash"},
    "data.split.time_format": {"by": "time", "column": "at"},
    **{
        f"model.{key}": {"name": name, **({"target": "item"} if name == "din" else {})}
        for name, model in MODELS.items()
        for key in sorted(model.model_fields.keys() - MODELS["deepfm"].model_fields.keys())
        if name != "custom"
    },
    "model.file": {"name": "custom"},
    "kubernetes.workers.high": {"high_priority_class": "first"},
    "kubernetes.workers.high_priority_class": {"high": 2},
    "train.ensemble_models": {"ensemble": 4},
    "model.options": {"name": "custom", "file": "model.py"},
    "train.learning_rate_schedule.name": {"decay_steps": 10},
    "train.learning_rate_schedule.decay_steps": {"name": "cosine"},
    "train.learning_rate_schedule.decay_rate": {"name": "exponential", "decay_steps": 10},
    "train.learning_rate_schedule.floor": {"name": "cosine", "decay_steps": 10},
    **{
        f"train.learning_rate_schedule.{key}": {"name": "reduce_on_plateau"}
        for key in ("metric", "patience", "min_delta", "reduction")
    },
    "train.init_from.checkpoint": {"run": "runs/day1"},
    "runtime.workers.min": {"max": 2},
    "runtime.grads_to_wait": {"update": "sync"},
    "runtime.max_staleness": {"update": "bounded"},
    "runtime.ledger.prefix": {"etcd": "http://127.0.0.1:2379"},
    "runtime.ledger.ca": {"etcd": "http://127.0.0.1:2379"},
    "runtime.ledger.certificate": {"etcd": "http://127.0.0.1:2379", "key": "mine.key"},
    "runtime.ledger.key": {"etcd": "http://127.0.0.1:2379", "certificate": "mine.pem"},
    **{key: {"engine": "spark"} for key in KEYS if key.startswith("analysis.")},
    **{key: SPACE for key in KEYS if key.startswith("tune.") and key != "tune.space"},
}

CROSS = {"cross": ["x", "y"], "id": {"hash": {"buckets": 9}}}
# The entry that a key of features needs around it, if it is not one of columns.
WITH_ID = {"columns": "x", "id": "vocabulary"}
ENTRIES = {"cross": CROSS, "name": CROSS, "sequence": WITH_ID, "embedding": WITH_ID}


def keys_of(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, info in section.model_fields.items():
        below = [model for model in models_in(info.annotation) if not hasattr(model, "kind")]
        if name == "features" and section is Config:
            keys += ["features", *keys_of(below[0], "features[0].")]
        elif below and f"{prefix}{name}" not in {"tune.space", "train.ensemble_models"}:
            kinds = below if issubclass(below[0], NamedSection) else below[:1]
            found = [key for kind in kinds for key in keys_of(kind, f"{prefix}{name}.")]
            keys += dict.fromkeys(found)
        else:
            keys.append(f"{prefix}{name}")
    return keys


def complete(key, value):
    """A whole config around one key; sections that have required keys start from their default."""
    mapping = {"data": {"train": "a"}}
    path = parse_key_path(key)
    if path[0] == "features" and len(path) > 1:
        entry = dict(ENTRIES.get(path[2], {"columns": "x"}))
        for step in reversed(path[3:]):
            value = {step: value}
            if "optimizer" in path and step == path[-1]:
                value = {"name": "adam", "learning_rate": 0.1} | value
        entry[path[2]] = value
        if key == "features[0].vector.delimiter":
            entry["vector"]["length"] = 2
        mapping["features"] = [entry]
        return mapping
    if path[0] == "train" and len(path) > 2:
        sections = Config.model_fields["train"].default.model_dump()
        mapping["train"] = {path[1]: sections[path[1]]} if sections[path[1]] else {}
    if key == "train.learning_rate_schedule.patience":
        mapping["train"]["early_stopping"] = None
    if key == "train.global_batch":
        mapping["runtime"] = {"mode": "processes", "strategy": "allreduce"}
    if key.startswith("data.connection."):
        mapping["data"] = {"query": "SELECT * FROM clicks"}
    if key.startswith("data.key_value."):
        mapping["data"]["key_value"] = {"column": "profile"}
    node = mapping
    for step in path[:-1]:
        node = node.setdefault(step, {})
    node.update(COMPANIONS.get(key, {}))
    node[path[-1]] = value
    return mapping


def test_every_key_is_in_the_table():
    assert sorted(KEYS) == sorted(keys_of(Config))


@pytest.mark.parametrize("key", KEYS)
def test_valid_value_reaches_the_config(key):
    value, _ = KEYS[key]
    dumped = config_from_mapping(complete(key, value)).config.model_dump()
    default = config_from_mapping({"data": {"train": "a"}}).config.model_dump()
    path = parse_key_path(key)
    assert value_at(dumped, path) is not None or value is None
    if isinstance(value, str | int | float) and key not in {"features[0].number"}:
        assert value_at(dumped, path) == value
    if key not in {"features[0].columns"}:
        assert value_at(dumped, path) != value_at(default, path)


@pytest.mark.parametrize("key", KEYS)
def test_wrong_value_is_refused_at_its_key(key):
    _, wrong = KEYS[key]
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(complete(key, wrong))
    assert all(problem.key.startswith(key) for problem in caught.value.problems)
    assert "pydantic" not in str(caught.value)


def sections():
    todo, seen = [Config, *TRANSFORMS.values()], []
    while todo:
        section = todo.pop()
        if section not in seen:
            seen.append(section)
            for info in section.model_fields.values():
                todo += models_in(info.annotation)
    return seen


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.__name__)
def test_every_key_is_described(section):
    assert section.__doc__
    for name, info in section.model_fields.items():
        if name == "name" and (section in TRANSFORMS.values() or issubclass(section, NamedSection)):
            continue
        assert info.description, f"{section.__name__}.{name}"
        assert info.description.endswith("."), f"{section.__name__}.{name}"
        assert info.is_required() or info.default is not PydanticUndefined
