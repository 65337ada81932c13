import os
import signal

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline import interruption
from ctr_pipeline.config.models import EarlyStopping
from ctr_pipeline.errors import CheckpointError, Interrupted, TrainingError
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.specs.learning_rate import CosineDecay, ReduceOnPlateau
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.training.batches import Position
from ctr_pipeline.training.scoring import Scorer
from ctr_pipeline.training.step import clip_norm
from ctr_pipeline.training.trainer import TrainingState
from tests.training.training_problem import (
    NUM_ROWS,
    RecordingProgress,
    draw_rows,
    rows_of,
    write_rows,
)

STEPS_AN_EPOCH = 94


def parameters_of(rig):
    """Bytes of everything that training changes, optimizer state included."""
    keys, values = rows_of(rig.store)
    return keys.tobytes(), values.tobytes(), rig.dense.values.tobytes()


def achieved(state):
    """The history without its clock."""
    return [
        (r.epoch, r.step, r.train_logloss, r.valid_logloss, r.valid_auc, r.num_rows)
        for r in state.history
    ]


class SignalAt:
    """Sends a signal to this process when that many batches are trained."""

    def __init__(self, batch, number=signal.SIGTERM):
        self.calls = 0
        self.batch = batch
        self.number = number

    def __call__(self, amount):
        # A fresh epoch first tells that none of its rows were trained before.
        self.calls += amount > 0
        if self.calls == self.batch:
            self.calls += 1  # once
            os.kill(os.getpid(), self.number)


def interrupt(make_rig, name, batch, **train):
    """Trains until a signal stops it after some batches, counted over epochs."""
    rig = make_rig(name, progress=RecordingProgress(SignalAt(batch)), **train)
    with interruption.handle_signals(), pytest.raises(Interrupted) as stop:
        rig.trainer.fit()
    assert stop.value.exit_code == 128 + signal.SIGTERM
    return rig


def resume(make_rig, name, **train):
    rig = make_rig(name, **train)
    checkpoint = rig.trainer.checkpoints.load_newest(pytest.fail)
    rig.trainer.restore(checkpoint)
    return rig, checkpoint


def test_loss_falls(make_rig):
    rig = make_rig(epochs=3)
    state = rig.trainer.fit()
    losses = [record.valid_logloss for record in state.history]
    valid_labels = draw_rows(500, 2)[2]
    constant = log_loss(valid_labels, np.full(500, draw_rows(NUM_ROWS, 1)[2].mean()))
    assert max(losses) < constant - 0.1
    assert state.history[-1].valid_auc > 0.75
    assert state.history[0].train_logloss > state.history[-1].train_logloss
    assert [record.num_rows for record in state.history] == [NUM_ROWS] * 3
    assert [record.step for record in state.history] == [94, 188, 282]
    assert state.finished == "all 3 epochs are done"


def test_a_listener_may_end_training(make_rig):
    told = []

    def judge(record):
        told.append(record)
        return "enough" if record.epoch == 1 else ""

    state = make_rig(epochs=3, after_epoch=judge).trainer.fit()
    assert told == state.history
    assert [record.epoch for record in told] == [0, 1]
    assert state.finished == "enough"


def test_history_is_what_scikit_learn_says(make_rig, compiled):
    rig = make_rig(epochs=1)
    (record,) = rig.trainer.fit().history
    ids, numbers, labels = draw_rows(500, 2)
    logits = Scorer(compiled, rig.store, rig.dense).score(ids, numbers).astype(np.float64)
    probabilities = 1 / (1 + np.exp(-logits))
    assert record.valid_logloss == pytest.approx(log_loss(labels, probabilities), abs=1e-6)
    bound = ScoreHistogram.of(labels, logits).auc().error_bound
    assert record.valid_auc == pytest.approx(roc_auc_score(labels, logits), abs=bound)
    assert bound < 1e-3
    expected = probabilities.sum() / labels.sum()
    assert record.valid_calibration == pytest.approx(expected, rel=1e-5)


def test_writes_history_events_and_says_each_epoch(make_rig):
    progress = RecordingProgress()
    rig = make_rig(progress=progress)
    state = rig.trainer.fit()
    table = pd.read_csv(rig.files.history)
    assert list(table["valid_auc"]) == [record.valid_auc for record in state.history]
    assert list(rig.files.events.iterdir())
    assert [line.split(":")[0] for line in progress.said] == ["Epoch 1", "Epoch 2"]
    assert progress.tasks[:2] == ["Training, epoch 1 of 2", "Validation"]


def test_two_runs_are_equal_to_the_bit_and_seeds_differ(make_rig):
    first, again = make_rig("first"), make_rig("again")
    other = make_rig("other", seed=7)
    histories = [achieved(rig.trainer.fit()) for rig in (first, again, other)]
    assert histories[0] == histories[1] != histories[2]
    assert parameters_of(first) == parameters_of(again) != parameters_of(other)


def test_best_epoch_is_restored_at_the_end(make_rig, noise, compiled):
    rig = make_rig(rows=noise, epochs=4, early_stopping=None, learning_rate=0.1)
    state = rig.trainer.fit()
    losses = [record.valid_logloss for record in state.history]
    assert len(losses) == 4
    assert losses[-1] > min(losses)
    best = state.history[int(np.argmin(losses))]
    assert state.best_step == best.step
    ids, numbers, labels = draw_rows(400, 4, noise=True)
    logits = Scorer(compiled, rig.store, rig.dense).score(ids, numbers).astype(np.float64)
    assert log_loss(labels, 1 / (1 + np.exp(-logits))) == pytest.approx(min(losses), abs=1e-6)
    assert best.step in rig.trainer.checkpoints.steps()


def test_early_stopping(make_rig, noise):
    rule = EarlyStopping(tolerance=0.0, patience=1)
    state = make_rig(rows=noise, epochs=50, early_stopping=rule, learning_rate=0.1).trainer.fit()
    assert len(state.history) < 50
    assert "validation logloss" in state.finished


def test_schedule_reaches_the_optimizers(make_rig):
    schedule = CosineDecay(decay_steps=STEPS_AN_EPOCH)
    rig = make_rig(learning_rate_schedule=schedule, early_stopping=None)
    state = rig.trainer.fit()
    assert [record.learning_rate_factor for record in state.history] == pytest.approx([0, 0])
    # A factor of zero trains nothing: both epochs end alike.
    assert state.history[0].valid_logloss == pytest.approx(state.history[1].valid_logloss)


def test_rate_is_reduced_by_the_history_also_where_there_is_no_validation(make_rig, noise):
    # As good as no training once an epoch was no better than those before.
    course = {
        "epochs": 4,
        "learning_rate": 0.1,
        "learning_rate_schedule": ReduceOnPlateau(reduction=1e-12, floor=1e-12),
    }
    rig = make_rig(rows=noise, **course)
    history = rig.trainer.fit().history
    factors = [record.learning_rate_factor for record in history]
    best = next(number for number, factor in enumerate(factors) if factor < 1) - 1
    assert factors[: best + 1] == [1.0] * (best + 1)
    refit = make_rig("refit", rows=noise, refits=True, judged=history, **course)
    refit.trainer.fit()
    shorter = make_rig("shorter", rows=noise, refits=True, **course | {"epochs": best + 1})
    shorter.trainer.fit()
    assert np.allclose(refit.dense.values, shorter.dense.values, atol=1e-9)


def few_quickly(few, others):
    """Parameters of which only `few` are for quick tests."""
    return [*few, *(pytest.param(one, marks=pytest.mark.slow) for one in others)]


@pytest.fixture(scope="module")
def undisturbed_store():
    return {}


@pytest.mark.parametrize("batch", few_quickly([63, 94, 150], [1, 2, 64, 65, 93, 95, 187]))
def test_interrupted_anywhere_and_resumed_ends_as_undisturbed(make_rig, undisturbed_store, batch):
    if not undisturbed_store:
        rig = make_rig("undisturbed")
        undisturbed_store["history"] = achieved(rig.trainer.fit())
        undisturbed_store["parameters"] = parameters_of(rig)
        undisturbed_store["csv"] = pd.read_csv(rig.files.history).drop(columns="seconds")
    stopped = interrupt(make_rig, "run", batch)
    assert stopped.trainer.state.step == batch
    rig, checkpoint = resume(make_rig, "run")
    assert checkpoint.step == stopped.trainer.state.step
    state = rig.trainer.fit()
    assert achieved(state) == undisturbed_store["history"]
    assert parameters_of(rig) == undisturbed_store["parameters"]
    assert pd.read_csv(rig.files.history).drop(columns="seconds").equals(undisturbed_store["csv"])


@pytest.mark.parametrize("batch", few_quickly([94], [30, 95, 140]))
def test_old_rows_vanish_and_a_resumed_run_loses_the_same(make_rig, tmp_path, batch):
    ids, numbers, labels = draw_rows(NUM_ROWS, 7)
    early = np.arange(NUM_ROWS) < NUM_ROWS // 2
    # In each epoch ids of the first field appear in one half alone.
    ids[:, 0] = ids[:, 0] % 10 + np.where(early, 0, 10)
    write_rows(tmp_path / "rows/train", ids, numbers, labels)
    write_rows(tmp_path / "rows/valid", *draw_rows(100, 8))
    train = {"rows": tmp_path / "rows", "shuffle": False, "embeddings": {"evict_after": 20}}
    progress = RecordingProgress()
    whole = make_rig("whole", progress=progress, **train)
    history = achieved(whole.trainer.fit())
    assert sum("10 embedding rows without an update in 20" in line for line in progress.said) == 2
    left = [*range(10, 20), *((1 << 44) + np.arange(10)), *((2 << 44) + np.arange(5))]
    assert rows_of(whole.store)[0].tolist() == left

    interrupt(make_rig, "stopped", batch, **train)
    rig, _ = resume(make_rig, "stopped", **train)
    assert achieved(rig.trainer.fit()) == history
    assert parameters_of(rig) == parameters_of(whole)


@pytest.mark.slow
def test_every_timed_checkpoint_resumes_to_the_same_end(make_rig):
    undisturbed = make_rig("undisturbed")
    expected = achieved(undisturbed.trainer.fit())
    every_step = {"checkpoint_seconds": 1e-9, "keep_checkpoints": 1000}
    make_rig("run", **every_step).trainer.fit()
    steps = resume(make_rig, "run")[0].trainer.checkpoints.steps()
    assert steps == list(range(1, 2 * STEPS_AN_EPOCH + 1))
    for step in (17, 64, 111, 160):
        rig = make_rig("run", keep_checkpoints=1000)
        rig.trainer.restore(rig.trainer.checkpoints.load(step))
        assert achieved(rig.trainer.fit()) == expected
        assert parameters_of(rig) == parameters_of(undisturbed)


def test_gaps_that_several_workers_left_are_trained_and_nothing_else(make_rig):
    rig = make_rig("gaps", epochs=2)
    # Of 94 batches in two tasks, some are over.
    rig.trainer.state.done = [(0, 1, 0b1011), (1, 2, 0b110)]
    rig.trainer.state.position = Position(0, 0, 2)
    rig.trainer.state.step, rig.trainer.state.epoch_rows = 7, 100
    state = rig.trainer.fit()
    trained = STEPS_AN_EPOCH - 2 - 3
    assert [record.step for record in state.history] == [7 + trained, 7 + trained + STEPS_AN_EPOCH]
    assert state.done == []


def test_an_epoch_that_was_trained_and_not_validated_is_validated_first(make_rig):
    undisturbed = make_rig("undisturbed", epochs=2)
    expected = undisturbed.trainer.fit()
    first = make_rig("stopped", epochs=1)
    ended = first.trainer.fit()
    (record,) = ended.history
    again, _ = resume(make_rig, "stopped", epochs=2)
    again.trainer.state.history = []
    again.trainer.state.epoch_rows = record.num_rows
    again.trainer.state.epoch_loss_sum = record.train_logloss * record.num_rows
    for mine, theirs in zip(achieved(again.trainer.fit()), achieved(expected), strict=True):
        assert mine == pytest.approx(theirs)
    assert parameters_of(again) == parameters_of(undisturbed)


def test_damaged_newest_checkpoint_costs_steps_and_nothing_else(make_rig):
    undisturbed = make_rig("undisturbed")
    expected = achieved(undisturbed.trainer.fit())
    stopped = interrupt(make_rig, "run", 50, checkpoint_seconds=1e-9)
    newest = max(stopped.trainer.checkpoints.steps())
    storage = stopped.files.checkpoints
    key = stopped.trainer.checkpoints.load(newest).manifest.parts[0].key
    content = bytearray(storage.read(key))
    content[len(content) // 2] ^= 1
    storage.write(key, content)
    rig = make_rig("run")
    said = []
    checkpoint = rig.trainer.checkpoints.load_newest(said.append)
    assert checkpoint.step == newest - 1
    assert "damaged" in said[0]
    rig.trainer.restore(checkpoint)
    assert achieved(rig.trainer.fit()) == expected
    assert parameters_of(rig) == parameters_of(undisturbed)


def test_more_epochs_on_resumption_go_on(make_rig):
    make_rig("run", epochs=1).trainer.fit()
    rig, _ = resume(make_rig, "run", epochs=2)
    assert rig.trainer.state.finished == ""
    straight = make_rig("straight", epochs=2)
    assert achieved(rig.trainer.fit()) == achieved(straight.trainer.fit())
    assert parameters_of(rig) == parameters_of(straight)


def test_fewer_epochs_on_resumption_end_at_once(make_rig):
    interrupt(make_rig, "run", STEPS_AN_EPOCH + 5)
    rig, _ = resume(make_rig, "run", epochs=1)
    state = rig.trainer.fit()
    assert len(state.history) == 1
    assert state.finished == "all 1 epochs are done"


def test_finished_run_resumed_trains_nothing(make_rig):
    first = make_rig("run")
    expected = achieved(first.trainer.fit())
    progress = RecordingProgress()
    rig, _ = resume(make_rig, "run", progress=progress)
    assert achieved(rig.trainer.fit()) == expected
    assert parameters_of(rig) == parameters_of(first)
    assert progress.tasks == []


def test_keeps_the_newest_checkpoints_and_the_best(make_rig, noise):
    rig = make_rig(rows=noise, epochs=5, early_stopping=None, learning_rate=0.1, keep_checkpoints=2)
    state = rig.trainer.fit()
    newest = [record.step for record in state.history][-2:]
    assert rig.trainer.checkpoints.steps() == sorted({*newest, state.best_step})


def test_checkpoint_of_another_model_is_refused(make_rig):
    make_rig("run", epochs=1).trainer.fit()
    rig = make_rig("run", optimizer=OptimizerSpec(name="sgd", learning_rate=0.1))
    with pytest.raises(CheckpointError):
        rig.trainer.restore(rig.trainer.checkpoints.load_newest(pytest.fail))


def test_loss_that_is_not_finite_names_the_step_and_the_input(make_rig, tmp_path):
    ids, numbers, labels = draw_rows(100, 1)
    numbers[40, 1] = np.inf
    for split in ("train", "valid"):
        write_rows(tmp_path / "rows" / split, ids, numbers, labels)
    rig = make_rig(rows=tmp_path / "rows", shuffle=False)
    with pytest.raises(TrainingError, match=r"the loss is \w+ at step 3 \(epoch 1\)") as error:
        rig.trainer.fit()
    assert "dense input 1 is too large" in error.value.remedy


def test_diverging_training_blames_the_learning_rate(make_rig):
    rig = make_rig(optimizer=OptimizerSpec(name="sgd", learning_rate=1e38))
    with pytest.raises(TrainingError, match=r"at step \d+ \(epoch 1\)") as error:
        rig.trainer.fit()
    assert "learning rate is too high" in error.value.remedy


@pytest.mark.parametrize("bound", [0.5, 5.0, 50.0])
def test_clipped_to_the_bound(bound):
    gradient = np.array([3.0, -4.0, 12.0], np.float32)
    clipped = clip_norm(gradient, bound)
    assert np.linalg.norm(clipped) == pytest.approx(min(bound, 13.0), rel=1e-6)
    assert clipped == pytest.approx(gradient * min(1, bound / 13), rel=1e-6)


def test_no_bound_clips_nothing():
    gradient = np.array([1e30, 1.0], np.float32)
    assert clip_norm(gradient, None) is gradient


def test_clipping_bounds_what_a_step_of_sgd_changes(make_rig, tmp_path):
    for split in ("train", "valid"):
        write_rows(tmp_path / "rows" / split, *draw_rows(16, 1))
    rows, plain_sgd = tmp_path / "rows", OptimizerSpec(name="sgd", learning_rate=1.0)
    moved = []
    for name, bound in (("free", None), ("bound", 0.01)):
        rig = make_rig(name, rows=rows, epochs=1, optimizer=plain_sgd, gradient_clip_norm=bound)
        before = rig.dense.values.copy()
        rig.trainer.fit()
        moved.append(rig.dense.values - before)
    assert np.linalg.norm(moved[1]) == pytest.approx(0.01, rel=1e-3)
    free = moved[0] / np.linalg.norm(moved[0])
    assert moved[1] / 0.01 == pytest.approx(free, abs=1e-3)


def test_state_survives_json(make_rig):
    state = make_rig(epochs=1).trainer.fit()
    assert TrainingState.from_json(state.to_json()) == state


def test_training_runs_all_epochs_without_validation_rows(make_rig, learnable, tmp_path):
    first, second = draw_rows(NUM_ROWS, 1), draw_rows(500, 2)
    both = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    (tmp_path / "merged").mkdir()
    write_rows(tmp_path / "merged" / "train", *both)
    write_rows(tmp_path / "merged" / "valid", *second)
    merged = make_rig("merged", rows=tmp_path / "merged", deterministic=True)
    expected = merged.trainer.fit()
    rig = make_rig("refit", refits=True, deterministic=True)
    state = rig.trainer.fit()
    # Rows of two folders, in the order of those of one.
    assert parameters_of(rig) == parameters_of(merged)
    assert state.step == state.best_step == expected.history[-1].step
    assert state.finished == "all 2 epochs are done"
    assert state.history == []
    assert (state.refit.epochs, state.refit.num_rows) == (2, NUM_ROWS + 500)
    assert state.refit.steps == state.step
    assert state.refit.train_logloss == expected.history[-1].train_logloss
    assert TrainingState.from_json(state.to_json()) == state
    assert not rig.files.history.exists()


@pytest.mark.parametrize("batch", few_quickly([125], [40, 200]))
def test_training_resumes_without_validation_rows(make_rig, batch):
    undisturbed = make_rig("undisturbed", refits=True, deterministic=True)
    expected = undisturbed.trainer.fit()
    interrupt(make_rig, "stopped", batch, refits=True, deterministic=True)
    rig, checkpoint = resume(make_rig, "stopped", refits=True, deterministic=True)
    assert checkpoint.state["best_step"] is None
    state = rig.trainer.fit()
    assert parameters_of(rig) == parameters_of(undisturbed)
    assert state.refit.train_logloss == expected.refit.train_logloss
    assert state.finished == expected.finished
    # What has come to its end trains no more.
    rig, _ = resume(make_rig, "stopped", refits=True, deterministic=True)
    assert rig.trainer.fit().step == expected.step
