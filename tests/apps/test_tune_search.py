"""The search around its trials: no TensorFlow, since what a trial gives is a formula here."""

import csv
import logging
import math
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import yaml

from ctr_pipeline.apps.tune.proposals import TrialRecord
from ctr_pipeline.apps.tune.search import (
    SearchFolder,
    quiet_tracing,
    ranked,
    run_search,
    tune,
    values_text,
)
from ctr_pipeline.config import config_from_mapping, load_config
from ctr_pipeline.errors import FolderInUseError, Interrupted, RunFolderError, TrainingError
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.progress import SilentProgress

RATE = "train.optimizer.learning_rate"
SPACE = {
    RATE: {"low": 1e-4, "high": 1e-1, "log": True},
    "model.hidden_units": {"choices": [[8], [16, 8]]},
}
ENCODING = SimpleNamespace(fingerprint="rows")


class Listener(SilentProgress):
    def __init__(self):
        self.said = []

    def log(self, text):
        self.said.append(text)


class World:
    """A search whose trials are a formula; `stop_at` ends it inside the trial of that number."""

    def __init__(self, folder):
        self.folder = folder
        self.trained = []
        self.stop_at = None
        self.progress = Listener()

    def loaded(self, tune=None, **sections):
        settings = {
            "data": {"train": "rows.csv"},
            "output": str(self.folder),
            "tune": {"trials": 8, "startup_trials": 2, "space": SPACE, **(tune or {})},
            **sections,
        }
        return config_from_mapping(settings)

    def search(self, tune=None, *, resume=False, encoding=ENCODING, **sections):
        loaded = self.loaded(tune, **sections)
        return run_search(
            loaded,
            RunFolder(self.folder),
            encoding,
            tune=loaded.config.tune,
            resume=resume,
            progress=self.progress,
            train=self.train,
        )

    def train(self, _search, trial, run, proposal, number):
        """In the place of the training of one trial."""
        run.checkpoints.mkdir()
        if number == self.stop_at:
            raise Interrupted(15)
        self.trained.append(number)
        rate = trial.config.train.optimizer.learning_rate
        if rate > 0.03:
            raise TrainingError("the loss is not finite", place="step 3")
        value = (
            0.4 + 0.01 * (math.log10(rate) + 2) ** 2 + 0.001 * len(trial.config.model.hidden_units)
        )
        values = []
        for epoch, more in enumerate((0.1, 0.0)):
            values.append(value + more)
            if proposal.is_hopeless(epoch, values[-1]):
                break
        return TrialRecord(
            number=number,
            values=proposal.values,
            state="complete" if len(values) == 2 else "pruned",
            value=values[-1],
            best_epoch=len(values),
            epochs=tuple(values),
        )


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "run")


def without_times(records):
    return [record.model_copy(update={"seconds": 0.0}) for record in records]


def test_result_table_and_best_config_agree(world):
    result = world.search()
    folder = SearchFolder(RunFolder(world.folder))
    assert [one.number for one in result.trials] == list(range(8))
    complete = [one for one in result.trials if one.state == "complete"]
    assert result.best.value == min(one.value for one in complete)
    rows = list(csv.DictReader(folder.table.read_text().splitlines()))
    for row, record in zip(rows, result.trials, strict=True):
        assert float(row[RATE]) == record.values[RATE]
        assert yaml.safe_load(row["model.hidden_units"]) == record.values["model.hidden_units"]
        assert row["state"] == record.state
        assert row["logloss"] == ("" if record.value is None else repr(record.value))
    best = load_config(folder.best).config
    assert best.train.optimizer.learning_rate == result.best.values[RATE]
    assert list(best.model.hidden_units) == result.best.values["model.hidden_units"]
    plain = world.loaded().config
    assert best.model_copy(update={"train": plain.train, "model": plain.model}) == (
        plain.model_copy(update={"tune": None})
    )
    payload = result.to_payload()
    assert payload["best"]["number"] == result.best.number
    assert len(payload["trials"]) == 8
    assert set(result.paths) == {"best config", "picture", "table"}


def test_trials_keep_their_configs_and_no_checkpoints(world):
    result = world.search()
    for record in result.trials:
        run = SearchFolder(RunFolder(world.folder)).trial(record.number)
        assert not run.checkpoints.exists()
        config = load_config(run.config).config
        assert config.train.optimizer.learning_rate == record.values[RATE]
        assert config.output == str(run.path)
        assert config.tune is None


def test_the_first_trial_is_the_config_itself(world):
    config = world.loaded(model={"hidden_units": [8]}).config
    first = world.search({"trials": 1}, model={"hidden_units": [8]}).trials[0]
    assert first.values == {
        RATE: config.train.optimizer.learning_rate,
        "model.hidden_units": list(config.model.hidden_units),
    }


@pytest.mark.slow
def test_values_that_break_training_fail_alone(world):
    result = world.search({"trials": 30, "seed": 2})
    failed = [one for one in result.trials if one.state == "failed"]
    assert failed
    assert {one.reason for one in failed} == {"the loss is not finite"}
    assert len(result.trials) == 30
    assert result.best.state == "complete"
    assert ranked(result.trials, "logloss")[0] == result.best
    assert ranked(result.trials, "logloss")[-1].state == "failed"


def test_a_search_without_any_success_says_why(world):
    space = {RATE: {"low": 0.05, "high": 0.1}}
    with pytest.raises(TrainingError, match=r"none of 3 trials .*: the loss is not finite"):
        world.search({"trials": 3, "space": space})


def test_values_that_make_no_config_fail_alone(world):
    # Both ends of the heads go with the units; three do not.
    model = {"name": "finalmlp", "hidden_units": [8]}
    space = {"model.fusion_heads": {"low": 2, "high": 4}}
    result = world.search({"trials": 3, "space": space}, model=model)
    states = {one.values["model.fusion_heads"]: one for one in result.trials}
    assert states[3].state == "failed"
    assert "does not divide" in states[3].reason
    assert states[2].state == states[4].state == "complete"


def test_a_small_space_ends_the_search_early(world):
    space = {"model.hidden_units": SPACE["model.hidden_units"]}
    result = world.search({"space": space})
    assert len(result.trials) == 2
    assert any("ends early" in text for text in world.progress.said)


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [0, 1, 5])
def test_a_search_that_was_stopped_ends_as_one_that_was_not(world, tmp_path, stop_at):
    whole = world.search()
    world.folder, world.stop_at, world.trained = tmp_path / "again", stop_at, []
    with pytest.raises(Interrupted):
        world.search()
    world.stop_at = None
    result = world.search(resume=True)
    assert world.trained == list(range(8))
    assert without_times(result.trials) == without_times(whole.trials)
    assert f"Resuming after {stop_at} trials" in world.progress.said


def test_more_trials_may_be_asked_for(world):
    first = world.search({"trials": 3})
    more = world.search({"trials": 6}, resume=True)
    assert world.trained == list(range(6))
    assert more.trials[:3] == first.trials


def test_a_search_that_is_done_is_shown_again(world):
    first = world.search()
    again = world.search(resume=True)
    assert world.trained == list(range(8))
    assert again == first


def test_starting_anew_leaves_nothing_of_the_last_search(world):
    world.search()
    result = world.search({"trials": 2, "seed": 9})
    assert len(result.trials) == 2
    assert sorted(path.name for path in (world.folder / "trials").iterdir()) == [
        "000",
        "001",
        "search.json",
    ]


OTHER_SEARCHES = [
    ({"seed": 5}, {}, "tune.seed differs"),
    ({"metric": "auc"}, {}, "tune.metric differs"),
    ({"space": {RATE: {"low": 1e-4, "high": 0.2, "log": True}}}, {}, "tune.space"),
    ({}, {"train": {"epochs": 3}}, "train.epochs differs"),
    ({}, {"encoding": SimpleNamespace(fingerprint="others")}, "rows differs"),
]


def test_another_search_is_not_resumed(world):
    world.search()
    for settings, changes, named in OTHER_SEARCHES:
        with pytest.raises(RunFolderError, match=named):
            world.search(settings, resume=True, **changes)
    assert world.trained == list(range(8))


@pytest.mark.parametrize("name", ["trials/search.json", "trials/002/trial.json"])
def test_damage_is_named(world, name):
    world.search()
    for content in (b"", b"{", b"[]", b"\xff"):
        (world.folder / name).write_bytes(content)
        with pytest.raises(RunFolderError, match=rf"{name}: is damaged. Give --overwrite"):
            world.search(resume=True)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.addresses = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("metric", ["logloss", "auc"])
def test_the_picture_shows_every_trial_and_key_and_asks_nobody(world, metric):
    space = {**SPACE, "model.dropout": {"low": 0, "high": 0.5}}
    result = world.search({"trials": 12, "metric": metric, "space": space}, name="a <b> & c")
    text = (world.folder / "tune.html").read_text()
    page = Page(text)
    assert page.tags.count("svg") == 4
    shown = sum(one.value is not None for one in result.trials)
    assert text.count("<title>Trial ") == 4 * shown
    assert text.count('class="ring"') == 4
    assert "script" not in page.tags
    assert all(address.startswith("#") or address == "data:," for address in page.addresses)
    assert "a &lt;b&gt; &amp; c" in text
    for key in space:
        assert key in page.texts


def test_a_page_without_any_success_is_written(world):
    with pytest.raises(TrainingError):
        world.search({"trials": 2, "space": {RATE: {"low": 0.05, "high": 0.1}}})
    text = (world.folder / "tune.html").read_text()
    assert "No trial has been trained to its end yet." in text
    assert "<svg" not in text
    assert not (world.folder / "config.best.yaml").exists()


def test_a_second_search_is_refused_while_one_holds_the_folder(world):
    with RunFolder(world.folder).locked(), pytest.raises(FolderInUseError, match="another run"):
        tune(world.loaded(), resume=True, progress=SilentProgress())
    assert not (world.folder / "trials").exists()


def test_log_filter_keeps_back_only_advice_about_tracing(caplog):
    logger = logging.getLogger("tensorflow")
    with quiet_tracing():
        logger.warning("5 out of the last 5 calls triggered tf.function retracing")
        logger.warning("something else")
    logger.warning("triggered tf.function retracing, outside")
    assert [record.getMessage() for record in caplog.records] == [
        "something else",
        "triggered tf.function retracing, outside",
    ]


def test_values_are_told_by_the_last_parts_of_their_keys():
    values = {"train.optimizer.learning_rate": 0.00123456, "model.hidden_units": [16, 8]}
    assert values_text(values) == "learning_rate 0.001235, hidden_units [16, 8]"
    twins = {"train.embeddings.linear.l2.strength": 1, "train.embeddings.vector.l2.strength": 2}
    assert values_text(twins) == (
        "train.embeddings.linear.l2.strength 1, train.embeddings.vector.l2.strength 2"
    )
