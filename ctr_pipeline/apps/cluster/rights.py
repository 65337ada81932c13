"""Rights in a namespace: those that a user needs, and what a job's account may do beyond its own.

`missing_rights` and `superfluous_rights` ask the cluster; what is made of the answers is pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import yaml

from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.errors import CtrPipelineError, printable

_POD_VERBS = ("create", "delete", "get", "list", "watch")
_DRIVER_VERBS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): _POD_VERBS,
    ("", "events"): ("create",),
    ("batch", "jobs"): ("patch",),
}
"""What it may do; with jobs, only with its own: by the last two it shows how that does."""

RBAC_GROUP = "rbac.authorization.k8s.io"
_REVIEWS = frozenset({"authorization.k8s.io", "authentication.k8s.io"})
_OF_EVERYBODY = frozenset({("certificates.k8s.io", "clustertrustbundles")})
"""What every account may read, whoever set up the cluster."""
_CALLS_AT_ONCE = 8


@dataclass(frozen=True, order=True)
class Right:
    """The right to do something in a namespace.

    Attributes:
        group: API group of the resource; empty: the core group.
        resource: A name such as `pods` or `pods/exec`.
    """

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def _rights(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(group, resource, verb) for verb in verbs)


_SEES_A_JOB = (Right("batch", "jobs", "get"), Right("", "pods", "list"))

COMMANDS: Mapping[str, tuple[Right, ...]] = {
    "submit": (
        *_rights("batch", "jobs", "create", "patch", "delete"),
        *(Right("", kind, "create") for kind in ("configmaps", "secrets", "serviceaccounts")),
        *(Right(RBAC_GROUP, kind, "create") for kind in ("roles", "rolebindings")),
        Right("networking.k8s.io", "networkpolicies", "create"),
        Right("", "persistentvolumeclaims", "get"),
        # A user can only give the driver rights that are the user's own.
        *_rights("", "pods", *_POD_VERBS),
        Right("", "events", "create"),
    ),
    "submit --upload": (
        *_rights("", "pods", "create", "delete", "get"),
        *_rights("", "pods/exec", "create", "get"),
    ),
    "elastic-run --on-cluster": (
        *_rights("batch", "jobs", "create", "get", "patch", "delete"),
        *(
            Right("", kind, "create")
            for kind in ("configmaps", "secrets", "serviceaccounts", "services", "pods")
        ),
        *(Right(RBAC_GROUP, kind, "create") for kind in ("roles", "rolebindings")),
        Right("networking.k8s.io", "networkpolicies", "create"),
        Right("", "persistentvolumeclaims", "get"),
    ),
    "check --on-cluster": (
        *_rights("", "pods", "create", "delete", "get"),
        *_rights("", "pods/exec", "create", "get"),
        Right("", "configmaps", "create"),
        Right("", "persistentvolumeclaims", "get"),
    ),
    "jobs": (Right("batch", "jobs", "list"), Right("", "pods", "list")),
    "status": (*_SEES_A_JOB, *_rights("", "pods/exec", "create", "get")),
    "logs": (*_SEES_A_JOB, Right("", "pods/log", "get")),
    "scale": (*_SEES_A_JOB, *_rights("", "pods/exec", "create", "get")),
    "fetch": (
        *_rights("", "pods", "create", "delete", "get", "list"),
        *_rights("", "pods/exec", "create", "get"),
        Right("batch", "jobs", "get"),
    ),
    "ui": (
        *_SEES_A_JOB,
        *_rights("", "pods/exec", "create", "get"),
        *_rights("", "pods/portforward", "create", "get"),
        Right("", "secrets", "get"),
    ),
    "stop, resume": _rights("batch", "jobs", "get", "patch"),
    "delete": _rights("batch", "jobs", "get", "delete"),
}
"""The rights that subcommands need."""

QUOTA_RIGHT = Right("", "resourcequotas", "list")
"""Lets a submission tell beforehand whether a job fits; the cluster refuses pods in any case."""


def driver_rules(job: str) -> list[dict[str, Any]]:
    """Rules of the Role of a job's driver."""
    return [
        {
            "apiGroups": [group],
            "resources": [resource],
            "verbs": list(verbs),
            **({"resourceNames": [job]} if resource == "jobs" else {}),
        }
        for (group, resource), verbs in _DRIVER_VERBS.items()
    ]


def nodes_rules(job: str) -> list[dict[str, Any]]:
    """Rules of the Role of a driver that sees how the Job of its nodes does."""
    return [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"], "resourceNames": [job]}
    ]


class MissingRightsError(CtrPipelineError):
    """The user may not do what a command needs; the message ends with the Role to ask for."""

    def __init__(self, missing: Collection[Right], *, user: str, namespace: str) -> None:
        self.role = render_role(missing, user=user, namespace=namespace)
        super().__init__(
            f"you may not {', '.join(map(str, missing))}",
            place=f"namespace {namespace}",
            remedy="Choose another namespace with kubernetes.namespace, or have somebody who may "
            "run 'kubectl apply --filename -' with",
        )

    def _render(self) -> str:
        lines = "\n".join(printable(line) for line in self.role.splitlines())
        return f"{super()._render()}:\n\n{lines}"


def missing_rights(api: KubernetesApi, needed: Iterable[Right]) -> list[Right]:
    """The rights that the user has not, in their order."""
    distinct = list(dict.fromkeys(needed))
    with ThreadPoolExecutor(_CALLS_AT_ONCE) as threads:
        granted = threads.map(lambda one: api.may(one.verb, one.group, one.resource), distinct)
        return [right for right, has in zip(distinct, granted, strict=True) if not has]


def require_rights(api: KubernetesApi, needed: Iterable[Right]) -> None:
    """Raises MissingRightsError unless the user has them all."""
    if missing := missing_rights(api, needed):
        raise MissingRightsError(missing, user=api.user_name(), namespace=api.namespace)


def superfluous_rights(api: KubernetesApi, account: str) -> list[str] | None:
    """What a job's account may do beyond its Role, by bindings that are not the job's.

    Returns:
        Such as `get, list secrets`; None: the user may not look, for want of `impersonate
        serviceaccounts`.
    """
    try:
        rules = api.rules_of(account)
    except ApiError as error:
        if error.status == 403:
            return None
        raise
    return describe_superfluous(rules)


def describe_superfluous(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rights in rules that the driver of a job has no use for."""
    found: dict[str, set[str]] = {}
    for rule in rules:
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                if group in _REVIEWS or (group, resource) in _OF_EVERYBODY:
                    continue
                used = _DRIVER_VERBS.get((group, resource), ())
                if resource == "jobs" and not rule.get("resourceNames"):
                    used = ()
                if verbs := set(rule.get("verbs") or ()) - set(used):
                    found.setdefault(resource, set()).update(verbs)
    return [f"{', '.join(sorted(verbs))} {resource}" for resource, verbs in sorted(found.items())]


def render_role(rights: Iterable[Right], *, user: str, namespace: str) -> str:
    """A Role with these rights, and its binding to a user, as YAML."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in sorted(set(rights)):
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    metadata = {"name": f"ctrpipe-{_as_name(user)}", "namespace": namespace}
    role = {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "Role",
        "metadata": metadata,
        "rules": [
            {"apiGroups": [group], "resources": [resource], "verbs": those}
            for (group, resource), those in verbs.items()
        ],
    }
    binding = {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": metadata["name"]},
        "subjects": [_subject(user)],
    }
    # Each document spells everything out: an anchor would puzzle who reads it.
    return "---\n".join(yaml.safe_dump(one, sort_keys=False) for one in (role, binding))


def _subject(user: str) -> dict[str, str]:
    prefix, _, account = user.partition("system:serviceaccount:")
    if not prefix and account:
        namespace, _, name = account.partition(":")
        return {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return {"apiGroup": RBAC_GROUP, "kind": "User", "name": user}


def _as_name(user: str) -> str:
    kept = "".join(one if one.isascii() and one.isalnum() else "-" for one in user.lower())
    return kept.strip("-")[:40].strip("-") or "user"
