"""What `ctrpipe submit` creates, in which order, and what it refuses; the API is scripted."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import yaml

from ctr_pipeline.apps.cluster import submission
from ctr_pipeline.apps.cluster.elastic_nodes import follow_nodes
from ctr_pipeline.apps.cluster.rights import MissingRightsError
from ctr_pipeline.apps.cluster.submission import (
    FOLDER_ANNOTATION,
    create_objects,
    name_job,
    plan_objects,
    render_manifests,
)
from ctr_pipeline.cli.main import main
from ctr_pipeline.config import load_config
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi, Listed
from ctr_pipeline.distributed.launchers.kubernetes.pods import ClusterJob
from ctr_pipeline.distributed.rpc.access import make_secrets
from ctr_pipeline.errors import ConfigError, CtrPipelineError
from ctr_pipeline.progress import SilentProgress

CONFIG = """
name: Daily Clicks!
data: {train: rows.tsv, label: label}
kubernetes:
  namespace: ads
  image: registry/ctrpipe:1
  claim: runs
  volumes: {/data: claim:rows}
  environment_from_secrets: [store]
  master: {cpu: 2, memory: 4Gi}
output: runs/clicks
"""


@pytest.fixture
def loaded(tmp_path):
    def load(*overrides, text=CONFIG):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return load_config(path, [*overrides, "runtime.mode=kubernetes"])

    return load


ADMISSION = "kueue.x-k8s.io/admission"


class ScriptedApi:
    """Remembers calls; creation of `refuses`, a kind or the key of a role, fails."""

    namespace = "ads"

    def __init__(
        self,
        *,
        refuses=None,
        forbids=(),
        claims=("runs",),
        status=422,
        quotas=(),
        rules=(),
        defaults=None,
        kueue="v1beta2",
        queue=(),
        gates=(ADMISSION,),
    ):
        self.refuses, self.forbids, self.claims, self.status = refuses, forbids, claims, status
        self.quotas, self.rules, self.defaults = quotas, rules, defaults
        self.kueue, self.queue, self.gates = kueue, queue, gates
        self.calls, self.objects = [], {}

    def create(self, manifest, *, dry_run=False):
        kind = manifest["kind"]
        labels = manifest["metadata"].get("labels", {})
        self.calls.append(("check" if dry_run else "create", kind))
        if self.refuses in {kind, labels.get("app.kubernetes.io/component")}:
            raise ApiError(self.status, "it is wrong")
        if not dry_run:
            self.objects[kind] = manifest
        elif kind == "Pod":
            manifest = copy.deepcopy(manifest)
            manifest["spec"]["containers"][0]["resources"]["limits"] |= self.defaults or {}
            if "kueue.x-k8s.io/queue-name" in labels:
                manifest["spec"]["schedulingGates"] = [{"name": one} for one in self.gates]
        return manifest | {"metadata": manifest["metadata"] | {"uid": "0a1b"}}

    def patch(self, kind, name, patch):
        self.calls.append(("patch", kind, name, patch))

    def delete(self, kind, name, *, uid):
        self.calls.append(("delete", kind, name, uid))

    def get(self, kind, name):
        if kind == "APIGroup" and self.kueue is not None:
            return {"versions": [{"version": "v1beta1"}, {"version": self.kueue}]}
        if kind == "LocalQueue" and isinstance(self.queue, ApiError):
            raise self.queue
        if kind == "LocalQueue":
            return {"status": {"conditions": list(self.queue)}}
        if name not in self.claims:
            raise ApiError(404, "not found")
        return {}

    def list(self, _kind):
        if self.quotas is None:
            raise ApiError(403, "forbidden")
        return Listed(tuple(self.quotas), "1")

    def may(self, verb, _group, resource):
        return f"{verb} {resource}" not in self.forbids

    def user_name(self):
        return "alice"

    def rules_of(self, account):
        assert account in {"clicks", "elastic-run", "mirrored"}
        return list(self.rules)


NO_ACCOUNT = (
    'pods "clicks-driver" is forbidden: error looking up service account ads/default: '
    'serviceaccount "default" not found'
)


def quota(used="0", **hard):
    hard = {name.replace("_", "."): value for name, value in hard.items()}
    status = {"hard": hard, "used": dict.fromkeys(hard, used)}
    return {"metadata": {"name": "small"}, "status": status}


def objects_of(loaded, secrets=None):
    return plan_objects(loaded, name="clicks", namespace="ads", secrets=secrets or {})


def test_a_run_in_a_bucket_has_its_credentials_from_secrets_and_its_working_copy_in_the_claim(
    loaded,
):
    job = objects_of(loaded("output=s3://bucket/runs/clicks"))[0]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert "runtime.scratch=scratch" in container["command"]
    folder = job["metadata"]["annotations"][FOLDER_ANNOTATION]
    assert folder.startswith("scratch/s3-bucket-runs-clicks-")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Daily Clicks!", "daily-clicks"),
        ("ctr_2026", "ctr-2026"),
        ("x" * 90, "x" * 32),
        ("点击", "ctrpipe"),
    ],
)
def test_a_job_is_named_as_kubernetes_takes_it(loaded, name, found):
    assert name_job(loaded(f"name={name}").config) == found


class TestPlan:
    def test_a_job_comes_first_and_waits(self, loaded):
        kinds = [one["kind"] for one in objects_of(loaded())]
        assert kinds == [
            *("Job", "ServiceAccount", "Role", "RoleBinding"),
            *("ConfigMap", "Secret", "NetworkPolicy"),
        ]
        job = objects_of(loaded())[0]
        assert job["spec"]["suspend"]
        assert job["spec"]["podReplacementPolicy"] == "Failed"

    def test_an_end_that_was_asked_for_is_no_failure_and_a_user_s_error_ends_the_job(self, loaded):
        rules = objects_of(loaded())[0]["spec"]["podFailurePolicy"]["rules"]
        by_code = {
            code: rule["action"]
            for rule in rules
            for code in rule.get("onExitCodes", {}).get("values", ())
        }
        assert by_code == {1: "FailJob", 128: "FailJob", 143: "Ignore"}

    def test_driver_pod_runs_the_config_and_goes_on_where_the_one_before_ended(self, loaded):
        template = objects_of(loaded("train.epochs=3"))[0]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert container["command"] == [
            *("python", "-m", "ctr_pipeline", "run", "/etc/ctrpipe/config/config.yaml"),
            *("--set", "train.epochs=3", "--set", "runtime.mode=kubernetes", "--resume"),
        ]
        assert container["workingDir"] == "/work"
        assert container["resources"]["requests"] == {"cpu": "2", "memory": "4Gi"}
        assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
        mounts = {one["mountPath"] for one in container["volumeMounts"]}
        assert {"/work", "/data", "/etc/ctrpipe/secrets"} <= mounts

    def test_the_driver_may_run_pods_and_show_how_its_job_does_and_nothing_else(self, loaded):
        objects = objects_of(loaded())
        (role,) = (one for one in objects if one["kind"] == "Role")
        verbs = {rule["resources"][0]: set(rule["verbs"]) for rule in role["rules"]}
        assert verbs == {
            "pods": {"create", "delete", "get", "list", "watch"},
            "events": {"create"},
            "jobs": {"patch"},
        }
        (of_jobs,) = (rule for rule in role["rules"] if rule["resources"] == ["jobs"])
        assert of_jobs["resourceNames"] == [objects[0]["metadata"]["name"]]

    def test_the_user_s_model_travels_along(self, loaded, tmp_path):
        file = tmp_path / "mine.py"
        file.write_text("def build_model(inputs, options): ...\n")
        found = loaded("model.name=custom", f"model.file={file}")
        objects = objects_of(found)
        (config_map,) = (one for one in objects if one["kind"] == "ConfigMap")
        assert config_map["data"]["mine.py"] == file.read_text()
        command = objects[0]["spec"]["template"]["spec"]["containers"][0]["command"]
        assert "model.file=/etc/ctrpipe/config/mine.py" in command

    def test_secrets_stand_in_the_secret_alone(self, loaded):
        secrets = make_secrets()
        *others, _ = sorted(objects_of(loaded(), secrets), key=lambda one: one["kind"] == "Secret")
        assert secrets["token"].decode() not in yaml.safe_dump_all(others)

    def test_a_dry_run_prints_what_would_be_created_without_secrets(self, loaded):
        printed = list(yaml.safe_load_all(render_manifests(loaded(), name="clicks")))
        assert printed == objects_of(loaded())

    @pytest.mark.parametrize("given", ["high=2", "high_priority_class=first"])
    def test_the_first_workers_have_a_number_and_a_priority(self, loaded, given):
        with pytest.raises(ConfigError, match=r"kubernetes\.workers: high and high_priority_class"):
            loaded(f"kubernetes.workers.{given}")

    @pytest.mark.parametrize("key", ["image", "claim"])
    def test_config_key_that_a_cluster_needs_is_asked_for(self, loaded, key):
        with pytest.raises(CtrPipelineError, match=f"kubernetes.{key} is missing"):
            objects_of(loaded(f"kubernetes.{key}=null"))


class TestCreation:
    def test_everything_is_owned_by_the_job_before_it_is_let_go(self, loaded):
        api = ScriptedApi()
        create_objects(api, objects_of(loaded()))
        owned = [one for kind, one in api.objects.items() if kind != "Job"]
        assert len(owned) == 6
        assert all(one["metadata"]["ownerReferences"][0]["uid"] == "0a1b" for one in owned)
        assert api.calls[-1] == ("patch", "Job", "clicks", {"spec": {"suspend": False}})

    def test_a_submission_that_fails_halfway_leaves_nothing(self, loaded):
        api = ScriptedApi(refuses="Secret")
        with pytest.raises(ApiError):
            create_objects(api, objects_of(loaded()))
        assert api.calls[-1] == ("delete", "Job", "clicks", "0a1b")


class ToldProgress(SilentProgress):
    def __init__(self):
        self.told = []

    def log(self, text):
        self.told.append(text.removeprefix("warning: "))


@pytest.fixture
def submit(monkeypatch, loaded):
    def run(api, *overrides, **options):
        monkeypatch.setattr(KubernetesApi, "of_user", lambda _namespace: api)
        progress = ToldProgress()
        submission.submit(loaded(*overrides), name="clicks", progress=progress, **options)
        return progress.told

    return run


class TestSubmit:
    def test_the_server_checks_everything_before_anything_is_created(self, submit):
        api = ScriptedApi()
        assert submit(api) == []
        steps = [call[0] for call in api.calls]
        # Also a pod of each role: what the Job and the driver cannot create fails without a word.
        assert steps == ["check"] * 10 + ["create"] * 7 + ["patch"]
        assert api.calls.count(("check", "Pod")) == 3

    def test_replicas_need_no_servers(self, submit):
        api = ScriptedApi(refuses="ps", quotas=[quota(pods="2")])
        assert submit(api, "runtime.strategy=allreduce") == []
        assert api.calls.count(("check", "Pod")) == 2

    def test_replicas_whose_rows_are_on_servers_need_them(self, submit):
        api = ScriptedApi(refuses="ps")
        with pytest.raises(CtrPipelineError, match=r"kubernetes\.parameter_servers"):
            submit(api, "runtime.strategy=allreduce", "runtime.embeddings=hybrid")

    @pytest.mark.parametrize(
        ("api", "message"),
        [
            (ScriptedApi(claims=()), "there is no PersistentVolumeClaim 'runs'"),
            (ScriptedApi(refuses="driver"), r"refuses the pods of kubernetes\.master: .* is wrong"),
            (ScriptedApi(refuses="ps"), r"refuses the pods of kubernetes\.parameter_servers"),
            (ScriptedApi(refuses="worker"), r"refuses the pods of kubernetes\.workers"),
            (ScriptedApi(refuses="Job", status=409), "there is a job 'clicks' already"),
            (ScriptedApi(refuses="Job", status=0), "^Kubernetes: it is wrong"),
            (ScriptedApi(refuses="worker", status=503), "^Kubernetes: it is wrong"),
            (ScriptedApi(quotas=[quota(pods="2")]), "allows pods 2, and the job needs 3"),
            (
                ScriptedApi(quotas=[quota(limits_cpu="8")]),
                r"pods with limits\.cpu, which kubernetes\.master\.cpu_limit does not set",
            ),
        ],
    )
    def test_submission_creates_nothing_when_the_job_cannot_run(self, submit, api, message):
        with pytest.raises(CtrPipelineError, match=message):
            submit(api)
        assert not api.objects

    def test_the_account_of_a_new_namespace_is_waited_for(self, submit, monkeypatch):
        api, pauses = ScriptedApi(), []
        create = api.create

        def lack_the_account(manifest, *, dry_run=False):
            if manifest["kind"] == "Pod" and len(pauses) < 3:
                raise ApiError(403, NO_ACCOUNT)
            return create(manifest, dry_run=dry_run)

        monkeypatch.setattr(api, "create", lack_the_account)
        assert submit(api, pause=pauses.append) == []
        assert pauses == [1, 1, 1]
        assert "Job" in api.objects

    def test_an_account_that_never_comes_is_named(self, submit, monkeypatch):
        api, pauses = ScriptedApi(), []
        create = api.create

        def lack_the_account(manifest, *, dry_run=False):
            if manifest["kind"] == "Pod":
                raise ApiError(403, NO_ACCOUNT)
            return create(manifest, dry_run=dry_run)

        monkeypatch.setattr(api, "create", lack_the_account)
        with pytest.raises(CtrPipelineError, match=r"kubernetes\.master have no service account"):
            submit(api, pause=pauses.append)
        assert sum(pauses) == 30
        assert not api.objects

    def test_missing_rights_come_as_the_role_to_ask_for(self, submit):
        api = ScriptedApi(forbids={"create pods", "create jobs"})
        with pytest.raises(MissingRightsError, match="may not create jobs, create po") as raised:
            submit(api)
        assert not api.calls
        role, binding = yaml.safe_load_all(str(raised.value).partition("\n\n")[2])
        assert role["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create"]},
        ]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"][0]["name"] == "alice"

    def test_room_that_others_take_now_is_a_warning(self, submit):
        api = ScriptedApi(quotas=[quota("2", pods="4")])
        (warning,) = submit(api)
        assert "waits for room in the quota 'small': 2 of pods 4 are free" in warning
        assert api.objects

    def test_a_quota_without_room_now_does_not_end_the_check_of_pods(self, submit, monkeypatch):
        api = ScriptedApi(quotas=[quota("4", pods="4")])
        create = api.create

        def refuse_pods(manifest, *, dry_run=False):
            if manifest["kind"] == "Pod":
                raise ApiError(403, "exceeded quota: small, requested: pods=1")
            return create(manifest, dry_run=dry_run)

        monkeypatch.setattr(api, "create", refuse_pods)
        assert "waits for room" in submit(api)[0]

    def test_defaults_of_the_namespace_count_against_its_quotas(self, submit):
        api = ScriptedApi(quotas=[quota(limits_cpu="8")], defaults={"cpu": "3"})
        with pytest.raises(CtrPipelineError, match=r"limits\.cpu 8, and the job needs 9"):
            submit(api)

    def test_fewer_workers_than_wanted_are_named(self, submit):
        api = ScriptedApi(quotas=[quota(pods="5")])
        warnings = submit(api, "runtime.workers.max=10")
        assert warnings[0].startswith("3 of 10 workers fit into the quota 'small' now")

    def test_workers_of_either_priority_are_checked_and_counted_together(self, submit):
        priorities = (
            "kubernetes.workers.high=2",
            "kubernetes.workers.high_priority_class=first",
            "runtime.workers={min: 1, max: 10}",
        )
        api = ScriptedApi(quotas=[quota(pods="5")])
        (warning,) = submit(api, *priorities)
        assert warning.startswith("3 of 10 workers fit into the quota 'small' now")
        assert api.calls.count(("check", "Pod")) == 4
        # A quota of one priority counts its pods alone.
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["first"]}
        of_first = quota(pods="1") | {"spec": {"scopeSelector": {"matchExpressions": [scope]}}}
        (warning,) = submit(ScriptedApi(quotas=[of_first]), *priorities)
        assert warning.startswith("1 of 2 workers fit into the quota 'small' now")

    def test_a_quota_that_may_not_be_read_is_named(self, submit):
        assert "you may not list resourcequotas" in submit(ScriptedApi(quotas=None))[0]

    def test_pods_of_a_queue_are_checked_as_kueue_holds_them_back(self, submit):
        api = ScriptedApi(queue=[{"type": "Active", "status": "True"}])
        assert submit(api, "kubernetes.queue=nightly") == []
        assert api.objects

    @pytest.mark.parametrize(
        ("api", "message"),
        [
            (ScriptedApi(kueue=None), "no Kueue of version 0.15 or later runs here"),
            (ScriptedApi(kueue="v1alpha1"), "no Kueue of version 0.15 or later runs here"),
            (ScriptedApi(queue=ApiError(404, "not found")), "there is no LocalQueue 'nightly'"),
            (ScriptedApi(queue=ApiError(500, "it is ill")), "it is ill"),
            (ScriptedApi(gates=["example.com/quota"]), "does not hold back the pods of"),
        ],
    )
    def test_a_queue_that_would_not_work_creates_nothing(self, submit, api, message):
        with pytest.raises(CtrPipelineError, match=message):
            submit(api, "kubernetes.queue=nightly")
        assert not api.objects

    @pytest.mark.parametrize(
        ("queue", "warning"),
        [
            (ApiError(403, "forbidden"), "you may not get localqueues"),
            (
                [{"type": "Active", "status": "False", "message": "its ClusterQueue is stopped"}],
                "admits no pods now: its ClusterQueue is stopped",
            ),
        ],
    )
    def test_a_queue_that_may_work_later_is_a_warning(self, submit, queue, warning):
        api = ScriptedApi(queue=queue)
        (found,) = submit(api, "kubernetes.queue=nightly")
        assert warning in found
        assert api.objects

    def test_superfluous_rights_of_the_job_s_account_are_named(self, submit):
        rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}
        assert "may also get, list secrets" in submit(ScriptedApi(rules=[rule]))[0]


class TestElasticNodes:
    """`ctrpipe elastic-run --on-cluster`."""

    class Api(ScriptedApi):
        """Keeps Jobs by name, and gives a Service its address."""

        def create(self, manifest, *, dry_run=False):
            made = super().create(manifest, dry_run=dry_run)
            if manifest["kind"] == "Job" and not dry_run:
                self.objects[manifest["metadata"]["name"]] = copy.deepcopy(manifest)
            if manifest["kind"] == "Service":
                made["spec"] = manifest["spec"] | {"clusterIP": "10.0.0.9"}
            return made

    @pytest.fixture
    def submit(self, monkeypatch, tmp_path):
        path = tmp_path / "cluster.yaml"
        path.write_text("kubernetes: {image: 'registry/ctrpipe:1', claim: runs, workers: {cpu: 3}}")

        def run(api, *options):
            monkeypatch.setattr(KubernetesApi, "of_user", lambda _namespace: api)
            arguments = ("elastic-run", "--nodes", "2:4", "--on-cluster", str(path), *options)
            return main([*arguments, "--", "python", "train.py", "--folder", "$(HOME)"])

        return run

    def test_nodes_are_pods_that_know_where_the_rendezvous_is(self, submit, capsys):
        api = self.Api()
        assert submit(api, "--name", "mirrored", "--max-restarts", "7") == 0
        assert "Submitted k8s:ads/mirrored" in capsys.readouterr().out
        driver, nodes = api.objects["mirrored"], api.objects["mirrored-nodes"]
        (container,) = nodes["spec"]["template"]["spec"]["containers"]
        command = " ".join(container["command"])
        assert "elastic-run --nodes 2:4 --rendezvous 10.0.0.9:7100 --access /etc/" in command
        assert "--max-restarts 7 " in command
        # Variables of the shell are none of Kubernetes.
        assert command.endswith(" -- python train.py --folder $$(HOME)")
        assert container["resources"]["requests"]["cpu"] == "3"
        assert (nodes["spec"]["completions"], nodes["spec"]["parallelism"]) == (4, 4)
        assert nodes["metadata"]["ownerReferences"][0]["name"] == "mirrored"
        (serves,) = driver["spec"]["template"]["spec"]["containers"]
        assert "elastic-rendezvous" in serves["command"]
        labels = driver["spec"]["template"]["metadata"]["labels"]
        assert api.objects["Service"]["spec"]["selector"].items() <= labels.items()
        assert api.calls[-1] == ("patch", "Job", "mirrored", {"spec": {"suspend": False}})

    def test_driver_of_elastic_nodes_sees_its_nodes_and_may_do_nothing(self, submit):
        api = self.Api()
        submit(api)
        assert api.objects["Role"]["rules"] == [
            {
                "apiGroups": ["batch"],
                "resources": ["jobs"],
                "verbs": ["get"],
                "resourceNames": ["elastic-run-nodes"],
            }
        ]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--standalone",), "--on-cluster has a rendezvous"),
            (("--set", "kubernetes.claim=null"), "kubernetes.claim is missing"),
            (("--set", "kubernetes.workers.cpus=2"), "kubernetes.workers.cpus"),
            (("--upload", "train.py"), "there is no such file"),
            (("--set", "kubernetes.workers.max_memory=8Gi"), "max_memory has no effect on nodes"),
            (
                (
                    *("--set", "kubernetes.workers.high=1"),
                    *("--set", "kubernetes.workers.high_priority_class=high"),
                ),
                "high has no effect on nodes",
            ),
        ],
    )
    def test_elastic_run_names_what_cannot_run_before_anything_is_created(
        self, submit, capsys, options, message
    ):
        api = self.Api()
        assert submit(api, *options) == 1
        assert message in capsys.readouterr().err
        assert not api.objects

    def test_options_for_pods_are_refused_without_pods(self, capsys):
        arguments = ("--standalone", "--nodes", "1", "--upload", "train.py", "--", "true")
        assert main(["elastic-run", *arguments]) == 1
        assert "--set and --upload are for pods" in capsys.readouterr().err

    class Nodes:
        """The Job of nodes as Kubernetes tells of it, and a rendezvous that is never finished."""

        def __init__(self, *answers):
            self.answers = list(answers)

        def get(self, kind, name):
            assert (kind, name) == ("Job", "clicks-nodes")
            answer = self.answers.pop(0)
            if isinstance(answer, ApiError):
                raise answer
            return {"status": {"conditions": [{"type": answer, "status": "True", "message": "no"}]}}

        def wait_until_finished(self, _seconds=None):
            return False

    def follow(self, nodes):
        told = []
        follow_nodes(nodes, ClusterJob("clicks", "ads", "0a1b"), nodes, told.append)
        return told

    def test_the_driver_ends_with_its_nodes_also_after_a_time_without_kubernetes(self):
        away = ApiError(0, "the API server does not answer")
        nodes = self.Nodes("Suspended", away, away, "Suspended", "Complete")
        assert self.follow(nodes) == [
            "Kubernetes: the API server does not answer",
            "Kubernetes answers again",
        ]

    def test_nodes_that_failed_fail_the_job(self):
        with pytest.raises(CtrPipelineError, match="the nodes have failed: no"):
            self.follow(self.Nodes("Failed"))


class IdlePodApi(ScriptedApi):
    """A pod waits once before it runs."""

    def __init__(self, phases=("Pending", "Running"), **options):
        super().__init__(**options)
        self.phases = list(phases)

    def get(self, kind, name):
        if kind == "Pod":
            assert name == self.objects["Pod"]["metadata"]["name"]
            phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
            return {"metadata": {"name": name}, "status": {"phase": phase}}
        return super().get(kind, name)

    def delete(self, kind, name, *, uid, grace_seconds=None):
        self.calls.append(("delete", kind, name, uid))


class TestUpload:
    class Api(IdlePodApi):
        """What its pod is told to do, processes of this machine do in a folder of it."""

        def __init__(self, pods, claim, **options):
            super().__init__(**options)
            self._pods, self._claim = pods, claim

        def run(self, pod, command, **options):
            assert pod == self.objects["Pod"]["metadata"]["name"]
            *program, folder = command
            assert folder == "/work"
            return self._pods.run(pod, [*program, str(self._claim)], **options)

    @pytest.fixture
    def rows(self, tmp_path, monkeypatch):
        here = tmp_path / "here"
        for name in ("rows/0.csv", "rows/1.csv", "test.csv"):
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_text(name)
        monkeypatch.chdir(here)
        return here

    def test_rows_are_on_the_claim_before_the_job_starts(self, submit, pods, rows, tmp_path):
        claim = tmp_path / "claim"
        api = self.Api(pods, claim)
        told = submit(api, uploads=[Path("rows"), Path("test.csv")], pause=lambda _: None)
        assert told == ["The pod waits: it waits for a node"]
        assert sorted(one.name for one in claim.rglob("*.csv")) == ["0.csv", "1.csv", "test.csv"]
        assert (claim / "rows" / "1.csv").read_text() == "rows/1.csv"
        done = [call[:2] for call in api.calls if call[0] != "check"]
        assert done[:3] == [("create", "Pod"), ("delete", "Pod"), ("create", "Job")]

    def test_upload_pod_writes_to_the_claim_sees_nothing_else_and_needs_little(
        self, submit, pods, rows, tmp_path
    ):
        api = self.Api(pods, tmp_path / "claim")
        submit(api, uploads=[Path("test.csv")], pause=lambda _: None)
        spec = api.objects["Pod"]["spec"]
        (container,) = spec["containers"]
        assert {one["name"] for one in container["volumeMounts"]} == {"work", "tmp"}
        assert "'readOnly'" not in str(spec)
        assert not spec["automountServiceAccountToken"]
        assert container["resources"]["requests"] == {"cpu": "100m", "memory": "512Mi"}

    @pytest.mark.parametrize(
        ("path", "message"),
        [("/etc/hosts", "has no place"), ("../here/test.csv", "has no place"), ("row", "no such")],
    )
    def test_upload_names_a_path_that_cannot_be_uploaded_first(
        self, submit, pods, rows, path, message
    ):
        api = self.Api(pods, rows)
        with pytest.raises(CtrPipelineError, match=message):
            submit(api, uploads=[Path(path)])
        assert not api.calls

    def test_a_right_that_only_an_upload_needs_is_asked_for_then(self, submit, pods, rows):
        forbids = {"create pods/exec"}
        assert submit(ScriptedApi(forbids=forbids)) == []
        with pytest.raises(MissingRightsError, match="may not create pods/exec"):
            submit(ScriptedApi(forbids=forbids), uploads=[Path("test.csv")])


class TestCheckInPod:
    class Api(IdlePodApi):
        """A command in its pod says what it was given."""

        def __init__(self, *phases, **options):
            super().__init__(*phases, **options)
            self.commands = []

        def execute(self, pod, command):
            self.commands.append((pod, command))
            return "the plan", "a warning", 3

    @pytest.fixture
    def check(self, monkeypatch, loaded):
        def run(api, *overrides):
            monkeypatch.setattr(KubernetesApi, "of_user", lambda _namespace: api)
            waits = []
            answer = submission.check_in_pod(
                loaded(*overrides), ["--json"], on_wait=waits.append, pause=lambda _: None
            )
            return answer, waits

        return run

    def test_the_command_runs_on_the_same_config_and_its_answer_is_told(self, check):
        api = self.Api()
        answer, waits = check(api, "train.epochs=3", "output=s3://bucket/runs/clicks")
        assert answer == ("the plan", "a warning", 3)
        assert waits == ["it waits for a node"]
        ((_, command),) = api.commands
        assert command == [
            *("python", "-m", "ctr_pipeline", "check", "/etc/ctrpipe/config/config.yaml"),
            *("--set", "train.epochs=3", "--set", "output=s3://bucket/runs/clicks"),
            *("--set", "runtime.mode=kubernetes", "--set", "runtime.scratch=scratch", "--json"),
        ]
        assert api.objects["ConfigMap"]["data"]["config.yaml"] == CONFIG

    def test_check_pod_sees_the_rows_and_not_the_secrets_of_jobs(self, check):
        api = self.Api()
        check(api)
        spec = api.objects["Pod"]["spec"]
        (container,) = spec["containers"]
        assert {
            one["mountPath"]: one.get("readOnly")
            for one in container["volumeMounts"]
            if one["name"] != "tmp"
        } == {
            "/work": True,
            "/data": True,
            "/etc/ctrpipe/config": True,
        }
        claims = [
            one["persistentVolumeClaim"]
            for one in spec["volumes"]
            if len(one) > 1 and "persistentVolumeClaim" in one
        ]
        assert claims == [
            {"claimName": "runs", "readOnly": True},
            {"claimName": "rows", "readOnly": True},
        ]
        # Rows in a bucket need its credentials.
        assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
        assert not spec["automountServiceAccountToken"]
        assert "serviceAccountName" not in spec

    def test_the_pod_goes_and_takes_its_config_along(self, check):
        api = self.Api()
        check(api)
        name = api.objects["Pod"]["metadata"]["name"]
        assert api.calls[-1] == ("delete", "Pod", name, "0a1b")
        (owner,) = api.objects["ConfigMap"]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", name, "0a1b")

    def test_a_pod_that_does_not_start_says_why_and_goes(self, check):
        api = self.Api(phases=["Failed"])
        with pytest.raises(CtrPipelineError, match="does not start: not_started"):
            check(api)
        assert api.calls[-1][:2] == ("delete", "Pod")

    @pytest.mark.parametrize(
        ("api", "message"),
        [
            (Api(claims=()), "there is no PersistentVolumeClaim 'runs'"),
            (Api(forbids={"create pods/exec"}), "may not create pods/exec"),
        ],
    )
    def test_check_in_a_pod_creates_nothing_when_it_cannot_run(self, check, api, message):
        with pytest.raises(CtrPipelineError, match=message):
            check(api)
        assert not api.objects


class TestCheckWithoutRows:
    """`ctrpipe check` on a machine that has not the rows."""

    @pytest.fixture
    def config(self, tmp_path, monkeypatch):
        def write(text=CONFIG):
            monkeypatch.chdir(tmp_path)
            Path("config.yaml").write_text(text)
            return ["check", "config.yaml"]

        return write

    def test_all_else_is_checked_and_where_rows_are_looked_for_is_said(self, config, capsys):
        assert main([*config(), "--set", "train.epochs=3"]) == 0
        told = capsys.readouterr().out
        assert "Its rows are not here (data.train: no such file: 'rows.tsv'" in told
        assert "  ctrpipe check config.yaml --set train.epochs=3 --on-cluster\n" in told
        assert main([*config(), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows_are_here"] is False

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (CONFIG.replace("  image: registry/ctrpipe:1\n", ""), "kubernetes.image is missing"),
            (CONFIG.replace("  claim: runs\n", ""), "no such file: 'rows.tsv'"),
        ],
    )
    def test_check_fails_on_a_config_without_what_a_job_needs(self, config, capsys, text, message):
        assert main(config(text)) == 1
        assert message in capsys.readouterr().err


GOLDEN = Path(__file__).parent / "manifests"


@pytest.mark.parametrize("name", sorted(path.name for path in (GOLDEN / "configs").iterdir()))
def test_manifests_are_those_that_were_reviewed(name, tmp_path, monkeypatch, capsys):
    """A change of manifests shows in a review: copy the file that a failure names."""
    shutil.copytree(GOLDEN / "configs", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert main(["submit", name, "--dry-run"]) == 0
    printed = tmp_path / f"{name}.printed"
    printed.write_text(capsys.readouterr().out)
    assert printed.read_text() == (GOLDEN / name).read_text(), f"cp {printed} {GOLDEN / name}"
