"""`ctrpipe doctor` of a namespace: what is judged from what the cluster answers."""

import json

import pytest
import yaml

from ctr_pipeline.apps.cluster.rights import Right, render_role
from ctr_pipeline.cli.cluster_checks import (
    judge_account,
    judge_claim,
    judge_image,
    judge_network,
    judge_rights,
    judge_security,
    judge_version,
)
from ctr_pipeline.cli.main import main
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi, Listed


def claim(*modes, phase="Bound"):
    return {"spec": {"storageClassName": "nfs"}, "status": {"accessModes": modes, "phase": phase}}


def policy(*egress, kinds=("Egress",), labels=None):
    spec = {"podSelector": {"matchLabels": labels or {}}, "policyTypes": kinds, "egress": egress}
    return {"metadata": {"name": "deny"}, "spec": spec}


@pytest.mark.parametrize(
    ("check", "verdict", "remedy"),
    [
        (judge_version("v1.36.3"), "works", ""),
        (judge_version("v1.29.0-gke.1"), "works", ""),
        (judge_version("v1.28.9+k3s1"), "fails", "1.29 or later"),
        (judge_account([], "ads"), "works", ""),
        (judge_account(["get secrets"], "ads"), "partly", "system:serviceaccounts:ads"),
        (judge_account(None, "ads"), "partly", "impersonate serviceaccounts"),
        (judge_security("violates", "violates"), "works", ""),
        (judge_security(None, "violates"), "partly", "enforce=restricted"),
        (judge_security(None, None), "partly", "enforce=restricted"),
        (judge_network([]), "works", ""),
        (judge_network([policy({})]), "works", ""),
        (judge_network([policy(kinds=("Ingress",))]), "works", ""),
        (judge_network([policy(labels={"app": "web"})]), "works", ""),
        (judge_network([policy({"ports": [{"port": 443}]})]), "works", ""),
        (judge_network([policy()]), "partly", "app.kubernetes.io/name=ctrpipe"),
        (judge_claim("runs", claim("ReadWriteMany"), num_pods=4), "works", ""),
        (judge_claim("runs", claim("ReadWriteOnce"), num_pods=4), "partly", "4 pods"),
        (judge_claim("runs", claim("ReadWriteOncePod"), num_pods=4), "fails", "ReadWriteMany"),
        (judge_claim("runs", claim("ReadOnlyMany"), num_pods=4), "fails", "ReadWriteMany"),
        (judge_claim("runs", claim("ReadWriteMany", phase="Lost"), num_pods=4), "fails", "another"),
        (judge_claim("runs", None, num_pods=4), "fails", "kubernetes.claim"),
        (judge_image("a.example:5000/b@sha256:1c5e", "IfNotPresent"), "works", ""),
        (judge_image("a.example:5000/b:1", "IfNotPresent"), "works", ""),
        (judge_image("a.example:5000/b:latest", "Always"), "works", ""),
        (judge_image("a.example:5000/b", "IfNotPresent"), "partly", "digest"),
        (judge_image("b:latest", "IfNotPresent"), "partly", "digest"),
    ],
)
def test_verdict_comes_with_a_remedy(check, verdict, remedy):
    assert check.verdict.value == verdict
    assert remedy in check.remedy
    assert bool(check.remedy) == (verdict != "works")


def test_a_missing_right_names_the_commands_that_it_is_for_and_the_role():
    missing = [Right("", "pods/log", "get")]
    (check,) = judge_rights(missing, render_role(missing, user="alice", namespace="ads"))
    assert check.verdict.value == "partly"
    assert "not logs, for want of get pods/log" in check.found
    role, _ = yaml.safe_load_all(check.remedy.partition("\n")[2])
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}]


class Cluster:
    """A namespace that admits restricted pods and lets the user do all but `forbids`."""

    namespace = "ads"

    def __init__(self, forbids=(), *, holds_back=True):
        self.forbids, self.holds_back, self.created = forbids, holds_back, []

    def version(self):
        return "v1.36.3"

    def may(self, verb, _group, resource):
        return f"{verb} {resource}" not in self.forbids

    def user_name(self):
        return "alice"

    def rules_of(self, _account):
        return ()

    def create(self, manifest, *, dry_run=False):
        assert dry_run, "a doctor changes nothing"
        spec = manifest["spec"]
        if not spec.get("securityContext", {}).get("runAsNonRoot"):
            raise ApiError(403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"')
        self.created.append(manifest["metadata"]["name"])
        gates = [{"name": "kueue.x-k8s.io/admission"}] if self.holds_back else []
        return manifest | {"spec": spec | {"schedulingGates": gates}}

    def list(self, kind):
        if f"list {kind}" in self.forbids:
            raise ApiError(403, "forbidden")
        return Listed((), "1")

    def get(self, kind, name):
        if kind == "APIGroup":
            return {"versions": [{"version": "v1beta2"}]}
        if kind == "LocalQueue" and name == "nightly":
            return {}
        if kind == "StorageClass":
            raise ApiError(403, "forbidden")
        if name != "runs":
            raise ApiError(404, "not found")
        return claim("ReadWriteMany")


@pytest.fixture
def doctor(monkeypatch, capsys, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "name: clicks\n"
        "data: {train: rows.tsv, label: label}\n"
        "kubernetes: {image: registry/ctrpipe:1, claim: runs}\n"
    )

    def run(api, *arguments):
        monkeypatch.setattr(KubernetesApi, "of_user", lambda _namespace: api)
        code = main(["doctor", *(str(config) if one == "CONFIG" else one for one in arguments)])
        return code, capsys.readouterr().out

    return run


def test_a_namespace_is_checked_and_left_as_it_is(doctor):
    api = Cluster()
    code, out = doctor(api, "k8s:ads", "--json")
    assert code == 0
    checks = {one["name"]: one["verdict"] for one in json.loads(out)["checks"]}
    names = {"version", "rights", "account", "pod security", "network", "quota"}
    assert checks == dict.fromkeys(names, "works")
    assert api.created == []


def test_doctor_checks_the_claim_image_and_pods_of_a_config(doctor):
    api = Cluster()
    code, out = doctor(api, "CONFIG", "--json")
    assert code == 0
    checks = {one["name"]: one["verdict"] for one in json.loads(out)["checks"]}
    assert checks.keys() >= {"image", "claim", "master", "parameter servers", "workers"}
    assert set(checks.values()) == {"works"}
    assert len(api.created) == 3


def test_doctor_ends_with_1_when_a_run_lacks_what_it_needs(doctor):
    code, out = doctor(Cluster(), "CONFIG", "--set", "kubernetes.claim=absent")
    assert code == 1
    assert "there is no claim 'absent'" in out


def test_the_queue_of_a_config_is_checked(doctor):
    code, out = doctor(Cluster(), "CONFIG", "--set", "kubernetes.queue=nightly", "--json")
    checks = {one["name"]: one["verdict"] for one in json.loads(out)["checks"]}
    assert (code, checks["queue"]) == (0, "works")


@pytest.mark.parametrize(
    ("api", "queue", "found"),
    [
        (Cluster(), "weekly", "there is no LocalQueue 'weekly'"),
        (Cluster(holds_back=False), "nightly", "Kueue does not hold them back"),
    ],
)
def test_a_queue_that_would_not_work_ends_with_1(doctor, api, queue, found):
    code, out = doctor(api, "CONFIG", "--set", f"kubernetes.queue={queue}")
    assert code == 1
    assert found in " ".join(out.split())


def test_doctor_names_what_the_user_may_not_see(doctor):
    code, out = doctor(Cluster({"list ResourceQuota", "get pods/log"}), "k8s:ads")
    assert code == 0
    assert "you may not list resourcequotas" in out
    assert "kind: Role" in out
