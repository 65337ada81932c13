"""Storages of every kind, each of which must keep the same contract."""

import os
import uuid
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from ctr_pipeline.storage.object_store import ObjectStore, Patience
from ctr_pipeline.storage.opening import open_storage
from tests.distributed.faults.proxy import FaultyProxy
from tests.storage.http_faults import FaultyStore
from tests.storage.store_servers import BUCKET, SERVERS, find_program, serve, variables_of


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Real S3 servers behind both proxies, started when a test first asks for one by its name."""
    if find_program("weed") is None or find_program("moto_server") is None:
        pytest.skip("no S3 servers here: 'make stores' installs them")
    started = {}
    with ExitStack() as stack:

        def get(name):
            if name not in started:
                address = stack.enter_context(serve(name, tmp_path_factory.mktemp(name)))
                network = stack.enter_context(FaultyProxy(address))
                faults = FaultyStore(lambda: network.address)
                stack.callback(faults.close)
                started[name] = SimpleNamespace(faults=faults, network=network)
            return started[name]

        yield get


@pytest.fixture
def open_store(request, monkeypatch):
    """Opens a prefix of its own in a server, with credentials in the environment."""
    used = []

    def open_one(name):
        server = request.getfixturevalue("servers")(name)
        server.faults.trouble()
        used.append(server)
        for old in [one for one in os.environ if one.startswith("AWS_")]:
            monkeypatch.delenv(old)
        for variable, value in variables_of(server.faults.address).items():
            monkeypatch.setenv(variable, value)
        patience = Patience(first_pause_seconds=0.01, give_up_seconds=30)
        return server, ObjectStore(f"s3://{BUCKET}/{uuid.uuid4().hex}", patience=patience)

    yield open_one
    for server in used:
        server.faults.trouble()
        server.network.heal()


@pytest.fixture(params=["disk", *(pytest.param(name, marks=pytest.mark.slow) for name in SERVERS)])
def storage(request, tmp_path):
    """Of each kind."""
    if request.param == "disk":
        return open_storage(str(tmp_path / "root"))
    return request.getfixturevalue("open_store")(request.param)[1]
