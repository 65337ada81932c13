"""Whole numbers that are points in time, and lists that are sequences or vectors."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.inference import (
    infer_epoch,
    infer_list,
    infer_time,
    time_patterns,
    whole_numbers,
)
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.features import SequenceSpec, VectorSpec

RNG = np.random.default_rng(0)
MARCH = 1_709_251_200
"""2024-03-01, in seconds since 1970."""
CLICKS = MARCH + RNG.integers(0, 14 * 86_400, 2000)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (CLICKS, "epoch_seconds"),
        (CLICKS * 1000 + 17, "epoch_milliseconds"),
        (CLICKS * 10**9, "epoch_nanoseconds"),
        (CLICKS * 10**9 + 200_689_522, "epoch_nanoseconds"),
        (CLICKS * 10**6 + 17, "epoch_microseconds"),
        # Ids that are made of a time come again, as no clock's so fine digits do.
        (CLICKS[np.arange(2000) % 500] * 10**9 + 200_689_522, None),
        (CLICKS[np.arange(2000) % 500] * 10**6 + 17, None),
        (CLICKS[np.arange(2000) % 500], "epoch_seconds"),
        # Durations, and a year beyond those of dates.
        (np.arange(2000) * 60, None),
        (CLICKS + 5_000_000_000, None),
        # Counted up, from here to there, too few, wider than any log, none.
        (np.arange(2000) + MARCH, None),
        (CLICKS[:20], None),
        ([*CLICKS, 7], None),
        (RNG.integers(1_110_000_000, 2_080_000_000, 2000), None),
        ([], None),
    ],
)
def test_epochs(values, expected):
    assert infer_epoch(pa.array([*values, None], pa.int64())) == expected


MOMENTS = [datetime(2024, 3, 1, tzinfo=UTC) + timedelta(minutes=97 * n) for n in range(400)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S"),
        ("%d/%m/%Y", "%d/%m/%Y"),
        ("%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M:%S %p"),
        ("%m/%d/%y %H:%M", "%m/%d/%y %H:%M"),
        ("%d-%b-%Y", "%d-%b-%Y"),
        ("%b %d, %Y %I:%M%p", "%b %d, %Y %I:%M%p"),
        ("%d/%b/%Y:%H:%M:%S +0200", "%d/%b/%Y:%H:%M:%S %z"),
        ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S.%f"),
        ("%Y%m%d", "%Y%m%d"),
        ("%y%m%d%H", "%y%m%d%H"),
        ("%Y%m%d%H%M%S", "%Y%m%d%H%M%S"),
        (" %Y-%m-%d %H:%M:%S UTC", "iso"),
        ("%Y-%m-%d %H:%M:%S+00", "iso"),
        # Versions, and what no calendar has.
        ("%d.%m.%y", None),
        ("%H.%M.%S", None),
        ("%Y%m32", None),
        ("%Y-%m-%d-%H", None),
    ],
)
def test_patterns_of_dates(written, expected):
    texts = [moment.strftime(written) for moment in MOMENTS]
    assert infer_time(pa.array([*texts, None])) == expected
    assert infer_time(pa.array([*texts, *["n/a"] * 15])) == (
        None if texts[0].isdigit() else expected
    )
    assert infer_time(pa.array([*texts, *["n/a"] * 40])) is None


@pytest.mark.parametrize("written", ["%d/%m/%Y", "%m-%d-%Y %H:%M"])
def test_day_and_month_that_no_value_tells_apart_are_not_guessed(written):
    texts = pa.array([moment.strftime(written) for moment in MOMENTS if moment.day <= 12])
    assert len(time_patterns(texts)) == 2
    assert infer_time(texts) is None


def test_dates_of_spreadsheets_have_no_zeros_in_front():
    texts = [f"{one.month}/{one.day}/{one.year} {one.hour}:{one.minute:02d}" for one in MOMENTS]
    assert infer_time(pa.array(texts)) == "%m/%d/%Y %H:%M"


def test_epochs_may_be_floats():
    assert infer_time(pa.array(CLICKS.astype(float))) == "epoch_seconds"
    assert infer_time(pa.array([f"{click}.0" for click in CLICKS])) == "epoch_seconds"
    assert infer_time(pa.array([f" {click}.25" for click in CLICKS])) == "epoch_seconds"
    assert infer_time(pa.array(CLICKS + 0.25)) is None


@pytest.mark.parametrize("texts", [["1709251200."], ["-1"], ["1e9"], ["0170925120"]])
def test_whole_numbers_are_read_from_digits_only(texts):
    assert whole_numbers(pa.array(texts)) is None
    known = whole_numbers(pa.array(["1709251200", " 1709251200.75", None]))
    assert known.to_pylist() == [1_709_251_200, 1_709_251_200, None]


def test_whole_numbers_are_as_long_as_int64_holds():
    largest = ["8999999999999999999", "1709686869200689522"]
    assert whole_numbers(pa.array(largest)).to_pylist() == [int(text) for text in largest]
    assert whole_numbers(pa.array(["9223372036854775808"])) is None


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([["a", "b"], None, []], pa.list_(pa.string()), SequenceSpec(delimiter="|")),
        ([["a|b"], ["c"]], pa.list_(pa.string()), SequenceSpec(delimiter=";")),
        ([["a|b"], ["c;d", "e,f"]], pa.large_list(pa.string()), None),
        ([[1, 2], [3]], pa.list_(pa.int64()), SequenceSpec(delimiter="|")),
        ([[1.5, 2], None, [3, 4]], pa.list_(pa.float32()), VectorSpec(length=2)),
        ([[1.5, 2], [3, 4]], pa.list_(pa.float64(), 2), VectorSpec(length=2)),
        ([[1.5, 2], [3]], pa.list_(pa.float64()), None),
        ([[1.5, None]], pa.list_(pa.float64()), None),
        ([[7, 2], [1084]], pa.list_(pa.float64()), SequenceSpec(delimiter="|")),
        ([[7, None], [1084, 2]], pa.list_(pa.float32()), SequenceSpec(delimiter="|")),
        ([[0.0] * 1025], pa.list_(pa.float64()), None),
        ([None, []], pa.list_(pa.string()), None),
        ([[["a"]]], pa.list_(pa.list_(pa.string())), None),
        ([[True]], pa.list_(pa.bool_()), None),
    ],
)
def test_lists(values, kind, expected):
    assert infer_list(pa.array(values, kind)) == expected


def test_times_and_lists_are_inferred_of_parquet_by_type_and_text_by_digits(tmp_path):
    columns = {
        "label": [index % 2 for index in range(2000)],
        "clicked": CLICKS,
        "as_float": CLICKS.astype(float),
        "user_id": CLICKS,
        "amount": np.arange(2000),
    }
    pq.write_table(
        pa.table(
            {
                **columns,
                "stamp": pa.array(CLICKS, pa.timestamp("s")),
                "tags": [["a", "b"]] * 2000,
                "taste": [[0.5, 1.5]] * 2000,
            }
        ),
        tmp_path / "rows.parquet",
    )
    source = inspect_source(DataConfig(train=str(tmp_path / "rows.parquet")))
    assert source.times == {
        "clicked": "epoch_seconds",
        "as_float": "epoch_seconds",
        "user_id": "epoch_seconds",
        "stamp": "iso",
    }
    assert source.lists == {"tags": SequenceSpec(), "taste": VectorSpec(length=2)}
    lines = zip(*columns.values(), strict=True)
    text = "\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines)])
    (tmp_path / "rows.csv").write_text(text + "\n")
    source = inspect_source(DataConfig(train=str(tmp_path / "rows.csv")))
    assert source.times == dict.fromkeys(["clicked", "as_float", "user_id"], "epoch_seconds")
    assert source.lists == {}


def test_bytes_that_a_file_calls_a_text_are_no_times():
    offsets = pa.array([0, 4, 8], pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(
        pa.string(), 2, [None, offsets, pa.py_buffer(b"2024\xff\xff\xff\xff")]
    )
    assert infer_time(texts) is None
