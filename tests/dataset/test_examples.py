"""Against protocol buffers' own reading and writing of the same messages."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.formats.recordio.chunks import Records
from ctr_pipeline.dataset.formats.recordio.examples import (
    ExampleKind,
    find_features,
    is_example,
    read_examples,
    write_examples,
)
from tests.dataset.example_messages import Example, example_of


def as_records(parts):
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = ends - np.array([len(part) for part in parts], np.int64)
    # Bytes around them, which no record may reach into.
    data = np.frombuffer(b"\xff" * 16 + b"".join(parts) + b"\xff" * 16, np.uint8)
    return Records(data, starts + 16, ends + 16)


def values_of(columns, feature):
    ints, floats = columns.int64_of(feature), columns.float_of(feature)
    texts = columns.bytes_of(feature)
    return [
        next((part for part in (i, f, t) if part is not None), None)
        for i, f, t in zip(ints.to_pylist(), floats.to_pylist(), texts.to_pylist(), strict=True)
    ]


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and left == right


NAMES = st.sampled_from(["label", "I1", "I10", "点击", "", "a" * 300])
VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32),
    st.binary(max_size=300),
)
ROWS = st.lists(st.dictionaries(NAMES, VALUES, max_size=6), max_size=8)


@given(rows=ROWS, wanted=st.lists(NAMES, unique=True))
def test_values_are_those_that_protocol_buffers_wrote(rows, wanted):
    records = as_records([example_of(row).SerializeToString() for row in rows])
    columns = read_examples(records, wanted)
    assert columns.is_good_N.all()
    for feature, name in enumerate(wanted):
        expected = [row.get(name) for row in rows]
        assert all(map(same, values_of(columns, feature), expected)), name
        assert columns.counts_TN[feature].tolist() == [value is not None for value in expected]
    assert columns.num_unknown_N.tolist() == [len(set(row) - set(wanted)) for row in rows]
    assert set(find_features(records, wanted)) == set(wanted).union(*rows)


ARROW = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float32(), st.floats(width=32)),
    "t": (pa.string(), st.text(max_size=20)),
    "点": (pa.large_binary(), st.binary(max_size=200)),
}


@given(st.lists(st.tuples(*(st.none() | kind for _, kind in ARROW.values())), max_size=8))
def test_rows_are_written_as_protocol_buffers_reads_them(rows):
    columns = [pa.array([row[i] for row in rows], ARROW[name][0]) for i, name in enumerate(ARROW)]
    batch = pa.record_batch(columns, names=list(ARROW))
    # A slice begins in the middle of its buffers.
    for start in {0, min(2, len(rows))}:
        records = write_examples(batch.slice(start))
        assert len(records) == len(rows) - start
        for record, row in zip(records, rows[start:], strict=True):
            example = Example.FromString(bytes(record))
            given_names = [n for n, value in zip(ARROW, row, strict=True) if value is not None]
            assert set(example.features.feature) == set(given_names)
            for name, value in zip(ARROW, row, strict=True):
                if value is None:
                    continue
                feature = example.features.feature[name]
                (found,) = getattr(feature, feature.WhichOneof("kind")).value
                expected = value.encode() if isinstance(value, str) else value
                assert same(found, expected)
            assert len(record) == len(example.SerializeToString())


def test_lists_of_several_values_are_counted():
    rows = [{"a": [1, 2, 300]}, {"a": [0.5, 1.5]}, {"a": [b"x", b"yz"]}, {"a": []}, {"a": 7}]
    columns = read_examples(
        as_records([example_of(row).SerializeToString() for row in rows]), ["a"]
    )
    assert columns.counts_TN.tolist() == [[3, 2, 2, 0, 1]]
    assert columns.kinds_TN.tolist() == [
        [ExampleKind.INT64, ExampleKind.FLOAT, ExampleKind.BYTES, ExampleKind.MISSING, 3]
    ]
    assert columns.kinds_of(0) == {ExampleKind.INT64, ExampleKind.FLOAT, ExampleKind.BYTES}


def delimited(number, content):
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def entry_of(name, feature):
    return delimited(1, delimited(1, delimited(1, name) + delimited(2, feature)))


UNPACKED_INTS = delimited(3, b"\x08\x05")
UNPACKED_FLOATS = delimited(2, b"\x0d\x00\x00\x00\x3f")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (entry_of(b"a", UNPACKED_INTS), 5),
        (entry_of(b"a", UNPACKED_FLOATS), 0.5),
        # A name that comes twice, and two lists of one feature: the last one counts.
        (entry_of(b"a", UNPACKED_INTS) + entry_of(b"a", UNPACKED_FLOATS), 0.5),
        (entry_of(b"a", UNPACKED_FLOATS + UNPACKED_INTS), 5),
        (entry_of(b"a", UNPACKED_INTS) + entry_of(b"a", b""), None),
        # Fields that nobody knows, of every kind.
        (entry_of(b"a", UNPACKED_INTS) + b"\x10\x01" + delimited(9, b"x"), 5),
        (b"\x11" + bytes(8) + b"\x15" + bytes(4) + entry_of(b"a", UNPACKED_INTS), 5),
        (entry_of(b"a", UNPACKED_INTS + delimited(4, b"x")), 5),
        (b"", None),
        (b"\x0a\x00", None),
    ],
)
def test_record_that_protocol_buffers_allow_is_read(record, expected):
    columns = read_examples(as_records([record]), ["a"])
    assert columns.is_good_N.all()
    assert values_of(columns, 0) == [expected]
    feature = Example.FromString(record).features.feature["a"]
    kind = feature.WhichOneof("kind")
    assert (list(getattr(feature, kind).value) if kind else [None]) == [expected]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(record):
    columns = read_examples(as_records([record]), ["a", ""])
    try:
        example = Example.FromString(record)
    except Exception:  # noqa: BLE001  whatever protocol buffers refuse it with
        return
    if columns.is_good_N[0]:
        assert (columns.counts_TN[1, 0] > 0) <= ("" in example.features.feature)


def test_names_are_found_beside_one_that_is_not_utf_8():
    odd = entry_of(b"\xff", UNPACKED_INTS)
    records = as_records(
        [odd, odd + entry_of(b"a", UNPACKED_INTS), *[odd] * 40, entry_of(b"b", b"")]
    )
    assert find_features(records) == ("a", "b")


def test_a_damaged_example_is_seen_wherever_it_ends():
    whole = example_of({"label": 1, "price": 0.5, "city": b"Oslo"}).SerializeToString()
    cuts = as_records([whole[:size] for size in range(len(whole))])
    columns = read_examples(cuts, ["label", "price", "city"])
    assert columns.is_good_N.tolist() == [True] + [False] * (len(whole) - 1)
    assert not columns.counts_TN.any()


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (example_of({"a": 1}).SerializeToString(), True),
        (example_of({"a": None}).SerializeToString(), True),
        (b"", False),
        (b"\x0a\x00", False),
        (b"1\t2\t0a1b2c3d", False),
        (b"label,price,city\n", False),
        (b"\n", False),
        (b"\n\n1,2", False),
        (b"\xff" * 12, False),
    ],
)
def test_examples_are_told_from_lines(record, expected):
    assert is_example(record) is expected
