"""`ctrpipe status k8s:…`: what Kubernetes knows, and what the driver tells."""

import json

import pytest

from ctr_pipeline.apps.cluster.operation import JobSummary, SubmittedJob
from ctr_pipeline.cli.main import main
from ctr_pipeline.distributed.launchers.kubernetes.api import KubernetesApi

NO_IMAGE = "worker-0: its image cannot be pulled: 403"


@pytest.fixture
def status(monkeypatch, capsys):
    def run(answer, *options):
        summary = JobSummary("clicks", "ads", "running", "runs/clicks", {"driver": 1}, NO_IMAGE)
        monkeypatch.setattr(KubernetesApi, "of_user", lambda _namespace: None)
        monkeypatch.setattr(SubmittedJob, "summary", lambda _self: summary)
        monkeypatch.setattr(SubmittedJob, "run_in_driver", lambda _self, _arguments: answer)
        assert main(["status", "k8s:ads/clicks", *options]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("answer", [None, ("", "there is no run", 1)])
def test_without_a_driver_that_tells_something_it_is_what_kubernetes_knows(status, answer):
    assert status(answer) == f"k8s:ads/clicks  running  driver 1  {NO_IMAGE}\n"
    assert json.loads(status(answer, "--json"))["reason"] == NO_IMAGE


def test_what_kubernetes_knows_comes_before_what_the_driver_tells(status):
    """No master tells of members while rows are prepared."""
    told = status(("Reading rows\n", "", 0))
    assert told.splitlines() == [f"k8s:ads/clicks  running  driver 1  {NO_IMAGE}", "Reading rows"]
    payload = json.loads(status(('{"state": "preparing"}', "", 0), "--json"))
    assert payload["state"] == "preparing"
    assert payload["cluster"]["pods"] == {"driver": 1}
