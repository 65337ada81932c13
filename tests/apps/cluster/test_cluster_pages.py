"""The page of a job on Kubernetes, with a master's pages served on this machine."""

import json
import socket
from dataclasses import replace

import pytest

from ctr_pipeline.apps.cluster.operation import JobSummary
from ctr_pipeline.apps.cluster.pages import ClusterPages
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.endpoint import Endpoint
from ctr_pipeline.distributed.rpc.pages import Reply, TokenGate, serve_pages

RUNNING = JobSummary("clicks", "ads", "running", "runs/clicks", {"driver": 1}, "", 0)
ACCESS = Access.within_process()
MASTER_PAGES = {
    "/": lambda: Reply(b"<p>trains", "text/html"),
    "/status.json": lambda: Reply(b'{"state": "training"}', "application/json"),
}


class Job:
    """What is asked of a submitted job; `error` is raised by whatever asks Kubernetes."""

    def __init__(self):
        self.told, self.found, self.error = RUNNING, None, None
        self.num_looks = 0

    def summary(self):
        if self.error:
            raise self.error
        return self.told

    def read_endpoint(self):
        self.num_looks += 1
        if self.error:
            raise self.error
        return self.found

    def read_access(self):
        return ACCESS

    def connect(self, driver, port):
        assert driver == "clicks-driver"
        return socket.create_connection(("127.0.0.1", port), timeout=60)


@pytest.fixture
def job():
    return Job()


@pytest.fixture
def opened(job):
    """The pages as a browser gets them, and seconds that pass."""
    now = [100.0]
    pages = ClusterPages(job, "k8s:ads/clicks", clock=lambda: now[0])

    def show(path="/", after=0.0):
        now[0] += after
        # Each look makes the page anew.
        reply = pages.pages()[path]()
        return reply.status, reply.body.decode()

    return pages, show


def serve(job):
    served = serve_pages(MASTER_PAGES, TokenGate(ACCESS), host="127.0.0.1")
    address = served.__enter__()
    job.found = ("clicks-driver", Endpoint("10.0.0.7:1", "", "host", 1, page_address=address))
    return served


def test_the_page_is_that_of_the_master(job, opened):
    _, show = opened
    served = serve(job)
    try:
        assert show() == (200, "<p>trains")
        assert json.loads(show("/status.json")[1]) == {"state": "training"}
        # Where the master is was looked up once.
        assert job.num_looks == 1
    finally:
        served.__exit__(None, None, None)


def test_page_says_what_kubernetes_knows_while_no_master_answers(job, opened):
    _, show = opened
    status, page = show()
    assert status == 200
    assert "No master answers" in page
    assert "k8s:ads/clicks, run folder runs/clicks" in page
    status, told = show("/status.json")
    assert (status, json.loads(told)) == (503, {"answering": False})
    job.told = replace(RUNNING, state="waiting", reason="no node can take it: 0/2 nodes")
    page = show()[1]
    assert "no node can take it: 0/2 nodes." in page
    assert "No master answers" not in page


def test_another_master_is_found_within_seconds(job, opened):
    _, show = opened
    served = serve(job)
    assert show()[1] == "<p>trains"
    served.__exit__(None, None, None)
    assert "No master answers" in show()[1]
    served = serve(job)
    try:
        # It is not looked for at each look of the browser.
        assert "No master answers" in show()[1]
        assert show(after=6.0)[1] == "<p>trains"
    finally:
        served.__exit__(None, None, None)


def test_a_job_without_pages_of_its_master_has_its_state(job, opened):
    _, show = opened
    job.found = ("clicks-driver", Endpoint("10.0.0.7:1", "", "host", 1))
    assert "No master answers" in show()[1]


def test_the_page_ends_with_the_job_and_outlives_an_api_server_that_is_away(job, opened):
    pages, show = opened
    assert pages.goes_on()
    job.error = ApiError(0, "does not answer")
    assert pages.goes_on()
    job.error = ApiError(403, "may not get jobs")
    assert not pages.goes_on()
    job.error, job.told = None, replace(RUNNING, state="failed", reason="error: no such file")
    assert not pages.goes_on()
    assert "error: no such file" in show(after=6.0)[1]
