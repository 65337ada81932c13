"""Prometheus and Grafana are told to look for what pods have and members export."""

import json
import re
from pathlib import Path

import pytest
import yaml

from ctr_pipeline.cli.main import main
from ctr_pipeline.config.kubernetes import KubernetesConfig
from ctr_pipeline.distributed.coordination.launching import MemberStart
from ctr_pipeline.distributed.coordination.messages import MemberStats
from ctr_pipeline.distributed.launchers.kubernetes.pods import ClusterJob, member_pod
from ctr_pipeline.distributed.master.metrics import JobCollector
from ctr_pipeline.distributed.master.status import CheckpointStatus, TableUse
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.metrics import PsFigures, PsMetrics
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.server import RpcServer
from ctr_pipeline.distributed.worker.metrics import WorkerMetrics
from tests.distributed.job_specs import job_spec
from tests.pipeline.followed_jobs import member, view

JOB = view(
    trained=9,
    auc=0.7,
    checkpoint=CheckpointStatus(1, 2, 3.0, 1),
    members=(member("worker", 0, "running", samples_per_second=1.0),),
    tables=(TableUse("C1", ("C1",), 10, 4, 400),),
)

_LABELS_OF_THE_POD_MONITOR = {"ctrpipe_job", "pod_role", "pod"}


@pytest.fixture
def printed(capsys):
    def run(what):
        assert main(["monitoring", what]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def exported():
    """Labels of each metric that members export, by its name."""
    server = RpcServer("Test", (), address="127.0.0.1:0", access=Access.within_process())
    collectors = (
        JobCollector(lambda: JOB),
        PsMetrics(PsFigures(PsCore(job_spec(), 0), server, cores=1)),
        WorkerMetrics(MemberStats),
    )
    found = {}
    for collector in collectors:
        for metric in collector.collect():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            found[name] = {label for sample in metric.samples for label in sample.labels}
    return found


def used(expression):
    """Metrics of an expression of PromQL, and the labels that each is chosen by."""
    for name, chosen in re.findall(r"(ctrpipe_\w+)\{([^}]*)\}", expression):
        yield name, set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", chosen))


def test_the_dashboard_shows_what_members_export(printed, exported):
    board = json.loads(printed("dashboard"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    for expression in expressions:
        metrics = list(used(expression))
        assert metrics, expression
        for name, labels in metrics:
            assert name in exported, expression
            assert labels <= exported[name] | _LABELS_OF_THE_POD_MONITOR, expression
    (query,) = (
        one["query"]["query"] for one in board["templating"]["list"] if one["name"] == "job"
    )
    assert query == "label_values(ctrpipe_step, ctrpipe_job)"
    assert "ctrpipe_step" in exported


def test_panels_do_not_overlap(printed):
    taken = set()
    for panel in json.loads(printed("dashboard"))["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_pod_monitor_finds_the_pods_of_a_job(printed):
    monitor = yaml.safe_load(printed("pod-monitor"))
    pod = member_pod(
        KubernetesConfig(image="i", claim="c"),
        ClusterJob("clicks", "ads", "uid"),
        MemberStart("worker", 3, "inc"),
        ["-m", "ctr_pipeline"],
        logs_folder=Path("/w/logs"),
        working_folder=Path("/work"),
        environment={},
        restarts=0,
        server_grace_seconds=30.0,
    )
    labels = pod["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    assert endpoint["port"] == port["name"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["CTRPIPE_METRICS_PORT"] == str(port["containerPort"])
    escaped = {re.sub(r"\W", "_", name): name for name in labels}
    for rule in endpoint["relabelings"]:
        (source,) = rule["sourceLabels"]
        assert source.removeprefix("__meta_kubernetes_pod_label_") in escaped
        assert rule["targetLabel"] in _LABELS_OF_THE_POD_MONITOR
