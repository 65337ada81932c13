"""Rows divided by a column of times."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import column_names, read_columns
from ctr_pipeline.dataset.splits import SPLITS, Shares, plan_time_ranges
from ctr_pipeline.dataset.times import TimeCounts
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

START = datetime(2024, 2, 28, 23, 30, tzinfo=UTC)
WRITTEN = {
    "iso": lambda n: (START + timedelta(minutes=n)).strftime("%Y-%m-%d %H:%M:%S"),
    "offsets": lambda n: (
        (START + timedelta(minutes=n, hours=n % 3)).isoformat()[:19] + f"+0{n % 3}:00"
    ),
    "epoch": lambda n: str(1_709_163_000 + 60 * n),
    "day first": lambda n: (START + timedelta(days=n)).strftime("%d.%m.%Y"),
    "decimals": lambda n: f" {n - 40}.5",
}
FORMATS = {"day first": "%d.%m.%Y", "epoch": "epoch_seconds"}


def run(path, folder, types=None, *, split=None, block_bytes=64, **options):
    split = {"valid": 0.2, "test": 0.3, "by": "time", "column": "at", **(split or {})}
    data = DataConfig(train=str(path), split=SplitConfig(**split), **options)
    return ingest(
        RowsToRead(data, inspect_source(data), types or {"n": ColumnType.NUMBER}, seed=0),
        folder,
        threads=2,
        progress=SilentProgress(),
        block_bytes=block_bytes,
    )


def rows_of(ingested, split):
    files = ingested.splits[split].files
    return read_columns(files, column_names(files)).to_pydict()


def write_rows(path, times):
    lines = [f"{n % 2},{n},{time}" for n, time in enumerate(times)]
    path.write_text("label,n,at\n" + "\n".join(lines) + "\n")
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moments=st.lists(st.integers(0, 30), min_size=5, max_size=60),
    written=st.sampled_from(sorted(WRITTEN)),
)
def test_later_rows_are_in_later_splits_and_ties_stay_together(tmp_path_factory, moments, written):
    folder = tmp_path_factory.mktemp("times")
    # Two rows a time, of both labels.
    moments = [moment for moment in (*range(3), *moments) for _ in range(2)]
    path = write_rows(folder / "rows.csv", [WRITTEN[written](moment) for moment in moments])
    split = {"time_format": FORMATS.get(written)}
    found = run(path, folder / "ingested", split=split)
    rows = {name: [int(n) for n in rows_of(found, name)["n"]] for name in SPLITS}
    assert sorted(n for numbers in rows.values() for n in numbers) == list(range(len(moments)))
    for name, numbers in rows.items():
        assert numbers == sorted(numbers), "rows of a split keep their order"
        assert set(rows_of(found, name)) == {"label", "n"}
    times = {name: [moments[n] for n in numbers] for name, numbers in rows.items()}
    assert max(times["train"]) < min(times["valid"])
    assert max(times["valid"]) < min(times["test"])
    # No border is moved by one time to where the shares would rather have it.
    largest = max(moments.count(moment) for moment in moments)
    assert abs(len(rows["test"]) - 0.3 * len(moments)) <= largest


@given(
    counts=st.lists(st.integers(1, 50), min_size=3, max_size=40),
    valid=st.floats(0.01, 0.45),
    test=st.floats(0.01, 0.45),
)
def test_borders_are_the_nearest_that_leave_every_split_a_time(counts, valid, test):
    ranges = plan_time_ranges(np.array(counts), Shares(valid, test))
    covered = [n for first, after in ranges.values() for n in range(first, after)]
    assert covered == list(range(len(counts)))
    assert all(first < after for first, after in ranges.values())
    total, border = sum(counts), ranges["train"][1]
    ideal = total * (1 - valid - test)
    others = range(1, len(counts) - 1)
    assert abs(sum(counts[:border]) - ideal) == min(abs(sum(counts[:b]) - ideal) for b in others)


def test_counts_of_times_are_merged(monkeypatch):
    monkeypatch.setattr("ctr_pipeline.dataset.times.MERGE_ABOVE", 3)
    counts, rows = TimeCounts(), np.random.default_rng(0).integers(0, 50, (20, 30)).astype(float)
    for some in rows:
        counts.add(some)
    expected = np.unique(rows, return_counts=True)
    assert [part.tolist() for part in counts.totals()] == [part.tolist() for part in expected]


def test_parquet_times_divide_as_their_texts_do(tmp_path):
    minutes = np.random.default_rng(1).integers(0, 5000, 400)
    moments = [START + timedelta(minutes=int(n)) for n in minutes]
    label, n = [i % 2 for i in range(400)], [float(i) for i in range(400)]
    columns = {
        "timestamps": pa.array(moments, pa.timestamp("ms", "Europe/Berlin")),
        "texts": pa.array([moment.isoformat() for moment in moments]),
        "seconds": pa.array([int(moment.timestamp()) for moment in moments]),
        "floats": pa.array([moment.timestamp() / 7 for moment in moments]),
    }
    found = {}
    for name, column in columns.items():
        pq.write_table(pa.table({"label": label, "n": n, "at": column}), tmp_path / name)
        ingested = run(tmp_path / name, tmp_path / f"{name}.rows", format="parquet")
        found[name] = {split: rows_of(ingested, split)["n"] for split in SPLITS}
    assert all(rows == found["texts"] for rows in found.values())
    days = pa.array([date(2024, 3, 1 + i // 40) for i in range(400)])
    pq.write_table(pa.table({"label": label, "n": n, "at": days}), tmp_path / "days")
    ingested = run(tmp_path / "days", tmp_path / "days.rows", format="parquet")
    assert {split: len(rows_of(ingested, split)["n"]) for split in SPLITS} == {
        "train": 200,
        "valid": 80,
        "test": 120,
    }
    assert ingested.splits["test"].times.first == "2024-03-08T00:00:00Z"
    assert ingested.splits["train"].times.last == "2024-03-05T00:00:00Z"


def test_the_time_may_also_be_a_feature_and_a_key(tmp_path):
    path = write_rows(tmp_path / "rows.csv", [str(n // 2) for n in range(40)])
    found = run(path, tmp_path / "a", {"at": ColumnType.NUMBER})
    assert rows_of(found, "test")["at"] == [float(n // 2) for n in range(28, 40)]
    found = run(path, tmp_path / "b", key_columns=("at",))
    assert rows_of(found, "test")["at"] == [str(n // 2) for n in range(28, 40)]
    with pytest.raises(DataError, match="read as numbers") as caught:
        run(path, tmp_path / "c", {"at": ColumnType.NUMBER}, split={"time_format": "%Y%m%d"})
    assert caught.value.place == "data.split.time_format"


@pytest.mark.parametrize("bad", ["", "yesterday", "2024-02-30", "12"])
def test_a_row_without_a_time_is_a_bad_row(tmp_path, bad):
    times = [f"2024-03-{1 + n // 2:02d}" for n in range(40)]
    times[20] = bad
    path = write_rows(tmp_path / "rows.csv", times)
    reason = "not a point in time" if bad else "time missing"
    with pytest.raises(DataError, match=reason) as caught:
        run(path, tmp_path / "ingested")
    assert caught.value.place == f"{path}, row 22, column 'at'"
    found = run(path, tmp_path / "ingested", bad_rows="skip", max_bad_fraction=0.1)
    assert found.bad_rows.by_reason == {reason: 1}
    assert sum(split.num_rows for split in found.splits.values()) == 39


def test_split_by_time_is_refused_with_too_few_times(tmp_path):
    path = write_rows(tmp_path / "rows.csv", ["2024-03-01", "2024-03-01", "2024-03-02"] * 10)
    with pytest.raises(DataError, match="2 different times, too few") as caught:
        run(path, tmp_path / "ingested")
    assert "at" in caught.value.place


def test_splits_with_files_of_their_own_are_not_divided(tmp_path):
    train = write_rows(tmp_path / "rows.csv", [f"2024-03-0{1 + n // 10}" for n in range(40)])
    held = write_rows(tmp_path / "held.csv", ["some day"] * 10)
    found = run(train, tmp_path / "a", valid=str(held), test=str(held))
    assert [split.num_rows for split in found.splits.values()] == [40, 10, 10]
    assert found.splits["train"].times is None


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"by": "time"}, "by: time needs it"),
        ({"by": "order", "column": "at"}, "belongs to by: hash and by: time"),
        ({"by": "hash", "column": "at", "time_format": "iso"}, "belongs to by: time"),
        ({"by": "time", "column": "at", "time_format": "%Y"}, "needs %Y or %y, %m or %b"),
    ],
)
def test_keys_that_do_not_fit(split, message):
    with pytest.raises(ValueError, match=message):
        SplitConfig(**split)
