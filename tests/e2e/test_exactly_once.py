"""A model that counts: what the ledger says was trained is what the parameter servers hold.

The logit is zero whatever the weights are, so that the gradient of an example is 0.5 - label for
each of its ids and does not depend on what was trained before. With SGD, a learning rate of one and
no L2 the linear weight of an id ends as minus the sum of that over the records that were applied,
a multiple of a half, exact in float32. One record applied twice, or lost, or applied by one server
and not by the other, shows in a weight.
"""

import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos_faults import Disturbance
from watched_run import WatchedRun

from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.master.status import JobView
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.table import ID_BITS
from tests.e2e.hot_run import KEYS_A_BATCH

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]

NUM_FIELDS = 4
NUM_IDS = 20_000
BATCH_SIZE = 256
NUM_ROWS = 2_000_000
NUM_PARTITIONS = 64
HOT_RUN = Path(__file__).with_name("hot_run.py")
MODEL = '''
import keras


class Silent(keras.layers.Layer):
    """Zero, with the gradient of a sum."""

    def call(self, x):
        total = keras.ops.sum(x, axis=1)
        return total - keras.ops.stop_gradient(total)


def build_model(inputs, options):
    ones = keras.ops.ones_like(inputs.linear_BF[:, :1])
    bias = keras.layers.Dense(1, use_bias=False)(ones)
    return Silent()(inputs.linear_BF) + Silent()(bias)
'''


def draw_ids(dice: np.random.Generator) -> np.ndarray:
    """Ids by row and field; few are frequent, most are rare, as with real columns."""
    return (NUM_IDS * dice.random((NUM_ROWS, NUM_FIELDS)) ** 3).astype(np.int32)


def draw_ids_of_server_0(dice: np.random.Generator) -> np.ndarray:
    """As `draw_ids`; all but one in forty are in partitions of the first of two servers."""
    columns = []
    for field in range(NUM_FIELDS):
        keys = np.arange(NUM_IDS, dtype=np.int64) + (field << ID_BITS)
        servers = partitions_of(keys, NUM_PARTITIONS) % 2
        of_server_0, others = (np.flatnonzero(servers == server) for server in range(2))
        ids = dice.choice(of_server_0, NUM_ROWS)
        ids[::40] = dice.choice(others, len(ids[::40]))
        columns.append(ids)
    return np.stack(columns, axis=1).astype(np.int32)


def make_config(
    folder: Path,
    draw: Callable[[np.random.Generator], np.ndarray] = draw_ids,
    **runtime: object,
) -> dict[str, object]:
    dice = np.random.default_rng(5)
    ids = draw(dice)
    columns = {f"c{field}": ids[:, field] for field in range(NUM_FIELDS)}
    labels = (dice.random(NUM_ROWS) < 0.3).astype(np.int8)
    pq.write_table(pa.table({"label": labels, **columns}), folder / "rows.parquet")
    (folder / "counting.py").write_text(MODEL, encoding="utf-8")
    segment = {"optimizer": {"name": "sgd", "learning_rate": 1.0}, "reduction": "sum"}
    silent = {"l2": {"strength": 0.0}, "initializer": {"name": "uniform", "scale": 0.0}}
    return {
        "name": "counting",
        "data": {
            "train": str(folder / "rows.parquet"),
            "label": "label",
            "split": {"valid": 0.01, "test": 0.01, "by": "order"},
        },
        "features": [
            {
                "columns": f"c0..c{NUM_FIELDS - 1}",
                "id": {"round_identity": {"num_buckets": NUM_IDS}},
            }
        ],
        "model": {"name": "custom", "file": str(folder / "counting.py"), "embedding_dim": 1},
        "train": {
            "epochs": 1,
            "batch_size": BATCH_SIZE,
            "optimizer": {"name": "sgd", "learning_rate": 1.0},
            "embeddings": {"linear": {**segment, **silent}, "vector": {**segment, **silent}},
            "early_stopping": None,
            "checkpoint_seconds": 4,
        },
        "runtime": {
            "mode": "processes",
            "parameter_servers": 2,
            "workers": {"min": 1, "max": 2},
            **runtime,
        },
    }


def expected_weights(run: WatchedRun) -> np.ndarray:
    """By field and id, from the encoded rows."""
    (folder,) = {path.parent for path in run.output.glob("cache/**/train*/meta.json")}
    weights = np.zeros((NUM_FIELDS, NUM_IDS))
    with EncodedReader(folder) as reader:
        rows = reader.read_range(0, reader.meta.num_rows)
    for field in range(NUM_FIELDS):
        ids = rows.ids_BF[:, field]
        weights[field] = -np.bincount(ids, 0.5 - rows.labels_B, minlength=NUM_IDS)
    return weights


def trained_weights(run: WatchedRun) -> np.ndarray:
    """By field and id, as the run's newest cut holds them; never trained ones are zero."""
    from ctr_pipeline.pipeline.model.loading import open_trained
    from ctr_pipeline.pipeline.run_folder import RunFolder

    loaded = load_config(run.config_path)
    model = open_trained(loaded, RunFolder(run.output), SilentProgress())
    weights = np.zeros((NUM_FIELDS, NUM_IDS))
    for block in model.rows.iterate_rows(1 << 16):
        weights[block.keys >> 44, block.keys & ((1 << 44) - 1)] = block.values[:, 0]
    return weights


def disturb(chaos: Disturbance, limit: list[float]) -> None:
    """Each kind of member dies, the parameter servers twice, at random moments of one run."""
    for role, index in (("worker", 0), ("ps", 1), ("master", 0), ("ps", 0), ("worker", 1)):
        trained = chaos.run.now.records.trained
        total = chaos.run.now.records.total
        limit[0] = max(limit[0], trained / total + 0.1)
        chaos.wait_for_moment(trained / total + 0.03, trained / total + 0.1)
        member = chaos.signal(role, index, 9)
        chaos.wait_until_replaced(member)


def ask_to_end(chaos: Disturbance, server: int) -> None:
    """A server gets SIGTERM, which costs no record."""
    run = chaos.run
    generation = run.now.generation
    chaos.wait_until_replaced(chaos.signal("ps", server, signal.SIGTERM))
    run.wait_for("training", run.is_training, 60.0)
    assert run.now.generation > generation
    assert run.now.records.repeated == 0
    name = f"parameter server {server}"
    asked, ended = [event for event in run.now.events if event.what.startswith(name)][-2:]
    assert " is asked to end within " in asked.what
    assert ended.what == f"{name} was ended by SIGTERM"
    assert ended.done.startswith("no record is trained again: checkpoint ")


UPDATES = {
    "async": {},
    "sync": {"update": "sync", "grads_to_wait": 2},
    "bounded": {"update": "bounded"},
}


def check_weights(run: WatchedRun, update: str) -> None:
    """The model holds what the ledger counts."""
    expected, found = expected_weights(run), trained_weights(run)
    assert np.abs(expected).max() > 20
    if update == "sync":
        # What missed its round weighs less: a worker that comes is late once or twice.
        assert np.abs(found - expected).sum() < 0.05 * np.abs(expected).sum()
        return
    wrong = np.argwhere(found != expected)
    assert len(wrong) == 0, (len(wrong), wrong[:5], (found - expected)[tuple(wrong[:5].T)])


def wait_until_moved(run: WatchedRun, wanted: int, number: int) -> None:
    """Asks for another number of servers, and waits for the `number`-th end of moves."""
    run.call("scale", str(run.output), "--parameter-servers", str(wanted))

    def has_moved():
        told = [event.what for event in run.now.events]
        return told.count("partitions are where they are to be") == number

    run.wait_for(f"{wanted} servers", has_moved, 120.0)


def check_moves(view: JobView) -> None:
    """They were not disturbed and cost nothing."""
    assert not [one for one in view.events if one.done == "it goes on and tries again"]
    assert view.records.repeated == 0
    assert view.generation == 1


@pytest.mark.parametrize(
    "update",
    [
        "async",
        pytest.param("sync", marks=pytest.mark.nightly),
        pytest.param("bounded", marks=pytest.mark.nightly),
    ],
)
def test_every_record_is_in_the_model_exactly_once(tmp_path, update):
    """Partitions move to a third server, which is asked to end; then members die."""
    config = make_config(tmp_path, partitions=NUM_PARTITIONS, **UPDATES[update])
    with WatchedRun(tmp_path, config) as run:
        run.start("train")
        # The part of the job that may be done by the next event.
        limit = [0.2]
        with run.paced(lambda: limit[0]):
            run.wait_for("training", run.is_training, 120.0)
            wait_until_moved(run, 3, 1)
            check_moves(run.now)
            chaos = Disturbance(run, random.Random(11))
            ask_to_end(chaos, 2)
            disturb(chaos, limit)
        assert run.wait(300.0) == 0, run.tail(40)
        view = run.final_view()
        assert view.records.trained == view.records.total
        assert view.records.dropped == 0
        assert view.generation >= 2
        assert not [event for event in view.events if "the master had an error" in event.what]
        check_weights(run, update)


@pytest.mark.nightly
def test_partitions_move_while_training_goes_on_and_nothing_is_lost(tmp_path):
    config = make_config(tmp_path, partitions=NUM_PARTITIONS)
    with WatchedRun(tmp_path, config) as run:
        run.start("train")
        with run.paced(lambda: 0.3):
            run.wait_for("training", run.is_training, 120.0)
            wait_until_moved(run, 3, 1)
            wait_until_moved(run, 1, 2)
        assert run.wait(300.0) == 0, run.tail(40)
        view = run.final_view()
        check_moves(view)
        assert view.records.trained == view.records.total
        assert view.records.dropped == 0
        check_weights(run, "async")


def test_partitions_of_a_server_that_becomes_hot_move_by_themselves(tmp_path):
    config = make_config(
        tmp_path,
        draw_ids_of_server_0,
        partitions=NUM_PARTITIONS,
        move_partitions_after_seconds=5,
    )
    with WatchedRun(
        tmp_path,
        config,
        program=(sys.executable, str(HOT_RUN)),
        environment={KEYS_A_BATCH: str(NUM_FIELDS * BATCH_SIZE)},
    ) as run:
        run.start("train")

        def moves():
            return [event.what for event in run.now.events if "moved from parameter" in event.what]

        with run.paced(lambda: 0.3):
            run.wait_for("a move", moves, 300.0)
        assert run.wait(300.0) == 0, run.tail(40)
        view = run.final_view()
        assert "moved from parameter server 0 to 1: parameter server 0 was at " in moves()[0]
        assert "% of its cores for 5 s and parameter server 1, the idlest other, at " in moves()[0]
        assert view.records.trained == view.records.total
        assert view.records.repeated == view.records.dropped == 0
        assert view.generation == 1
        check_weights(run, "async")


def test_members_lost_while_partitions_move_cost_no_record(tmp_path):
    with WatchedRun(tmp_path, make_config(tmp_path)) as run:
        run.start("train")
        run.wait_for("training", run.is_training, 120.0)
        chaos = Disturbance(run, random.Random(7))

        def moves():
            return [
                event.what
                for event in run.now.events
                if "moved from parameter server" in event.what
            ]

        limit = [0.0]
        with run.paced(lambda: limit[0]):
            for wanted, victim in ((3, ("ps", 0)), (2, ("ps", 1)), (3, ("master", 0))):
                limit[0] += 0.25
                before = len(moves())
                run.call("scale", str(run.output), "--parameter-servers", str(wanted))
                run.wait_for("a first move", lambda before=before: len(moves()) > before, 120.0)
                chaos.wait_until_replaced(chaos.signal(*victim, 9))
                run.wait_for("steps", run.is_training, 120.0)
        assert run.wait(300.0) == 0, run.tail(40)
        view = run.final_view()
        assert view.records.trained == view.records.total
        assert view.records.dropped == 0
        check_weights(run, "async")
