"""Shows a job on the Job that owns it: labels to list it by, and Kubernetes Events.

kubectl get jobs -L ctrpipe.dev/phase,ctrpipe.dev/percent,ctrpipe.dev/workers
kubectl events --for job/NAME
"""

import logging
import secrets
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from ctr_pipeline.distributed.coordination.news import JobNews, NewsLine, Topic
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError, KubernetesApi
from ctr_pipeline.distributed.launchers.kubernetes.pods import (
    PHASE_LABEL,
    ClusterJob,
    Manifest,
    job_labels,
)

_LOGGER = logging.getLogger(__name__)
_EVERY_SECONDS = 5.0
_CLOSE_SECONDS = 10.0
_MAX_MESSAGE = 1024
"""Characters of the message of an Event that Kubernetes takes."""
_MAX_LINES = 200
"""The newest that wait for an API server which is away."""

_REASONS: Mapping[Topic, tuple[str, str]] = {
    "job": ("Progress", "Normal"),
    "member": ("MemberLost", "Warning"),
    "recovery": ("Recovered", "Normal"),
    "scaling": ("Scaling", "Normal"),
    "checkpoint": ("Checkpoint", "Warning"),
    "cut": ("Checkpoint", "Normal"),
    "waiting": ("Waiting", "Normal"),
}
"""Reason and type of the Events about a topic."""


class JobPublisher:
    """Writes the newest news to the Job from a thread of its own, so that nobody waits for it.

    While the API server is away, the newest news wait for it; what it refuses is left out, as it is
    shown elsewhere as well.

    Args:
        every_seconds: Between two writes.
    """

    def __init__(
        self, api: KubernetesApi, job: ClusterJob, *, every_seconds: float = _EVERY_SECONDS
    ) -> None:
        self._api, self._job, self._every_seconds = api, job, every_seconds
        self._newest: JobNews | None = None
        self._shown: Manifest = {}
        self._is_away = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def publish(self, news: JobNews) -> None:
        """Replaces news that were not written yet; their lines are kept."""
        with self._lock:
            earlier = () if self._newest is None else self._newest.lines
            self._newest = replace(news, lines=(*earlier, *news.lines))

    def close(self) -> None:
        """Writes the last news, and ends the thread."""
        self._over.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._over.wait(self._every_seconds)
            with self._lock:
                news, self._newest = self._newest, None
            if news is not None:
                self._write(news)

    def _write(self, news: JobNews) -> None:
        lines = list(news.lines)
        try:
            metadata = describe_news(news)
            if metadata != self._shown:
                self._api.patch("Job", self._job.name, {"metadata": metadata})
                self._shown = metadata
            while lines:
                self._api.create(event_of(lines[0], self._job))
                lines.pop(0)
            self._is_away = False
        except ApiError as error:
            if not self._is_away:
                _LOGGER.warning("the Job does not show how it does: %s", error)
            self._is_away = error.may_pass
            if error.may_pass:
                self._keep(replace(news, lines=tuple(lines)))

    def _keep(self, unwritten: JobNews) -> None:
        """What was not written comes before what has come since."""
        with self._lock:
            since = self._newest or replace(unwritten, lines=())
            lines = (*unwritten.lines, *since.lines)[-_MAX_LINES:]
            self._newest = replace(since, lines=lines)


def describe_news(news: JobNews) -> Manifest:
    """Labels and annotations of the Job."""
    at = news.checkpoint_at
    return {
        "labels": {
            PHASE_LABEL: news.phase,
            "ctrpipe.dev/percent": str(int(100 * news.fraction)),
            "ctrpipe.dev/workers": str(news.num_workers),
            "ctrpipe.dev/samples-per-second": f"{news.samples_per_second:.0f}",
            "ctrpipe.dev/auc": None if news.auc is None else f"{news.auc:.4f}",
        },
        "annotations": {"ctrpipe.dev/checkpoint-at": None if at is None else _time(at)},
    }


def event_of(line: NewsLine, job: ClusterJob) -> Manifest:
    """A line of the event log as an Event on the Job."""
    reason, kind = _REASONS[line.topic]
    time = _time(line.time)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{job.name}.{secrets.token_hex(8)}",
            "namespace": job.namespace,
            "labels": job_labels(job.name, "job"),
        },
        "involvedObject": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.owner_uid,
        },
        "reason": reason,
        "type": kind,
        "message": line.text[:_MAX_MESSAGE],
        "source": {"component": "ctrpipe"},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def _time(unix_time: float) -> str:
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
