"""Whether the pods of a job fit into the quotas of its namespace: pure decisions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ctr_pipeline.distributed.launchers.kubernetes.api import parse_quantity

Manifest = Mapping[str, Any]

_RESOURCES = {
    "cpu": ("requests", "cpu"),
    "requests.cpu": ("requests", "cpu"),
    "limits.cpu": ("limits", "cpu"),
    "memory": ("requests", "memory"),
    "requests.memory": ("requests", "memory"),
    "limits.memory": ("limits", "memory"),
}
"""What quotas count of containers, and where it stands in a manifest."""
_COUNTS = frozenset({"pods", "count/pods"})


@dataclass(frozen=True)
class PodNeed:
    """The pods of one role of a job, or those of one priority.

    Attributes:
        key: The config key, such as `kubernetes.workers`.
        spec: The spec of one pod, as the cluster admits it.
        least: How many the job needs to train.
        most: How many it takes if it can.
    """

    key: str
    spec: Manifest
    least: int
    most: int


@dataclass(frozen=True)
class QuotaFinding:
    """What a quota means for a job.

    Attributes:
        is_final: The job can never run; otherwise it waits, or has fewer workers.
        remedy: What to do about it.
    """

    message: str
    is_final: bool
    remedy: str


def examine_quotas(quotas: Sequence[Manifest], needs: Sequence[PodNeed]) -> list[QuotaFinding]:
    """What the quotas of a namespace mean for a job, the worst first.

    Args:
        quotas: ResourceQuota objects.
    """
    found: list[QuotaFinding] = []
    for quota in quotas:
        counted = [one for one in needs if counts_for(quota, one.spec)]
        hard = quota.get("status", {}).get("hard") or quota.get("spec", {}).get("hard") or {}
        used = quota.get("status", {}).get("used") or {}
        for resource, limit in hard.items():
            room = (parse_quantity(limit), parse_quantity(used.get(resource, "0")))
            finding = _examine(quota["metadata"]["name"], resource, room, counted)
            if finding is not None:
                found.append(finding)
    return sorted(found, key=lambda one: not one.is_final)


def counts_for(quota: Manifest, spec: Manifest) -> bool:
    """Whether a quota counts a pod: all of its scopes have to apply."""
    rules = quota.get("spec", {})
    priority = spec.get("priorityClassName")
    for scope in rules.get("scopes") or ():
        if not _applies({"scopeName": scope, "operator": "Exists"}, spec, priority):
            return False
    selector = rules.get("scopeSelector") or {}
    return all(_applies(one, spec, priority) for one in selector.get("matchExpressions") or ())


def _applies(rule: Manifest, spec: Manifest, priority: str | None) -> bool:
    scope = rule["scopeName"]
    if scope == "PriorityClass":
        values = rule.get("values") or ()
        return {
            "In": priority in values,
            "NotIn": priority not in values,
            "Exists": priority is not None,
            "DoesNotExist": priority is None,
        }[rule.get("operator", "Exists")]
    has_deadline = spec.get("activeDeadlineSeconds") is not None
    # Our pods reserve something, so none of them is BestEffort.
    return {
        "NotBestEffort": True,
        "BestEffort": False,
        "Terminating": has_deadline,
        "NotTerminating": not has_deadline,
    }.get(scope, False)


def _examine(
    quota: str, resource: str, room: tuple[Decimal, Decimal], needs: Sequence[PodNeed]
) -> QuotaFinding | None:
    hard, used = room
    amounts: list[tuple[PodNeed, Decimal]] = []
    for need in needs:
        amount = _amount(resource, need.spec)
        if amount is None:
            if resource not in _RESOURCES:
                return None
            kind, name = _RESOURCES[resource]
            key = f"{need.key}.{'cpu_limit' if (kind, name) == ('limits', 'cpu') else name}"
            return QuotaFinding(
                f"the quota '{quota}' takes only pods with {kind}.{name}, which {key} does not set",
                True,
                f"Set {key}",
            )
        amounts.append((need, amount))
    least = sum((amount * need.least for need, amount in amounts), Decimal(0))
    most = sum((amount * need.most for need, amount in amounts), Decimal(0))
    listed = ", ".join(
        f"{need.least} × {_written(amount)} of {need.key}" for need, amount in amounts if amount
    )
    key = resource.rpartition(".")[2] if resource in _RESOURCES else "pods"
    fewer = "" if key == "pods" else f"kubernetes.*.{key} or "
    ask = f"Lower {fewer}runtime.parameter_servers and runtime.workers, or ask for a larger quota"
    needed = f"the job needs {_written(least)} ({listed})"
    if least > hard:
        message = f"the quota '{quota}' allows {resource} {_written(hard)}, and {needed}"
        return QuotaFinding(message, True, ask)
    if least > hard - used:
        return QuotaFinding(
            f"the job waits for room in the quota '{quota}': {_written(hard - used)} of "
            f"{resource} {_written(hard)} are free, and {needed}",
            False,
            ask,
        )
    if most > hard - used:
        return QuotaFinding(_fewer_workers(quota, resource, hard - used, amounts), False, ask)
    return None


def _fewer_workers(
    quota: str, resource: str, free: Decimal, amounts: Sequence[tuple[PodNeed, Decimal]]
) -> str:
    """One sentence; only workers have a number that may differ."""
    key, each = next((one.key, amount) for one, amount in amounts if one.most > one.least)
    fixed = sum((amount * one.least for one, amount in amounts if one.key != key), Decimal(0))
    most = sum(one.most for one, _ in amounts if one.key == key)
    return (
        f"{int((free - fixed) // each)} of {most} workers fit into the quota '{quota}' now: "
        f"{_written(free)} of {resource} are free"
    )


def _amount(resource: str, spec: Manifest) -> Decimal | None:
    """What one pod takes of a resource; None: the quota does not count it, or nothing is set."""
    if resource in _COUNTS:
        return Decimal(1)
    if resource not in _RESOURCES:
        return None
    kind, name = _RESOURCES[resource]
    containers = _values(spec.get("containers") or (), kind, name)
    first = _values(spec.get("initContainers") or (), kind, name)
    if containers is None or first is None:
        return None
    return max(sum(containers, Decimal(0)), *first, Decimal(0))


def _values(containers: Iterable[Manifest], kind: str, name: str) -> list[Decimal] | None:
    values = []
    for one in containers:
        resources = one.get("resources") or {}
        # Without a request, the limit is what is reserved.
        given = (resources.get(kind) or {}).get(name) or (resources.get("limits") or {}).get(name)
        if given is None:
            return None
        values.append(parse_quantity(given))
    return values


def _written(amount: Decimal) -> str:
    """As Kubernetes writes it: nothing but memory comes in millions."""
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20)):
        if amount >= size:
            return f"{amount / size:.4g}{unit}"
    return f"{float(amount):g}"
