from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd.etcd_server import EtcdServer, find_etcd


@pytest.fixture(scope="session")
def etcd_binary() -> Path:
    """A binary of etcd; without one, tests are skipped."""
    found = find_etcd()
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
