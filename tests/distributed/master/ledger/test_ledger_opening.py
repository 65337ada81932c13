from typing import get_args

from ctr_pipeline.config.models import EtcdLedgerConfig, RuntimeConfig
from ctr_pipeline.distributed.master.ledger.etcd import EtcdLocation
from ctr_pipeline.distributed.master.ledger.opening import LEDGERS, locate_ledger
from ctr_pipeline.distributed.master.ledger.sqlite import SqliteLocation


def kinds_of_the_config():
    for choice in get_args(RuntimeConfig.model_fields["ledger"].annotation):
        yield from get_args(choice) or [next(iter(choice.model_fields))]


def test_every_ledger_that_a_config_can_name_has_a_place():
    assert set(kinds_of_the_config()) == set(LEDGERS)


def test_the_place_is_what_the_config_names(tmp_path):
    assert isinstance(locate_ledger(RuntimeConfig(), tmp_path), SqliteLocation)
    etcd = RuntimeConfig(ledger=EtcdLedgerConfig(etcd="http://127.0.0.1:1"))
    assert isinstance(locate_ledger(etcd, tmp_path), EtcdLocation)
