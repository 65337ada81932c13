"""An etcd that lets in only those who show something, and one that is written to for long."""

import pytest

from ctr_pipeline.distributed.master.ledger.etcd import EtcdLedger, read_etcd_ledger
from ctr_pipeline.distributed.master.ledger.etcd_gateway import EtcdAccess
from ctr_pipeline.distributed.master.ledger.store import (
    LedgerError,
    LedgerIdentity,
    LedgerUnavailableError,
)
from tests.etcd.etcd_server import EtcdServer, call_gateway, make_certificates

pytestmark = pytest.mark.slow
OURS = LedgerIdentity("job-1", "config", "rows")


@pytest.fixture
def closed_etcd(etcd_binary, tmp_path):
    """Asks for a client's certificate."""
    make_certificates(tmp_path / "tls")
    with EtcdServer(etcd_binary, tmp_path / "etcd", tmp_path / "tls") as server:
        yield server


def test_a_client_certificate_is_shown(closed_etcd, tmp_path):
    folder = tmp_path / "tls"
    authority = str(folder / "ca.pem")
    access = EtcdAccess(authority, str(folder / "member.pem"), str(folder / "member.key"))
    ledger = EtcdLedger(closed_etcd.url, "/x/", OURS, access=access)
    ledger.commit({"a": {"v": 1}}, durable=True)
    ledger.close()
    _, records = read_etcd_ledger(closed_etcd.url, "/x/", "job-1", access=access)
    assert records == {"a": {"v": 1}}
    for refused in (EtcdAccess(authority), EtcdAccess()):
        with pytest.raises(LedgerUnavailableError):
            EtcdLedger(closed_etcd.url, "/x/", OURS, access=refused)


def test_a_file_of_certificates_that_is_not_there_is_told(closed_etcd):
    with pytest.raises(LedgerError, match="nowhere"):
        EtcdLedger(closed_etcd.url, "/x/", OURS, access=EtcdAccess("/nowhere.pem"))


def require_users(url):
    for path, body in (
        ("/auth/user/add", {"name": "root", "password": "r"}),
        ("/auth/user/grant", {"user": "root", "role": "root"}),
        ("/auth/user/add", {"name": "ctr", "password": "secret"}),
        ("/auth/role/add", {"name": "ctr"}),
        ("/auth/user/grant", {"user": "ctr", "role": "ctr"}),
    ):
        call_gateway(url, path, body)
    # All keys below /x/.
    permission = {"permType": "READWRITE", "key": "L3gv", "range_end": "L3gw"}
    call_gateway(url, "/auth/role/grant", {"name": "ctr", "perm": permission})
    call_gateway(url, "/auth/enable", {})


def test_a_user_of_etcd_is_named_again_when_etcd_has_forgotten(etcd, monkeypatch):
    require_users(etcd.url)
    monkeypatch.setenv("CTRPIPE_ETCD_USER", "ctr")
    monkeypatch.setenv("CTRPIPE_ETCD_PASSWORD", "secret")
    access = EtcdAccess().as_user_of_environment()
    assert "secret" not in repr(access)
    ledger = EtcdLedger(etcd.url, "/x/", OURS, access=access, compact_after=2, lock_seconds=60)
    ledger.commit({"a": {"v": 1}}, durable=True)
    # Its tokens lie in memory only.
    etcd.restart()
    for number in range(10):
        ledger.commit({"a": {"v": number}}, durable=True)
    ledger.close()
    _, records = read_etcd_ledger(etcd.url, "/x/", "job-1", access=access)
    assert records == {"a": {"v": 9}}
    for refused in (EtcdAccess(), EtcdAccess(user="ctr", password="wrong")):  # noqa: S106
        with pytest.raises(LedgerUnavailableError, match="etcd refuses"):
            EtcdLedger(etcd.url, "/x/", OURS, access=refused)


def test_etcd_does_not_grow_with_how_long_a_job_writes(etcd):
    ledger = EtcdLedger(etcd.url, "/x/", OURS, compact_after=100)
    head = {"filling": "h" * 1500}

    def write(transactions):
        for number in range(transactions):
            tasks = {f"task/{(number * 8 + one) % 200}": {"v": number} for one in range(8)}
            ledger.commit({"head": head | {"attempt": number}, **tasks}, durable=True)
        return int(call_gateway(etcd.url, "/maintenance/status", {})["dbSize"])

    # So much again and again, and its file stays as large as it was.
    write(2000)
    sizes = [write(1000) for _ in range(3)]
    assert max(sizes) <= 1.25 * sizes[0]
    # Otherwise each of 5000 transactions of some 2 kB stays.
    assert sizes[-1] < 5_000_000
    ledger.close()
