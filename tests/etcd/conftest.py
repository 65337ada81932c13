import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_server import EtcdServer, NoEtcd, find_etcd, obtain_etcd


@pytest.fixture(scope="session")
def etcd_binary() -> Path:
    """A binary of etcd; without one, tests fail where CI runs them and are skipped elsewhere."""
    try:
        found = obtain_etcd() if os.environ.get("CI") else find_etcd()
    except NoEtcd as error:
        pytest.fail(str(error))
    if found is None:
        pytest.skip("no etcd here: 'make etcd' obtains one")
    return found


@pytest.fixture(scope="module")
def shared_etcd(etcd_binary: Path, tmp_path_factory) -> Iterator[EtcdServer]:
    """A server for tests that do it no harm; each takes a prefix of its own."""
    with EtcdServer(etcd_binary, tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def etcd(etcd_binary: Path, tmp_path: Path) -> Iterator[EtcdServer]:
    """A server for one test to kill and stall."""
    with EtcdServer(etcd_binary, tmp_path / "etcd") as server:
        yield server
