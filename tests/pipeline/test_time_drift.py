"""Points in time drift by what is read of them: later rows are no drift by being later."""

import json
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from ctr_pipeline.apps.tables import measure_drift
from ctr_pipeline.cli.main import main
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.statistics import DriftLevel

MARCH = 1_709_251_200
"""2024-03-01, a Friday."""
WAYS = {
    "iso": lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S"),
    "seconds": str,
    "milliseconds": lambda seconds: f"{seconds}000",
}


def write_days(path, first_day, num_days, *, hours=range(24), way="iso", num_rows=2000):
    chance = np.random.default_rng(first_day)
    days = first_day + chance.integers(0, num_days, num_rows)
    seconds = MARCH + 86_400 * days + 3600 * chance.choice(list(hours), num_rows)
    seconds = np.sort(seconds + chance.integers(0, 3600, num_rows))
    rows = {
        "click": chance.integers(0, 2, num_rows),
        "shown": [WAYS[way](int(second)) for second in seconds],
        "city": chance.choice(["Wien", "Bern"], num_rows),
    }
    pd.DataFrame(rows).to_csv(path, index=False)
    return str(path)


def drift_of_time(old, new):
    result = measure_drift(old, new, progress=SilentProgress())
    return result.shown.drift.columns["shown"]


@pytest.mark.parametrize("way", WAYS)
def test_later_rows_with_the_same_hours_and_weekdays_are_stable(tmp_path, way):
    old = write_days(tmp_path / "old.csv", 0, 21, way=way)
    new = write_days(tmp_path / "new.csv", 21, 21, way=way)
    found = drift_of_time(old, new)
    assert found.level is DriftLevel.STABLE
    assert main(["drift", old, new, "--fail-above", "0.25", "-q"]) == 0


@pytest.mark.parametrize("way", WAYS)
def test_other_hours_are_drift(tmp_path, way):
    old = write_days(tmp_path / "old.csv", 0, 21, way=way)
    new = write_days(tmp_path / "new.csv", 21, 21, hours=range(12), way=way)
    found = drift_of_time(old, new)
    assert found.level is DriftLevel.LARGE
    assert {cell.value for cell in found.cells if cell.kind == "value"} == {
        f"hour {hour}" for hour in range(24)
    }
    assert main(["drift", old, new, "--fail-above", "0.25", "-q"]) == 1


def test_other_weekdays_are_drift_only_where_a_week_was_seen(tmp_path):
    week = write_days(tmp_path / "week.csv", 0, 14)
    day = write_days(tmp_path / "day.csv", 14, 1)
    assert drift_of_time(week, day).level is DriftLevel.STABLE
    lines = (tmp_path / "week.csv").read_text().splitlines()
    kept = [line for line in lines[1:] if pd.Timestamp(line.split(",")[1]).weekday() < 3]
    (tmp_path / "some.csv").write_text("\n".join([lines[0], *kept]) + "\n")
    found = drift_of_time(week, str(tmp_path / "some.csv"))
    assert found.level is DriftLevel.LARGE
    assert "Saturday" in {cell.value for cell in found.cells}


def test_times_that_lack_are_drift(tmp_path):
    old = write_days(tmp_path / "old.csv", 0, 21)
    write_days(tmp_path / "new.csv", 21, 21)
    new = pd.read_csv(tmp_path / "new.csv")
    new.loc[::2, "shown"] = None
    new.to_csv(tmp_path / "new.csv", index=False)
    found = drift_of_time(old, str(tmp_path / "new.csv"))
    assert found.level is DriftLevel.LARGE
    assert (found.old_missing_rate, found.new_missing_rate) == (0.0, 0.5)


def test_a_run_compares_its_splits_by_what_its_features_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_days(tmp_path / "rows.csv", 0, 40)
    text = "name: x\ndata: {train: rows.csv, label: click}\nfeatures: auto\noutput: run\n"
    (tmp_path / "c.yaml").write_text(text)
    saved = []
    for _ in range(2):
        assert main(["analyze", "c.yaml", "-q"]) == 0
        saved.append(json.loads((tmp_path / "run" / "statistics.json").read_text()))
    assert saved[0] == saved[1]
    for split in ("valid", "test"):
        shown = saved[0]["drift"][split]["columns"]["shown"]
        assert shown["psi"] < max(0.1, shown["noise"])
        assert shown["cells"][0]["value"] == "hour 0"
