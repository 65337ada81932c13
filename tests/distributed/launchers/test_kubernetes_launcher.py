"""What becomes of pods: their ends by the book, the watch against a scripted API, lost answers."""

from pathlib import Path

import pytest
from kubernetes_pods import LocalPods
from launched import SLEEP, Scripts
from waiting import wait_until

from ctr_pipeline.config.kubernetes import KubernetesConfig, PodConfig
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    LauncherContext,
    MemberStart,
)
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, Listed
from ctr_pipeline.distributed.launchers.kubernetes.launcher import KubernetesLauncher
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import (
    end_of_deleted,
    explain_waiting,
    read_end,
)
from ctr_pipeline.distributed.launchers.kubernetes.pods import ClusterJob, member_pod, merge_patch
from ctr_pipeline.distributed.launchers.kubernetes.watching import PodWatch
from ctr_pipeline.errors import CtrPipelineError

JOB = ClusterJob("clicks", "ads", "0a1b")


def pod(phase="Running", *, state=None, disruption=None, **status):
    status = {"phase": phase, **status}
    if state is not None:
        status["containerStatuses"] = [{"name": "ctrpipe", "state": state}]
    if disruption is not None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": disruption}
        status["conditions"] = [condition]
    return {"metadata": {"name": "p"}, "status": status}


def ended(code, reason="Error", message="last lines"):
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("found", "reason", "exit_code"),
    [
        (pod("Succeeded", state=ended(0, "Completed")), "completed", 0),
        (pod("Failed", state=ended(3)), "error", 3),
        (pod("Failed", state=ended(139)), "error", 139),
        (pod("Failed", state=ended(71)), "out_of_memory", 71),
        (pod("Failed", state=ended(137, "OOMKilled")), "out_of_memory", 137),
        (pod("Failed", state=ended(137)), "killed", 137),
        (pod("Failed", state=ended(143)), "killed", 143),
        (pod("Failed", state=ended(128, "StartError")), "not_started", 128),
        (pod("Failed", state=ended(143), disruption="PreemptionByScheduler"), "evicted", 143),
        (pod("Failed", state=ended(143), disruption="EvictionByEvictionAPI"), "evicted", 143),
        (pod("Failed", state=ended(137), disruption="DeletionByTaintManager"), "node_lost", 137),
        (pod("Succeeded", state=ended(0), disruption="TerminationByKubelet"), "evicted", 0),
        # Its own fault stays one, whatever happens around it.
        (pod("Failed", state=ended(3), disruption="PreemptionByScheduler"), "error", 3),
        (pod("Failed", reason="Evicted", message="disk pressure"), "evicted", None),
        (pod("Failed", reason="NodeShutdown"), "node_lost", None),
        (pod("Failed", reason="OutOfcpu"), "not_started", None),
    ],
)
def test_the_reason_of_an_end(found, reason, exit_code):
    end = read_end(found)
    assert (end.reason, end.exit_code) == (reason, exit_code)


def test_a_running_or_waiting_pod_has_not_ended():
    assert read_end(pod("Running", state={"running": {}})) is None
    assert read_end(pod("Pending")) is None


def test_a_deleted_pod_ended_by_the_last_that_was_seen_of_it():
    assert end_of_deleted(pod("Running"), stopped=False).reason == "killed"
    lost = pod("Running", disruption="DeletionByTaintManager")
    assert end_of_deleted(lost, stopped=False).reason == "node_lost"
    assert end_of_deleted(pod(state=ended(3)), stopped=False).reason == "error"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (pod("Running"), ""),
        (
            pod("Pending", state={"waiting": {"reason": "ErrImagePull", "message": "403"}}),
            "its image cannot be pulled: 403",
        ),
        (
            pod(
                "Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/2 nodes are available: 2 Insufficient cpu.",
                    }
                ],
            ),
            "no node can take it: 0/2 nodes are available: 2 Insufficient cpu.",
        ),
        (pod("Pending"), "it waits for a node"),
    ],
)
def test_why_a_pod_waits(found, words):
    assert explain_waiting(found) == words


class TestManifest:
    def build(self, options=None, role="worker"):
        return member_pod(
            options or KubernetesConfig(image="ctrpipe:1", claim="runs"),
            JOB,
            MemberStart(role, 3, "c0ffee"),
            ["-m", "ctr_pipeline", role],
            logs_folder=Path("/runs/clicks/logs"),
            working_folder=Path("/runs"),
            environment={"GRPC_VERBOSITY": "INFO"},
            restarts=2,
        )

    def test_is_owned_by_the_job_and_says_whose_it_is(self):
        metadata = self.build()["metadata"]
        assert metadata["name"] == "clicks-worker-3-c0ffee"
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "clicks", "0a1b")
        assert metadata["annotations"]["ctrpipe.dev/restarts"] == "2"

    def test_keeps_to_the_restricted_standard(self):
        spec = self.build()["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["automountServiceAccountToken"] is False

    def test_sees_its_own_keys_only(self):
        (secrets,) = (one for one in self.build()["spec"]["volumes"] if one["name"] == "secrets")
        keys = {item["key"] for item in secrets["secret"]["items"]}
        assert keys == {"token", "ca.pem", "worker.pem", "worker.key"}

    def test_what_no_key_is_for_is_patched_in(self):
        patch = {"spec": {"containers": [{"name": "ctrpipe", "tty": True}], "volumes": None}}
        options = KubernetesConfig(image="i", workers=PodConfig(patch=patch, memory="4Gi"))
        spec = self.build(options)["spec"]
        (container,) = spec["containers"]
        assert container["tty"]
        assert container["image"] == "i"
        assert container["resources"]["limits"] == {"memory": "4Gi"}
        assert "volumes" not in spec


def test_lists_without_names_are_replaced():
    assert merge_patch({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}


class ScriptedApi:
    """Lists and streams as given; the last watch ends the test."""

    def __init__(self, lists, streams):
        self.lists, self.streams, self.calls = list(lists), list(streams), []

    def list(self, _kind, _selector):
        self.calls.append("list")
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        return Listed(tuple(found), "1")

    def watch(self, *_, **__):
        self.calls.append("watch")
        for one in self.streams.pop(0):
            if isinstance(one, Exception):
                raise one
            yield one


class TestWatch:
    def follow(self, lists, streams, rounds):
        api, seen, pauses = ScriptedApi(lists, streams), [], []

        def pause(seconds):
            pauses.append(seconds)
            return len(pauses) == rounds

        PodWatch(
            api,
            "",
            on_list=lambda pods, _: seen.append(("all", *pods)),
            on_change=lambda pod, exists: seen.append((pod, exists)),
            count=lambda: 1,
            pause=pause,
        ).run()
        return api, seen, pauses

    def test_a_stream_that_ends_without_a_word_is_followed_by_a_list(self):
        api, seen, pauses = self.follow([["a"], ["b"]], [[("ADDED", "x")], []], 2)
        assert api.calls == ["list", "watch", "list", "watch"]
        assert seen == [("all", "a"), ("x", True), ("all", "b")]
        assert pauses == [0.0, 0.0]

    def test_a_version_that_is_too_old_costs_no_pause(self):
        _, _, pauses = self.follow([[], []], [[ApiError(410, "too old")], []], 2)
        assert pauses == [0.0, 0.0]

    def test_a_server_that_is_away_is_asked_again_after_growing_pauses(self):
        away = ApiError(0, "does not answer")
        _, _, pauses = self.follow([away, away, []], [[("DELETED", "x")]], 3)
        assert 0 < pauses[0] < pauses[1]
        assert pauses[2] == 0.0


@pytest.fixture
def opened(tmp_path):
    api = LocalPods(tmp_path / "pods")
    launchers = []

    def launch(**texts):
        context = LauncherContext(Scripts(**texts), tmp_path / "logs")
        launchers.append(KubernetesLauncher(context, api=api, job=JOB))
        return launchers[-1], api

    yield launch
    launchers[-1].__exit__(None, None, None)


def state(launcher):
    (found,) = launcher.observe()
    return found


class TestLauncher:
    @pytest.mark.parametrize(
        ("refusal", "error"),
        [
            (ApiError(429, "too many requests"), LauncherBusyError),
            (ApiError(503, "unavailable"), LauncherBusyError),
            (ApiError(0, "does not answer"), LauncherBusyError),
            (ApiError(403, 'pods "x" is forbidden: exceeded quota: q'), LauncherBusyError),
            (ApiError(403, "forbidden: violates PodSecurity"), CannotLaunchError),
            (ApiError(422, "invalid"), CannotLaunchError),
        ],
    )
    def test_a_refusal_passes_or_does_not(self, opened, refusal, error):
        launcher, api = opened(ps=SLEEP)
        api.refusals = [refusal]
        with pytest.raises(error):
            launcher.start("ps", 0)
        assert launcher.observe() == ()

    def test_a_pod_whose_creation_was_not_answered_is_adopted(self, opened):
        launcher, api = opened(ps=SLEEP)
        create = api.create

        def lose_the_answer(manifest):
            create(manifest)
            api.create = create
            raise ApiError(0, "does not answer")

        api.create = lose_the_answer
        with pytest.raises(LauncherBusyError):
            launcher.start("ps", 0)
        launcher.start("ps", 0)
        assert len(api.pods) == 1
        assert state(launcher).running

    def test_the_next_launcher_takes_over_what_runs(self, opened):
        first, _ = opened(worker=SLEEP)
        first.start("worker", 5)
        second, _ = opened(worker=SLEEP)
        assert state(second) == state(first)
        second.start("worker", 5)
        assert state(second) == state(first)

    def test_what_a_cut_watch_missed_is_found_by_the_next_list(self, opened):
        launcher, api = opened(worker=SLEEP)
        launcher.start("worker", 0)
        (name,) = api.pods
        changed, api._changed = api._changed, lambda *_: None
        api.delete("Pod", name, grace_seconds=60)
        wait_until(lambda: not api.pods)
        api._changed = changed
        assert state(launcher).running
        api.cut_watches()
        wait_until(lambda: not state(launcher).running)
        assert state(launcher).reason == "killed"

    def test_a_pod_deleted_by_a_person_was_killed(self, opened):
        launcher, api = opened(worker=SLEEP)
        launcher.start("worker", 0)
        (name,) = api.pods
        api.delete("Pod", name, grace_seconds=60)
        wait_until(lambda: not state(launcher).running)
        assert state(launcher).reason == "killed"

    def test_nothing_is_left_behind(self, opened):
        launcher, api = opened(worker=SLEEP, ps="raise SystemExit(3)")
        launcher.start("worker", 0)
        launcher.start("ps", 0)
        with launcher:
            pass
        assert api.pods == {}


def test_outside_of_a_cluster_the_mode_is_refused():
    with pytest.raises(CtrPipelineError, match="ctrpipe submit"):
        ClusterJob.of_this_pod({})
