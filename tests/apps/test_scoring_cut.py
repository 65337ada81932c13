"""Test rows are evaluated beside a training: when, with which cut, and where that is kept."""

import json
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.apps.scoring import job as scoring_job
from ctr_pipeline.apps.scoring.cut import decide_beside, evaluate_newest_cut
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.apps.scoring.job import CutScores, JobScorer
from ctr_pipeline.apps.scoring.predict import predict
from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.master.manifests import (
    CutFacts,
    CutFiles,
    CutManifest,
    Cuts,
)
from ctr_pipeline.distributed.rpc.spec_file import load_spec, save_spec
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.log_chain import CutFile
from ctr_pipeline.errors import CheckpointError, DataError, FolderInUseError, RunFolderError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.spec_file import prepare_spec
from ctr_pipeline.pipeline.job.trained_cut import find_newest_cut
from ctr_pipeline.pipeline.model.score_files import ScoreFiles
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import run_analysis
from ctr_pipeline.pipeline.stages.encode import run_encoding
from ctr_pipeline.preprocessing.unknown_values import UnknownCounter
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.storage.commits import manifest_key
from tests.pipeline.clicks import settings_of, write_clicks

NUM_ROWS = 1000
NUM_TEST = 100
PROCESSES = ("runtime.mode=processes",)


class Told(SilentProgress):
    def __init__(self):
        self.lines = []

    def log(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A run folder as training finds it: rows read and encoded, a job described, no cut."""
    folder = tmp_path_factory.mktemp("prepared")
    write_clicks(folder / "rows.tsv", NUM_ROWS)
    settings = settings_of(folder / "rows.tsv", folder / "out", evaluation={})
    loaded = config_from_mapping(settings, PROCESSES)
    run = RunFolder(folder / "out")
    with run.locked():
        context = RunContext(loaded, run, SilentProgress())
        analysis = run_analysis(context)
        encoding = run_encoding(context, analysis)
        run.keep_config(loaded)
        run.job.mkdir()
        save_spec(run.job, prepare_spec(loaded, run, encoding, num_dense=3))
    return settings, run.path


@pytest.fixture
def world(prepared, tmp_path):
    """A copy of it: the config with overrides, and the folder."""
    settings, path = prepared
    out = tmp_path / "out"
    shutil.copytree(path, out)

    def load(*overrides):
        return config_from_mapping(settings, (*PROCESSES, f"output={out}", *overrides))

    return SimpleNamespace(run=RunFolder(out), load=load)


def take_cut(run, number, *, step=64, files=(), **changes):
    """A cut without rows, as the master would name it."""
    run.checkpoints.mkdir(exist_ok=True)
    spec = load_spec(run.job)
    facts = CutFacts(
        cut=number,
        parent=0,
        generation=1,
        job=spec.job,
        config_fingerprint=spec.config_fingerprint,
        rows_fingerprint=spec.rows_fingerprint,
        plan_fingerprint=spec.plan_fingerprint,
        num_partitions=spec.num_partitions,
        num_parameter_servers=1,
        epoch=2,
        step=step,
        best_cut=0,
        taken_at=1000.5,
    )
    known = CutFacts(**{**vars(facts), **changes})
    manifest = CutManifest(known, CutFiles((), tuple(files), (), ()), {"history": []})
    CutStorage.at(run.checkpoints).begin(manifest.facts.job)
    Cuts(CutStorage.at(run.checkpoints)).save(manifest)
    return known


def forget_cut(storage, number):
    storage.delete(
        manifest_key(one.commit_id)
        for one in storage.commits().manifests()
        if one.state["number"] == number
    )


@pytest.fixture
def scorer(monkeypatch, tmp_path):
    """Stands for the job that scores: gives logits of its own, and remembers what it was asked."""
    asked = []

    @contextmanager
    def score(loaded, run, cut, splits, *, find_another, progress):
        asked.append((cut.manifest.facts.cut, set(splits)))
        scores = tmp_path / "scores"
        scores.mkdir(exist_ok=True)
        for split in splits:
            drawn_logits(split).astype("<f4").tofile(scores / f"{split}-0.f32")
        yield CutScores(cut.manifest.facts, ScoreFiles(scores))

    monkeypatch.setattr(scoring_job, "scored_in_processes", score)
    return asked


def drawn_logits(split):
    return np.random.default_rng(len(split)).normal(size=NUM_TEST)


def contents_of(run):
    """Every file but the log and what is new of evaluations, with its bytes."""
    return {
        path.relative_to(run.path): path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file() and path != run.log and run.evaluations not in path.parents
    }


@pytest.mark.parametrize(
    ("mode", "job_state", "beside"),
    [
        ("processes", "training", True),
        ("processes", "checkpointing", True),
        ("processes", "validating", True),
        ("processes", None, True),
        ("processes", "finished", False),
        ("processes", "stopped", False),
        ("processes", "failed", False),
        ("local", "training", False),
        ("local", None, False),
    ],
)
def test_a_cut_is_scored_beside_a_job_that_goes_on(mode, job_state, beside):
    assert decide_beside(RuntimeConfig(mode=mode), job_state) is beside


def test_the_newest_cut_is_found_before_an_epoch_is_done(world):
    take_cut(world.run, 3, step=300)
    take_cut(world.run, 4, step=400)
    cut = find_newest_cut(world.run, SilentProgress())
    assert (cut.manifest.facts.cut, cut.state.step, cut.state.history) == (4, 400, [])
    assert cut.plan.fingerprint() == cut.state.plan_fingerprint


def test_a_damaged_cut_is_passed_over_and_named(world):
    take_cut(world.run, 3)
    lost = CutFile("dense-000000000000-000004.arrow", 5, 0, 5, -1, "dense", 0)
    take_cut(world.run, 4, files=[lost])
    told = Told()
    assert find_newest_cut(world.run, told).manifest.facts.cut == 3
    assert len(told.lines) == 1
    assert "number 4" in told.lines[0]
    forget_cut(CutStorage.at(world.run.checkpoints), 3)
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        find_newest_cut(world.run, told)


def test_a_cut_that_training_deletes_meanwhile_is_no_damage(world, monkeypatch):
    take_cut(world.run, 3)
    take_cut(world.run, 4)
    numbers = Cuts.numbers

    def delete_after(cuts):
        found = numbers(cuts)
        forget_cut(cuts.storage, 4)
        return found

    monkeypatch.setattr(Cuts, "numbers", delete_after)
    told = Told()
    assert find_newest_cut(world.run, told).manifest.facts.cut == 3
    assert told.lines == []


@pytest.mark.parametrize("missing", ["job", "checkpoints", "cut"])
def test_remedy_is_to_wait_without_a_cut(world, missing):
    if missing == "job":
        shutil.rmtree(world.run.job)
    if missing == "cut":
        world.run.checkpoints.mkdir()
    before = contents_of(world.run)
    with (
        world.run.locked(),
        pytest.raises(CheckpointError, match="taken no checkpoint yet") as error,
    ):
        evaluate(world.load(), progress=SilentProgress())
    assert "Wait for the first one" in error.value.remedy
    assert "train.checkpoint_seconds" in error.value.remedy
    after = contents_of(world.run)
    # The lock names its owner.
    assert {path for path in after if after[path] != before.get(path)} <= {
        (world.run.path / ".lock").relative_to(world.run.path)
    }


def test_test_rows_are_evaluated_in_a_place_of_their_own(world, scorer):
    run = world.run
    run.predictions.write_bytes(b"of the run")
    run.metrics.write_text("{}")
    take_cut(run, 11, step=1100)
    take_cut(run, 12, step=1234)
    with run.locked():
        before = contents_of(run)
        metrics = evaluate(world.load(), progress=SilentProgress())
        assert contents_of(run) == before
    assert scorer == [(12, {"test"})]
    kept = run.evaluations / "checkpoint-000012"
    checkpoint = {"number": 12, "epoch": 3, "step": 1234, "taken_at": "1970-01-01T00:16:40Z"}
    assert metrics["checkpoint"] == checkpoint
    assert metrics["folder"] == str(kept)

    with EncodedReader(run.encoded / "test") as reader:
        labels = reader.read_range(0, NUM_TEST).labels_B
    probabilities = 1 / (1 + np.exp(-drawn_logits("test")))
    assert metrics["num_rows"] == NUM_TEST
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, probabilities))
    assert metrics["logloss"] == pytest.approx(log_loss(labels, probabilities), rel=1e-5)
    stored = json.loads((kept / "metrics.json").read_text())
    beside = {"checkpoint", "folder", "findings"}
    found = {name: metrics[name] for name in metrics if name not in beside}
    assert stored == {
        "checkpoint": checkpoint,
        "test": found,
        "findings": metrics["findings"],
    }
    predictions = pq.read_table(kept / "predictions.parquet")
    assert predictions.column_names == ["row", "label", "probability"]
    assert predictions["row"][0].as_py() == f"{NUM_ROWS - NUM_TEST:06d}"
    assert predictions["probability"].to_numpy() == pytest.approx(probabilities, rel=1e-5)
    assert sorted(path.name for path in kept.iterdir()) == ["metrics.json", "predictions.parquet"]


def test_another_config_is_refused(world, scorer):
    take_cut(world.run, 1)
    with pytest.raises(RunFolderError, match="trains with another config"):
        evaluate_newest_cut(
            RunContext(world.load("model.embedding_dim=8"), world.run, SilentProgress())
        )
    for override in ("evaluation.gauc_column=user", "evaluation.group_by=[user]"):
        with pytest.raises(DataError, match="column 'user' was not kept"):
            evaluate_newest_cut(RunContext(world.load(override), world.run, SilentProgress()))
    assert scorer == []


@pytest.mark.parametrize("changed", ["ingested", "encoded", "cut"])
def test_other_rows_are_refused(world, scorer, changed):
    if changed == "ingested":
        shutil.rmtree(world.run.ingested)
    if changed == "encoded":
        (world.run.encoded / "test" / "meta.json").unlink()
    take_cut(world.run, 1, **({"rows_fingerprint": "others"} if changed == "cut" else {}))
    with pytest.raises(DataError, match="rows in the cache are not those"):
        evaluate_newest_cut(RunContext(world.load(), world.run, SilentProgress()))
    assert scorer == []


def test_evaluation_keeps_nothing_of_rows_that_change_meanwhile(world, monkeypatch, scorer):
    take_cut(world.run, 1)
    score = scoring_job.scored_in_processes

    @contextmanager
    def score_and_change(*arguments, **options):
        with score(*arguments, **options) as scores:
            yield scores
        shutil.rmtree(world.run.ingested)

    monkeypatch.setattr(scoring_job, "scored_in_processes", score_and_change)
    with pytest.raises(DataError, match="rows in the cache are not those"):
        evaluate_newest_cut(RunContext(world.load(), world.run, SilentProgress()))
    assert list(world.run.evaluations.iterdir()) == []


@pytest.mark.parametrize(
    ("job_state", "overrides"), [("finished", ()), ("training", ("runtime.mode=local",))]
)
def test_a_folder_in_use_is_waited_for_where_nothing_may_be_scored_beside(
    world, monkeypatch, scorer, job_state, overrides
):
    take_cut(world.run, 1)
    monkeypatch.setattr("ctr_pipeline.apps.scoring.cut.find_job_state", lambda run: job_state)
    with world.run.locked(), pytest.raises(FolderInUseError, match="another run"):
        evaluate(world.load(*overrides), progress=SilentProgress())
    assert scorer == []
    assert not world.run.evaluations.exists()


def test_new_rows_wait_for_a_training_that_has_nothing_yet(world, tmp_path):
    with world.run.locked():
        for command, more in ((evaluate, {}), (predict, {"output": tmp_path / "found.csv"})):
            with pytest.raises(FolderInUseError, match="another run"):
                command(world.load(), data="rows.tsv", progress=SilentProgress(), **more)


def test_new_rows_that_change_between_their_two_readings_are_refused(world, tmp_path):
    take_cut(world.run, 3)
    new = tmp_path / "new.tsv"
    write_clicks(new, NUM_TEST)
    lines = new.read_text().splitlines(keepends=True)

    def score(changes):
        def score_and_change(*_, **__):
            if changes:
                # As many rows as before.
                new.write_text("".join(reversed(lines)))
            logits = np.zeros(NUM_TEST, np.float32)
            return SimpleNamespace(
                files=SimpleNamespace(load=lambda *_: SimpleNamespace(logits=logits))
            )

        cut = find_newest_cut(world.run, SilentProgress())
        unknown = UnknownCounter(cut.plan, show=True)
        scorer = JobScorer(
            world.load(), world.run, cut, SilentProgress(), unknown, score_and_change
        )
        ledger = BadRowLedger("fail", 0.0)
        return list(scorer.score_file(str(new), label_required=True, ledger=ledger))

    assert sum(len(one.logits) for one in score(changes=False)) == NUM_TEST
    with pytest.raises(DataError, match=r"new\.tsv: changed while its rows were scored: .* then"):
        score(changes=True)
