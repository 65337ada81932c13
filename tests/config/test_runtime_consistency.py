"""What the keys of `runtime` must agree on; every contradiction is told at once, at its key."""

import pytest
import yaml

from ctr_pipeline.config import config_from_mapping
from ctr_pipeline.errors import ConfigError


def problems(runtime):
    with pytest.raises(ConfigError) as caught:
        config_from_mapping({"data": {"train": "a"}, "runtime": runtime})
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("runtime", "key", "part"),
    [
        ({"workers": {"min": 3, "max": 2}}, "runtime.workers.min", "min 3 is above max 2"),
        ({"workers": {"min": 3}}, "runtime.workers.min", "min 3 is above max 1"),
        ({"workers": {"min": 0}}, "runtime.workers.min", "at least 1"),
        ({"workers": {"max": 0}}, "runtime.workers.max", "at least 1"),
        ({"workers": {"least": 1}}, "runtime.workers.least", "unknown key"),
        ({"workers": "many"}, "runtime.workers", "expected auto | a mapping of min, max"),
        ({"workers": 3}, "runtime.workers", "expected auto | a mapping of min, max"),
        ({"workers": [1, 2]}, "runtime.workers", "found a list of 2"),
        ({"parameter_servers": 0}, "runtime.parameter_servers", "at least 1"),
        ({"parameter_servers": 513}, "runtime.parameter_servers", "513 parameter servers for 512"),
        (
            {"parameter_servers": 3, "partitions": 2},
            "runtime.parameter_servers",
            "3 parameter servers for 2 partitions",
        ),
        ({"grads_to_wait": 2}, "runtime.grads_to_wait", "update: sync, and update is async"),
        (
            {"update": "sync", "max_staleness": 2},
            "runtime.max_staleness",
            "update: bounded, and update is sync",
        ),
        (
            {"update": "sync", "scale_learning_rate_by_staleness": True},
            "runtime.scale_learning_rate_by_staleness",
            "update: async or bounded, and update is sync",
        ),
        ({"update": "sometimes"}, "runtime.update", "async | sync | bounded"),
        ({"silence_seconds": 0.5}, "runtime.silence_seconds", "below three heartbeats of 0.2 s"),
        ({"heartbeat_seconds": 2.0}, "runtime.silence_seconds", "below three heartbeats of 2.0 s"),
        ({"ledger": "etcd"}, "runtime.ledger", "expected sqlite | a mapping of etcd, prefix"),
        ({"ledger": {}}, "runtime.ledger.etcd", "is required"),
        ({"ledger": {"etcd": "127.0.0.1:2379"}}, "runtime.ledger.etcd", "found '127.0.0.1:2379'"),
        ({"ledger": {"etcd": "http://here"}}, "runtime.ledger.etcd", "found 'http://here'"),
        ({"ledger": {"etcd": "http://here:port"}}, "runtime.ledger.etcd", "is no address"),
        ({"ledger": {"etcd": "http://here:1/v3"}}, "runtime.ledger.etcd", "after the port"),
        ({"tls": True}, "runtime.tls", "expected auto | always | off"),
    ],
)
def test_contradiction_is_told_at_its_key(runtime, key, part):
    found = problems(runtime)
    assert list(found) == [key]
    assert part in found[key]


def test_credentials_of_etcd_are_refused_and_not_repeated():
    found = problems({"ledger": {"etcd": "http://root:geheim@127.0.0.1:2379"}})
    assert "user and password" in found["runtime.ledger.etcd"]
    assert "geheim" not in str(found)


@pytest.mark.parametrize("address", ["s3://me:geheim@bucket/a", "s3://bucket/a?key=geheim"])
def test_credentials_of_a_store_are_refused_and_not_repeated(address):
    found = problems({"checkpoints": address})
    assert "credentials come from the environment" in found["runtime.checkpoints"]
    assert "geheim" not in str(found)


def test_all_contradictions_are_told_at_once():
    found = problems(
        {
            "workers": {"min": 4, "max": 2},
            "parameter_servers": 9,
            "partitions": 4,
            "grads_to_wait": 3,
            "ledger": {"etcd": "nowhere"},
            "standby_workers": -1,
        }
    )
    assert sorted(found) == [
        "runtime.grads_to_wait",
        "runtime.ledger.etcd",
        "runtime.parameter_servers",
        "runtime.standby_workers",
        "runtime.workers.min",
    ]


@pytest.mark.parametrize(
    "runtime",
    [
        {"mode": "processes", "workers": "auto"},
        {"mode": "processes", "workers": {"min": 1, "max": 4}, "parameter_servers": 2},
        {"update": "sync", "grads_to_wait": 4, "workers": {"min": 4, "max": 4}},
        {"update": "bounded", "max_staleness": 0, "scale_learning_rate_by_staleness": True},
        {"ledger": {"etcd": "http://127.0.0.1:2379", "prefix": "/jobs/"}, "tls": "auto"},
    ],
)
def test_runtime_section_that_agrees_is_taken_and_written_back(runtime):
    loaded = config_from_mapping({"data": {"train": "a"}, "runtime": runtime})
    again = config_from_mapping(yaml.safe_load(loaded.resolved_yaml()))
    assert again.config == loaded.config
