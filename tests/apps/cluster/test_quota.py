"""Which quota counts which pods, and what it means for a job."""

import pytest

from ctr_pipeline.apps.cluster.quota import PodNeed, counts_for, examine_quotas


def pod(*, priority=None, init=None, **resources):
    spec = {"containers": [{"name": "ctrpipe", "resources": resources}]}
    if priority is not None:
        spec["priorityClassName"] = priority
    if init is not None:
        spec["initContainers"] = [{"name": "first", "resources": init}]
    return spec


def quota(hard, used=None, **spec):
    return {"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used or {}}}


def priority(operator, *values):
    rule = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [rule]}}


@pytest.mark.parametrize(
    ("spec", "low", "none"),
    [
        ({}, True, True),
        ({"scopes": ["NotBestEffort"]}, True, True),
        ({"scopes": ["BestEffort"]}, False, False),
        ({"scopes": ["Terminating"]}, False, False),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, True, True),
        (priority("In", "low", "high"), True, False),
        (priority("NotIn", "low"), False, True),
        (priority("Exists"), True, False),
        (priority("DoesNotExist"), False, True),
    ],
)
def test_scopes(spec, low, none):
    assert counts_for(quota({}, **spec), pod(priority="low")) is low
    assert counts_for(quota({}, **spec), pod()) is none


def needs(**resources):
    return [
        PodNeed("kubernetes.master", pod(**resources), 1, 1),
        PodNeed("kubernetes.workers", pod(**resources), 1, 8),
    ]


@pytest.mark.parametrize(
    ("hard", "used", "message"),
    [
        ({"requests.memory": "32Gi"}, {}, None),
        ({"count/jobs.batch": "1", "services": "0"}, {}, None),
        (
            {"requests.memory": "3Gi"},
            {},
            "the quota 'q' allows requests.memory 3Gi, and the job needs 4Gi "
            "(1 × 2Gi of kubernetes.master, 1 × 2Gi of kubernetes.workers)",
        ),
        (
            {"memory": "8Gi"},
            {"memory": "6000Mi"},
            "the job waits for room in the quota 'q': 2.141Gi of memory 8Gi are free, and the job "
            "needs 4Gi (1 × 2Gi of kubernetes.master, 1 × 2Gi of kubernetes.workers)",
        ),
        (
            {"requests.cpu": "4"},
            {"requests.cpu": "250m"},
            "6 of 8 workers fit into the quota 'q' now: 3.75 of requests.cpu are free",
        ),
    ],
)
def test_quota_message_says_what_the_quota_means_for_a_job(hard, used, message):
    resources = {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    found = examine_quotas([quota(hard, used)], needs(**resources))
    assert [one.message for one in found] == ([] if message is None else [message])


def test_quota_findings_begin_with_what_can_never_run():
    resources = {"requests": {"cpu": "1"}}
    quotas = [quota({"pods": "4"}, {"pods": "3"}), quota({"cpu": "1"})]
    assert [one.is_final for one in examine_quotas(quotas, needs(**resources))] == [True, False]


def test_a_limit_is_reserved_where_nothing_is_and_containers_that_run_first_count_alone():
    spec = pod(limits={"cpu": "2"}, init={"requests": {"cpu": "3"}})
    (found,) = examine_quotas([quota({"cpu": "2"})], [PodNeed("kubernetes.master", spec, 1, 1)])
    assert "the job needs 3" in found.message
