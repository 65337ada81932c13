"""Vocabularies of several columns together, against counters of Python."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.analysis import collect_statistics, plan_statistics
from ctr_pipeline.analysis.collect import fingerprint_of
from ctr_pipeline.dataset.parts import write_part
from ctr_pipeline.features import FeatureSpec, SequenceSpec
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.vocabulary import Vocabulary

TEXT = pa.string()
TEXTS = st.sampled_from(["", "a", "b", "c", "d", "ä", "日", "a b", "'"])


def spec_of(column, *, table=None, sequence=None, **options):
    return FeatureSpec(
        column=column,
        column_type=ColumnType.TEXT,
        id=(Vocabulary(**options),),
        sequence=sequence,
        table=table,
    )


def collect(folder, columns, specs, num_parts=1):
    """Statistics of rows in so many parts, their labels 0 and 1 in turn."""
    num_rows = len(next(iter(columns.values())))
    labels = pa.array([row % 2 for row in range(num_rows)], pa.int8())
    arrays = {"y": labels, **{name: pa.array(texts, TEXT) for name, texts in columns.items()}}
    table = pa.table(arrays)
    files = []
    for part in range(num_parts):
        files.append(folder / f"part-{part}.arrow")
        first, last = num_rows * part // num_parts, num_rows * (part + 1) // num_parts
        write_part(table.slice(first, last - first), files[-1], "y")
    return collect_statistics(
        plan_statistics(specs, "y"),
        files,
        folder,
        data_fingerprint=str(columns),
        threads=2,
        memory_limit_gb=0.5,
        progress=SilentProgress(),
    )


def words_of(folder, vocabulary):
    table = pq.read_table(folder / vocabulary.file)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@given(
    rows=st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=4)), min_size=2, max_size=30),
    min_count=st.integers(1, 3),
    max_size=st.one_of(st.none(), st.integers(1, 4)),
)
def test_counts_are_those_of_all_columns_together(tmp_path_factory, rows, min_count, max_size):
    folder = tmp_path_factory.mktemp("shared")
    columns = {"item": [item for item, _ in rows], "past": ["|".join(past) for _, past in rows]}
    options = {"min_count": min_count, "max_size": max_size}
    specs = [
        spec_of("item", **options),
        spec_of("past", table="item", sequence=SequenceSpec(max_length=2), **options),
    ]
    statistics = collect(folder, columns, specs, num_parts=2)
    uses = {
        "item": [(item, row % 2) for row, (item, _) in enumerate(rows) if item],
        "past": [(one, row % 2) for row, (_, past) in enumerate(rows) for one in past if one],
    }
    counts = Counter(value for used in uses.values() for value, _ in used)
    clicks = Counter(value for used in uses.values() for value, label in used if label)
    ordered = sorted(counts, key=lambda value: (-counts[value], value.encode()))
    kept = [value for value in ordered if counts[value] >= min_count][:max_size]
    item, past = statistics.vocabularies["item"], statistics.vocabularies["past"]
    assert item.file == past.file
    assert words_of(folder, item) == [(value, counts[value], clicks[value]) for value in kept]
    for vocabulary in (item, past):
        used = Counter(value for value, _ in uses[vocabulary.column])
        left_out = [value for value in used if value not in kept]
        assert vocabulary.size == len(kept)
        assert vocabulary.columns == ("item", "past")
        assert vocabulary.num_excluded_values == len(left_out)
        assert vocabulary.num_excluded_rows == sum(used[value] for value in left_out)


def test_a_third_column_keeps_a_vocabulary_of_its_own(tmp_path):
    columns = {"a": ["x", "x", "z"], "b": ["x", "y", "y"], "c": ["x", "y", "z"]}
    specs = [
        spec_of("a", table="names", min_count=1),
        spec_of("c", min_count=1),
        spec_of("b", table="names", min_count=1),
    ]
    found = collect(tmp_path, columns, specs).vocabularies
    assert words_of(tmp_path, found["b"]) == [("x", 3, 1), ("y", 2, 1), ("z", 1, 0)]
    assert words_of(tmp_path, found["c"]) == [("x", 1, 0), ("y", 1, 1), ("z", 1, 0)]
    assert found["c"].columns is None
    assert sorted(path.name for path in (tmp_path / "vocabularies").iterdir()) == [
        "0000.parquet",
        "0001.parquet",
    ]
    assert [path.name for path in tmp_path.iterdir() if "shared" in path.name] == []
    # The same again is read, not computed.
    assert collect(tmp_path, columns, specs).vocabularies == found


def test_sharing_is_part_of_the_fingerprint():
    alone = [spec_of("a"), spec_of("b")]
    plan = plan_statistics(alone, "y")
    assert fingerprint_of(plan, "d") != fingerprint_of(
        plan_statistics([spec_of("a"), spec_of("b", table="a")], "y"), "d"
    )
    # A name that nobody else has shares nothing.
    assert plan_statistics([spec_of("a", table="t")], "y") == plan_statistics([spec_of("a")], "y")


def test_two_vocabularies_of_one_table_are_refused():
    specs = [spec_of("a", min_count=1), spec_of("b", table="a", min_count=2)]
    with pytest.raises(ValueError, match="table 'a': two different vocabularies"):
        plan_statistics(specs, "y")
