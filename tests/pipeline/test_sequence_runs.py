"""Sequences through whole runs, up to the proof of their exports."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctr_pipeline
from ctr_pipeline.config.loader import config_from_mapping, load_config
from ctr_pipeline.errors import ModelError
from ctr_pipeline.pipeline.run import train
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.statistics import load_statistics
from tests.pipeline.test_crosses import settings_of
from tests.pipeline.visits import HEADER, visits, write_visits

pytestmark = pytest.mark.slow

NUM_ROWS = 4000
PLAIN = {"columns": ["city", "device"], "id": "vocabulary"}
SEQUENCES = [
    {"columns": "visited", "sequence": {"max_length": 6}, "id": "vocabulary"},
    PLAIN,
    {
        "columns": "bought",
        "sequence": {"max_length": 3, "weights": True, "keep": "first"},
        "id": {"hash": {"buckets": 500}},
    },
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    write_visits(path, NUM_ROWS)
    return path


@pytest.fixture(scope="module")
def trained(rows):
    folder = rows.with_name("sequences")
    return folder, ctr_pipeline.run(settings_of(rows, folder, SEQUENCES))


def test_elements_that_decide_the_label_are_learned(rows, trained):
    alone = ctr_pipeline.run(settings_of(rows, rows.with_name("alone"), [PLAIN]))
    assert trained[1].metrics["test"]["auc"] > alone.metrics["test"]["auc"] + 0.1
    importance = {row["feature"]: row["auc_drop"] for row in trained[1].metrics["importance"]}
    assert set(importance) == {"city", "device", "visited", "bought"}
    assert min(importance["visited"], importance["bought"]) > 0.02


def test_the_export_scores_as_the_trainer(trained):
    parity = json.loads((trained[0] / "export/1/parity.json").read_text())
    assert max(parity["max_difference"].values()) <= parity["tolerance"]
    card = json.loads((trained[0] / "export/1/model_card.json").read_text())
    assert {one["column"]: one["type"] for one in card["inputs"]} == dict.fromkeys(
        ("city", "device", "visited", "bought"), "string"
    )


def test_statistics_are_those_of_elements(rows, trained):
    statistics = load_statistics(trained[0] / "statistics.json")
    frame = pd.read_csv(rows, keep_default_na=False).head(statistics.num_rows)
    lists = [text.split("|") if text else [] for text in frame["bought"]]
    values = pd.Series([element.split(":")[0] for elements in lists for element in elements])
    lengths = np.array([len(elements) for elements in lists])
    bought = statistics.column("bought")
    assert bought.num_missing == (lengths == 0).sum()
    assert bought.num_distinct == values.nunique()
    assert bought.lengths.num_elements == len(values)
    assert bought.lengths.mean == pytest.approx(lengths.mean())
    assert bought.lengths.maximum == lengths.max() == 4
    assert bought.lengths.median == np.quantile(lengths, 0.5, method="inverted_cdf")
    assert bought.lengths.num_truncated == (lengths > 3).sum()
    top = bought.top_values[0]
    assert top.count == values.value_counts().max() == (values == top.value).sum()
    pages = pd.Series([page for text in frame["visited"] if text for page in text.split("|")])
    vocabulary = pq.read_table(trained[0] / statistics.vocabularies["visited"].file)
    counted = dict(zip(*vocabulary.select(["value", "count"]).to_pydict().values(), strict=True))
    assert counted == pages.value_counts()[lambda counts: counts >= 2].to_dict()
    assert "Elements a row" in (trained[0] / "report.html").read_text()


def test_resolved_config_and_new_rows(rows, trained):
    folder, result = trained
    loaded = load_config(folder / "config.resolved.yaml")
    assert loaded.config.features[0].sequence.pooling == "mean"
    frame = pd.read_csv(rows, dtype=str).tail(result.metrics["test"]["num_rows"])
    scores = ctr_pipeline.load(folder).predict(frame)
    expected = pd.read_parquet(folder / "predictions.parquet")["probability"]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_list_columns_are_read_as_delimited_texts(rows, trained):
    """Parquet lists give the same model, to the last bit, as the texts they stand for."""
    table = pd.DataFrame(visits(NUM_ROWS), columns=HEADER)
    columns = {name: pa.array(table[name]) for name in ("city", "device")}
    columns["click"] = pa.array(table["click"].astype(int))
    for name in ("visited", "bought"):
        lists = [text.split("|") if text else None for text in table[name]]
        columns[name] = pa.array(lists, pa.list_(pa.string()))
    path = rows.with_name("visits.parquet")
    pq.write_table(pa.table(columns), path)
    folder = rows.with_name("lists")
    settings = settings_of(path, folder, SEQUENCES, report={})
    result = ctr_pipeline.run(settings)
    assert result.metrics["test"] == trained[1].metrics["test"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Rows of an item that is shown and of items seen before; seen ones of its group click."""
    path = tmp_path_factory.mktemp("shown") / "shown.csv"
    chance = np.random.default_rng(4)
    lines = ["click,item,seen"]
    for _ in range(NUM_ROWS):
        item, seen = chance.integers(8), chance.integers(8, size=chance.integers(0, 6))
        alike = sum(one % 2 == item % 2 for one in seen) - sum(one % 2 != item % 2 for one in seen)
        click = int(chance.random() < 1 / (1 + np.exp(1 - 2 * alike)))
        lines.append(f"{click},i{item},{'|'.join(f'i{one}' for one in seen)}")
    path.write_text("\n".join(lines) + "\n")
    return path


SHOWN = [
    {"columns": "item", "id": "vocabulary"},
    {"columns": "seen", "sequence": {"max_length": 5}, "id": "vocabulary"},
]
DIN = {"name": "din", "embedding_dim": 4, "hidden_units": [16], "target": "item", "dropout": 0.0}


def din_settings(rows, name, **model):
    settings = settings_of(rows, rows.with_name(name), SHOWN, model=DIN | model)
    fast = {"name": "adam", "learning_rate": 0.02}
    vector = {
        "optimizer": fast,
        "reduction": "mean",
        "initializer": {"name": "uniform", "scale": 0.1},
    }
    return settings | {
        "train": {
            "epochs": 8,
            "batch_size": 64,
            "optimizer": fast,
            "embeddings": {"vector": vector},
        }
    }


def test_din_learns_what_elements_say_of_the_target(shown):
    folder = shown.with_name("din")
    metrics = ctr_pipeline.run(din_settings(shown, "din")).metrics
    assert metrics["test"]["auc"] > 0.85
    importance = {row["feature"]: row["auc_drop"] for row in metrics["importance"]}
    assert min(importance["item"], importance["seen"]) > 0.1
    parity = json.loads((folder / "export/1/parity.json").read_text())
    assert max(parity["max_difference"].values()) <= parity["tolerance"]


@pytest.mark.parametrize(
    ("feature", "target", "words"),
    [
        ({"hash": {"buckets": 20, "functions": 2}}, "item", "'item' has 2 embedded fields"),
        ("vocabulary", "click", "'click' is no feature with an id of one value"),
    ],
)
def test_a_target_is_one_field_of_one_value(shown, feature, target, words):
    settings = din_settings(shown, f"refused-{target}", target=target)
    # What the columns become is known after the analysis alone, where features are automatic.
    settings["features"] = [{"columns": "item", "id": feature}, SHOWN[1]]
    loaded = config_from_mapping(settings | {"model": DIN})
    changed = loaded.config.model_copy(
        update={"model": loaded.config.model.model_copy(update={"target": target})}
    )
    with pytest.raises(ModelError, match=words):
        train(replace(loaded, config=changed), progress=SilentProgress())
