"""What becomes of pods: their ends by the book, the watch against a scripted API, lost answers."""

import itertools
import logging
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ctr_pipeline.config.kubernetes import KubernetesConfig, MemberPodConfig, WorkerPodConfig
from ctr_pipeline.distributed.coordination.launching import (
    CannotLaunchError,
    LauncherBusyError,
    LauncherContext,
    MemberStart,
)
from ctr_pipeline.distributed.coordination.news import JobNews, NewsLine
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, Listed
from ctr_pipeline.distributed.launchers.kubernetes.drivers import (
    FINAL_EXITS,
    enter_series,
    explain_driver_end,
    pause_before_next,
)
from ctr_pipeline.distributed.launchers.kubernetes.launcher import (
    KubernetesLauncher,
)
from ctr_pipeline.distributed.launchers.kubernetes.memory import NextMemory
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import (
    end_of_deleted,
    explain_waiting,
    read_end,
)
from ctr_pipeline.distributed.launchers.kubernetes.pods import ClusterJob, member_pod, merge_patch
from ctr_pipeline.distributed.launchers.kubernetes.publishing import (
    JobPublisher,
    describe_news,
    event_of,
)
from ctr_pipeline.distributed.launchers.kubernetes.watching import PodWatch
from ctr_pipeline.errors import CtrPipelineError, HandedOver
from tests.distributed.launchers.kubernetes_pods import LocalPods
from tests.distributed.launchers.launched import SLEEP, Scripts
from tests.distributed.waiting import wait_until

JOB = ClusterJob("clicks", "ads", "0a1b")
NEWS = JobNews("training", 0.421, 2, 1234.5, None, 1_700_000_000.0, ())


def pod(phase="Running", *, state=None, disruption=None, **status):
    status = {"phase": phase, **status}
    if state is not None:
        status["containerStatuses"] = [{"name": "ctrpipe", "state": state}]
    if disruption is not None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": disruption}
        status["conditions"] = [condition]
    return {"metadata": {"name": "p"}, "status": status}


TAKEN_BY_KUEUE = {
    "type": "TerminationTarget",
    "status": "True",
    "reason": "WorkloadEvictedDueToPreempted",
}
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


def in_queue(pod):
    return pod | {"metadata": {"name": "p", "labels": {"kueue.x-k8s.io/queue-name": "nightly"}}}


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
        (pod("Failed", state=ended(143), disruption="PreemptionByScheduler"), "preempted", 143),
        (pod("Failed", state=ended(143), disruption="EvictionByEvictionAPI"), "evicted", 143),
        (pod("Failed", state=ended(137), disruption="DeletionByTaintManager"), "node_lost", 137),
        (pod("Failed", state=ended(143), conditions=[TAKEN_BY_KUEUE]), "evicted", 143),
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
                state={
                    "waiting": {
                        "reason": "ImagePullBackOff",
                        "message": 'Back-off pulling image "r/i:1": ErrImagePull: 403',
                    }
                },
            ),
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
        (
            in_queue(pod("Pending", conditions=[GATED])),
            "it waits for quota in the queue 'nightly'",
        ),
        (pod("Pending", conditions=[GATED]), "it is held back"),
        (pod("Pending"), "it waits for a node"),
    ],
)
def test_why_a_pod_waits(found, words):
    assert explain_waiting(found) == words


class TestManifest:
    def build(self, options=None, role="worker", grace=30.0, index=3):
        return member_pod(
            options or KubernetesConfig(image="ctrpipe:1", claim="runs"),
            JOB,
            MemberStart(role, index, "c0ffee"),
            ["-m", "ctr_pipeline", role],
            logs_folder=Path("/runs/clicks/logs"),
            working_folder=Path("/runs"),
            environment={"GRPC_VERBOSITY": "INFO"},
            restarts=2,
            server_grace_seconds=grace,
        )

    def test_a_server_has_the_grace_period_of_the_config(self):
        found = {
            (role, grace): self.build(role=role, grace=grace)["spec"][
                "terminationGracePeriodSeconds"
            ]
            for role in ("ps", "worker")
            for grace in (0.0, 44.5)
        }
        assert found == {
            ("ps", 0.0): 1,
            ("ps", 44.5): 45,
            ("worker", 0.0): 30,
            ("worker", 44.5): 30,
        }

    def test_pod_is_owned_by_the_job_and_says_whose_it_is(self):
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

    def test_waits_in_the_queue_of_the_config_as_a_workload_of_its_own(self):
        metadata = self.build(KubernetesConfig(image="i", queue="nightly"))["metadata"]
        assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "nightly"
        assert metadata["labels"]["kueue.x-k8s.io/managed"] == "true"
        assert metadata["annotations"]["kueue.x-k8s.io/pod-suspending-parent"]
        assert "kueue" not in str(self.build())

    def test_the_first_workers_have_another_priority(self):
        workers = WorkerPodConfig(priority_class="low", high=2, high_priority_class="high")
        options = KubernetesConfig(image="i", workers=workers)

        def priority(role, index):
            return self.build(options, role, index=index)["spec"].get("priorityClassName")

        assert [priority("worker", index) for index in range(3)] == ["high", "high", "low"]
        assert priority("ps", 0) is None

    def test_pod_patch_sets_what_no_config_key_is_for(self):
        patch = {"spec": {"containers": [{"name": "ctrpipe", "tty": True}], "volumes": None}}
        options = KubernetesConfig(image="i", workers=WorkerPodConfig(patch=patch, memory="4Gi"))
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
    def prepare(self, lists, streams, rounds):
        api, seen, pauses = ScriptedApi(lists, streams), [], []

        def pause(seconds):
            pauses.append(seconds)
            return len(pauses) == rounds

        watch = PodWatch(
            api,
            "",
            on_list=lambda pods, _: seen.append(("all", *pods)),
            on_change=lambda pod, exists: seen.append((pod, exists)),
            count=lambda: 1,
            pause=pause,
        )
        return watch, api, seen, pauses

    def follow(self, lists, streams, rounds):
        watch, *found = self.prepare(lists, streams, rounds)
        watch.run()
        return found

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

    def test_a_server_that_is_away_at_the_start_is_waited_for(self):
        away = ApiError(0, "does not answer")
        watch, _, seen, pauses = self.prepare([away, away, ["a"], ["b"]], [[]], 3)
        watch.start()
        assert seen[0] == ("all", "a")
        assert 0 < pauses[0] < pauses[1]
        wait_until(lambda: seen[1:] == [("all", "b")] and len(pauses) == 3)

    def test_a_server_that_refuses_at_the_start_ends_it(self):
        watch, *_ = self.prepare([ApiError(403, "may not list pods")], [], 1)
        with pytest.raises(ApiError, match="may not list pods"):
            watch.start()


@pytest.fixture
def opened(tmp_path):
    api = LocalPods(tmp_path / "pods")
    launchers = []

    def launch(options=None, **texts):
        context = LauncherContext(Scripts(**texts), tmp_path / "logs", options=options)
        launchers.append(KubernetesLauncher(context, api=api, job=JOB))
        return launchers[-1], api

    yield launch
    launchers[-1].__exit__(None, None, None)


def newest(api):
    """UID of the pod that was created last."""
    return max(
        (pod["metadata"] for pod in api.pods.values()), key=lambda one: one["creationTimestamp"]
    )["uid"]


def state(launcher):
    (found,) = launcher.observe()
    return found


@pytest.mark.parametrize(
    ("had", "ran_out", "gets"),
    [
        ("2Gi", True, "3Gi"),
        ("3Gi", True, "4608Mi"),
        ("4608Mi", True, "5Gi"),
        ("5Gi", True, "5Gi"),
        # Another end takes nothing back that was needed.
        ("3072Mi", False, "3072Mi"),
        ("2Gi", False, None),
        # The config was changed, and the job resumed: it says more, or allows less.
        ("1Gi", True, None),
        ("6Gi", False, "5Gi"),
        (None, True, None),
    ],
)
def test_memory_of_the_next_pod(had, ran_out, gets):
    options = MemberPodConfig(memory="2Gi", max_memory="5Gi")

    def wanted(options):
        return NextMemory(options, "worker", had, ran_out).wanted

    assert wanted(options) == gets
    assert wanted(MemberPodConfig(memory="2Gi")) is None
    fixed = MemberPodConfig(memory="2Gi", max_memory="1Gi")
    assert wanted(fixed) is None


class TestLauncher:
    @pytest.mark.slow
    def test_a_pod_that_ran_out_of_memory_is_replaced_by_a_larger_one_up_to_the_most(self, opened):
        patch = {"spec": {"containers": [{"name": "ctrpipe", "resources": {"limits": {"x": 1}}}]}}
        workers = WorkerPodConfig(memory="100Mi", max_memory="200Mi", patch=patch)
        options = KubernetesConfig(image="i", workers=workers)
        launcher, api = opened(options, worker="raise SystemExit(71)")
        remedies, advice = [], ""
        for memory in ("100Mi", "150Mi", "200Mi", "200Mi"):
            launcher.start("worker", 0)
            wait_until(lambda: not state(launcher).running)
            found = [
                one["spec"]["containers"][0]["resources"]
                for one in api.pods.values()
                if one["metadata"]["uid"] == newest(api)
            ]
            (resources,) = found
            assert resources["requests"]["memory"] == resources["limits"]["memory"] == memory
            assert resources["limits"]["x"] == 1
            remedies.append(state(launcher).remedy)
            assert bool(remedies[-1]) != bool(advice := state(launcher).advice)
        assert remedies == [
            *("its next pod may use 150Mi", "its next pod may use 200Mi"),
            # Nothing changes any more.
            *("", ""),
        ]
        assert advice == (
            "it may use 200Mi, as kubernetes.workers.max_memory says; set that to 300Mi or more"
        )

    @pytest.mark.slow
    def test_pods_all_get_the_same_memory_without_max_memory(self, opened):
        launcher, api = opened(ps="raise SystemExit(71)")
        for _ in range(2):
            launcher.start("ps", 0)
            wait_until(lambda: not state(launcher).running)
            (pod,) = [one for one in api.pods.values() if one["metadata"]["uid"] == newest(api)]
            assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "2Gi"}
        assert state(launcher).remedy == ""
        assert state(launcher).advice == (
            "it may use 2Gi, as kubernetes.parameter_servers.memory says; set that to 3Gi or more"
        )

    @pytest.mark.parametrize(
        ("refusal", "error"),
        [
            (ApiError(429, "too many requests"), LauncherBusyError),
            (ApiError(503, "unavailable"), LauncherBusyError),
            (ApiError(0, "does not answer"), LauncherBusyError),
            (ApiError(403, 'pods "x" is forbidden: exceeded quota: q'), LauncherBusyError),
            (ApiError(403, "error looking up service account ads/default"), LauncherBusyError),
            (ApiError(403, 'User "x" cannot create resource "pods"'), LauncherBusyError),
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

    @pytest.mark.parametrize(
        ("job", "queue", "is_followed"),
        [
            ({"metadata": {}, "spec": {}}, None, True),
            ({"metadata": {}, "spec": {"suspend": False}}, None, True),
            ({"metadata": {}, "spec": {"suspend": True}}, None, False),
            ({"metadata": {"deletionTimestamp": "2026-11-01T00:00:00Z"}, "spec": {}}, None, False),
            ({"metadata": {}, "spec": {}}, "nightly", False),
        ],
    )
    def test_members_stay_for_the_next_driver_if_the_job_starts_one(
        self, opened, job, queue, is_followed
    ):
        launcher, api = opened(KubernetesConfig(image="i", queue=queue), worker=SLEEP)
        launcher.start("worker", 0)
        (name,), api.job = api.pods, job
        assert launcher.is_followed() is is_followed
        assert api.patches[-1:] == ([] if queue else [("Job", JOB.name, {"metadata": {}})])
        launcher.__exit__(HandedOver, HandedOver(signal.SIGTERM), None)
        assert "deletionTimestamp" not in api.pods[name]["metadata"]
        # The next one begins with it.
        second, _ = opened(worker=SLEEP)
        assert state(second).running
        second.__exit__(None, None, None)
        assert api.pods == {}

    def test_driver_has_no_successor_if_its_job_is_gone_or_cannot_be_read(self, opened, caplog):
        launcher, api = opened()

        def refuse(kind, name, patch):
            raise ApiError(404, 'jobs.batch "clicks" not found')

        api.patch = refuse
        assert not launcher.is_followed()
        assert "not found" in caplog.text

    def test_pod_end_that_a_cut_watch_missed_is_found_by_the_next_list(self, opened):
        launcher, api = opened(worker=SLEEP)
        launcher.start("worker", 0)
        (name,) = api.pods
        api.watches_are_silent = True
        api.delete("Pod", name, grace_seconds=60)
        wait_until(lambda: not api.pods)
        with api._lock:  # whoever deletes it is done with that
            api.watches_are_silent = False
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

    def test_a_pod_whose_node_is_lost_is_replaced_though_it_is_still_listed(self, tmp_path):
        api, clock = LocalPods(tmp_path / "pods"), itertools.count()
        context = LauncherContext(Scripts(worker=SLEEP), tmp_path / "logs")
        # Each look takes a second.
        launcher = KubernetesLauncher(context, api=api, job=JOB, clock=lambda: float(next(clock)))
        with launcher:
            launcher.start("worker", 0)
            lost = state(launcher)
            (name,) = api.pods
            api.node_is_lost, began = True, next(clock)
            launcher.stop("worker", 0, lost.incarnation, grace_seconds=0.0)
            launcher.start("worker", 0)
            assert list(api.pods) == [name], "a node that is well needs a moment"
            wait_until(lambda: not state(launcher).running)
            # The grace of a second, and the time in which a node confirms an end.
            assert next(clock) - began > 11
            assert state(launcher).reason == "node_lost"
            launcher.start("worker", 0)
            assert state(launcher).incarnation != lost.incarnation
            (other,) = api.pods.keys() - {name}
            affinity = api.pods[other]["spec"]["affinity"]["nodeAffinity"]
            ((field,),) = (
                one["preference"]["matchFields"]
                for one in affinity["preferredDuringSchedulingIgnoredDuringExecution"]
            )
            assert (field["operator"], field["values"]) == ("NotIn", ["node1"])
            # The node is back, and ends what it still ran.
            api.node_is_lost = False
            api.kill(name)
            wait_until(lambda: list(api.pods) == [other])
            assert state(launcher).running

    def test_pod_problem_to_mend_is_a_warning_once_for_all_pods_of_a_role(self, opened, caplog):
        launcher, api = opened(worker=SLEEP)
        waiting = {"waiting": {"reason": "ErrImagePull", "message": "403"}}
        with caplog.at_level(logging.INFO):
            for index in range(2):
                launcher.start("worker", index)
            for one in api.pods.values():
                api.change(one["metadata"]["name"], pod("Pending", state=waiting)["status"])
            wait_until(lambda: all(one.waits_for for one in launcher.observe()))
        told = [one for one in caplog.records if "its image cannot be pulled: 403" in one.message]
        assert [one.levelname for one in told] == ["WARNING", "INFO"]

    def test_launcher_leaves_no_pods_behind(self, opened):
        launcher, api = opened(worker=SLEEP, ps="raise SystemExit(3)")
        launcher.start("worker", 0)
        launcher.start("ps", 0)
        with launcher:
            pass
        assert api.pods == {}

    def test_many_pods_are_deleted_side_by_side_and_once_each(self, tmp_path):
        api, deleted, meeting = LocalPods(tmp_path / "pods"), [], threading.Barrier(2, timeout=60)
        context = LauncherContext(Scripts(worker=SLEEP), tmp_path / "logs")
        delete = api.delete

        def delete_two_at_once(kind, name, **how):
            deleted.append(name)
            meeting.wait()
            delete(kind, name, **how)

        with KubernetesLauncher(context, api=api, job=JOB) as launcher:
            for index in range(4):
                launcher.start("worker", index)
            names = sorted(api.pods)
            api.delete = delete_two_at_once
        assert sorted(deleted) == names
        wait_until(lambda: not api.pods)

    def test_a_launcher_whose_job_was_deleted_waits_for_no_pod(self, tmp_path, monkeypatch):
        """Its account went with the job, and so do the pods."""
        api, refusals = LocalPods(tmp_path / "pods"), []
        context = LauncherContext(Scripts(worker=SLEEP), tmp_path / "logs")
        launcher = KubernetesLauncher(context, api=api, job=JOB)
        launcher.start("worker", 0)

        def refuse(*_, **__):
            refusals.append(1)
            raise ApiError(401, "Unauthorized")

        monkeypatch.setattr(api, "delete", refuse)
        with launcher:
            pass
        api.kill(*api.pods)
        assert len(refusals) == 2, "once for its end, once more when it tidies up"


def test_outside_of_a_cluster_the_mode_is_refused():
    with pytest.raises(CtrPipelineError, match="ctrpipe submit"):
        ClusterJob.of_this_pod({})


DRIVER_ENVIRONMENT = {
    "CTRPIPE_JOB": "clicks",
    "CTRPIPE_NAMESPACE": "ads",
    "CTRPIPE_OWNER_UID": "0a1b",
}


class TestSeriesOfDrivers:
    """Each driver of a job goes on with what the one before it did."""

    def enter(self, *ends):
        class Drivers:
            def list(self, kind, selector):
                assert kind == "Pod"
                assert selector == (
                    "batch.kubernetes.io/controller-uid=0a1b,app.kubernetes.io/component=driver"
                )
                return Listed(tuple(reversed(drivers)), "1")

        drivers = [
            {**one, "metadata": {"creationTimestamp": f"2026-11-01T10:00:{second:02d}Z"}}
            for second, one in enumerate(ends)
        ]
        return enter_series(DRIVER_ENVIRONMENT, api=Drivers())

    KILLED = pod("Failed", state=ended(137))
    BUG = pod("Failed", state=ended(70, message="Traceback\nKeyError: 'x'"))
    CRASH = pod("Failed", state=ended(139))
    OUT_OF_MEMORY = pod("Failed", state=ended(137, "OOMKilled"))
    THIS = pod("Running", state={"running": {}})

    def test_driver_series_is_named_by_the_job(self):
        assert self.enter(self.THIS) == "0a1b"

    def test_outside_of_a_cluster_there_is_none(self):
        assert enter_series({}) == ""

    @pytest.mark.parametrize(
        "ends", [(BUG, BUG), (BUG, BUG, KILLED), (BUG, OUT_OF_MEMORY, BUG, CRASH)]
    )
    def test_goes_on_after_ends_that_another_driver_may_not_have(self, ends):
        assert self.enter(*ends, self.THIS) == "0a1b"

    def test_ends_after_three_bugs_in_a_row(self):
        with pytest.raises(CtrPipelineError) as raised:
            self.enter(self.KILLED, self.CRASH, self.BUG, self.BUG, self.THIS)
        assert raised.value.exit_code in FINAL_EXITS
        assert str(raised.value).startswith(
            "k8s:ads/clicks: 3 drivers, one after the other, ended by an error of the program; of "
            "the last one: its driver failed (exit code 70): KeyError: 'x'. "
        )

    def test_goes_on_while_the_api_server_is_away(self, caplog):
        class Away:
            def list(self, _kind, _selector):
                raise ApiError(0, "it does not answer")

        assert enter_series(DRIVER_ENVIRONMENT, api=Away()) == "0a1b"
        assert "how earlier drivers ended cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "failed to create containerd task: runc create failed: unable to start container "
            'process: exec: "python": executable file not found in $PATH: unknown',
            'its driver could not be started: exec: "python": executable file not found in $PATH: '
            "unknown",
        ),
        ("", "its driver could not be started"),
    ],
)
def test_a_container_that_cannot_start_says_why(message, words):
    assert explain_driver_end(pod("Failed", state=ended(128, "StartError", message))) == words


@pytest.mark.parametrize(
    ("num_ended", "now", "seconds"),
    [(1, 4, 6), (1, 30, 0), (2, 4, 16), (3, 0, 40), (30, 0, 600), (1, -3600, 10)],
)
def test_kubernetes_waits_ever_longer_for_the_next_driver(num_ended, now, seconds):
    finished = 1_700_000_000
    state = {"terminated": {"exitCode": 137, "finishedAt": "2023-11-14T22:13:20Z"}}
    drivers = [
        {**pod("Failed", state=state), "metadata": {"creationTimestamp": str(number)}}
        for number in range(num_ended)
    ]
    assert pause_before_next(drivers, finished + now) == seconds


def test_labels_of_the_job_say_how_it_does():
    found = describe_news(NEWS)
    assert found["labels"] == {
        "ctrpipe.dev/phase": "training",
        "ctrpipe.dev/percent": "42",
        "ctrpipe.dev/workers": "2",
        "ctrpipe.dev/samples-per-second": "1234",
        "ctrpipe.dev/auc": None,
    }
    assert found["annotations"] == {"ctrpipe.dev/checkpoint-at": "2023-11-14T22:13:20Z"}
    assert describe_news(replace(NEWS, auc=0.71239))["labels"]["ctrpipe.dev/auc"] == "0.7124"


def test_a_line_of_the_event_log_is_an_event_of_the_job():
    event = event_of(NewsLine(1_700_000_000.0, "member", "Worker 1 was killed"), JOB)
    assert event["involvedObject"]["uid"] == JOB.owner_uid
    assert (event["reason"], event["type"]) == ("MemberLost", "Warning")
    assert event["message"] == "Worker 1 was killed"
    assert event["lastTimestamp"] == "2023-11-14T22:13:20Z"


def test_news_are_written_by_another_thread_and_no_line_is_left_out(tmp_path):
    api = LocalPods(tmp_path)
    publisher = JobPublisher(api, JOB, every_seconds=3600.0)
    lines = [NewsLine(float(number), "job", f"line {number}") for number in range(3)]
    publisher.publish(replace(NEWS, lines=tuple(lines[:2])))
    publisher.publish(replace(NEWS, fraction=1.0, lines=tuple(lines[2:])))
    assert api.events == []
    publisher.close()
    assert [event["message"] for event in api.events] == ["line 0", "line 1", "line 2"]
    ((kind, name, patch),) = api.patches
    assert (kind, name) == ("Job", "clicks")
    assert patch["metadata"]["labels"]["ctrpipe.dev/percent"] == "100"


def test_news_wait_for_an_api_server_that_is_away(tmp_path, caplog):
    class Away(LocalPods):
        num_refusals = 0

        def create(self, manifest):
            # After the first line, and once more.
            if len(self.events) == 1 and self.num_refusals < 2:
                self.num_refusals += 1
                raise ApiError(0, "does not answer")
            return super().create(manifest)

    api = Away(tmp_path)
    publisher = JobPublisher(api, JOB, every_seconds=0.01)
    lines = [NewsLine(float(number), "job", f"line {number}") for number in range(3)]
    publisher.publish(replace(NEWS, lines=tuple(lines)))
    wait_until(lambda: len(api.events) == 3)
    publisher.close()
    assert [event["message"] for event in api.events] == ["line 0", "line 1", "line 2"]
    assert caplog.text.count("does not answer") == 1


def test_a_job_that_cannot_be_shown_goes_on(tmp_path, caplog):
    class Refusing(LocalPods):
        def patch(self, kind, name, patch):
            raise ApiError(403, "may not patch jobs")

    publisher = JobPublisher(Refusing(tmp_path), JOB, every_seconds=0.01)
    publisher.publish(NEWS)
    wait_until(lambda: "may not patch jobs" in caplog.text)
    publisher.publish(NEWS)
    publisher.close()
