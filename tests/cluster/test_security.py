"""What accounts may do, and what the API server holds of a job: asked of a real one.

Pods of these tests name a node that there is not, so none of them runs.
"""

import json

import pytest
import yaml
from kubernetes import config as client_config

from ctr_pipeline.apps.cluster import submission
from ctr_pipeline.apps.cluster.operation import SubmittedJob
from ctr_pipeline.apps.cluster.rights import (
    COMMANDS,
    MissingRightsError,
    driver_rules,
    missing_rights,
    render_role,
    require_rights,
    superfluous_rights,
)
from ctr_pipeline.config import load_config
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pods import JOB_LABEL
from ctr_pipeline.progress import SilentProgress

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CONFIG = """
name: clicks
data: {train: rows.tsv, label: label}
runtime: {parameter_servers: 1, workers: {min: 1, max: 2}}
kubernetes:
  image: localhost/none:1
  claim: runs
  master: {cpu: 100m, memory: 64Mi, node_selector: {none: such}}
  parameter_servers: {cpu: 100m, memory: 64Mi}
  workers: {cpu: 100m, memory: 64Mi}
output: runs/clicks
"""
_CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "runs"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.fixture
def api_of(cluster, namespace):
    """The API as a user of the cluster has it; calls are made inside `cluster.network()`."""

    def open_as(user):
        path = str(cluster.kubeconfig(user))
        return KubernetesApi(client_config.new_client_from_config(config_file=path), namespace)

    return open_as


@pytest.fixture
def grant(cluster, namespace):
    """Gives a user the rights of a rendered Role in the namespace, in place of those before."""

    def apply(text):
        cluster.apply(*(one for one in yaml.safe_load_all(text)))

    yield apply
    kinds = "rolebindings,roles"
    cluster.kubectl("delete", kinds, "--all", "--namespace", namespace)


@pytest.fixture
def loaded(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return load_config(path, ["runtime.mode=kubernetes"])


class ToldProgress(SilentProgress):
    """Keeps the lines for a person."""

    def __init__(self):
        self.lines = []

    def log(self, text):
        self.lines.append(text)


@pytest.fixture
def submit(cluster, namespace, loaded, monkeypatch):
    """Submits as a user; returns the warnings."""
    claim = _CLAIM | {"metadata": {"name": "runs", "namespace": namespace}}
    cluster.apply(claim)

    def run(api):
        monkeypatch.setattr(KubernetesApi, "of_user", lambda _namespace: api)
        told = ToldProgress()
        with cluster.network():
            submission.submit(loaded, name="clicks", progress=told)
        return told.lines

    return run


def role_of(user, namespace, rights):
    return render_role(rights, user=user, namespace=namespace)


def test_the_rights_that_submit_names_are_enough_and_each_is_missed(
    cluster, namespace, api_of, grant, submit
):
    needed = list(dict.fromkeys(COMMANDS["submit"]))
    alice = api_of("alice")
    with pytest.raises(MissingRightsError) as raised:
        submit(alice)
    # What the error says to apply is what an administrator applies.
    role = str(raised.value).partition("\n\n")[2]
    for left_out in needed:
        grant(role_of("alice", namespace, [one for one in needed if one != left_out]))
        with cluster.network():
            assert missing_rights(alice, needed) == [left_out]
    grant(role)
    submit(alice)
    with cluster.network():
        assert alice.list("Pod", f"{JOB_LABEL}=clicks") is not None


def test_commands_need_the_rights_that_they_name(cluster, namespace, api_of, grant, submit):
    submit(api_of("admin"))
    bob = api_of("bob")
    job = SubmittedJob(bob, "clicks")
    calls = {
        "stop, resume": job.resume,
        "delete": job.delete,
    }
    for command, call in calls.items():
        for left_out in COMMANDS[command]:
            rights = [one for one in COMMANDS[command] if one != left_out]
            grant(role_of("bob", namespace, rights or [COMMANDS["jobs"][0]]))
            with cluster.network(), pytest.raises(ApiError, match=f"cannot {left_out.verb}"):
                call()
        grant(role_of("bob", namespace, COMMANDS[command]))
        with cluster.network():
            call()


def test_each_right_of_the_driver_is_for_one_thing_that_it_does(cluster, namespace, api_of, grant):
    """With one right less, exactly the calls that need it are refused."""
    admin, driver = api_of("admin"), api_of("bob")
    with cluster.network():
        admin.create(bare_job(namespace))
        uid = admin.get("Job", "clicks")["metadata"]["uid"]
    calls = driver_calls(driver, namespace, uid)
    rights = [(rule, verb) for rule in driver_rules("clicks") for verb in rule["verbs"]]
    assert {f"{verb} {rule['resources'][0]}" for rule, verb in rights} == calls.keys()
    for left_out, verb in [*rights, (None, None)]:
        rules = [
            one | {"verbs": [each for each in one["verbs"] if (one, each) != (left_out, verb)]}
            for one in driver_rules("clicks")
        ]
        rules = [one for one in rules if one["verbs"]]
        grant(yaml.safe_dump_all(role_with(rules, namespace)))
        refused = set()
        with cluster.network():
            for name, call in calls.items():
                try:
                    call()
                except ApiError as error:
                    if error.status != 403:
                        raise
                    refused.add(name)
            admin.delete("Pod", "clicks-x", grace_seconds=0)
        assert refused == (set() if verb is None else {f"{verb} {left_out['resources'][0]}"})


def role_with(rules, namespace):
    role, binding = yaml.safe_load_all(role_of("bob", namespace, COMMANDS["jobs"]))
    return role | {"rules": rules}, binding


def bare_job(namespace):
    pod = bare_pod(namespace)
    template = {"metadata": {}, "spec": pod["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "clicks", "namespace": namespace},
        "spec": {"suspend": True, "template": template},
    }


def bare_pod(namespace):
    container = {
        "name": "ctrpipe",
        "image": "localhost/none:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "clicks-x", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"none": "such"},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def driver_calls(api, namespace, uid):
    involved = {"apiVersion": "batch/v1", "kind": "Job", "name": "clicks", "uid": uid}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "clicks.", "namespace": namespace},
        "involvedObject": involved | {"namespace": namespace},
        "reason": "Tested",
        "message": "It is a test",
        "type": "Normal",
    }

    def create():
        try:
            api.create(bare_pod(namespace))
        except ApiError as error:
            # Without the right to delete, the one of the last round is still there.
            if error.status != 409:
                raise

    def get():
        try:
            api.get("Pod", "clicks-x")
        except ApiError as error:
            if error.status != 404:
                raise

    def watch():
        version = "0"
        for _ in api.watch("Pod", f"{JOB_LABEL}=clicks", version, seconds=1):
            break

    return {
        "create pods": create,
        "get pods": get,
        "list pods": lambda: api.list("Pod", f"{JOB_LABEL}=clicks"),
        "watch pods": watch,
        "delete pods": lambda: api.delete("Pod", "clicks-x", grace_seconds=0),
        "create events": lambda: api.create(event),
        "patch jobs": lambda: api.patch(
            "Job", "clicks", {"metadata": {"labels": {"ctrpipe.dev/phase": "train"}}}
        ),
    }


def test_rights_of_all_accounts_are_named_as_superfluous(cluster, namespace, api_of, submit):
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "everybody", "namespace": namespace},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "view",
        },
        "subjects": [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Group",
                "name": f"system:serviceaccounts:{namespace}",
            }
        ],
    }
    admin = api_of("admin")
    with cluster.network():
        assert superfluous_rights(admin, "clicks") == []
        # Without the right to act as the account, nothing is said rather than something wrong.
        assert superfluous_rights(api_of("alice"), "clicks") is None
    cluster.apply(binding)
    (warning,) = (one for one in submit(admin) if "may also" in one)
    assert "get, list, watch configmaps" in warning
    assert "everything" not in warning


def test_members_have_no_account_and_the_namespace_takes_their_pods(
    cluster, namespace, api_of, loaded
):
    objects = submission.plan_objects(loaded, name="clicks", namespace=namespace, secrets={})
    with cluster.network():
        admin = api_of("admin")
        for planned in submission.plan_pods(loaded.config, objects[0])[1:]:
            pod = admin.create(planned.manifest, dry_run=True)
            assert pod["spec"]["automountServiceAccountToken"] is False
            # A restricted namespace admits it, and admission mounted no token into it.
            mounted = json.dumps(pod["spec"]["containers"][0]["volumeMounts"])
            assert "serviceaccount" not in mounted
            others = {"master.key", "client.key", "launcher.key"}
            assert not any(name in json.dumps(pod["spec"]["volumes"]) for name in others)


def test_a_second_user_of_the_cluster_reads_nothing_of_a_job(
    cluster, namespace, api_of, grant, submit
):
    submit(api_of("admin"))
    with cluster.network():
        for kind in ("Secret", "ConfigMap", "Job"):
            with pytest.raises(ApiError, match="forbidden"):
                api_of("bob").get(kind, "clicks")
        # The Role that is asked for to submit reads no secrets, also not one's own job's.
        grant(role_of("bob", namespace, COMMANDS["submit"]))
        with pytest.raises(ApiError, match="forbidden"):
            api_of("bob").get("Secret", "clicks")
        require_rights(api_of("bob"), COMMANDS["submit"])
