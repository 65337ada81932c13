"""The loop trains what one process trains, whatever happens to the members that it talks to."""

import math
from contextlib import closing

import numpy as np
import pytest

from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.coordination.messages import LeasedTask, Member, MemberStats, TaskKey
from ctr_pipeline.distributed.coordination.spec import EncodedSplit
from ctr_pipeline.distributed.rpc.failures import PeerUnavailable
from ctr_pipeline.distributed.worker.loop import WorkerLoop
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.distributed.worker.session import WorkerSession
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.errors import DataError, TrainingError
from ctr_pipeline.evaluation.histogram import ScoreHistogram
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.profile import Stage
from ctr_pipeline.training.scoring import Scorer
from ctr_pipeline.training.step import TrainingStep
from ctr_pipeline.training.trainer import Trainer, TrainerFiles
from tests.distributed.job_specs import job_spec
from tests.distributed.ps_requests import nothing_trained
from tests.distributed.worker.loop_world import FaultyServer, LeasingMaster, training_tasks
from tests.training.training_problem import (
    BATCH_SIZE,
    NUM_ROWS,
    draw_rows,
    new_model,
    new_store,
    rows_of,
    segments,
    tables,
    write_rows,
)

EPOCHS = 2
STEPS_AN_EPOCH = 94
# What `write_rows` marks rows with.
ROWS_FINGERPRINT = "test"
DENSE_OPTIMIZER = OptimizerSpec(name="adam", learning_rate=0.02)


@pytest.fixture(scope="module")
def compiled():
    return CompiledModel(new_model(), batch_size=BATCH_SIZE)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    root = tmp_path_factory.mktemp("loop")
    write_rows(root / "train", *draw_rows(NUM_ROWS, 1))
    write_rows(root / "valid", *draw_rows(500, 2))
    return root


def new_dense(compiled):
    return DenseParameters(compiled.initial_parameters(), DENSE_OPTIMIZER)


@pytest.fixture(scope="module")
def config():
    return TrainConfig(
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        checkpoint_seconds=1e9,
        early_stopping=None,
        gradient_clip_norm=0.5,
    )


@pytest.fixture(scope="module")
def alone(compiled, rows, config, tmp_path_factory):
    """What one process makes of the same rows, never going back to an earlier epoch."""
    folder = tmp_path_factory.mktemp("alone")
    store, dense = new_store(0.02), new_dense(compiled)
    with EncodedReader(rows / "train") as train, EncodedReader(rows / "valid") as valid:
        trainer = Trainer(
            config=config,
            compiled=compiled,
            embeddings=store,
            dense=dense,
            train=train,
            valid=valid,
            files=TrainerFiles(
                open_storage(str(folder / "checkpoints")), folder / "history.csv", folder / "events"
            ),
            progress=SilentProgress(),
        )
        state = trainer.fit()
    # Otherwise the parameters below are those of another epoch.
    assert state.best_step == state.step == EPOCHS * STEPS_AN_EPOCH
    return store, dense, state


class World:
    """A loop with everything around it in hand."""

    def __init__(self, compiled, rows, config, folder, tasks, *, overlap_pushes):
        self.overlap_pushes = overlap_pushes
        splits = (
            EncodedSplit("train", str(rows / "train"), NUM_ROWS),
            EncodedSplit("valid", str(rows / "valid"), 500),
        )
        self.spec = job_spec(
            splits=splits,
            batch_size=BATCH_SIZE,
            epochs=EPOCHS,
            seed=config.seed,
            rows_fingerprint=ROWS_FINGERPRINT,
            tables=tables(),
            segments=segments(0.02),
            num_dense=len(compiled.initial_parameters()),
            dense_optimizer=DENSE_OPTIMIZER,
        )
        self.master = LeasingMaster(self.spec, tasks)
        self.server = FaultyServer(self.spec)
        # One try: that it is made again is the loop's part.
        self.client = PsClient(self.spec, None, deadline_seconds=0.0, connect=self.server.connect)
        self.folder, self.compiled, self.config = folder, compiled, config
        self.pauses = []
        self.session = WorkerSession(
            member=Member("worker", 0, "abc"),
            config_fingerprint="",
            metrics_address="",
            connect=self.master.connect,
            stats=MemberStats,
        )

    def run(self, compiled=None):
        with self.session as session, closing(self.client):
            loop = WorkerLoop(
                spec=session.wait_registered(),
                session=session,
                client=self.client,
                compiled=compiled or self.compiled,
                step=TrainingStep(self.config, compiled or self.compiled),
                scores_root=self.folder,
                overlap_pushes=self.overlap_pushes,
                sleep=self.pauses.append,
            )
            loop.run()
        return loop

    def masks(self):
        return {
            (key.epoch, key.task): report.done_mask for key, report in self.master.reports.items()
        }


@pytest.fixture
def make_world(compiled, rows, config, tmp_path):
    def make(tasks=None, *, overlap_pushes=False):
        after = ()
        if tasks is None:
            # As by the real master, nothing of an epoch is leased before the last one is done.
            tasks, after = training_tasks(0, 2), training_tasks(1, 2)
        world = World(compiled, rows, config, tmp_path, tasks, overlap_pushes=overlap_pushes)
        world.master.after.extend(after)
        return world

    return make


OVERLAP = pytest.mark.parametrize("overlap_pushes", [False, True])
WHOLE = {(0, 0): 2**64 - 1, (0, 1): 2**30 - 1, (1, 0): 2**64 - 1, (1, 1): 2**30 - 1}


def assert_equal_to_alone(world, alone):
    store, dense, state = alone
    keys, values = rows_of(store)
    trained, trained_dense = world.server.values(keys)
    assert np.array_equal(trained, values)
    assert np.array_equal(trained_dense, dense.values)
    assert world.server.core.state.num_rows == len(keys)
    losses = [
        math.fsum(
            loss.loss_sum
            for key, report in world.master.reports.items()
            if key.epoch == epoch
            for loss in report.losses
        )
        for epoch in range(EPOCHS)
    ]
    expected = [record.train_logloss * record.num_rows for record in state.history]
    assert losses == pytest.approx(expected, rel=1e-12)


def test_trains_the_bits_of_one_process(make_world, alone):
    world = make_world()
    loop = world.run()
    assert world.masks() == WHOLE
    assert [step for _, step in world.server.applied] == list(range(1, 2 * STEPS_AN_EPOCH + 1))
    assert_equal_to_alone(world, alone)
    assert set(world.server.staleness) == {0}
    assert loop.samples_per_second > 0


def test_an_overlapped_push_is_all_that_the_next_batch_does_not_know_of(make_world, alone):
    world = make_world(overlap_pushes=True)
    world.run()
    assert world.masks() == WHOLE
    assert [step for _, step in world.server.applied] == list(range(1, 2 * STEPS_AN_EPOCH + 1))
    assert world.server.staleness[0] == 0
    # A batch that was read late finds the push before it through.
    assert set(world.server.staleness[1:]) <= {0, 1}
    assert np.mean(world.server.staleness) > 0.5
    # The loss is that of one process but for what a batch less of knowledge makes.
    store, _, state = alone
    last = [one for key, one in world.master.reports.items() if key.epoch == EPOCHS - 1]
    loss = math.fsum(loss.loss_sum for one in last for loss in one.losses)
    assert loss / NUM_ROWS == pytest.approx(state.history[-1].train_logloss, rel=0.02)
    assert world.server.core.state.num_rows == store.num_rows


@OVERLAP
def test_the_log_ends_with_where_the_time_went(make_world, caplog, overlap_pushes):
    tasks = [*training_tasks(0, 1), score_task(0, 0, 100)]
    world = make_world(tasks, overlap_pushes=overlap_pushes)
    with caplog.at_level("INFO", "ctr_pipeline.distributed.worker.loop"):
        loop = world.run()
    laps = loop.laps.times
    assert laps[Stage.TENSORFLOW] == laps[Stage.GATHER] == laps[Stage.SEND] == 64
    assert laps[Stage.AWAIT_VALUES] == 64
    assert laps[Stage.SCORE] == 7
    table = "\n".join(caplog.messages)
    assert all(stage in table for stage in laps)
    # Beside the step, all that it waits for has a line.
    assert {Stage.AWAIT_BATCH, Stage.AWAIT_VALUES, Stage.AWAIT_UPDATES} <= laps.keys()


def test_faults_lose_no_overlapped_push(make_world):
    world = make_world(overlap_pushes=True)
    world.server.faults["Pull"].extend([None, "lost", "lost", None, "lost"])
    world.server.faults["Push"].extend(
        [None, "lost", "reply_lost", None, "reply_lost", "lost", "lost"]
    )
    world.run()
    assert world.masks() == WHOLE
    assert [step for _, step in world.server.applied] == list(range(1, 2 * STEPS_AN_EPOCH + 1))
    # What a push finds that an earlier try of the same batch did is no repetition.
    assert not any(report.repeated_mask for report in world.master.reports.values())


def test_faults_of_servers_change_nothing(make_world, alone):
    world = make_world()
    world.server.faults["Pull"].extend([None, "lost", "lost", None, "lost"])
    world.server.faults["Push"].extend(
        [None, "lost", "reply_lost", "stale", None, "stale", "stale", "reply_lost", "lost", "lost"]
    )
    world.run()
    assert world.masks() == WHOLE
    assert_equal_to_alone(world, alone)
    assert len(world.pauses) == 8
    # What a push finds that an earlier try of the same batch did is no repetition.
    assert not any(report.repeated_mask for report in world.master.reports.values())


def test_batches_that_are_done_are_left_out(make_world):
    key = TaskKey("train", 0, 1, "train")
    world = make_world([LeasedTask(key, 1, 0b101, 0, 0, "")])
    world.run()
    assert [place[2] for place, _ in world.server.applied] == [1, *range(3, 30)]
    assert [step for _, step in world.server.applied][:2] == [66, 68]
    assert world.master.reports[key].done_mask == 2**30 - 1


def test_learning_rate_follows_the_factor_of_the_epoch(make_world):
    key = TaskKey("train", 0, 1, "train")
    world = make_world([LeasedTask(key, 1, 0, 0, 0, "", learning_rate_factor=0.25)])
    world.run()
    assert set(world.server.factors) == {0.25}


def test_a_task_that_is_all_done_is_finished_at_once(make_world):
    key = TaskKey("train", 0, 1, "train")
    world = make_world([LeasedTask(key, 1, 2**30 - 1, 0, 0, "")])
    world.run()
    assert world.server.pushes == 0
    assert world.master.reports[key].finished


@OVERLAP
def test_a_rollback_in_the_middle_begins_the_leases_again(make_world, overlap_pushes):
    world = make_world(training_tasks(0, 2), overlap_pushes=overlap_pushes)

    def roll_back():
        if world.server.pushes == 40:
            world.master.roll_back()
            world.server.restore(2)

    world.server.on_push = roll_back
    world.run()
    assert world.client.generation == 2
    assert {report.attempt for report in world.master.reports.values()} == {2}
    assert world.masks() == {(0, 0): 2**64 - 1, (0, 1): 2**30 - 1}


@OVERLAP
def test_a_rollback_that_the_master_tells_of_does_the_same(make_world, overlap_pushes):
    world = make_world(training_tasks(0, 2), overlap_pushes=overlap_pushes)

    def roll_back():
        if world.server.pushes == 40:
            world.master.roll_back()
            world.server.restore(2)
        # The heartbeat brings it while servers do not answer.
        if world.server.pushes >= 40 and world.client.generation < 2:
            raise PeerUnavailable("restoring")

    world.server.on_push = roll_back
    world.run()
    assert world.client.generation == 2
    assert world.masks() == {(0, 0): 2**64 - 1, (0, 1): 2**30 - 1}


@OVERLAP
@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_worker_that_is_told_to_pause_hands_back_all_but_what_it_has_trained(
    make_world, overlap_pushes, rolls_back
):
    """What it reported by then is what the server holds, to the batch."""
    world = make_world(training_tasks(0, 2), overlap_pushes=overlap_pushes)
    held = []

    def begin():
        # A worker that has heard of it finishes the batch that it is at.
        if world.server.pushes == 40:
            world.master.is_pausing = True

    def end():
        done = sum(report.done_mask.bit_count() for report in world.master.reports.values())
        held.append((done, len(world.server.applied)))
        # The second time nothing has happened since.
        if len(held) == 2:
            world.master.is_pausing = False
            if rolls_back:
                world.master.generation += 1
                world.server.core.checkpoints.restore(nothing_trained(2))

    world.server.on_push, world.master.on_paused = begin, end
    world.run()
    assert held[0][0] == held[0][1] == held[1][0] == held[1][1]
    assert 40 <= held[0][0] < 94
    # Each batch once.
    places = [place for place, _ in world.server.applied]
    assert len(places) == len(set(places)) == 94
    assert not any(report.repeated_mask for report in world.master.reports.values())
    assert world.masks() == {(0, 0): 2**64 - 1, (0, 1): 2**30 - 1}


@OVERLAP
def test_a_task_that_another_worker_has_is_let_go(make_world, overlap_pushes):
    world = make_world(training_tasks(0, 2), overlap_pushes=overlap_pushes)

    def supersede():
        if world.server.pushes == 6:
            # The other worker is no part of this test.
            world.master.leased.pop(TaskKey("train", 0, 0, "train"))
            world.server.supersede(task=0, attempt=2)

    world.server.on_push = supersede
    world.run()
    places = [place for place, _ in world.server.applied]
    mine = [place for place in places if place[1] == 0]
    # The push after the refused one may be on its way when the refusal is heard of.
    late = [(0, 0, 6)] if overlap_pushes else []
    assert mine in ([(0, 0, batch) for batch in range(5)], [(0, 0, b) for b in range(5)] + late)
    assert world.masks()[0, 1] == 2**30 - 1


def score_task(task, first, num_rows, file=""):
    return LeasedTask(TaskKey("score", 0, task, "valid"), 1, 0, first, num_rows, file)


def test_scoring_is_that_of_one_process_and_makes_no_rows(make_world, compiled):
    world = make_world(
        [score_task(0, 0, 320, "scores/valid-0.f32"), score_task(1, 320, 180, "scores/valid-1.f32")]
    )
    world.run()
    assert world.server.core.state.num_rows == 0
    assert world.server.pushes == 0
    ids, numbers, labels = draw_rows(500, 2)
    expected = Scorer(compiled, new_store(), new_dense(compiled)).score(ids, numbers)
    written = [
        np.fromfile(world.folder / "scores" / f"valid-{task}.f32", "<f4") for task in range(2)
    ]
    assert np.array_equal(np.concatenate(written), expected)
    merged = ScoreHistogram.empty()
    for report in world.master.reports.values():
        assert report.finished
        merged += ScoreHistogram.from_sparse(
            report.scores.positives,
            report.scores.negatives,
            loss_sum=report.scores.loss_sum,
            probability_sum=report.scores.probability_sum,
        )
    whole = ScoreHistogram.of(labels, expected)
    assert merged.auc() == whole.auc()
    assert merged.loss_units == whole.loss_units


def test_scores_without_a_file_are_only_counted(make_world):
    world = make_world([score_task(0, 0, 100)])
    world.run()
    assert not (world.folder / "scores").exists()
    (report,) = world.master.reports.values()
    assert sum(count for _, count in (*report.scores.positives, *report.scores.negatives)) == 100


class BrokenModel:
    """Gradients that fail as a user's own code may."""

    number_names = ()

    def __init__(self, compiled, failure):
        self.compiled, self.failure, self.calls = compiled, failure, 0

    def initial_parameters(self):
        return self.compiled.initial_parameters()

    def gradients(self, **arguments):
        self.calls += 1
        gradients = self.compiled.gradients(**arguments)
        return self.failure(gradients) if self.calls == 7 else gradients


@OVERLAP
def test_a_failure_of_the_model_reaches_the_master_and_ends_the_worker(
    make_world, compiled, overlap_pushes
):
    def fail(_):
        raise ZeroDivisionError("in the user's layer")

    world = make_world(overlap_pushes=overlap_pushes)
    with pytest.raises(ZeroDivisionError):
        world.run(BrokenModel(compiled, fail))
    report = world.master.reports[TaskKey("train", 0, 0, "train")]
    assert "ZeroDivisionError: in the user's layer" in report.failure
    assert "test_worker_loop.py" in report.failure
    assert report.done_mask == 2**6 - 1
    assert not report.finished


def test_a_failure_ends_a_worker_that_waits_for_another_task(make_world, compiled):
    def fail(_):
        raise ZeroDivisionError("in the user's layer")

    # All that is left of it is read ahead before it fails, and no other task comes.
    done = (1 << 30) - (1 << 7)
    world = make_world([LeasedTask(TaskKey("train", 0, 1, "train"), 1, done, 0, 0, "")])
    with pytest.raises(ZeroDivisionError):
        world.run(BrokenModel(compiled, fail))


def test_a_refused_thread_ends_the_worker_and_is_no_failure_of_its_task(make_world, compiled):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    world = make_world()
    with pytest.raises(RuntimeError, match="new thread"):
        world.run(BrokenModel(compiled, refuse))
    assert not any(report.failure for report in world.master.reports.values())


def test_a_loss_that_is_no_number_is_told_with_its_step(make_world, compiled):
    world = make_world()

    def diverge(gradients):
        return type(gradients)(math.nan, *list(vars(gradients).values())[1:])

    with pytest.raises(TrainingError, match="the loss is nan at step 7"):
        world.run(BrokenModel(compiled, diverge))
    report = world.master.reports[TaskKey("train", 0, 0, "train")]
    assert "the loss is nan at step 7" in report.failure
    assert report.is_final


def test_rows_of_another_run_are_refused(make_world, rows, tmp_path):
    world = make_world()
    write_rows(tmp_path / "other", *draw_rows(NUM_ROWS, 9))
    (tmp_path / "other" / "meta.json").write_text(
        (tmp_path / "other" / "meta.json").read_text().replace('"test"', '"another"')
    )
    splits = (EncodedSplit("train", str(tmp_path / "other"), NUM_ROWS),)
    world.master.spec = job_spec(
        splits=splits, batch_size=BATCH_SIZE, rows_fingerprint=ROWS_FINGERPRINT
    )
    with pytest.raises(DataError, match="other rows"):
        world.run()
    report = world.master.reports[TaskKey("train", 0, 0, "train")]
    assert "other rows" in report.failure


@OVERLAP
def test_leaves_after_the_batch_in_progress_and_reports_it(make_world, overlap_pushes):
    world = make_world(overlap_pushes=overlap_pushes)

    def leave():
        if world.server.pushes == 10:
            world.session.leave()

    world.server.on_push = leave
    world.run()
    # The batch after it may have been computed before the session hears of it.
    assert world.server.pushes in {10, 10 + overlap_pushes}
    assert world.masks() == {(0, 0): 2**world.server.pushes - 1}
