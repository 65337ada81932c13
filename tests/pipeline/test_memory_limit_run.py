"""Rows beyond a memory limit: the run is the same, and says where they lay."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import ctr_pipeline
from tests.pipeline.clicks import settings_of, write_clicks

IN_MEMORY = 8192


def run_with(tmp_path, name, embeddings, **keys):
    settings = settings_of(
        tmp_path / "rows.tsv",
        tmp_path / name,
        features=[{"columns": "C1..C6", "id": [{"hash": {"buckets": 500}}]}],
        train={"epochs": 1, "batch_size": 256, "deterministic": True, "embeddings": embeddings},
        report={},
    )
    return ctr_pipeline.run(settings, **keys)


@pytest.mark.slow
def test_a_limit_changes_where_rows_lie_and_nothing_else(tmp_path):
    write_clicks(tmp_path / "rows.tsv", 2000)
    free = run_with(tmp_path, "free", {})
    bound = run_with(tmp_path, "bound", {"memory_limit_gb": 1e-5})
    assert bound.metrics["test"] == free.metrics["test"]
    paths = [tmp_path / name / "predictions.parquet" for name in ("free", "bound")]
    predictions = [pq.read_table(path) for path in paths]
    np.testing.assert_array_equal(*[table["probability"] for table in predictions])

    # 2 of header, 5 values, 9 of optimizer state.
    num_bytes = 64 * free.metrics["training"]["embedding_rows"]
    spilled = bound.metrics["training"]["embedding_spilled_bytes"]
    assert spilled == num_bytes - IN_MEMORY > IN_MEMORY
    assert free.metrics["training"]["embedding_spilled_bytes"] == 0
    memory = [one.metrics["training"]["embedding_bytes"] for one in (free, bound)]
    assert memory[0] - memory[1] == spilled
    said = f"MB in memory and {spilled / 1e6:.1f} MB in a file, beyond the memory limit"
    assert said in (tmp_path / "bound/run.log").read_text()
    assert "beyond the memory limit" in (tmp_path / "bound/report.html").read_text()
    assert "beyond the memory limit" not in (tmp_path / "free/report.html").read_text()
    assert list((tmp_path / "bound").glob(".embedding-rows-*")) == []

    # A limit is no part of what the model is, so that a run may go on with another.
    again = run_with(tmp_path, "bound", {"memory_limit_gb": 1.0}, resume=True)
    assert again.metrics["test"] == free.metrics["test"]
    assert again.metrics["training"]["embedding_spilled_bytes"] == 0
