"""A run that begins from an earlier one: day 1, then day 2, beside both days at once."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.errors import CheckpointError, ConfigError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.analyzing import analyze_by_workers
from ctr_pipeline.pipeline.model.dense_model import compile_model
from ctr_pipeline.pipeline.model.trained_model import initial_parameters
from ctr_pipeline.pipeline.run import run_pipeline, train
from ctr_pipeline.pipeline.run_folder import RunFolder, model_fingerprint
from ctr_pipeline.pipeline.stages.analyze import run_analysis
from ctr_pipeline.pipeline.stages.encode import run_encoding
from ctr_pipeline.pipeline.stages.vocabulary_extension import num_new_values
from ctr_pipeline.pipeline.stages.warm_start import find_warm_start
from ctr_pipeline.pipeline.stages.warm_start_parameters import fill_from_earlier, load_earlier
from ctr_pipeline.preprocessing.plan import load_plan
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.table import ID_BITS
from ctr_pipeline.training.checkpoint import Checkpoints
from ctr_pipeline.transforms.shared.vocabulary_files import load_vocabulary
from ctr_pipeline.transforms.vocabulary import VocabularyStep
from tests.pipeline.days import FEATURES, FIRST_NEW, settings_of, write_day
from tests.pipeline.units_here import Sharing

pytestmark = pytest.mark.slow

ID_MASK = (1 << ID_BITS) - 1


class Told(SilentProgress):
    def __init__(self):
        self.lines = []

    def log(self, text):
        self.lines.append(text)


def trained(settings, *, resume=False, progress=None):
    loaded = config_from_mapping(settings)
    train(loaded, resume=resume, progress=progress or SilentProgress())
    return loaded


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Rows of two days and of what comes next, and the run of day 1."""
    folder = tmp_path_factory.mktemp("days")
    write_day(folder / "day1.csv", 8000, seed=1, last=FIRST_NEW)
    write_day(folder / "day2.csv", 1200, seed=2)
    write_day(folder / "next.csv", 2500, seed=3)
    trained(settings_of(folder / "day1.csv", folder / "one", keep_checkpoints=9))
    return folder


@pytest.fixture(scope="module")
def second(world):
    """The run of day 2, begun from that of day 1."""
    told = Told()
    loaded = trained(
        settings_of(world / "day2.csv", world / "two", init_from=world / "one"), progress=told
    )
    return loaded, told.lines


def parts_of(settings):
    """The parameters of a config and the rows of its earlier run, before the first step."""
    loaded = config_from_mapping(settings)
    run, progress = RunFolder(loaded.config.run_folder), SilentProgress()
    run.path.mkdir(exist_ok=True)
    context = RunContext(loaded, run, progress)
    warm_start = find_warm_start(loaded, run, keep=False, progress=progress)
    analysis = run_analysis(context, warm_start=warm_start)
    encoding = run_encoding(context, analysis)
    config, plan = loaded.config, encoding.plan
    compiled = compile_model(config, run, plan, trains=True)
    model = initial_parameters(config, run, plan, encoding.counts, compiled)
    unlimited = {"threads": 1, "memory_limit": None, "progress": progress}
    fill_from_earlier(model, plan, warm_start, **unlimited)
    num_dense = compiled.num_parameters
    earlier = load_earlier(warm_start, num_dense=num_dense, **unlimited)
    assert np.array_equal(model.dense.values, earlier.dense.values)
    assert np.array_equal(model.dense.slots, earlier.dense.slots)
    return run, warm_start, encoding, model, earlier.rows


def records_of(store):
    rows = store.rows
    return {
        (int(key) >> ID_BITS, int(key) & ID_MASK): rows.records_NR[row, 2:].tobytes()
        for row, key in enumerate(rows.keys_N[: store.num_rows])
    }


def test_rows_of_day_1_are_the_same_bits_before_the_first_step(world, tmp_path):
    settings = settings_of(world / "day2.csv", tmp_path / "two", init_from=world / "one")
    run, warm_start, encoding, model, earlier = parts_of(settings)
    before, after = records_of(earlier), records_of(model.rows)
    assert len(before) == len(after) > 200
    plan, grown = warm_start.plan, encoding.plan
    # Item and past have new values, user is hashed, x is cut where day 1 was.
    new = num_new_values(plan, grown)
    assert new["item"] > 20
    assert set(new) == {"item", "past"}
    for table, (old, field) in enumerate(zip(plan.fields, grown.fields, strict=True)):
        if not isinstance(old.step, VocabularyStep):
            assert field == old
        shift = new.get(old.name, 0)
        size = old.num_ids - 2 - (old.sequence is not None) if shift else old.num_ids
        for id_ in range(old.num_ids):
            moved = id_ + shift if id_ >= size else id_
            assert before.get((table, id_)) == after.get((table, moved)), (old.name, id_)
    assert grown.numbers[0].steps == plan.numbers[0].steps
    # The vocabulary goes on where it ended, with values of day 2 that day 1 had not.
    item = grown.fields[0].step
    known = load_vocabulary(run.path / plan.fields[0].step.file).to_pylist()
    values = load_vocabulary(run.path / item.file).to_pylist()
    assert values[: len(known)] == known
    assert len(set(values)) == len(values) == item.size == len(known) + new["item"]
    assert all(int(value[1:]) >= FIRST_NEW for value in values[len(known) :])
    # The optimizers' state is there, too, and rows count what both days had of them.
    assert np.abs(model.dense.slots).max() > 0
    counts = model.rows.row_headers(np.arange(3, dtype=np.int64))[0]
    earlier_counts = earlier.row_headers(np.arange(3, dtype=np.int64))[0]
    assert counts.tolist() == (earlier_counts + encoding.counts[0].look_up(np.arange(3))).tolist()


def test_a_worker_extends_the_vocabularies_as_one_process_does(world, second, tmp_path):
    settings = settings_of(world / "day2.csv", tmp_path / "two", init_from=world / "one")
    settings["runtime"] = {**settings.get("runtime", {}), "bytes_per_reading_task": 1000}
    context = RunContext.create(config_from_mapping(settings), SilentProgress())
    run, theirs = context.run, RunFolder(second[0].config.run_folder)
    run.path.mkdir()
    warm_start = find_warm_start(context.loaded, run, keep=False, progress=context.progress)
    sharing = Sharing(context.loaded)
    analysis, plan = analyze_by_workers(context, None, warm_start, sharing)
    assert analysis.warm_start == warm_start
    assert plan == load_plan(theirs.preprocessing)
    assert sum(line.startswith("New values") for line in sharing.said) == 1
    for step in (field.step for field in plan.fields if isinstance(field.step, VocabularyStep)):
        ours, expected = (load_vocabulary(one.path / step.file) for one in (run, theirs))
        assert ours.equals(expected)
    # What was taken over is whole: a resumed run begins from it.
    kept = find_warm_start(context.loaded, run, keep=True, progress=context.progress)
    assert kept == warm_start


def test_day_1_then_day_2_is_near_both_at_once_and_far_better_than_day_2_alone(world, second):
    loaded, said = second
    days = [world / "day1.csv", world / "day2.csv"]
    configs = {
        "then": loaded,
        "both": trained(settings_of(days, world / "both")),
        "alone": trained(settings_of(days[1], world / "alone")),
        "one": config_from_mapping(settings_of(days[0], world / "one", keep_checkpoints=9)),
    }
    metrics = {
        name: evaluate(config, data=str(world / "next.csv"), progress=SilentProgress())
        for name, config in configs.items()
    }
    logloss = {name: one["logloss"] for name, one in metrics.items()}
    auc = {name: one["auc"] for name, one in metrics.items()}
    assert logloss["then"] < logloss["both"] + 0.015, logloss
    assert logloss["then"] < logloss["alone"] - 0.03, logloss
    assert auc["then"] > auc["alone"] + 0.04, auc
    # New items are learned, which day 1 knows nothing of.
    assert logloss["then"] < logloss["one"] - 0.01, logloss
    assert any("Training begins from" in line and "best checkpoint" in line for line in said)
    assert any("New values" in line and "item" in line for line in said)


def newest_of(run):
    return Checkpoints(RunFolder(run).checkpoint_storage).load_newest(print)


def test_steps_of_the_optimizers_go_on_and_the_runs_own_start_anew(world, second):
    state = newest_of(world / "two").state
    first = newest_of(world / "one").state
    assert state["earlier_steps"] == first["best_step"] > 0
    assert state["history"][0]["step"] < first["history"][0]["step"]
    assert first["earlier_steps"] == 0


def test_a_third_day_begins_from_the_second_and_needs_the_first_no_more(world, second, tmp_path):
    for name in ("two", "day2.csv"):
        source = world / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    write_day(tmp_path / "day3.csv", 800, seed=4, first=100)
    settings = settings_of(
        tmp_path / "day3.csv",
        tmp_path / "three",
        init_from={"run": str(tmp_path / "two"), "checkpoint": "last"},
        epochs=1,
    )
    settings["report"] = {"importance": False}
    settings["data"]["split"] = {"by": "random"}
    loaded = config_from_mapping(settings)
    run_pipeline(loaded, progress=SilentProgress())
    steps = newest_of(tmp_path / "three").state
    before = newest_of(tmp_path / "two")
    assert steps["earlier_steps"] == before.step + before.state["earlier_steps"]
    metrics = json.loads((tmp_path / "three" / "metrics.json").read_text())
    origin = metrics["training"]["init_from"]
    assert (origin["checkpoint"], origin["epoch"], origin["step"]) == ("last", 4, before.step)
    # The page and the resolved config say so, and the export was proved equal to the trainer.
    page = (tmp_path / "three" / "report.html").read_text()
    assert "Training began from" in page
    assert str(tmp_path / "two") in (tmp_path / "three" / "config.resolved.yaml").read_text()
    assert (tmp_path / "three" / "export" / "1" / "parity.json").exists()
    # Later commands rest on what was taken over when the run began.
    expected = evaluate(loaded, progress=SilentProgress())
    shutil.rmtree(tmp_path / "two")
    assert evaluate(loaded, progress=SilentProgress()) == expected


def test_a_run_that_is_resumed_ends_as_one_that_was_not(world, tmp_path):
    shutil.copytree(world / "one", tmp_path / "one")

    def settings(output, epochs):
        day2 = world / "day2.csv"
        return settings_of(day2, tmp_path / output, init_from=tmp_path / "one", epochs=epochs)

    trained(settings("whole", 3))
    trained(settings("halves", 1))
    shutil.rmtree(tmp_path / "one")
    trained(settings("halves", 3), resume=True)
    states = [newest_of(tmp_path / name) for name in ("whole", "halves")]
    for parts in zip(*(one.manifest.parts for one in states), strict=True):
        assert len({(part.name, part.num_bytes, part.crc32) for part in parts}) == 1
    history = [[one["valid_logloss"] for one in state.state["history"]] for state in states]
    assert history[0] == history[1]


def test_tables_of_target_rates_stay_those_of_day_1(world, second):
    first, then = (load_plan(world / name / "preprocessing.json") for name in ("one", "two"))
    before, after = first.numbers[-1].first, then.numbers[-1].first
    assert after == before.model_copy(update={"file": after.file})
    tables = [
        pq.read_table(world / name / step.file) for name, step in (("one", before), ("two", after))
    ]
    assert tables[0].equals(tables[1])


def refusal(settings, error=ConfigError):
    with pytest.raises(error) as caught:
        trained(settings)
    return str(caught.value)


def test_refusal_lists_what_differs_from_the_earlier_run(world, tmp_path):
    settings = settings_of(world / "day2.csv", tmp_path / "x", init_from=world / "one")
    other = {**settings, "model": {"name": "deepfm", "embedding_dim": 8, "hidden_units": [32]}}
    message = refusal(other)
    assert "train.init_from" in message
    assert "model.embedding_dim is 4 there and 8 here" in message
    assert "model.hidden_units is [16] there and [32] here" in message
    optimizer = {"optimizer": {"name": "sgd", "learning_rate": 0.1}}
    message = refusal({**settings, "train": {**settings["train"], **optimizer}})
    assert 'train.optimizer.name is "adam" there and "sgd" here' in message
    features = [
        {"columns": "item", "id": {"hash": {"buckets": 9}}},
        *FEATURES[1:4],
        {"columns": "row", "id": "vocabulary"},
    ]
    message = refusal({**settings, "features": features})
    assert "'item' has another id there" in message
    assert "'row' is a feature here, and not there" in message
    assert "'place' is a feature there, and not here" in message
    assert not (tmp_path / "x" / "checkpoints").exists()


def test_folders_that_cannot_be_begun_from(world, tmp_path):
    day2 = world / "day2.csv"
    assert "there is no" in refusal(settings_of(day2, tmp_path / "x", init_from=tmp_path / "gone"))
    (tmp_path / "empty").mkdir()
    message = refusal(settings_of(day2, tmp_path / "x", init_from=tmp_path / "empty"))
    assert "holds no run" in message
    assert "itself" in refusal(settings_of(day2, tmp_path / "x", init_from=tmp_path / "x"))
    shutil.copytree(world / "one", tmp_path / "untrained")
    shutil.rmtree(tmp_path / "untrained" / "checkpoints")
    settings = settings_of(day2, tmp_path / "x", init_from=tmp_path / "untrained")
    assert "holds no trained model" in refusal(settings, CheckpointError)


def test_decided_features_are_those_of_the_first_day(world, tmp_path):
    def settings(day, output, init_from=None):
        found = settings_of(day, tmp_path / output, init_from=init_from, epochs=1)
        return {**found, "features": "auto"}

    trained(settings(world / "day1.csv", "one"))
    # A column that is constant on this day would not be a feature of its own.
    lines = (world / "day2.csv").read_text().splitlines()
    names = lines[0].split(",")
    rows = [line.split(",") for line in lines[1:]]
    for row in rows:
        row[names.index("place")] = "p3"
    text = "\n".join(",".join([*row, "more"]) for row in [names, *rows])
    (tmp_path / "day2.csv").write_text(text + "\n")
    trained(settings(tmp_path / "day2.csv", "two", tmp_path / "one"))
    first, then = (load_plan(tmp_path / name / "preprocessing.json") for name in ("one", "two"))
    assert [one.name for one in first.fields] == [one.name for one in then.fields]
    assert [one.steps for one in first.numbers] == [one.steps for one in then.numbers]


def test_a_run_that_goes_on_from_another_has_another_fingerprint(world, tmp_path):
    config = config_from_mapping(settings_of(world / "day1.csv", tmp_path)).config
    begun = config.model_copy(
        update={"train": config.train.model_copy(update={"init_from": "runs/one"})}
    )
    assert model_fingerprint(begun) != model_fingerprint(config)
