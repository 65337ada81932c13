"""The drivers of a job, one after the other: how each ended, and when the next one starts.

The Job starts them; its rules are those of Kubernetes' "Pod failure policy" and "Pod backoff".
"""

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ctr_pipeline.distributed.coordination.relaunch import explain_end
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pod_states import (
    read_end,
    read_finish,
    was_disrupted,
)
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    CONTROLLER_LABEL,
    DRIVER,
    ROLE_LABEL,
    ClusterJob,
    is_driver,
)
from ctr_pipeline.errors import CtrPipelineError, printable
from ctr_pipeline.interruption import EXIT_TERMINATED

MOST_FAILURES = 20
"""Failures of drivers before the Job fails; ends that were asked for do not count."""
FINAL_EXITS = (1, 128)
"""Exit codes that end the Job: an error that the user can mend, and a container that cannot start.

Kubernetes gives the second to a container whose command it could not run.
"""

_LOGGER = logging.getLogger(__name__)
_MOST_BUGS = 3
"""Drivers one after the other that ended by a bug: another one would end like them."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 10, 600
"""Kubernetes doubles the first for each driver that failed, up to the second."""
_RUNTIME_PREFIX = "unable to start container process: "
"""What follows it says why; before it, each layer of the container runtime names itself."""


def enter_series(
    environment: Mapping[str, str] = os.environ, *, api: KubernetesApi | None = None
) -> str:
    """Names the drivers of this job, if this pod is one of them; empty if it is not.

    Args:
        environment: The environment of this process.
        api: The namespace of the job; None: by the service account of this pod.

    Raises:
        CtrPipelineError: The last three drivers ended by a bug, as this one would.
    """
    if not is_driver(environment):
        return ""
    job = ClusterJob.of_this_pod(environment)
    selector = f"{CONTROLLER_LABEL}={job.owner_uid},{ROLE_LABEL}={DRIVER}"
    try:
        drivers = (api or KubernetesApi.in_pod(job.namespace)).list("Pod", selector).items
    except ApiError as error:
        _LOGGER.warning("how earlier drivers ended cannot be read: %s", error)
        return job.owner_uid
    last = ended_in_order(drivers)[-_MOST_BUGS:]
    if len(last) == _MOST_BUGS and all(_ended_by_bug(one) for one in last):
        raise CtrPipelineError(
            f"{_MOST_BUGS} drivers, one after the other, ended by an error of the program; of the "
            f"last one: {explain_driver_end(last[-1])}",
            place=f"k8s:{job.namespace}/{job.name}",
            remedy="The log of the run tells more. Submitted again, the run goes on where it was",
        )
    return job.owner_uid


def _ended_by_bug(driver: dict[str, Any]) -> bool:
    end = read_end(driver)
    return end is not None and end.reason == "error"


def in_order(drivers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The oldest first."""
    return sorted(drivers, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def ended_in_order(drivers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drivers that have ended, the oldest first."""
    return [one for one in in_order(drivers) if read_end(one) is not None]


def has_final_end(driver: dict[str, Any]) -> bool:
    """Whether a driver ended so that its Job fails, which Kubernetes may say a moment later."""
    end = read_end(driver)
    return end is not None and end.exit_code in FINAL_EXITS


def explain_driver_end(driver: dict[str, Any]) -> str:
    """How a driver ended, one clause, such as `its driver ran out of memory`."""
    end = read_end(driver)
    if end is None:
        return ""
    told = explain_end(end.reason, end.exit_code, member="its driver", rss_bytes=0)
    if end.reason not in {"error", "not_started"}:
        return told
    why = end.message.rpartition(_RUNTIME_PREFIX)[2].strip()
    return f"{told}: {printable(why.splitlines()[-1])}" if why else told


def count_failures(job: Mapping[str, Any], drivers: Sequence[dict[str, Any]]) -> int:
    """How many drivers have failed so far, also those that the Job has not counted yet."""
    counted = int(job.get("status", {}).get("failed") or 0)
    return max(counted, sum(_counts(one) for one in drivers))


def _counts(driver: dict[str, Any]) -> bool:
    end = read_end(driver)
    return (
        end is not None and end.exit_code not in {0, EXIT_TERMINATED} and not was_disrupted(driver)
    )


def pause_before_next(drivers: Sequence[dict[str, Any]], now: float) -> int:
    """Seconds until Kubernetes starts another driver; 0: it is about to, or nobody can say.

    Args:
        drivers: The pods of all drivers that are still listed.
        now: Unix time, which need not be quite that of the cluster.
    """
    ended = ended_in_order(drivers)
    finish = read_finish(ended[-1]) if ended else ""
    if not finish:
        return 0
    pause = min(_FIRST_PAUSE_SECONDS << min(len(ended) - 1, 30), _LONGEST_PAUSE_SECONDS)
    left = datetime.fromisoformat(finish).timestamp() + pause - now
    return round(min(max(left, 0.0), pause))
