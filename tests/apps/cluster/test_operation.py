"""What is said of a submitted job, by objects as the API server gives them."""

from pathlib import Path

import pytest

from ctr_pipeline.apps.cluster.operation import SubmittedJob, open_job, summarize
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, Listed
from ctr_pipeline.errors import CtrPipelineError


def job(*, suspend=False, **conditions):
    return {
        "metadata": {
            "name": "clicks",
            "namespace": "ads",
            "uid": "0a1b",
            "annotations": {"ctrpipe.dev/run-folder": "runs/clicks"},
        },
        "spec": {"suspend": suspend},
        "status": {
            "conditions": [
                {"type": kind, "status": "True", "message": message}
                for kind, message in conditions.items()
            ]
        },
    }


def pod(role, phase="Running", *, index=None, created="1", message=None):
    labels = {"app.kubernetes.io/component": role}
    if index is not None:
        labels["ctrpipe.dev/index"] = str(index)
    status = {"phase": phase}
    if message is not None:
        state = {"terminated": {"exitCode": 1, "message": message}}
        status["containerStatuses"] = [{"name": "ctrpipe", "state": state}]
    name = f"clicks-{role}-{index}-{created}"
    metadata = {"name": name, "uid": name, "labels": labels, "creationTimestamp": created}
    return {"metadata": metadata, "status": status}


@pytest.mark.parametrize(
    ("found", "pods", "state", "reason"),
    [
        (job(), [], "waiting", "its driver is being created"),
        (job(), [pod("driver", "Pending")], "waiting", "it waits for a node"),
        (job(), [pod("driver"), pod("ps", index=0)], "running", ""),
        (job(suspend=True), [pod("driver")], "stopping", ""),
        (job(suspend=True), [], "stopped", ""),
        (job(Complete=""), [], "finished", ""),
        (job(Failed="backoff"), [], "failed", "backoff"),
        (
            job(Failed="backoff"),
            [pod("driver", "Failed", message="reading\nerror: no such file")],
            "failed",
            "error: no such file",
        ),
    ],
)
def test_the_state_of_a_job(found, pods, state, reason):
    summary = summarize(found, pods)
    assert (summary.state, summary.reason) == (state, reason)


def test_running_pods_are_counted_by_role():
    pods = [pod("driver"), pod("worker", index=0), pod("worker", index=1), pod("ps", "Pending")]
    assert summarize(job(), pods).pods == {"driver": 1, "worker": 2}


class ScriptedApi:
    namespace = "ads"

    def __init__(self, found, pods=()):
        self.found, self.pods, self.calls = found, list(pods), []

    def get(self, _kind, _name):
        if self.found is None:
            raise ApiError(404, "not found")
        return self.found

    def list(self, _kind, _selector):
        return Listed(tuple(self.pods), "1")

    def patch(self, _kind, name, patch):
        self.calls.append((name, patch))
        self.found = job(suspend=patch["spec"]["suspend"])
        if patch["spec"]["suspend"]:
            self.pods = [one for one in self.pods if "driver" not in one["metadata"]["name"]]

    def delete(self, kind, name, *, uid):
        self.calls.append(("delete", kind, name, uid))
        self.pods = [one for one in self.pods if one["metadata"]["name"] != name]

    def execute(self, pod_name, command):
        return f"{pod_name}: {' '.join(command)}", "", 0

    def read_log(self, pod_name, *, num_lines, follow):
        yield f"{pod_name} {num_lines} {follow}".encode()


class TestJob:
    def test_commands_run_in_the_newest_driver(self):
        api = ScriptedApi(job(), [pod("driver", "Failed"), pod("driver", created="2")])
        out, _, code = SubmittedJob(api, "clicks").run_in_driver(["scale", "--workers=3"])
        assert code == 0
        assert out == ("clicks-driver-None-2: python -m ctr_pipeline scale runs/clicks --workers=3")

    def test_a_driver_that_ends_meanwhile_is_no_error(self):
        api = ScriptedApi(job(), [pod("driver")])

        def execute(*_):
            api.pods = [pod("driver", "Failed")]
            raise ApiError(500, "container not found")

        api.execute = execute
        assert SubmittedJob(api, "clicks").run_in_driver(["status"]) is None

    def test_an_error_of_a_driver_that_runs_is_told(self):
        api = ScriptedApi(job(), [pod("driver")])

        def execute(*_):
            raise ApiError(403, "pods/exec is forbidden")

        api.execute = execute
        with pytest.raises(ApiError, match="forbidden"):
            SubmittedJob(api, "clicks").run_in_driver(["status"])

    def test_without_a_driver_nothing_runs(self):
        assert SubmittedJob(ScriptedApi(job()), "clicks").run_in_driver(["status"]) is None

    def test_the_log_is_that_of_the_newest_pod(self):
        pods = [pod("worker", index=1), pod("worker", index=1, created="2"), pod("driver")]
        found = SubmittedJob(ScriptedApi(job(), pods), "clicks")
        assert list(found.read_log("worker-1", num_lines=5, follow=False)) == [
            b"clicks-worker-1-2 5 False"
        ]
        with pytest.raises(CtrPipelineError, match="There are driver, worker-1"):
            found.read_log("worker-7", num_lines=5, follow=False)

    def test_members_of_a_driver_that_was_killed_end_as_well(self):
        api = ScriptedApi(job(), [pod("driver"), pod("worker", index=0)])
        found = SubmittedJob(api, "clicks", pause=lambda _: None)
        assert found.suspend(wait_seconds=60) == "stopped"
        assert api.calls == [
            ("clicks", {"spec": {"suspend": True}}),
            ("delete", "Pod", "clicks-worker-0-1", "clicks-worker-0-1"),
        ]

    def test_one_that_is_not_there_is_named(self):
        with pytest.raises(CtrPipelineError, match="there is no job 'clicks'"):
            SubmittedJob(ScriptedApi(None), "clicks").delete()


@pytest.mark.parametrize("address", ["k8s:", "k8s:a/b/c", "k8s:A"])
def test_an_address_that_is_none_says_how_one_is_written(address):
    with pytest.raises(CtrPipelineError, match="k8s:NAMESPACE/NAME"):
        open_job(Path(address))
