"""`ctrpipe status k8s:…`: what Kubernetes knows, and what the driver tells."""

import json

import pytest

from ctr_pipeline.apps.cluster.operation import JobSummary, SubmittedJob
from ctr_pipeline.cli.main import main
from ctr_pipeline.distributed.launchers.kubernetes.api import KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pods import ClusterJob
from ctr_pipeline.errors import CtrPipelineError

NO_IMAGE = "worker-0: its image cannot be pulled: 403"


@pytest.fixture
def wait_for_job(monkeypatch, config, capsys):
    """`ctrpipe submit --wait` of a job that ends; what was fetched, the exit code, and stderr."""

    def run(state="finished", error=None):
        fetched = []

        def fetch(_self, target, parts, **_options):
            fetched.append((target.as_posix(), parts))
            if error is not None:
                raise error

        end = JobSummary("clicks", "ads", state, "runs/clicks", {}, "")
        job = ClusterJob("clicks", "ads", "0a1b")
        monkeypatch.setattr("ctr_pipeline.apps.cluster.submission.submit", lambda *_, **__: job)
        monkeypatch.setattr(KubernetesApi, "of_user", lambda _namespace: None)
        monkeypatch.setattr(SubmittedJob, "follow", lambda *_, **__: end)
        monkeypatch.setattr(SubmittedJob, "fetch", fetch)
        code = main(["submit", str(config), "--wait"])
        return fetched, code, capsys.readouterr().err

    return run


def test_report_is_fetched_after_the_wait_for_a_job(wait_for_job):
    fetched, code, told = wait_for_job()
    assert (fetched, code) == ([("runs/clicks", ("report", "metrics"))], 0)
    assert "report: runs/clicks/report.html" in told


def test_a_report_that_cannot_be_fetched_is_no_failure_of_the_job(wait_for_job):
    _, code, told = wait_for_job(error=CtrPipelineError("is here already"))
    assert code == 0
    assert "warning: the report was not fetched: is here already" in told


def test_a_job_that_failed_has_no_report(wait_for_job):
    assert wait_for_job("failed")[:2] == ([], 1)


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
def test_status_is_what_kubernetes_knows_where_no_driver_tells_something(status, answer):
    assert status(answer) == f"k8s:ads/clicks  running  driver 1  {NO_IMAGE}\n"
    assert json.loads(status(answer, "--json"))["reason"] == NO_IMAGE


def test_status_shows_what_kubernetes_knows_before_what_the_driver_tells(status):
    """No master tells of members while rows are prepared."""
    told = status(("Reading rows\n", "", 0))
    assert told.splitlines() == [f"k8s:ads/clicks  running  driver 1  {NO_IMAGE}", "Reading rows"]
    payload = json.loads(status(('{"state": "preparing"}', "", 0), "--json"))
    assert payload["state"] == "preparing"
    assert payload["cluster"]["pods"] == {"driver": 1}
