"""What `ctrpipe submit` creates, in which order, and what it refuses; the API is scripted."""

import pytest
import yaml

from ctr_pipeline.apps.cluster import submission
from ctr_pipeline.apps.cluster.submission import (
    create_objects,
    name_job,
    plan_objects,
    render_manifests,
)
from ctr_pipeline.config import load_config
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.rpc.access import make_secrets
from ctr_pipeline.errors import CtrPipelineError

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


class ScriptedApi:
    """Remembers calls; creation of `refuses` fails."""

    namespace = "ads"

    def __init__(self, *, refuses=None, forbids=(), claims=("runs",), status=422):
        self.refuses, self.forbids, self.claims, self.status = refuses, forbids, claims, status
        self.calls, self.objects = [], {}

    def create(self, manifest, *, dry_run=False):
        kind = manifest["kind"]
        self.calls.append(("check" if dry_run else "create", kind))
        if kind == self.refuses:
            raise ApiError(self.status, "it is wrong")
        if not dry_run:
            self.objects[kind] = manifest
        return {"metadata": {"uid": "0a1b"}}

    def patch(self, kind, name, patch):
        self.calls.append(("patch", kind, name, patch))

    def delete(self, kind, name, *, uid):
        self.calls.append(("delete", kind, name, uid))

    def get(self, _kind, name):
        if name not in self.claims:
            raise ApiError(404, "not found")
        return {}

    def may(self, verb, _group, resource):
        return f"{verb} {resource}" not in self.forbids


def objects_of(loaded, secrets=None):
    return plan_objects(loaded, name="clicks", namespace="ads", secrets=secrets or {})


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
        assert by_code == {1: "FailJob", 143: "Ignore"}

    def test_its_pod_runs_the_config_and_goes_on_where_the_one_before_ended(self, loaded):
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

    def test_the_driver_may_do_five_things_with_pods_and_nothing_else(self, loaded):
        (role,) = (one for one in objects_of(loaded()) if one["kind"] == "Role")
        (rule,) = role["rules"]
        assert rule["resources"] == ["pods"]
        assert set(rule["verbs"]) == {"create", "delete", "get", "list", "watch"}

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

    @pytest.mark.parametrize("key", ["image", "claim"])
    def test_what_a_cluster_needs_is_asked_for(self, loaded, key):
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


class TestSubmit:
    def submit(self, monkeypatch, loaded, api):
        monkeypatch.setattr(KubernetesApi, "of_user", lambda _namespace: api)
        return submission.submit(loaded, name="clicks")

    def test_the_server_checks_everything_before_anything_is_created(self, monkeypatch, loaded):
        api = ScriptedApi()
        self.submit(monkeypatch, loaded(), api)
        steps = [call[0] for call in api.calls]
        assert steps == ["check"] * 8 + ["create"] * 7 + ["patch"]
        # Also a pod as the Job will make it: a Job whose pods are refused fails without a word.
        assert ("check", "Pod") in api.calls

    @pytest.mark.parametrize(
        ("api", "message"),
        [
            (ScriptedApi(forbids={"create pods", "create jobs"}), "may not create jobs, create po"),
            (ScriptedApi(claims=()), "there is no PersistentVolumeClaim 'runs'"),
            (ScriptedApi(refuses="Pod"), "the cluster refuses the Pod 'clicks-driver'"),
            (ScriptedApi(refuses="Job", status=409), "there is a job 'clicks' already"),
        ],
    )
    def test_what_cannot_run_creates_nothing(self, monkeypatch, loaded, api, message):
        with pytest.raises(CtrPipelineError, match=message):
            self.submit(monkeypatch, loaded(), api)
        assert not api.objects
