import threading

import numpy as np
import pytest

from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.progress import SilentTask
from ctr_pipeline.training.scoring import Scorer
from tests.training.training_problem import (
    BATCH_SIZE,
    NUM_ROWS,
    RecordingProgress,
    draw_rows,
    rows_of,
)


@pytest.fixture
def trained(make_rig, compiled):
    rig = make_rig(epochs=1, progress=RecordingProgress())
    rig.trainer.fit()
    return rig, Scorer(compiled, rig.store, rig.dense)


@pytest.mark.parametrize("num_rows", [0, 1, BATCH_SIZE - 1, BATCH_SIZE, BATCH_SIZE + 1, 100])
def test_any_number_of_rows(trained, num_rows):
    _, scorer = trained
    ids, numbers, _ = draw_rows(100, 6)
    logits = scorer.score(ids[:num_rows], numbers[:num_rows])
    assert logits.shape == (num_rows,)
    assert logits.dtype == np.float32
    assert np.array_equal(logits, scorer.score(ids, numbers)[:num_rows])


def test_score_of_a_row_does_not_depend_on_its_neighbours(trained):
    _, scorer = trained
    ids, numbers, _ = draw_rows(50, 7)
    order = np.random.default_rng(0).permutation(50)
    assert scorer.score(ids[order], numbers[order]) == pytest.approx(
        scorer.score(ids, numbers)[order], abs=1e-6
    )


def test_makes_no_rows_and_changes_none(make_rig, compiled):
    rig = make_rig()
    scorer = Scorer(compiled, rig.store, rig.dense)
    ids, numbers, _ = draw_rows(50, 8)
    assert scorer.score(ids, numbers).shape == (50,)
    assert rig.store.num_rows == 0


def test_changes_nothing_after_training(trained):
    rig, scorer = trained
    keys, values = rows_of(rig.store)
    dense = rig.dense.values.copy()
    ids, numbers, _ = draw_rows(200, 9)
    scorer.score(ids, numbers)
    assert all(
        np.array_equal(*pair) for pair in zip(rows_of(rig.store), (keys, values), strict=True)
    )
    assert np.array_equal(rig.dense.values, dense)


def test_split_in_the_order_of_its_rows(trained, learnable):
    _, scorer = trained
    ids, numbers, labels = draw_rows(NUM_ROWS, 1)
    done = []
    task = SilentTask()
    task.advance = done.append
    with EncodedReader(learnable / "train") as reader:
        scored = scorer.score_split(reader, task)
    assert np.array_equal(scored.labels, labels)
    assert np.array_equal(scored.logits, scorer.score(ids, numbers))
    assert sum(done) == NUM_ROWS


def test_split_that_cannot_be_scored_leaves_no_thread_behind(trained, learnable):
    rig, scorer = trained
    rig.dense.values[:] = np.nan
    before = set(threading.enumerate())
    with (
        EncodedReader(learnable / "train") as reader,
        pytest.raises(TrainingError, match="of the split"),
    ):
        scorer.summarize_split(reader, place="of the split")
    assert not set(threading.enumerate()) - before
