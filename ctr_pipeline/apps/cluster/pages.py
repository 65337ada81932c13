"""The page of a job on Kubernetes: its master's, fetched through the API server."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from ctr_pipeline.apps.cluster.operation import SubmittedJob, open_job
from ctr_pipeline.apps.live import live_reply
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.rpc.pages import Pages, Reply, fetch_page, kept_for_a_moment

_OVER = frozenset({"finished", "failed", "stopped"})
_LOOK_SECONDS = 5.0


class ClusterPages:
    """Fetches pages from the master of a job; safe to use from several threads.

    Args:
        address: How its user calls it, such as `k8s:ads/clicks`.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, job: SubmittedJob, address: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job = job
        self._address = address
        self._clock = clock
        self._lock = threading.Lock()
        self._access: Access | None = None
        self._master: tuple[str, Endpoint] | None = None
        self._look_at = clock()

    @classmethod
    def of(cls, run: Path) -> "ClusterPages":
        """The pages of the job that `k8s:NAME` names.

        Raises:
            CtrPipelineError: There is no such job.
        """
        job = open_job(run)
        job.summary()
        return cls(job, str(run))

    def pages(self) -> Pages:
        """What is served to the browser."""
        return {
            "/": kept_for_a_moment(lambda: self._fetch("/") or self._without_master()),
            "/status.json": kept_for_a_moment(lambda: self._fetch("/status.json") or _NO_MASTER),
        }

    def goes_on(self) -> bool:
        """Whether the job may still change."""
        try:
            return self._job.summary().state not in _OVER
        except ApiError as error:
            # An API server that is away tells nothing of the job.
            return error.may_pass

    def _fetch(self, path: str) -> Reply | None:
        with self._lock:
            found = self._find_master()
            if found is None:
                return None
            access, driver, port = found
            try:
                return fetch_page(access, path, connect=lambda: self._job.connect(driver, port))
            except (PeerUnavailable, ApiError):
                self._master = None
                return None

    def _find_master(self) -> tuple[Access, str, int] | None:
        """The secrets, the pod and the port of the page; asked for every few seconds at most."""
        if self._master is None:
            if self._clock() < self._look_at:
                return None
            self._look_at = self._clock() + _LOOK_SECONDS
            try:
                self._master = self._job.read_endpoint()
                self._access = self._access or self._job.read_access()
            except ApiError as error:
                if not error.may_pass and error.status != 404:
                    raise
        if self._master is None or self._access is None or not self._master[1].page_address:
            return None
        driver, endpoint = self._master
        return self._access, driver, int(endpoint.page_address.rpartition(":")[2])

    def _without_master(self) -> Reply:
        from ctr_pipeline.reporting.data import LiveData
        from ctr_pipeline.reporting.render import render_live

        summary = self._job.summary()
        is_over = summary.state in _OVER
        warnings = [f"{summary.reason}."] if summary.reason else []
        if summary.state == "running":
            warnings.append(
                "No master answers: the driver prepares rows or restarts, or a worker exports."
            )
        return live_reply(
            render_live(
                LiveData(
                    name=summary.name,
                    model="",
                    created=datetime.now(UTC),
                    run_folder=f"{self._address}, run folder {summary.folder}",
                    config_yaml="",
                    state=summary.state,
                    is_over=is_over,
                    warnings=tuple(warnings),
                )
            )
        )


_NO_MASTER = Reply(b'{"answering": false}\n', "application/json", status=503)
