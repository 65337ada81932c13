"""Checks whether a namespace of a cluster can run jobs, and what to do about what it cannot.

`check_cluster` asks the cluster and changes nothing in it: pods are created as dry runs. `judge_…`
functions are pure and take what it answered.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ctr_pipeline.apps.cluster.local_queue import HOLD_PODS_BACK, examine_queue
from ctr_pipeline.apps.cluster.quota import PodNeed, examine_quotas
from ctr_pipeline.apps.cluster.rights import (
    COMMANDS,
    QUOTA_RIGHT,
    Right,
    missing_rights,
    render_role,
    superfluous_rights,
)
from ctr_pipeline.apps.cluster.submission import PlannedPod, name_job, plan_objects, plan_pods
from ctr_pipeline.cli.machine_checks import Check, Verdict
from ctr_pipeline.config import LoadedConfig
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import escapes_queue
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.progress import Progress

OLDEST = (1, 29)
"""The first version that by default never starts two drivers (podReplacementPolicy)."""

_FOR_ALL = frozenset({"ReadWriteMany"})
_PLAIN_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "ctrpipe-doctor"},
    "spec": {"containers": [{"name": "ctrpipe", "image": "localhost/ctrpipe"}]},
}
_LABELS = {"app.kubernetes.io/name": "ctrpipe"}


def check_cluster(
    namespace: str | None, loaded: LoadedConfig | None, progress: Progress
) -> list[Check]:
    """Checks a namespace, and if there is a config, whether a job of it can run there.

    Args:
        namespace: None: as the config says, or that of the current context of kubectl.

    Raises:
        CtrPipelineError: There are no credentials, or nobody answers.
    """
    if loaded is not None:
        namespace = namespace or loaded.config.kubernetes.namespace
    api = KubernetesApi.of_user(namespace)
    with progress.task("cluster", total=None):
        checks = [judge_version(api.version()), *_check_rights(api)]
        checks.append(_check_security(api))
        checks.append(_check_network(api))
        if loaded is None:
            return [*checks, _check_quotas(api, ())]
        return [*checks, *_check_config(api, loaded)]


def judge_version(version: str) -> Check:
    """Versions whose Jobs lead a driver safely."""
    match = re.match(r"v(\d+)\.(\d+)", version)
    if match is not None and (int(match[1]), int(match[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Check("version", Verdict.FAILS, version, f"Use Kubernetes {oldest} or later")
    return Check("version", Verdict.WORKS, version)


def judge_rights(missing: Sequence[Right], role: str) -> list[Check]:
    """One check for what the user may do; its remedy holds the Role to ask for.

    Args:
        role: As `render_role` renders what is missing.
    """
    works = [name for name, rights in COMMANDS.items() if not set(rights) & set(missing)]
    fails = [name for name in COMMANDS if name not in works]
    found = f"you may {', '.join(works) or 'run no command'}"
    if not missing:
        return [Check("rights", Verdict.WORKS, found)]
    found += f"; not {', '.join(fails)}, for want of {', '.join(map(str, missing))}"
    verdict = Verdict.FAILS if "submit" in fails else Verdict.PARTLY
    remedy = f"Have somebody who may run 'kubectl apply --filename -' with:\n{role}"
    return [Check("rights", verdict, found, remedy)]


def judge_account(superfluous: Sequence[str] | None, namespace: str) -> Check:
    """What accounts of the namespace may do without being granted it by ctrpipe."""
    if superfluous is None:
        found = "whether accounts of jobs have more rights than they need is not known"
        remedy = "The right 'impersonate serviceaccounts' would let it be looked up"
        return Check("account", Verdict.PARTLY, found, remedy)
    if superfluous:
        found = f"accounts of jobs may also {'; '.join(superfluous)}"
        remedy = (
            f"Remove the binding to system:serviceaccounts:{namespace} or system:authenticated "
            f"that allows it: 'kubectl get rolebindings --namespace {namespace} --output wide'"
        )
        return Check("account", Verdict.PARTLY, found, remedy)
    found = "accounts of jobs may do nothing but what ctrpipe grants: handle pods"
    return Check("account", Verdict.WORKS, found)


def judge_security(refused_plain: str | None, refused_privileged: str | None) -> Check:
    """Which pods the namespace refuses.

    Args:
        refused_plain: Why a pod without any security settings is refused; None: it is not.
        refused_privileged: The same for a privileged one.
    """
    if refused_plain is not None:
        found = "only pods that keep to the restricted standard are admitted, as those of jobs do"
        return Check("pod security", Verdict.WORKS, found)
    remedy = "Label the namespace: pod-security.kubernetes.io/enforce=restricted"
    if refused_privileged is not None:
        found = "pods that run as root are admitted, privileged ones are not"
    else:
        found = "any pod is admitted, also a privileged one"
    return Check("pod security", Verdict.PARTLY, f"{found}; those of jobs need neither", remedy)


def judge_network(policies: Sequence[Mapping[str, Any]]) -> Check:
    """Whether NetworkPolicies let members of a job reach each other and the API server.

    What comes in is allowed by the policy of the job itself.
    """
    closed = [one for one in policies if _selects(one, _LABELS) and _closes_egress(one)]
    if not closed:
        found = f"{len(policies)} policies; none keeps members from each other"
        return Check("network", Verdict.WORKS, found)
    names = ", ".join(one["metadata"]["name"] for one in closed)
    if any(not rule.get("to") for one in closed for rule in one["spec"].get("egress") or ()):
        return Check("network", Verdict.WORKS, f"what goes out is limited to ports by {names}")
    remedy = (
        "Allow pods with the label app.kubernetes.io/name=ctrpipe to reach each other, the API "
        "server, and the stores that hold rows or checkpoints"
    )
    return Check("network", Verdict.PARTLY, f"what goes out is limited by {names}", remedy)


def judge_claim(
    name: str, claim: Mapping[str, Any] | None, *, num_pods: int, storage_class: str = ""
) -> Check:
    """Whether all pods of a job can mount its claim.

    Args:
        claim: The PersistentVolumeClaim; None: there is none.
        num_pods: At most, of a job.
        storage_class: What is known of its class, as who makes its volumes; empty: nothing.
    """
    many = "a PersistentVolumeClaim with the access mode ReadWriteMany"
    if claim is None:
        remedy = f"Create {many} of this name, or set kubernetes.claim to another one"
        return Check("claim", Verdict.FAILS, f"there is no claim '{name}'", remedy)
    spec, status = claim.get("spec", {}), claim.get("status", {})
    modes = status.get("accessModes") or spec.get("accessModes") or []
    size = (status.get("capacity") or {}).get("storage") or "unknown size"
    parts = [f"'{name}': {', '.join(modes)}", size, status.get("phase", "")]
    parts.append(f"class {spec['storageClassName']}" if spec.get("storageClassName") else "")
    found = ", ".join(part for part in (*parts, storage_class) if part)
    if status.get("phase") == "Lost":
        return Check("claim", Verdict.FAILS, found, "Its volume is gone: create another claim")
    if not modes or set(modes) <= {"ReadOnlyMany"}:
        return Check("claim", Verdict.FAILS, found, f"Pods write to it: use {many}")
    if set(modes) & _FOR_ALL:
        return Check("claim", Verdict.WORKS, found)
    if set(modes) == {"ReadWriteOncePod"}:
        return Check("claim", Verdict.FAILS, found, f"One pod alone can mount it: use {many}")
    remedy = f"The {num_pods} pods of a job must run on one node with it: use {many}"
    return Check("claim", Verdict.PARTLY, found, remedy)


def judge_image(image: str, policy: str) -> Check:
    """Whether the name of an image says which one is meant; only a node can say if it is there."""
    pulls = "'ctrpipe check CONFIG --on-cluster' shows whether a node gets it"
    name = image.rpartition("/")[2]
    if "@sha256:" in image:
        return Check("image", Verdict.WORKS, f"{image}, always the same one; {pulls}")
    _, _, tag = name.partition(":")
    if (not tag or tag == "latest") and policy == "IfNotPresent":
        remedy = "Give it a tag of its own, a digest, or image_pull_policy: Always"
        found = f"{image}: nodes may hold different images of this name"
        return Check("image", Verdict.PARTLY, found, remedy)
    return Check("image", Verdict.WORKS, f"{image}, pulled {policy}; {pulls}")


def _check_rights(api: KubernetesApi) -> list[Check]:
    needed = [right for rights in COMMANDS.values() for right in rights]
    missing = missing_rights(api, needed)
    role = render_role(missing, user=api.user_name(), namespace=api.namespace) if missing else ""
    account = superfluous_rights(api, "ctrpipe-doctor")
    return [*judge_rights(missing, role), judge_account(account, api.namespace)]


def _refusal(api: KubernetesApi, pod: Mapping[str, Any]) -> str | None:
    try:
        api.create(pod, dry_run=True)
    except ApiError as error:
        if "violates PodSecurity" in error.message or error.status == 422:
            return error.message
        if error.status == 403 and not error.may_pass and "cannot create" not in error.message:
            return error.message
        if error.status != 403:
            raise
    return None


def _check_security(api: KubernetesApi) -> Check:
    if not api.may("create", "", "pods"):
        found = "not known: you may not create pods"
        return Check("pod security", Verdict.PARTLY, found, "See 'rights'")
    privileged = copy.deepcopy(_PLAIN_POD)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}  # type: ignore[index]
    return judge_security(_refusal(api, _PLAIN_POD), _refusal(api, privileged))


def _check_network(api: KubernetesApi) -> Check:
    try:
        return judge_network(api.list("NetworkPolicy").items)
    except ApiError as error:
        return _unknown("network", error, "list networkpolicies")


def _check_quotas(api: KubernetesApi, needs: Sequence[PodNeed]) -> Check:
    try:
        quotas = api.list("ResourceQuota").items
    except ApiError as error:
        return _unknown("quota", error, str(QUOTA_RIGHT))
    if findings := examine_quotas(quotas, needs):
        verdict = Verdict.FAILS if findings[0].is_final else Verdict.PARTLY
        return Check("quota", verdict, findings[0].message, findings[0].remedy)
    if not quotas:
        return Check("quota", Verdict.WORKS, "the namespace has none")
    room = [
        f"{name} {status['used'].get(name, '0')} of {hard}"
        for status in (one.get("status", {}) for one in quotas)
        for name, hard in status.get("hard", {}).items()
    ]
    return Check("quota", Verdict.WORKS, f"used: {', '.join(room)}")


def _check_config(api: KubernetesApi, loaded: LoadedConfig) -> list[Check]:
    options = loaded.config.kubernetes
    try:
        name = name_job(loaded.config)
        job = plan_objects(loaded, name=name, namespace=api.namespace, secrets={})[0]
    except CtrPipelineError as error:
        return [Check("config", Verdict.FAILS, error.message, error.remedy or "")]
    pods = plan_pods(loaded.config, job)
    checks, needs = [], []
    for pod in pods:
        check, need = _check_pod(api, pod)
        checks.append(check)
        needs.append(need)
    num_pods = sum(one.most for one in needs)
    return [
        judge_image(str(options.image), options.image_pull_policy),
        _check_claim(api, str(options.claim), num_pods),
        *_check_queue(api, options.queue),
        *checks,
        _check_quotas(api, needs),
    ]


def _check_pod(api: KubernetesApi, pod: PlannedPod) -> tuple[Check, PodNeed]:
    admitted = pod.manifest
    name = pod.key.rpartition(".")[2].replace("_", " ")
    check = Check(name, Verdict.WORKS, "the cluster admits their pods")
    try:
        admitted = api.create(pod.manifest, dry_run=True)
    except ApiError as error:
        if error.may_pass and not error.exceeds_quota:
            raise
        if not error.exceeds_quota:
            check = Check(name, Verdict.FAILS, error.message, f"Change {pod.key}")
    else:
        if escapes_queue(admitted):
            found = "Kueue does not hold them back: they would not wait in the queue"
            check = Check(name, Verdict.FAILS, found, HOLD_PODS_BACK)
    return check, PodNeed(pod.key, admitted["spec"], pod.least, pod.most)


def _check_queue(api: KubernetesApi, name: str | None) -> list[Check]:
    if name is None:
        return []
    fault = examine_queue(api, name)
    if fault is None:
        return [Check("queue", Verdict.WORKS, f"pods wait for quota in '{name}'")]
    verdict = Verdict.FAILS if fault.is_final else Verdict.PARTLY
    return [Check("queue", verdict, fault.message, fault.remedy)]


def _check_claim(api: KubernetesApi, name: str, num_pods: int) -> Check:
    try:
        claim = api.get("PersistentVolumeClaim", name)
    except ApiError as error:
        if error.status == 404:
            return judge_claim(name, None, num_pods=num_pods)
        return _unknown("claim", error, "get persistentvolumeclaims")
    storage = ""
    if class_name := claim.get("spec", {}).get("storageClassName"):
        try:
            found = api.get("StorageClass", class_name)
            storage = (
                f"made by {found['provisioner']}, then {found.get('reclaimPolicy', 'Delete')}d"
            )
        except ApiError as error:
            # Classes are of the whole cluster; not everybody may see them.
            if error.status not in {403, 404}:
                raise
    return judge_claim(name, claim, num_pods=num_pods, storage_class=storage)


def _unknown(name: str, error: ApiError, right: str) -> Check:
    if error.status != 403:
        raise error
    found = f"not known: you may not {right}"
    return Check(name, Verdict.PARTLY, found, f"Ask for the right to {right}")


def _selects(policy: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    selector = policy["spec"].get("podSelector") or {}
    wanted = selector.get("matchLabels") or {}
    return not selector.get("matchExpressions") and wanted.items() <= labels.items()


def _closes_egress(policy: Mapping[str, Any]) -> bool:
    spec = policy["spec"]
    if "Egress" not in (spec.get("policyTypes") or ()):
        return False
    # A rule without a destination and without ports allows everything.
    return all(rule.get("to") or rule.get("ports") for rule in spec.get("egress") or ())
