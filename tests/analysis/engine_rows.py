"""Rows that engines disagree about, if they disagree: all must give the same statistics of them."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.count_encode import CountEncode
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from ctr_pipeline.transforms.vocabulary import Vocabulary


def number(column, *chain, **options):
    return FeatureSpec(
        column=column, column_type=ColumnType.NUMBER, number=tuple(chain) or None, **options
    )


def text(column, **options):
    return FeatureSpec(column=column, column_type=ColumnType.TEXT, id=(Vocabulary(**options),))


def types_of(specs):
    """The columns of features, and how they are read."""
    return {part.column: part.column_type for spec in specs for part in spec.parts}


BIG = float(2**53)
COLUMNS = {
    "ties": [1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0],
    "missing": [None, math.nan, 1.5, None, -2.5, math.inf, -math.inf, 0.0],
    "empty": [None] * 8,
    "constant": [7.0] * 8,
    "large": [BIG, BIG + 2, -BIG, BIG - 1, 1e300, -1e300, 1e-300, 5e-324],
    "zeros": [0.0, -0.0, 0.0, -0.0, 1.0, 1.0, -1.0, -1.0],
    "words": ["日本", "é", "e\u0301", "", None, "'; DROP TABLE x; --", "a\nb\\", "é"],
    "none": [None, "", None, "", None, "", None, ""],
}
LABELS = [0, 1, 1, 0, 1, 0, 0, 1]
EDGE_WEIGHTS = {
    "fractions": [0.1, 0.0, 1 / 3, 2.5, 1e-9, 7.0, 0.0, 1e4],
    # Beside their sum the small ones are nothing.
    "large": [1e30, 1.0, 0.5, 3e29, 0.0, 1e18, 1e-300, 1e30],
    # The finite values of the column `missing` weigh nothing, so they are alike.
    "tiny": [5e-324, 1e-300, 0.0, 2e-300, 0.0, 3e-300, 1e-310, 0.0],
}
"""Weights of the rows of `COLUMNS`."""
CHAIN = (Fill(value=1.0), Clip(minimum=0.0, maximum=1e6), Log(), Standardize())
SPECS = [
    number("ties", Standardize(), id=(Bucketize(quantiles=4),)),
    number("missing", *CHAIN, id=(Clip(minimum=-1.0), Bucketize(quantiles=3))),
    number("empty", Normalize()),
    number("constant", Standardize(clip=None)),
    number("large", Log(), Normalize(), id=(Log(), Bucketize(quantiles=5))),
    number("zeros", Normalize()),
    text("words", min_count=1, max_size=4),
    text("none"),
]


RANDOM_SPECS = [
    number("price", Log(), Standardize(), id=(Log(), Bucketize(quantiles=30))),
    number("count", Normalize(), id=(Bucketize(quantiles=10),)),
    text("city", min_count=2),
    FeatureSpec(
        column="place",
        column_type=ColumnType.TEXT,
        number=(TargetEncode(), Standardize()),
        id=(CountEncode(), Bucketize(quantiles=5)),
    ),
]


def random_rows():
    """Columns that `RANDOM_SPECS` are of, and labels; always the same."""
    chance = np.random.default_rng(0)
    columns = {
        "price": chance.lognormal(size=3000).tolist(),
        "count": [None if v == 3 else float(v) for v in chance.poisson(3, 3000)],
        "city": [f"c{v}" for v in chance.zipf(1.5, 3000) % 400],
        "place": [f"p{v}" for v in chance.zipf(1.5, 3000) % 50],
    }
    return columns, chance.integers(0, 2, 3000).tolist()


def random_weights() -> list[float]:
    """A weight for each of `random_rows`; always the same."""
    return np.random.default_rng(1).choice([0.0, 0.1, 1.0, 2.5, 1 / 3, 1e4], 3000).tolist()


def as_table(weights: Sequence[float] | None = None) -> pa.Table:
    arrays = [
        pa.array(
            values, pa.string() if name in {"words", "none"} else pa.float64(), from_pandas=False
        )
        for name, values in COLUMNS.items()
    ]
    rows = pa.table([pa.array(LABELS, pa.int64()), *arrays], names=["label", *COLUMNS])
    return rows if weights is None else rows.append_column("weight", pa.array(weights))


def assert_same(there, here):
    """Equal but for the fingerprint and the last digits, which logarithms and sums do not share."""
    found, expected = (
        one.model_dump(mode="json", exclude={"fingerprint"}) for one in (there, here)
    )
    assert_close(found, expected)


TOLERANCE = 1e-9


def assert_close(found, expected, place="", size=0.0):
    """Numbers to 1e-9 of their size, all else equal, however deep.

    Args:
        size: What a number's terms are as large as, if they may cancel: those of a mean are as
            large as the largest value, those of summary statistics are about 1.
    """
    if isinstance(expected, dict):
        assert set(found) == set(expected), place
        sizes = {}
        if expected.get("mean") is not None:
            ends = expected["minimum"], expected["maximum"]
            sizes = {"mean": max(map(abs, ends))}
        elif place.endswith(".summary"):
            sizes = dict.fromkeys(expected, 1.0)
        for key, one in expected.items():
            assert_close(found[key], one, f"{place}.{key}", sizes.get(key, 0.0))
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), place
        for index, one in enumerate(expected):
            assert_close(found[index], one, f"{place}[{index}]")
    elif isinstance(expected, float):
        # Below the smallest normal number engines may flush to zero.
        near = max(TOLERANCE * size, 1e-300)
        assert found == pytest.approx(expected, rel=TOLERANCE, abs=near, nan_ok=True), place
    else:
        assert found == expected, place


def assert_same_value_tables(there, here, there_folder, here_folder):
    """Values, with their rows, clicks and weights, by which training rows are encoded."""
    assert set(there.value_tables) == set(here.value_tables)
    for name, table in there.value_tables.items():
        sides = (there_folder / table.file, here_folder / here.value_tables[name].file)
        found, expected = (pq.read_table(file).sort_by("value") for file in sides)
        assert {"weight", "click_weight"} <= set(found.column_names)
        assert_close(found.to_pydict(), expected.to_pydict())
    for name, weights in there.value_weights.items():
        assert_close(weights.model_dump(), here.value_weights[name].model_dump())


def assert_as_here(there, collect, folder, weights=None):
    """The statistics of `as_table` and `SPECS` are those of this machine."""
    folder.mkdir()
    ingested = {
        name: [None if isinstance(v, float) and math.isnan(v) else v for v in values]
        for name, values in COLUMNS.items()
    }
    for name in ("words", "none"):
        ingested[name] = [value or None for value in COLUMNS[name]]
    # A column without any text would be written as numbers.
    kept = [spec for spec in SPECS if spec.column != "none"]
    del ingested["none"]
    here = collect(ingested, LABELS, kept, folder=folder, weights=weights)
    assert there.columns["none"].num_missing == 8
    assert there.columns["none"].num_distinct == 0
    columns = {name: one for name, one in there.columns.items() if name != "none"}
    vocabularies = {name: one for name, one in there.vocabularies.items() if name != "none"}
    there = there.model_copy(update={"columns": columns, "vocabularies": vocabularies})
    assert_same(there, here)
