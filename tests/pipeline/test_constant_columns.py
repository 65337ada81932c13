"""Columns that are constant in the training rows, and are not in rows that come later."""

import numpy as np
import pandas as pd
import pytest

import ctr_pipeline
from ctr_pipeline.apps.init import init_config
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.pipeline.run import analyze
from ctr_pipeline.progress import SilentProgress

NUM_ROWS = 600
MISSING = "Column 'missing' is missing in all training rows, so the model makes nothing of it."
SAME = (
    "Column '{}' gives the same number in all training rows, so the model makes nothing of what it "
    "holds in others."
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The file, whose last rows are the test rows, and its frame."""
    rng = np.random.default_rng(0)
    user = rng.integers(0, 20, NUM_ROWS)
    trained = np.arange(NUM_ROWS) < NUM_ROWS * 0.8
    frame = pd.DataFrame(
        {
            "label": (rng.random(NUM_ROWS) < 0.1 + 0.04 * user).astype(int),
            "user": [f"u{one}" for one in user],
            "same": np.where(trained, 7.0, rng.normal(5e4, 1e4, NUM_ROWS)),
            "missing": np.where(trained, np.nan, rng.normal(0.0, 10.0, NUM_ROWS)),
            "day": np.where(trained, "2024-03-01", "2020-02-29"),
            "wide": rng.integers(0, 10**6, NUM_ROWS).astype(float),
        }
    )
    path = tmp_path_factory.mktemp("constant") / "rows.csv"
    frame.to_csv(path, index=False)
    return path, frame


def test_later_values_change_no_score(rows):
    path, frame = rows
    result = ctr_pipeline.run(
        {
            "name": "constant",
            "data": {"train": str(path)},
            "features": [
                {"columns": "user", "id": "vocabulary"},
                {"columns": "same", "number": ["log", "standardize"]},
                {"columns": "missing", "number": "normalize"},
                {"columns": "day", "number": ["age", "standardize"]},
                {"columns": "wide", "number": [{"clip": {"minimum": 0}}]},
            ],
            "model": {"name": "deepfm", "embedding_dim": 2, "hidden_units": [8]},
            "train": {"epochs": 1, "batch_size": 128},
            "output": str(path.with_name("run")),
        }
    )
    notes = (result.folder / "report.html").read_text().replace("&#39;", "'")
    for note in (
        MISSING,
        SAME.format("same"),
        SAME.format("day"),
        "Column 'wide' has dense inputs above 10,000",
    ):
        assert note in notes, note
    model = ctr_pipeline.load(result.folder)
    scores = model.predict(frame)
    for column, value in {"same": 1e18, "missing": -1e6, "day": "1999-12-31"}.items():
        pd.testing.assert_series_equal(model.predict(frame.assign(**{column: value})), scores)


def test_a_written_config_is_accepted(rows, tmp_path):
    path, _ = rows
    written = init_config(str(path), output=tmp_path / "c.yaml", progress=SilentProgress())
    settings = [f"output={tmp_path / 'run'}"]
    loaded = load_config(written.output, settings)
    assert {"same", "missing"} <= {entry.columns for entry in loaded.config.features}
    statistics = analyze(loaded, progress=SilentProgress())
    assert MISSING in statistics.notes
