"""What is said of a submitted job, by objects as the API server gives them."""

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ctr_pipeline.apps.cluster.operation import (
    Fetched,
    SubmittedJob,
    open_job,
    reader_pod,
    summarize,
)
from ctr_pipeline.cli.fetch import default_folder
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, Listed
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.progress import SilentProgress

TEMPLATE = {
    "serviceAccountName": "clicks",
    "securityContext": {"runAsNonRoot": True},
    "containers": [
        {
            "name": "ctrpipe",
            "image": "registry/ctrpipe:1",
            "workingDir": "/work",
            "securityContext": {"readOnlyRootFilesystem": True},
            "resources": {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi"}},
            "env": [{"name": "HOME", "value": "/home"}, {"name": "CTRPIPE_JOB", "value": "clicks"}],
            "envFrom": [{"secretRef": {"name": "store"}}],
            "volumeMounts": [
                {"name": "work", "mountPath": "/work"},
                {"name": "tmp", "mountPath": "/scratch"},
                {"name": "secrets", "mountPath": "/etc/ctrpipe/secrets"},
            ],
        }
    ],
    "volumes": [
        {"name": "tmp", "emptyDir": {}},
        {"name": "secrets", "secret": {"secretName": "clicks"}},
        {"name": "work", "persistentVolumeClaim": {"claimName": "runs"}},
    ],
}


NOW = datetime(2026, 11, 1, 10, 0, 0, tzinfo=UTC).timestamp()


def summary_of(found, pods, refusals=(), *, now=NOW):
    return summarize(found, pods, lambda: refusals, now=now)


def job(
    *,
    suspend=False,
    folder="runs/clicks",
    strategy="parameter_servers",
    phase=None,
    failed=0,
    **conditions,
):
    return {
        "metadata": {
            "name": "clicks",
            "namespace": "ads",
            "uid": "0a1b",
            "labels": {} if phase is None else {"ctrpipe.dev/phase": phase},
            "annotations": {"ctrpipe.dev/run-folder": folder, "ctrpipe.dev/strategy": strategy},
        },
        "spec": {"suspend": suspend, "template": {"spec": TEMPLATE}},
        "status": {
            "failed": failed,
            "conditions": [
                {"type": kind, "status": "True", "message": message}
                for kind, message in conditions.items()
            ],
        },
    }


def pod(
    role, phase="Running", *, index=None, created="1", message=None, code=1, why="Error", at=None
):
    labels = {"app.kubernetes.io/component": role}
    if index is not None:
        labels["ctrpipe.dev/index"] = str(index)
    status = {"phase": phase}
    if message is not None:
        state = {"terminated": {"exitCode": code, "message": message, "reason": why}}
        if at is not None:
            state["terminated"]["finishedAt"] = at
        status["containerStatuses"] = [{"name": "ctrpipe", "state": state}]
    name = f"clicks-{role}-{index}-{created}"
    metadata = {"name": name, "uid": name, "labels": labels, "creationTimestamp": created}
    return {"metadata": metadata, "status": status}


NO_FILE = "error: no such file"
NO_PYTHON_MESSAGE = 'exec: "python": executable file not found in $PATH: unknown'
NO_PYTHON = pod("driver", "Failed", code=128, why="StartError", message=NO_PYTHON_MESSAGE)


@pytest.mark.parametrize(
    ("found", "pods", "state", "reason"),
    [
        (job(), [], "waiting", "its driver is being created"),
        (job(), [pod("driver", "Pending")], "waiting", "it waits for a node"),
        (job(), [pod("driver"), pod("ps", index=0)], "running", ""),
        (job(suspend=True), [pod("driver")], "stopping", ""),
        (job(suspend=True), [], "stopped", ""),
        (job(suspend=True), [pod("driver", "Failed")], "stopped", ""),
        (job(Complete=""), [], "finished", ""),
        (job(Failed="backoff"), [], "failed", "backoff"),
        (
            job(Failed="backoff"),
            [pod("driver", "Failed", message="reading\nerror: no such file")],
            "failed",
            "error: no such file",
        ),
        # What Kubernetes says a moment later.
        (job(), [pod("driver", "Succeeded", code=0, message="")], "finished", ""),
        (job(FailureTarget="policy"), [], "failed", "policy"),
        (job(), [pod("driver", "Failed", message="error: no such file")], "failed", NO_FILE),
        (job(), [NO_PYTHON], "failed", NO_PYTHON_MESSAGE),
    ],
)
def test_the_state_of_a_job(found, pods, state, reason):
    summary = summary_of(found, pods)
    assert (summary.state, summary.reason) == (state, reason)


KILLED = pod("driver", "Failed", code=137, message="", at="2026-11-01T09:59:55Z")
EVICTED = pod("driver", "Failed", code=143, message="", at="2026-11-01T09:59:55Z")
EVICTED["status"]["conditions"] = [
    {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
]
BUG = pod(
    "driver", "Failed", code=70, message="Traceback\nKeyError: 'x'", at="2026-11-01T09:00:00Z"
)
NEXT = pod("driver", "Pending", created="2")


@pytest.mark.parametrize(
    ("found", "pods", "reason", "seconds"),
    [
        (job(), [KILLED], "its driver was killed (SIGKILL); start 2 of 21", 5),
        # The Job knows of those whose pods are gone.
        (job(failed=4), [KILLED], "its driver was killed (SIGKILL); start 5 of 21", 5),
        (
            job(),
            [KILLED, NEXT],
            "its driver was killed (SIGKILL); start 2 of 21: it waits for a node",
            0,
        ),
        (
            job(),
            [BUG],
            "its driver failed (exit code 70): KeyError: 'x'; start 2 of 21: it is being created",
            0,
        ),
        (job(), [EVICTED], "its driver was evicted; the next one", 5),
        (job(), [pod("worker", index=0)], "its driver is being created", 0),
        (job(phase="training"), [NEXT], "it waits for a node", 0),
    ],
)
def test_a_job_runs_between_two_drivers_and_says_why_it_has_none(found, pods, reason, seconds):
    summary = summary_of(found, pods)
    assert (summary.state, summary.reason, summary.next_driver_seconds) == (
        "running",
        reason,
        seconds,
    )


def test_running_pods_are_counted_by_role():
    pods = [pod("driver"), pod("worker", index=0), pod("worker", index=1), pod("ps", "Pending")]
    assert summary_of(job(), pods).pods == {"driver": 1, "worker": 2}


def test_members_that_wait_are_named_once_for_each_reason():
    """Also while rows are prepared, when no master tells of members."""
    waiting = pod("worker", "Pending", index=2)
    waiting["status"]["containerStatuses"] = [
        {"name": "ctrpipe", "state": {"waiting": {"reason": "ErrImagePull", "message": "403"}}}
    ]
    pods = [pod("driver"), pod("worker", index=3), waiting]
    pods += [pod("worker", "Pending", index=index) for index in (1, 0)]
    assert summary_of(job(), pods).reason == (
        "worker-2: its image cannot be pulled: 403; worker-0, worker-1: it waits for a node"
    )


def test_reason_names_a_few_of_many_members_that_wait_for_the_same():
    pods = [pod("driver"), *(pod("worker", "Pending", index=index) for index in range(1000))]
    reason = summary_of(job(), pods).reason
    assert reason.startswith("worker-0, worker-1, worker-10, ")
    assert reason.endswith(" and 992 others: it waits for a node")


def refusal(message, time, uid="0a1b"):
    return {
        "involvedObject": {"kind": "Job", "uid": uid},
        "lastTimestamp": time,
        "message": f'Error creating: pods "clicks-x2" is forbidden: {message}',
    }


def test_a_driver_that_a_quota_refuses_is_said_to_wait_for_it():
    refusals = [
        refusal("exceeded quota: small, requested: cpu=4", "2026-11-01T10:00:09Z"),
        refusal("exceeded quota: small, requested: cpu=2", "2026-11-01T10:00:10Z"),
        refusal("exceeded quota: other", "2026-11-01T10:00:11Z", uid="another job"),
    ]
    summary = summary_of(job(), [], refusals)
    assert summary.state == "waiting"
    assert summary.reason == (
        "its driver cannot be created: exceeded quota: small, requested: cpu=2"
    )
    assert summary_of(job(), [pod("driver")], refusals).reason == "", "it was created since"


class Running:
    """A command that runs in this process: what it would write in a pod."""

    exit_code, errors = 0, ""

    def __init__(self, pod_name, command):
        self.pod_name, self.command = pod_name, command

    def __iter__(self):
        yield f"{self.pod_name.rpartition('-')[0]}: {' '.join(self.command[2:])}\n".encode()


class ScriptedApi:
    namespace = "ads"

    def __init__(self, found, pods=()):
        self.found, self.pods, self.calls = found, list(pods), []
        self.events, self.lists = [], []

    def get(self, kind, name):
        if kind == "Pod":
            return next(one for one in self.pods if one["metadata"]["name"] == name)
        if self.found is None:
            raise ApiError(404, "not found")
        return self.found

    def list(self, kind, selector="", *, fields=""):
        if kind == "Event":
            assert fields == "reason=FailedCreate,involvedObject.kind=Job"
            if self.events is None:
                raise ApiError(403, "events is forbidden")
            return Listed(tuple(self.events), "1")
        self.lists.append(selector)
        wanted = dict(part.split("=") for part in selector.split(","))
        assert wanted.pop("app.kubernetes.io/instance") == "clicks"
        found = (one for one in self.pods if wanted.items() <= one["metadata"]["labels"].items())
        return Listed(tuple(found), "1")

    def patch(self, _kind, name, patch):
        self.calls.append((name, patch))
        self.found = self.found | {"spec": {"suspend": patch["spec"]["suspend"]}}
        if patch["spec"]["suspend"]:
            self.pods = [one for one in self.pods if "driver" not in one["metadata"]["name"]]

    def delete(self, kind, name, *, uid, grace_seconds=None):
        self.calls.append(("delete", kind, name, uid))
        self.pods = [one for one in self.pods if one["metadata"]["name"] != name]

    def execute(self, pod_name, command):
        return f"{pod_name}: {' '.join(command)}", "", 0

    def create(self, manifest):
        metadata = manifest["metadata"] | {"uid": "r", "creationTimestamp": "9"}
        self.calls.append(("create", manifest["metadata"]["labels"]["app.kubernetes.io/component"]))
        self.pods.append(manifest | {"metadata": metadata, "status": {"phase": "Running"}})
        return self.pods[-1]

    @contextlib.contextmanager
    def run(self, pod_name, command):
        yield Running(pod_name, command)

    def read_log(self, pod_name, *, num_lines, follow):
        yield f"{pod_name} {num_lines} {follow}".encode()


def test_events_are_read_where_the_user_may_and_while_there_is_no_pod():
    api = ScriptedApi(job())
    api.events = [refusal("exceeded quota: small", "2026-11-01T10:00:09Z")]
    assert "exceeded quota: small" in SubmittedJob(api, "clicks").summary().reason
    api.events = None
    assert SubmittedJob(api, "clicks").summary().reason == "its driver is being created"


class TestJob:
    def test_commands_run_in_the_newest_driver(self):
        api = ScriptedApi(job(), [pod("driver", "Failed"), pod("driver", created="2")])
        out, _, code = SubmittedJob(api, "clicks").run_in_driver(["scale", "--workers=3"])
        assert code == 0
        assert out == ("clicks-driver-None-2: python -m ctr_pipeline scale runs/clicks --workers=3")
        # A job of a thousand pods is not read for it.
        assert all("app.kubernetes.io/component=driver" in selector for selector in api.lists)

    @pytest.mark.parametrize("seconds", [0, 3])
    def test_a_driver_that_has_just_ended_is_no_error(self, seconds):
        """Kubernetes says a moment longer that it runs."""
        api, pauses = ScriptedApi(job(), [pod("driver")]), []

        def pause(length):
            pauses.append(length)
            if len(pauses) > seconds:
                api.pods = [pod("driver", "Failed")]

        def execute(*_):
            raise ApiError(500, "Handshake status 500 … container not found")

        api.execute = execute
        found = SubmittedJob(api, "clicks", pause=pause)
        assert found.run_in_driver(["status"]) is None
        assert found.read_endpoint() is None

    def test_a_driver_that_goes_on_refusing_is_an_error(self):
        api, pauses = ScriptedApi(job(), [pod("driver")]), []

        def execute(*_):
            raise ApiError(500, "it is ill")

        api.execute = execute
        with pytest.raises(ApiError, match="it is ill"):
            SubmittedJob(api, "clicks", pause=pauses.append).run_in_driver(["status"])
        assert 5 < sum(pauses) < 60

    def test_an_error_of_a_driver_that_runs_is_told(self):
        api = ScriptedApi(job(), [pod("driver")])

        def execute(*_):
            raise ApiError(403, "pods/exec is forbidden")

        api.execute = execute
        with pytest.raises(ApiError, match="forbidden"):
            SubmittedJob(api, "clicks").run_in_driver(["status"])

    def test_command_is_not_run_without_a_driver(self):
        assert SubmittedJob(ScriptedApi(job()), "clicks").run_in_driver(["status"]) is None

    def test_the_log_is_that_of_the_newest_pod(self):
        pods = [pod("worker", index=1), pod("worker", index=1, created="2"), pod("driver")]
        found = SubmittedJob(ScriptedApi(job(), pods), "clicks")
        assert list(found.read_log("worker-1", num_lines=5, follow=False)) == [
            b"clicks-worker-1-2 5 False"
        ]
        with pytest.raises(CtrPipelineError, match="There are driver, master-0, worker-1"):
            found.read_log("wroker-1", num_lines=5, follow=False)

    @pytest.mark.parametrize("member", ["master", "worker-7"])
    def test_a_member_without_a_pod_has_left_a_file(self, member):
        found = SubmittedJob(ScriptedApi(job(), [pod("driver")]), "clicks")
        (line,) = found.read_log(member, num_lines=5, follow=True)
        name = "master-0" if member == "master" else member
        assert line.decode() == (
            f"clicks-driver-None: ctr_pipeline logs runs/clicks {name} --lines=5 --follow\n"
        )

    def test_reader_pod_reads_the_claim_and_is_deleted_without_a_driver(self):
        api = ScriptedApi(job())
        (line,) = SubmittedJob(api, "clicks").read_log("worker-7", num_lines=5, follow=False)
        assert line.startswith(b"clicks-reader: ctr_pipeline logs")
        assert [call[:2] for call in api.calls] == [("create", "reader"), ("delete", "Pod")]
        assert not api.pods

    def test_lines_of_all_members_come_with_their_names(self):
        pods = [pod("driver"), pod("worker", index=0), pod("worker", "Pending", index=1)]
        found = SubmittedJob(ScriptedApi(job(), pods), "clicks")
        assert sorted(found.read_all_logs(num_lines=5, follow=False)) == [
            ("driver", b"clicks-driver-None-1 5 False"),
            ("master-0", b"clicks-driver-None: ctr_pipeline logs runs/clicks master-0 --lines=5"),
            ("worker-0", b"clicks-worker-0-1 5 False"),
        ]

    def test_a_job_of_replicas_has_no_master_to_show(self):
        found = SubmittedJob(
            ScriptedApi(job(strategy="allreduce"), [pod("driver"), pod("worker", index=0)]),
            "clicks",
        )
        assert sorted(found.read_all_logs(num_lines=5, follow=False)) == [
            ("driver", b"clicks-driver-None-1 5 False"),
            ("worker-0", b"clicks-worker-0-1 5 False"),
        ]
        with pytest.raises(CtrPipelineError, match="There are driver, worker-0;"):
            found.read_log("master", num_lines=5, follow=False)

    @pytest.mark.slow
    def test_logs_are_followed_to_the_end_of_the_job_with_members_that_join(self):
        api = ScriptedApi(job(), [pod("driver")])
        lines = SubmittedJob(api, "clicks").read_all_logs(num_lines=5, follow=True)
        assert {next(lines)[0], next(lines)[0]} == {"driver", "master-0"}
        api.pods.append(pod("ps", index=0))
        assert next(lines) == ("ps-0", b"clicks-ps-0-1 5 True")
        api.found = job(Complete="")
        assert list(lines) == []

    def test_members_of_a_driver_that_was_killed_end_as_well(self):
        # What is left of an earlier driver takes no part.
        failed = pod("driver", "Failed", created="0")
        failed["metadata"]["name"] = "failed"
        api = ScriptedApi(job(), [failed, pod("driver"), pod("worker", index=0)])
        found = SubmittedJob(api, "clicks", pause=lambda _: None)
        assert found.suspend(wait_seconds=60) == "stopped"
        assert api.calls == [
            ("clicks", {"spec": {"suspend": True}}),
            ("delete", "Pod", "clicks-worker-0-1", "clicks-worker-0-1"),
        ]

    def test_nodes_of_an_elastic_run_stop_and_go_on_with_it(self):
        found = job()
        found["metadata"].setdefault("annotations", {})["ctrpipe.dev/nodes"] = "clicks-nodes"
        api = ScriptedApi(found)
        SubmittedJob(api, "clicks", pause=lambda _: None).suspend(wait_seconds=0)
        SubmittedJob(api, "clicks").resume()
        assert api.calls == [
            (name, {"spec": {"suspend": suspended}})
            for suspended in (True, False)
            for name in ("clicks", "clicks-nodes")
        ]

    def test_nodes_of_an_elastic_run_have_the_numbers_that_kubernetes_gives(self):
        node = pod("worker")
        node["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = "3"
        found = SubmittedJob(ScriptedApi(job(), [node]), "clicks")
        name = node["metadata"]["name"]
        assert list(found.read_log("worker-3", num_lines=5, follow=False)) == [
            f"{name} 5 False".encode()
        ]

    def test_follower_of_a_job_hears_why_it_has_no_driver(self):
        api, told = ScriptedApi(job()), []
        rounds = [[pod("driver", "Pending")], [pod("driver", "Pending")], [pod("driver")]]

        def pause(_seconds):
            if rounds:
                api.pods = rounds.pop(0)
            else:
                api.found = job(Complete="")

        shown = []
        end = SubmittedJob(api, "clicks", pause=pause).follow(shown.append, on_wait=told.append)
        assert end.state == "finished"
        assert told == ["its driver is being created", "it waits for a node"]
        assert shown == [b"clicks-driver-None-1 1000000 True"]

    def test_one_that_is_not_there_is_named(self):
        with pytest.raises(CtrPipelineError, match="there is no job 'clicks'"):
            SubmittedJob(ScriptedApi(None), "clicks").delete()


class TestFetch:
    class Api(ScriptedApi):
        """Its pods' commands are processes of this machine; a connection breaks off when told to.

        Args:
            breaks: One for each transfer: whether it breaks, after so many bytes.
        """

        def __init__(self, run, pods, breaks=()):
            super().__init__(job(folder=str(run)))
            self._pods, self.breaks = pods, list(breaks)

        @contextlib.contextmanager
        def run(self, pod_name, command, *, has_input=False):
            with self._pods.run(pod_name, command, has_input=has_input) as running:
                is_to_break = command[3] == "pack" and self.breaks
                yield Breaking(running, self.breaks.pop(0)) if is_to_break else running

    @pytest.fixture
    def run(self, tmp_path):
        files = {"report.html": b"<html>", "export/1/model.pb": b"x" * 300_000}
        for name, content in {**files, "checkpoints/1/cut": b"c", "metrics.json": b"{}"}.items():
            path = tmp_path / "run" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return tmp_path / "run"

    @pytest.fixture
    def fetch(self, tmp_path, run, pods):
        def fetch(*parts, overwrite=False, breaks=(), folder=run):
            self.api = self.Api(folder, pods, breaks)
            found = SubmittedJob(self.api, "clicks", pause=lambda _: None)
            return found.fetch(
                tmp_path / "here", parts, overwrite=overwrite, progress=SilentProgress()
            )

        return fetch

    def here(self, tmp_path):
        return sorted(
            path.relative_to(tmp_path / "here").as_posix()
            for path in (tmp_path / "here").rglob("*")
            if path.is_file()
        )

    def test_all_but_checkpoints_is_fetched_and_once(self, fetch, tmp_path):
        assert fetch() == Fetched(3, 3, 300_008)
        assert self.here(tmp_path) == ["export/1/model.pb", "metrics.json", "report.html"]
        assert not self.api.pods
        assert fetch() == Fetched(3, 0, 0)

    def test_parts_are_named_with_and_without_their_endings(self, fetch, tmp_path):
        fetch("report", "metrics.json", "checkpoints")
        assert self.here(tmp_path) == ["checkpoints/1/cut", "metrics.json", "report.html"]
        with pytest.raises(CtrPipelineError, match=r"no 'reprot'.*export, metrics, report"):
            fetch("reprot")

    def test_other_files_of_the_same_names_stay(self, fetch, tmp_path):
        report = tmp_path / "here" / "report.html"
        report.parent.mkdir()
        report.write_text("of another run")
        with pytest.raises(CtrPipelineError, match="is here already"):
            fetch()
        assert self.here(tmp_path) == ["report.html"]
        fetch(overwrite=True)
        assert report.read_text() == "<html>"

    def test_a_transfer_that_breaks_off_goes_on(self, fetch, tmp_path):
        done = fetch(breaks=[150_000, 100, 100, 150_000])
        assert done.num_bytes < 300_000
        assert (tmp_path / "here" / "export/1/model.pb").read_bytes() == b"x" * 300_000
        assert not list((tmp_path / "here").rglob("*.part"))

    def test_one_that_brings_nothing_three_times_is_an_error(self, fetch):
        with pytest.raises(ApiError, match="broke off"):
            fetch(breaks=[150_000, 0, 0, 0])
        assert not self.api.breaks

    def test_fetch_fails_without_a_run_folder(self, fetch, tmp_path):
        with pytest.raises(CtrPipelineError, match="there is no run folder"):
            fetch(folder=tmp_path / "none")


class Breaking:
    """A command whose connection breaks after so many bytes of its output."""

    def __init__(self, running, num_bytes):
        self._running, self._left = running, num_bytes
        self.write = running.write

    def __iter__(self):
        for block in self._running:
            yield block[: self._left]
            self._left -= len(block)
            if self._left <= 0:
                raise ApiError(0, "the connection to the pod broke off")


def test_a_pod_that_reads_sees_neither_secrets_nor_the_api_and_needs_little():
    found = reader_pod(job(), suffix="1c5e")
    spec = found["spec"]
    (container,) = spec["containers"]
    assert "secret" not in str(found)
    assert not spec["automountServiceAccountToken"]
    assert "serviceAccountName" not in spec
    assert spec["securityContext"] == TEMPLATE["securityContext"]
    assert container["resources"] == {"requests": {"cpu": "100m"}, "limits": {"memory": "512Mi"}}
    assert {one["name"]: one.get("readOnly", False) for one in container["volumeMounts"]} == {
        "work": True,
        "tmp": False,
    }
    # With a label of the Job's controller, that would take it for a driver.
    assert set(found["metadata"]["labels"]) == {
        *("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"),
    }
    assert found["metadata"]["ownerReferences"][0]["uid"] == "0a1b"


@pytest.mark.parametrize(
    ("run_folder", "folder"),
    [("runs/x", "runs/x"), ("/mnt/x", "runs/clicks"), ("../x", "runs/clicks")],
)
def test_results_go_where_they_were_or_into_a_folder_of_runs(run_folder, folder):
    assert default_folder("clicks", run_folder) == Path(folder)


@pytest.mark.parametrize("address", ["k8s:", "k8s:a/b/c", "k8s:A"])
def test_an_address_that_is_none_says_how_one_is_written(address):
    with pytest.raises(CtrPipelineError, match="k8s:NAMESPACE/NAME"):
        open_job(Path(address))
