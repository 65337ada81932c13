"""The sample is Criteo-shaped, repeatable, and its figures agree with independent oracles."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.apps.sample.criteo_columns import (
    CATEGORY_COLUMNS,
    COLUMN_NAMES,
    MISSING_FRACTIONS,
    NUMBER_COLUMNS,
)
from ctr_pipeline.apps.sample.criteo_sample import (
    SampleSummary,
    hexadecimal_names,
    write_criteo_sample,
)
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.pipeline.stages.planted import truth_path
from ctr_pipeline.progress import SilentProgress

NUM_ROWS = 40_000


def write(path: Path, **options) -> SampleSummary:
    return write_criteo_sample(path, **{"progress": SilentProgress(), "seed": 7, **options})


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> tuple[Path, SampleSummary]:
    path = tmp_path_factory.mktemp("sample") / "rows.tsv"
    return path, write(path, num_rows=NUM_ROWS)


@pytest.fixture(scope="module")
def rows(sample) -> pd.DataFrame:
    return pd.read_csv(
        sample[0], sep="\t", names=list(COLUMN_NAMES), dtype=str, keep_default_na=False
    )


def test_every_line_has_the_original_format(sample):
    line = re.compile(r"[01](\t(-?\d+)?){13}(\t([0-9a-f]{8})?){26}\n")
    with sample[0].open(encoding="ascii", newline="") as file:
        lines = file.readlines()
    assert len(lines) == NUM_ROWS
    assert all(line.fullmatch(text) for text in lines)


def test_same_arguments_give_the_same_bytes_and_another_seed_others(tmp_path):
    first, second, other = (tmp_path / name for name in ("a.tsv", "b.tsv", "c.tsv"))
    write(first, num_rows=500)
    write(second, num_rows=500)
    write(other, num_rows=500, seed=8)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_rows_do_not_depend_on_how_they_are_cut_into_blocks(tmp_path, monkeypatch):
    whole, pieces = tmp_path / "whole.tsv", tmp_path / "pieces.tsv"
    summary = write(whole, num_rows=3_000)
    monkeypatch.setattr("ctr_pipeline.apps.sample.criteo_sample.BLOCK_ROWS", 701)
    in_pieces = write(pieces, num_rows=3_000)
    assert whole.read_bytes() == pieces.read_bytes()
    assert in_pieces.learnable_floor == pytest.approx(summary.learnable_floor, abs=1e-12)


def test_header_is_written_when_asked_for(tmp_path):
    path = tmp_path / "rows.tsv"
    write(path, num_rows=100, header=True)
    lines = path.read_text().splitlines()
    assert lines[0].split("\t") == list(COLUMN_NAMES)
    assert len(lines) == 101


def test_categories_keep_the_published_cardinalities(rows):
    for name, column in zip(COLUMN_NAMES[14:], CATEGORY_COLUMNS, strict=True):
        distinct = rows[name].nunique()
        assert distinct <= column.cardinality
        if column.cardinality <= 30:
            assert distinct >= 0.7 * column.cardinality
        if column.cardinality > 1_000_000:
            assert distinct > 3_000


def test_published_cardinalities_are_those_of_the_full_training_set():
    cardinalities = [column.cardinality for column in CATEGORY_COLUMNS]
    assert cardinalities[:5] == [1460, 583, 10131227, 2202608, 305]
    assert sum(cardinalities) == 33_762_577


def test_missing_rates_are_those_of_the_real_columns(rows):
    for name, column in zip(COLUMN_NAMES[1:], NUMBER_COLUMNS + CATEGORY_COLUMNS, strict=True):
        expected = MISSING_FRACTIONS[column.missing_group]
        assert (rows[name] == "").mean() == pytest.approx(expected, abs=0.012)


def test_numbers_are_heavy_tailed(rows):
    for name in ("I2", "I5", "I6", "I9"):
        values = pd.to_numeric(rows.loc[rows[name] != "", name])
        assert values.max() > 20 * values.median()
        assert values.mean() > 1.5 * values.median()
    assert pd.to_numeric(rows["I2"]).min() == -1


def test_frequent_values_dominate(rows):
    for name in ("C1", "C3", "C10", "C17"):
        shares = rows.loc[rows[name] != "", name].value_counts(normalize=True)
        assert shares.iloc[0] > 5 * shares.median()


def test_popularity_drifts(rows):
    first, last = rows["C18"][: NUM_ROWS // 4], rows["C18"][-NUM_ROWS // 4 :]
    top = first.value_counts().index[:50]
    assert last.isin(top).mean() < first.isin(top).mean()


def test_click_rate_is_near_that_of_the_real_rows(rows, sample):
    share = rows["label"].astype(int).mean()
    assert share == pytest.approx(0.256, abs=0.012)
    assert share == pytest.approx(sample[1].click_rate, abs=1e-12)


@pytest.mark.slow
def test_reported_unseen_fraction_is_what_the_file_shows(rows, sample):
    summary = sample[1]
    train, test = rows[: summary.num_train_rows], rows[-summary.num_test_rows :]
    unseen = np.zeros(len(test), dtype=bool)
    for name in COLUMN_NAMES[14:]:
        unseen |= ((test[name] != "") & ~test[name].isin(set(train[name]))).to_numpy()
    assert summary.unseen_fraction == pytest.approx(unseen.mean(), abs=1e-12)
    assert summary.unseen_fraction >= 0.2


def test_figures_stand_in_their_order_and_interactions_matter(sample):
    summary = sample[1]
    assert summary.bayes_logloss < summary.learnable_floor < summary.base_rate_logloss
    assert summary.interaction_nats >= 0.01
    assert 0.7 < summary.bayes_auc < 0.9
    assert summary.num_train_rows + summary.num_valid_rows + summary.num_test_rows == NUM_ROWS


def test_truth_file_holds_the_summary(sample):
    path, summary = sample
    stored = truth_path(path)
    assert stored.name == "rows.truth.json"
    assert json.loads(stored.read_text()) == summary.model_dump()
    assert SampleSummary.model_validate_json(summary.to_json()) == summary


def test_realized_base_rate_loss_equals_scikit_learn(rows, sample):
    summary = sample[1]
    labels = rows["label"].astype(int).to_numpy()
    constant = labels[: summary.num_train_rows].mean()
    test = labels[-summary.num_test_rows :]
    expected = log_loss(test, np.full(len(test), constant), labels=[0, 1])
    assert summary.realized.base_rate_logloss == pytest.approx(expected, abs=1e-12)


def test_distinct_ids_have_distinct_names():
    names = hexadecimal_names(np.arange(200_000), key=123)
    assert len(names.unique()) == 200_000


def test_hexadecimal_digits_are_those_python_prints():
    from ctr_pipeline.apps.sample.counter_random import scramble_32_bits

    ids = np.array([0, 5, -1, 10_000_000])
    names = hexadecimal_names(ids, key=99).to_pylist()
    numbers = scramble_32_bits(ids.astype(np.uint32), 99)
    assert names == [f"{numbers[0]:08x}", f"{numbers[1]:08x}", None, f"{numbers[3]:08x}"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rows": 99}, "at least 100"),
        ({"num_rows": 200, "seed": -1}, "negative"),
        ({"num_rows": 200, "test_fraction": 0.0}, "no test rows"),
        ({"num_rows": 200, "test_fraction": 0.6, "valid_fraction": 0.4}, "no training"),
    ],
)
def test_impossible_samples_are_refused_and_nothing_is_written(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "rows.tsv", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "rows.tsv").mkdir()
    with pytest.raises(RunFolderError, match=r"rows\.tsv"):
        write(tmp_path / "rows.tsv", num_rows=100)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.tsv"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(RunFolderError, match="data"):
        write(tmp_path / "data" / "rows.tsv", num_rows=100)


def test_realized_auc_equals_scikit_learn_on_the_true_model(sample):
    from ctr_pipeline.apps.sample.planted_model import PlantedModel, sigmoid

    summary = sample[1]
    model = PlantedModel(seed=7, num_rows=NUM_ROWS)
    first = NUM_ROWS - summary.num_test_rows
    draw = model.draw(first, summary.num_test_rows)
    probabilities = sigmoid(sum(model.additive_and_interaction_logits(draw)))
    labels = model.draw_labels(first, probabilities)
    assert summary.realized.bayes_auc == pytest.approx(
        roc_auc_score(labels, probabilities), abs=1e-9
    )
    assert summary.realized.bayes_logloss == pytest.approx(
        log_loss(labels, probabilities), abs=1e-9
    )
