"""Features that share an embedding table: the same rows trained by all, up to the export."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctr_pipeline
from ctr_pipeline.apps.check import check_config
from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.pipeline.model.embedding_rows import build_store
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.statistics import load_statistics
from tests.pipeline.feeds import feeds, write_feeds
from tests.pipeline.test_crosses import settings_of

ITEM = {"columns": "item", "id": {"vocabulary": {"min_count": 1}}}
CLICKED = {
    "columns": "clicked_items",
    "sequence": {"max_length": 3},
    "id": {"vocabulary": {"min_count": 1}},
}
SHARED = {**CLICKED, "embedding": {"share": "item"}}
SGD = {"name": "sgd", "learning_rate": 0.5}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("feeds") / "feeds.csv"
    write_feeds(path, 3000)
    return path


def config_of(rows, features, **sections):
    settings = settings_of(rows, rows.with_name("run"), features, **sections)
    return config_from_mapping(settings)


def test_check_shows_the_table_and_counts_its_rows_once(rows):
    shared = check_config(config_of(rows, [ITEM, SHARED]), progress=SilentProgress())
    item, clicked = shared.rows
    assert clicked.id.endswith("→ table 'item'")
    assert "table" not in item.id
    assert item.max_bytes > 0
    assert clicked.max_bytes == 0
    # A vocabulary of both columns: 60 items and those never shown, unknown, missing, padding.
    assert clicked.num_ids == item.num_ids + 1 == 64
    apart = check_config(config_of(rows, [ITEM, CLICKED]), progress=SilentProgress())
    assert shared.max_embedding_bytes < apart.max_embedding_bytes


def test_two_features_update_the_same_rows(rows, tmp_path):
    """Against arithmetic of numpy on one table, with sequences, repeated ids and padding."""
    from ctr_pipeline.apps.check import preview_features

    segment = {"optimizer": SGD, "reduction": "sum"}
    loaded = config_of(
        rows,
        [{**ITEM, "id": {"hash": {"buckets": 30}}}, {**SHARED, "id": {"hash": {"buckets": 30}}}],
        train={
            "embeddings": {
                "linear": segment,
                "vector": {**segment, "initializer": {"name": "uniform", "scale": 0.1}},
            }
        },
    )
    plan = preview_features(loaded).plan
    table = pd.DataFrame(feeds(50), columns=["click", "hour", "item", "clicked_items"])
    batch = pa.record_batch({name: table[name] for name in ("item", "clicked_items")})
    ids = ColumnEncoder(plan, tmp_path).encode(batch).ids
    config = loaded.config
    store = build_store(plan, None, config=config, threads=1, memory_limit=None)
    prepared = store.prepare(ids, len(ids))
    store.locate(prepared, create=True)
    before = store.gather(prepared)
    weights = np.zeros((plan.tables[0].num_ids, before.shape[-1]))
    for place in np.ndindex(ids.shape):
        weights[ids[place]] = before[place]
    gradients = np.random.default_rng(0).normal(size=before.shape).astype(np.float32)
    store.update(prepared, gradients, step=1, learning_rate_factor=1.0, num_examples=len(ids))
    np.subtract.at(weights, ids, 0.5 * gradients.astype(np.float64))
    np.testing.assert_allclose(store.gather(prepared), weights[ids], rtol=1e-4, atol=1e-5)
    in_both = set(ids[:, 0].tolist()) & set(ids[:, 1:].ravel().tolist())
    assert len(in_both) > 10
    assert store.num_rows == len(np.unique(ids))


@pytest.mark.slow
def test_a_run_with_a_shared_table_is_exported_and_scores_alike(rows):
    folder = rows.with_name("shared")
    settings = settings_of(rows, folder, [SHARED, ITEM])
    result = ctr_pipeline.run(settings)
    parity = json.loads((folder / "export/1/parity.json").read_text())
    assert max(parity["max_difference"].values()) <= parity["tolerance"]
    statistics = load_statistics(folder / "statistics.json")
    item, clicked = (statistics.vocabularies[name] for name in ("item", "clicked_items"))
    assert item.file == clicked.file
    frame = pd.read_csv(rows, keep_default_na=False, dtype=str)
    train = frame.head(statistics.num_rows)
    past = [one for text in train["clicked_items"] if text for one in text.split("|")]
    counts = pd.Series([*train["item"], *past]).value_counts()
    vocabulary = pq.read_table(folder / item.file).select(["value", "count"]).to_pydict()
    assert dict(zip(*vocabulary.values(), strict=True)) == counts.to_dict()
    assert "table &#39;item&#39;" in (folder / "report.html").read_text()
    scores = ctr_pipeline.load(folder).predict(frame.tail(result.metrics["test"]["num_rows"]))
    expected = pd.read_parquet(folder / "predictions.parquet")["probability"]
    np.testing.assert_allclose(scores, expected, atol=1e-6)
