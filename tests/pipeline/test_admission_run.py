"""Rows admitted by count: memory for ids that occur, one scoring model for all."""

import numpy as np
import pytest

import ctr_pipeline
from ctr_pipeline.dataset.encoded import EncodedReader
from tests.pipeline.clicks import settings_of, write_clicks

pytestmark = pytest.mark.slow

LEAST = 4


def test_ids_that_are_rare_in_training_have_no_row(tmp_path):
    write_clicks(tmp_path / "rows.tsv", 2000)
    settings = settings_of(
        tmp_path / "rows.tsv",
        tmp_path / "out",
        features=[
            {"columns": "I1..I3", "number": ["log", "standardize"]},
            {"columns": "C1..C6", "id": [{"hash": {"buckets": 500}}]},
        ],
        train={"epochs": 1, "batch_size": 256, "embeddings": {"admit_after": LEAST}},
        report={},
    )
    # The proof that export and trainer score alike is part of it: rare ids are among its rows.
    result = ctr_pipeline.run(settings)
    with EncodedReader(tmp_path / "out/cache/encoded/train") as rows:
        ids_RF = rows.read_range(0, rows.meta.num_rows).ids_BF
    counts = [np.bincount(ids) for ids in ids_RF.T]
    admitted = sum(int((found >= LEAST).sum()) for found in counts)
    occurring = sum(int((found > 0).sum()) for found in counts)
    assert result.metrics["training"]["embedding_rows"] == admitted < occurring
    log = (tmp_path / "out/run.log").read_text()
    # A linear weight and an embedding of 4; Adagrad and Adam keep 1 and 8 places; 2 of header.
    assert f"Embedding rows: {admitted:,} of 73 bytes (20 of values, 36 of optimizer" in log
