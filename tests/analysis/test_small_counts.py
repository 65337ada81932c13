"""Small columns have the statistics that the database gives, and ask it nothing."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr_pipeline.analysis import collect_statistics, part_engine, plan_statistics
from ctr_pipeline.analysis.duckdb_engine import DuckDbSession
from ctr_pipeline.dataset.parts import write_part
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.standardize import Standardize
from tests.analysis.engine_rows import (
    COLUMNS,
    LABELS,
    RANDOM_SPECS,
    SPECS,
    assert_close,
    number,
    random_rows,
    text,
)

EXTREME = (-math.inf, math.inf, math.nan, 0.0, -0.0, 5e-324, -1e308, 1e308, 1e-9, 0.1, 2.0**53)
NUMBERS = st.none() | st.sampled_from(EXTREME) | st.integers(-3, 9).map(float) | st.floats()
TEXTS = st.sampled_from([None, "", "a", "A", "é", "e\u0301", "zz", "\U0001f600", "\uffff", "'\"\n"])
EVERY_CHAIN = [
    number("x", Log(), Standardize(), id=(Bucketize(quantiles=7),)),
    number(
        "y", Fill(value=2.0), Clip(maximum=5.0), Normalize(), id=(Log(), Bucketize(quantiles=3))
    ),
    text("c", min_count=2, max_size=3),
]


def collect_both_ways(tables, specs, tmp_path, monkeypatch, others=None):
    """Statistics and files of vocabularies, from the database and without it."""
    files = []
    for place, table in enumerate(tables):
        files.append(tmp_path / f"part-{place}.arrow")
        write_part(table, files[-1], "label")
    samples = {}
    for name, table in (others or {}).items():
        samples[name] = [tmp_path / f"{name}.arrow"]
        write_part(table, samples[name][0], "label")
    found = []
    for most_values in (-1, part_engine.MOST_VALUES):
        folder = tmp_path / f"at most {most_values}"
        folder.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(part_engine, "MOST_VALUES", most_values)
            statistics = collect_statistics(
                plan_statistics(specs, "label"),
                files,
                folder,
                data_fingerprint="rows",
                threads=1,
                memory_limit_gb=0.2,
                progress=SilentProgress(),
                others=samples,
            )
        vocabularies = {
            name: pq.read_table(folder / one.file).to_pydict()
            for name, one in statistics.vocabularies.items()
        }
        found.append((statistics.model_dump(mode="json"), vocabularies))
    return found


def table_of(columns, labels):
    arrays = {
        name: pa.array(
            values,
            pa.string() if any(isinstance(value, str) for value in values) else pa.float64(),
            from_pandas=False,
        )
        for name, values in columns.items()
    }
    return pa.table({"label": pa.array(labels, pa.int8()), **arrays})


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.lists(st.tuples(NUMBERS, NUMBERS, TEXTS, st.integers(0, 1)), min_size=1, max_size=30),
        min_size=2,
        max_size=4,
    )
)
def test_hostile_columns(parts, tmp_path_factory, monkeypatch):
    tables = [
        pa.table(
            {
                "label": pa.array([row[3] for row in rows], pa.int8()),
                "x": pa.array([row[0] for row in rows], pa.float64(), from_pandas=False),
                "y": pa.array([row[1] for row in rows], pa.float64(), from_pandas=False),
                "c": pa.array([row[2] for row in rows], pa.string()),
            }
        )
        for rows in parts
    ]
    folder = tmp_path_factory.mktemp("both")
    sides = collect_both_ways(
        tables[1:], EVERY_CHAIN, folder, monkeypatch, {"valid": tables[0], "test": tables[-1]}
    )
    assert_close(*sides)


def test_columns_that_engines_disagree_about(tmp_path, monkeypatch):
    kept = {name: values for name, values in COLUMNS.items() if name != "none"}
    table = table_of(kept, LABELS)
    specs = [spec for spec in SPECS if spec.column != "none"]
    sides = collect_both_ways(
        [table, table], specs, tmp_path, monkeypatch, {"valid": table.slice(0, 3)}
    )
    assert_close(*sides)


def test_columns_of_many_rows(tmp_path, monkeypatch):
    columns, labels = random_rows()
    table = table_of(columns, labels)
    half = len(labels) // 2
    others = {"test": table.slice(half)}
    sides = collect_both_ways([table.slice(0, half)], RANDOM_SPECS, tmp_path, monkeypatch, others)
    assert_close(*sides)


@pytest.mark.parametrize("most_values", [99, 100])
def test_the_database_is_asked_of_large_columns_alone(most_values, tmp_path, monkeypatch, collect):
    asked = []
    rows = DuckDbSession.rows

    def ask(session, query, *parameters):
        asked.append(query)
        return rows(session, query, *parameters)

    monkeypatch.setattr(DuckDbSession, "rows", ask)
    monkeypatch.setattr(part_engine, "MOST_VALUES", most_values)
    chance = np.random.default_rng(0)
    columns = {
        "x": chance.normal(size=100).tolist(),
        "y": chance.integers(0, 9, 100).astype(float).tolist(),
        "c": chance.choice(["a", "b"], 100).tolist(),
    }
    found = collect(columns, [0, 1] * 50, EVERY_CHAIN, folder=tmp_path)
    assert found.columns["c"].num_distinct == 2
    assert bool(asked) is (most_values < 100)
