"""Records as a script reads them, with and without a rendezvous."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from ctr_pipeline import ElasticRecords
from ctr_pipeline.distributed.coordination.rendezvous import NodeRange, RendezvousTimes
from ctr_pipeline.distributed.elastic.client import RendezvousClient
from ctr_pipeline.distributed.elastic.script import rendezvous_environment, world_environment
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.errors import CtrPipelineError

TIMES = RendezvousTimes(gather_seconds=1.0, lease_seconds=30.0)


class Nodes:
    """A rendezvous, and the records of scripts in its worlds, all in this process."""

    def __init__(self, folder, stack, monkeypatch):
        self.folder = folder
        self._stack = stack
        self._monkeypatch = monkeypatch
        self.access = Access.create(folder / "access", tls=False)
        self.threads = stack.enter_context(ThreadPoolExecutor(8))
        self.ledger = folder / "ledger.sqlite"
        self.serve()

    def serve(self):
        self.members = []
        self.server = self._stack.enter_context(
            RendezvousServer("127.0.0.1:0", self.access, TIMES, ledger=self.ledger)
        )

    def form(self, number):
        """A world of new members; what was a world before is over."""
        for client in self.members:
            client.leave()
            client.close()
        self.members = [
            RendezvousClient(self.server.address, f"127.0.0.1:{port}", self.access)
            for port in range(1, number + 1)
        ]
        # As many as there may be: nobody waits for more.
        nodes = NodeRange(number, number)
        calls = [
            self.threads.submit(one.get_cluster_spec, nodes, reset=True, timeout_seconds=30.0)
            for one in self.members
        ]
        worlds = sorted((call.result(60) for call in calls), key=lambda world: world.rank)
        assert [world.rank for world in worlds] == list(range(number))
        return worlds

    def records(self, world, *arguments, **options):
        """What the script of a member reads."""
        environment = rendezvous_environment(self.server.address, self.folder / "access")
        for name, value in {**environment, **world_environment(world)}.items():
            self._monkeypatch.setenv(name, value)
        return ElasticRecords(*arguments, **{"batch_size": 2, "shuffle": False, **options})

    def together(self, call, *many):
        return [one.result(60) for one in [self.threads.submit(call, each) for each in many]]


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    with ExitStack() as stack:
        yield Nodes(tmp_path, stack, monkeypatch)


def _read(records, number):
    """Batches of so many steps, the last of which is not finished."""
    steps = records.steps()
    return [next(steps).tolist() for _ in range(number)]


def test_a_script_alone_reads_everything():
    records = ElasticRecords(5, batch_size=2, epochs=2, shuffle=False)
    assert (records.rank, records.world_size, records.num_records) == (0, 1, 5)
    seen = [
        (batch.tolist(), records.position, records.epoch, records.step_records) for batch in records
    ]
    assert seen == [
        ([0, 1], 2, 0, 2),
        ([2, 3], 4, 0, 2),
        ([4], 5, 0, 1),
        ([0, 1], 7, 1, 2),
        ([2, 3], 9, 1, 2),
        ([4], 10, 1, 1),
    ]


def test_a_script_goes_on_from_its_checkpoint():
    records = ElasticRecords(6, batch_size=4, shuffle=False)
    records.go_on_from(4)
    assert [batch.tolist() for batch in records] == [[4, 5]]


def test_under_tf_config_alone_each_worker_reads_its_share(monkeypatch):
    monkeypatch.delenv("CTRPIPE_RENDEZVOUS", raising=False)
    found = []
    for rank in range(2):
        config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": rank}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        records = ElasticRecords(10, global_batch_size=6, shuffle=False)
        found.append([batch.tolist() for batch in records])
    assert found == [[[0, 1, 2], [6, 7]], [[3, 4, 5], [8, 9]]]


def test_worlds_of_other_sizes_go_on_at_the_record_where_the_last_one_was(nodes):
    pair = [nodes.records(world, 100) for world in nodes.form(2)]
    assert nodes.together(lambda one: _read(one, 3), *pair) == [
        [[0, 1], [4, 5], [8, 9]],
        [[2, 3], [6, 7], [10, 11]],
    ]
    # The third step was not finished by anybody, so its records are read again.
    three = [nodes.records(world, 100) for world in nodes.form(3)]
    assert nodes.together(lambda one: _read(one, 2), *three) == [
        [[8, 9], [14, 15]],
        [[10, 11], [16, 17]],
        [[12, 13], [18, 19]],
    ]


def test_a_step_that_one_member_finished_is_finished(nodes):
    ahead, behind = (nodes.records(world, 100) for world in nodes.form(2))
    assert nodes.together(lambda one: _read(one[0], one[1]), (ahead, 3), (behind, 2))
    (alone,) = (nodes.records(world, 100) for world in nodes.form(1))
    assert _read(alone, 1) == [[8, 9]]


def test_a_ledger_outlives_the_rendezvous(nodes):
    (before,) = (nodes.records(world, 100) for world in nodes.form(1))
    _read(before, 3)
    nodes.serve()
    (world,) = nodes.form(1)
    assert world.version == 2, "no world of an earlier rendezvous is mistaken for this one"
    assert _read(nodes.records(world, 100), 1) == [[4, 5]]


def test_a_checkpoint_goes_before_the_ledger(nodes):
    (before,) = (nodes.records(world, 100) for world in nodes.form(1))
    _read(before, 3)
    (after,) = (nodes.records(world, 100) for world in nodes.form(1))
    after.go_on_from(2)
    assert _read(after, 2) == [[2, 3], [4, 5]]
    (last,) = (nodes.records(world, 100) for world in nodes.form(1))
    assert _read(last, 1) == [[4, 5]]


@pytest.mark.parametrize(
    ("options", "positions", "message"),
    [
        ({}, (0, 40), "the nodes go on from different positions: 0, 40 by rank"),
        ({}, (0, None), "go on from different positions: 0, None"),
        ({"batch_size": 3}, (None, None), "different batch sizes"),
        ({"epochs": 2}, (None, None), "different numbers of epochs: 1, 2 by rank"),
    ],
)
def test_members_that_do_not_agree_are_refused(nodes, options, positions, message):
    first, second = nodes.form(2)
    pair = [nodes.records(first, 100), nodes.records(second, 100, **options)]
    for records, position in zip(pair, positions, strict=True):
        if position is not None:
            records.go_on_from(position)

    def refused(records):
        with pytest.raises(CtrPipelineError, match=message):
            next(iter(records))

    nodes.together(refused, *pair)


def test_other_records_under_a_known_name_are_refused(nodes):
    (before,) = (nodes.records(world, 100) for world in nodes.form(1))
    _read(before, 1)
    (world,) = nodes.form(1)
    message = (
        "ElasticRecords: 'records' are 90 records as is here, and 100 records as is where they "
        "were read before. Give other records another name="
    )
    with pytest.raises(CtrPipelineError, match=message):
        _read(nodes.records(world, 90), 1)
    assert _read(nodes.records(world, 90, name="others"), 1) == [[0, 1]]


def test_fewer_epochs_than_were_read_are_refused(nodes):
    (before,) = (nodes.records(world, 4, epochs=3) for world in nodes.form(1))
    _read(before, 4)
    (after,) = (nodes.records(world, 4) for world in nodes.form(1))
    with pytest.raises(CtrPipelineError, match="6 records are finished, of 4"):
        _read(after, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Give either batch size"),
        ({"batch_size": 2, "global_batch_size": 4}, "Give either batch size"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 1, "epochs": 0}, "epochs=0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(options, message):
    with pytest.raises(CtrPipelineError, match=message):
        ElasticRecords(5, **options)


def test_positions_that_mean_nothing_are_refused():
    records = ElasticRecords(5, batch_size=1)
    with pytest.raises(CtrPipelineError, match="position 6 of 5 records"):
        records.go_on_from(6)
    next(iter(records))
    with pytest.raises(CtrPipelineError, match="after reading had begun"):
        records.go_on_from(1)


def test_a_damaged_tf_config_is_refused(monkeypatch):
    for text in ("{", "{}", '{"cluster": {"worker": ["a:1"]}, "task": {"index": 1}}'):
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(CtrPipelineError, match="TF_CONFIG: names no workers"):
            ElasticRecords(5, batch_size=1)


def test_a_dataset_of_tensorflow_has_an_element_for_each_step(tmp_path):
    import tensorflow as tf

    (tmp_path / "a.csv").write_text("".join(f"{n},{n * n}\n" for n in range(10)))
    records = ElasticRecords(str(tmp_path / "a.csv"), batch_size=4, shuffle=False)

    def parse(lines):
        return tf.io.decode_csv(lines, [0, 0])

    dataset = records.dataset().map(parse).prefetch(2)
    found = [
        (first.numpy().tolist(), second.numpy().tolist(), records.position)
        for first, second in records.steps(dataset)
    ]
    squares = [n * n for n in range(10)]
    assert found == [
        ([0, 1, 2, 3], squares[:4], 4),
        ([4, 5, 6, 7], squares[4:8], 8),
        ([8, 9], squares[8:], 10),
    ]
    again = ElasticRecords(str(tmp_path / "a.csv"), batch_size=4)
    with pytest.raises(CtrPipelineError, match=r"than steps\. Leave out repeat"):
        list(again.steps(again.dataset().repeat(2)))


def test_datasets_of_numbers_and_columns(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf

    numbers = ElasticRecords(3, batch_size=2, shuffle=False).dataset()
    assert numbers.element_spec == tf.TensorSpec((None,), tf.int64)
    assert [one.numpy().tolist() for one in numbers] == [[0, 1], [2]]
    table = pa.table({"id": [1, 2], "text": ["a", "b"], "price": np.array([0.5, 1.5], "f4")})
    pq.write_table(table, tmp_path / "a.parquet")
    (rows,) = ElasticRecords(str(tmp_path / "a.parquet"), batch_size=2, shuffle=False).dataset()
    assert {name: one.numpy().tolist() for name, one in rows.items()} == {
        "id": [1, 2],
        "text": [b"a", b"b"],
        "price": [0.5, 1.5],
    }
