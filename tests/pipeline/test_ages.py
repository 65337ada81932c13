"""Ages to the newest point in time, and statistics after them, against pandas."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

from ctr_pipeline.apps.check import check_config
from ctr_pipeline.cli.main import main
from ctr_pipeline.config import load_config
from ctr_pipeline.pipeline.feature_file import load_features
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.statistics import load_statistics
from ctr_pipeline.transforms.age import Age

NUM_ROWS = 500
NUM_TRAINED = 400


@pytest.fixture
def frame(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    joined = pd.Timestamp("2024-01-01") + pd.to_timedelta(
        chance.integers(0, 90 * 86_400, NUM_ROWS), unit="s"
    )
    frame = pd.DataFrame(
        {
            "click": (chance.random(NUM_ROWS) < 0.3).astype(int),
            "joined": joined.strftime("%Y-%m-%dT%H:%M:%S"),
            "times": chance.integers(0, 4, NUM_ROWS),
        }
    )
    frame.loc[::11, "joined"] = ""
    frame.loc[5, "joined"] = "soon"
    # The newest one is among the rows that are left out of training.
    frame.loc[NUM_ROWS - 1, "joined"] = "2030-01-01"
    frame.to_csv("rows.csv", index=False)
    return frame


def analyze(**data):
    config = {
        "data": {"train": "rows.csv", "label": "click", "split": {"by": "order"}, **data},
        "features": [
            {
                "columns": "joined",
                "number": ["age", "log", "standardize"],
                "id": ["age", {"bucketize": {"quantiles": 5}}],
            }
        ],
        "output": "run",
    }
    Path("c.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["analyze", "c.yaml", "-q"]) == 0
    run = RunFolder(load_config(Path("c.yaml")).config.run_folder)
    return run, load_features(run.features), load_statistics(run.path / "statistics.json")


def ages_of(frame):
    trained = pd.to_datetime(frame["joined"].head(NUM_TRAINED), errors="coerce")
    return trained, ((trained.max() - trained).dt.total_seconds() / 86_400).to_numpy()


def moments_after(statistics, *names):
    """Of the one chain whose steps are these."""
    (found,) = [
        moments
        for key, moments in statistics.derived_moments.items()
        if key.count('"name"') == len(names) and all(f'"{name}"' in key for name in names)
    ]
    return found


def test_the_newest_training_value_is_the_reference(frame):
    run, (feature,), statistics = analyze()
    trained, ages = ages_of(frame)
    assert feature.number[0] == Age(at=trained.max().strftime("%Y-%m-%dT%H:%M:%S"))
    moments = moments_after(statistics, "age", "log")
    logs = np.log1p(ages[np.isfinite(ages)])
    assert moments.count == len(logs)
    assert moments.mean == pytest.approx(logs.mean(), rel=1e-12)
    assert moments.standard_deviation == pytest.approx(logs.std(), rel=1e-12)
    (cuts,) = [cuts["5"] for cuts in statistics.boundaries.values()]
    expected = np.quantile(ages[np.isfinite(ages)], np.arange(1, 5) / 5, method="inverted_cdf")
    assert cuts == pytest.approx(expected, rel=1e-12)
    # What was computed is read back, not computed again.
    before = (run.path / "statistics.json").stat().st_mtime_ns
    assert main(["analyze", "c.yaml", "-q"]) == 0
    assert (run.path / "statistics.json").stat().st_mtime_ns == before


def test_encoded_ages_are_standardized(frame):
    run, features, statistics = analyze()
    plan = plan_preprocessing(features, statistics, run.path)
    batch = pa.record_batch({"joined": pa.array(frame["joined"].head(NUM_TRAINED))})
    encoded = ColumnEncoder(plan, run.path).encode(batch)
    _, ages = ages_of(frame)
    known = np.isfinite(ages)
    numbers = encoded.numbers[known, 0]
    assert numbers.mean() == pytest.approx(0, abs=1e-5)
    assert numbers.std() == pytest.approx(1, abs=1e-2)
    assert (encoded.numbers[~known, 0] == 0).all()
    sizes = np.bincount(encoded.ids[known, 0])
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() <= 2


def test_weights_are_those_of_the_rows(frame):
    _, _, statistics = analyze(weight="times")
    _, ages = ages_of(frame)
    known = np.isfinite(ages)
    weights = frame["times"].head(NUM_TRAINED)[known]
    moments = moments_after(statistics, "age", "log")
    expected = np.average(np.log1p(ages[known]), weights=weights)
    assert moments.mean == pytest.approx(expected, rel=1e-9)
    assert moments.weight == weights.sum()


def test_check_shows_what_was_analyzed(frame):
    del frame
    analyze()
    loaded = load_config(Path("c.yaml"))
    plan = check_config(loaded, progress=SilentProgress())
    (run,) = plan.rows
    assert run.number.startswith("age(at ")
    assert run.id.endswith("bucketize(quantiles 5)")
