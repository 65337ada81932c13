"""Vectors through whole runs, up to the proof of their exports."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctr_pipeline
from ctr_pipeline.apps.check import check_config
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.statistics import load_statistics
from tests.pipeline.test_crosses import settings_of
from tests.pipeline.visits import HEADER, visits, write_visits

pytestmark = pytest.mark.slow

NUM_ROWS = 3000
PLAIN = {"columns": ["city", "device"], "id": "vocabulary"}
VECTOR = {
    "columns": "taste",
    "vector": {"length": 4, "delimiter": ";"},
    "number": "standardize",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    table = [HEADER, *visits(NUM_ROWS)]
    for line in table[5::50]:
        line[-1] = ""
    path.write_text("".join(",".join(line) + "\n" for line in table))
    return path


@pytest.fixture(scope="module")
def trained(rows):
    folder = rows.with_name("vectors")
    return folder, ctr_pipeline.run(settings_of(rows, folder, [VECTOR, PLAIN]))


def numbers_of(frame):
    texts = frame["taste"].dropna()
    return np.array([[float(number) for number in text.split(";")] for text in texts])


def test_numbers_that_decide_the_label_are_learned(rows, trained):
    alone = ctr_pipeline.run(settings_of(rows, rows.with_name("alone"), [PLAIN]))
    assert trained[1].metrics["test"]["auc"] > alone.metrics["test"]["auc"] + 0.05
    # A vector is permuted as one feature.
    importance = {row["feature"]: row["auc_drop"] for row in trained[1].metrics["importance"]}
    assert set(importance) == {"city", "device", "taste"}
    assert importance["taste"] > 0.05


def test_the_export_scores_as_the_trainer(trained):
    parity = json.loads((trained[0] / "export/1/parity.json").read_text())
    assert max(parity["max_difference"].values()) <= parity["tolerance"]
    card = json.loads((trained[0] / "export/1/model_card.json").read_text())
    assert {one["column"]: one["type"] for one in card["inputs"]} == dict.fromkeys(
        ("city", "device", "taste"), "string"
    )
    (taste,) = (one for one in card["features"] if one["column"] == "taste")
    assert taste["vector"] == {"length": 4, "delimiter": ";"}


def test_statistics_are_those_of_all_numbers(rows, trained):
    statistics = load_statistics(trained[0] / "statistics.json")
    frame = pd.read_csv(rows).head(statistics.num_rows)
    numbers = numbers_of(frame)
    taste = statistics.column("taste")
    assert taste.count == len(frame)
    assert taste.num_missing == frame["taste"].isna().sum() > 0
    assert taste.missing_label_rate == pytest.approx(frame["click"][frame["taste"].isna()].mean())
    assert taste.num_distinct == len(np.unique(numbers))
    assert taste.num_values == taste.moments.count == numbers.size
    assert taste.moments.mean == pytest.approx(numbers.mean())
    assert taste.moments.standard_deviation == pytest.approx(numbers.std())
    assert (taste.moments.minimum, taste.moments.maximum) == (numbers.min(), numbers.max())
    assert taste.quantiles["0.5"] == np.quantile(numbers, 0.5, method="inverted_cdf")
    assert sum(one.count for one in taste.histogram) == numbers.size
    assert taste.label_information is None
    assert "4, shown all together" in (trained[0] / "report.html").read_text()


def test_the_plan_shows_it(trained):
    loaded = load_config(trained[0] / "config.resolved.yaml")
    assert loaded.config.features[0].vector.length == 4
    plan = check_config(loaded, progress=SilentProgress())
    assert plan.rows[0].number == "vector(4) → standardize"
    assert plan.rows[0].id is None


def test_new_rows(rows, trained):
    folder, result = trained
    frame = pd.read_csv(rows, dtype=str).tail(result.metrics["test"]["num_rows"])
    expected = pd.read_parquet(folder / "predictions.parquet")["probability"]
    model = ctr_pipeline.load(folder)
    np.testing.assert_allclose(model.predict(frame), expected, atol=1e-6)
    lists = frame["taste"].map(lambda text: np.array(text.split(";"), float), na_action="ignore")
    np.testing.assert_allclose(model.predict(frame.assign(taste=lists)), expected, atol=1e-6)
    for wrong, message in (("1;2;3", "another length"), ("1;2;3;x", "not a finite number")):
        bad = frame.assign(taste=[wrong] + ["1;2;3;4"] * (len(frame) - 1))
        with pytest.raises(DataError, match=message) as caught:
            model.predict(bad)
        assert caught.value.place == f"row {frame.index[0]}, column 'taste'"


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float32(), 4)], ids=str)
def test_list_columns_are_read_as_texts(rows, trained, kind):
    """Parquet lists give the same model, to the last bit, as the texts they stand for."""
    table = pd.read_csv(rows)
    columns = {name: pa.array(table[name]) for name in ("click", "city", "device")}
    lists = [None if pd.isna(text) else text.split(";") for text in table["taste"]]
    lists = [None if one is None else [float(number) for number in one] for one in lists]
    path = rows.with_name("visits.parquet")
    pq.write_table(pa.table({**columns, "taste": pa.array(lists, kind)}), path)
    folder = rows.with_name(f"lists-{kind.value_type}")
    result = ctr_pipeline.run(settings_of(path, folder, [VECTOR, PLAIN], report={}))
    assert result.metrics["test"] == trained[1].metrics["test"]


def test_bad_vectors_are_skipped_and_counted(tmp_path):
    path = tmp_path / "rows.csv"
    write_visits(path, 600)
    lines = path.read_text().splitlines()
    lines[10] = lines[10].rpartition(",")[0] + ",1;2;3"
    lines[20] = lines[20].rpartition(",")[0] + ",1;2;3;nan"
    path.write_text("\n".join(lines) + "\n")
    settings = settings_of(path, tmp_path / "run", [VECTOR, PLAIN], report={})
    with pytest.raises(DataError, match="vector of another length") as caught:
        ctr_pipeline.run(settings)
    assert caught.value.place.endswith("rows.csv, row 11, column 'taste'")
    settings["data"]["bad_rows"] = "skip"
    result = ctr_pipeline.run(settings)
    assert result.metrics["bad_rows"]["total"] == 2
    statistics = load_statistics(tmp_path / "run" / "statistics.json")
    assert statistics.column("taste").num_values == 4 * statistics.num_rows
