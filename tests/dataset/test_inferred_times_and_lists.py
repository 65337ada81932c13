"""Whole numbers that are points in time, and lists that are sequences or vectors."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.inference import infer_epoch, infer_list, whole_numbers
from ctr_pipeline.dataset.source import inspect_source
from ctr_pipeline.features import SequenceSpec, VectorSpec

RNG = np.random.default_rng(0)
MARCH = 1_709_251_200
"""2024-03-01, in seconds since 1970."""
CLICKS = MARCH + RNG.integers(0, 14 * 86_400, 2000)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("clicked", CLICKS, "epoch_seconds"),
        ("clicked", CLICKS * 1000 + 17, "epoch_milliseconds"),
        ("created_at", [MARCH], "epoch_seconds"),
        ("eventTime", [MARCH * 1000, MARCH * 1000 + 1], "epoch_milliseconds"),
        ("ts", np.arange(2000) + MARCH, "epoch_seconds"),
        ("ts", CLICKS * 10**6 + 17, "epoch_microseconds"),
        ("shown_at", CLICKS * 10**9 + 200_689_522, "epoch_nanoseconds"),
        ("shown", CLICKS * 10**9, "epoch_nanoseconds"),
        # Ids that are made of a time are of this size, too.
        ("tweet", CLICKS * 10**9 + 200_689_522, None),
        ("tweet", CLICKS * 10**6 + 17, None),
        # A name alone makes no time of a duration, nor a year beyond those of dates.
        ("time", [10, 3600], None),
        ("time", [5_000_000_000], None),
        # Counted up, from here to there, too few, and wider than any log.
        ("item", np.arange(2000) + MARCH, None),
        ("item", CLICKS[:20], None),
        ("item", [*CLICKS, 7], None),
        ("item", RNG.integers(1_110_000_000, 2_080_000_000, 2000), None),
        ("lifetime", np.arange(2000) + MARCH, None),
        ("time", [], None),
    ],
)
def test_epochs(name, values, expected):
    assert infer_epoch(name, pa.array([*values, None], pa.int64())) == expected


@pytest.mark.parametrize(
    "texts", [["1709251200.0"], [" 1709251200"], ["-1"], ["1e9"], ["0170925120"]]
)
def test_only_digits_are_whole_numbers(texts):
    assert whole_numbers(pa.array(texts)) is None
    assert whole_numbers(pa.array(["1709251200", None])).to_pylist() == [1_709_251_200, None]


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
        ([[0.0] * 1025], pa.list_(pa.float64()), None),
        ([None, []], pa.list_(pa.string()), None),
        ([[["a"]]], pa.list_(pa.list_(pa.string())), None),
        ([[True]], pa.list_(pa.bool_()), None),
    ],
    ids=str,
)
def test_lists(values, kind, expected):
    assert infer_list(pa.array(values, kind)) == expected


def test_of_parquet_by_type_and_of_text_by_digits(tmp_path):
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
    assert source.times == {"clicked": "epoch_seconds", "stamp": "iso"}
    assert source.lists == {"tags": SequenceSpec(), "taste": VectorSpec(length=2)}
    lines = zip(*columns.values(), strict=True)
    text = "\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines)])
    (tmp_path / "rows.csv").write_text(text + "\n")
    source = inspect_source(DataConfig(train=str(tmp_path / "rows.csv")))
    assert source.times == {"clicked": "epoch_seconds"}
    assert source.lists == {}
