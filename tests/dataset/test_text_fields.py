"""Plain blocks cut at their delimiters against Arrow's parser."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.dataset.columns import ColumnPlan
from ctr_pipeline.dataset.compression import Compression
from ctr_pipeline.dataset.records import Dialect
from ctr_pipeline.dataset.text import TextBlock, TextFile
from ctr_pipeline.dataset.text_fields import read_plain_columns
from ctr_pipeline.features import ColumnType

NAMES = ("label", "n", "unused", "t")
DIALECT = Dialect("\t", '"')
NUMBER = st.one_of(
    st.just(""),
    st.integers(-(10**17), 10**17).map(str),
    st.floats(width=64).map(repr),
    st.sampled_from(["-0", "007", "1e5", ".5", "nan", "-inf", " 7", "999999999999999", "na"]),
)
TEXT = st.text(st.characters(exclude_characters='\t\r\n"', exclude_categories=["Cs"]), max_size=20)


def plan(missing_values=("",)):
    types = {"n": ColumnType.NUMBER, "t": ColumnType.TEXT}
    return ColumnPlan("label", types, frozenset(), missing_values, frozenset())


def arrow(block, missing_values=("",)):
    table = pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(column_names=list(NAMES)),
        parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa_csv.ConvertOptions(
            column_types={"label": pa.float64(), "n": pa.float64(), "t": pa.string()},
            include_columns=["label", "n", "t"],
            null_values=list(missing_values),
            strings_can_be_null=True,
        ),
    )
    return table.combine_chunks()


def bits(table):
    numbers = [table.column(name).to_pylist() for name in ("label", "n")]
    packed = [
        [None if x is None else np.float64(x).tobytes() for x in column] for column in numbers
    ]
    return [*packed, table.column("t").to_pylist()]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("01"), NUMBER, TEXT, TEXT), min_size=1, max_size=30),
    st.sampled_from([("",), ("", "na", "7")]),
)
def test_what_is_read_is_what_arrow_reads(rows, missing_values):
    block = "".join("\t".join(row) + "\n" for row in rows).encode()
    found = read_plain_columns(block, DIALECT, NAMES, plan(missing_values))
    try:
        expected = arrow(block, missing_values)
    except pa.ArrowInvalid:
        assert found is None
        return
    if found is None:
        assert b" " in block  # Blanks around a number are left to Arrow.
        return
    assert bits(found) == bits(expected)
    for column in found.columns:
        column.validate(full=True)


def test_long_blocks_are_what_arrow_reads():
    random = np.random.default_rng(0)
    rows = []
    for n in range(500):
        digits = "".join(random.choice(list("0123456789"), n % 16))
        number = digits and random.choice(["", "-"]) + digits
        rows.append([str(n % 2), number, "u" * (n % 5), "t" * (n % 41)])
    block = "".join("\t".join(row) + "\n" for row in rows).encode()
    found = read_plain_columns(block, DIALECT, NAMES, plan())
    assert bits(found) == bits(arrow(block))
    for mark in (b"\t", b"\n"):
        place = block.index(mark, len(block) // 2)
        cut = block[:place] + b"u" + block[place + 1 :]
        assert read_plain_columns(cut, DIALECT, NAMES, plan()) is None


@pytest.mark.parametrize("wrong", ["/", ":", "?", "P", "p", "é", "\x00", "-", "+"])
def test_what_is_no_digit_is_found_wherever_it_stands(wrong):
    for length in range(1, 17):
        for place in range(length):
            number = "5" * place + wrong + "5" * (length - place - 1)
            block = f"1\t{number}\tu\tt\n".encode()
            try:
                expected = arrow(block)
            except pa.ArrowInvalid:
                assert read_plain_columns(block, DIALECT, NAMES, plan()) is None
            else:
                assert bits(read_plain_columns(block, DIALECT, NAMES, plan())) == bits(expected)


@pytest.mark.parametrize(
    "block",
    [
        b"1\t2\t3\n",
        b"1\t2\t3\t4\t5\n",
        b"1\t2\t3\n4\t5\n",
        b"\n1\t2\t3\t4\n",
        b"1\t2\t3\t4",
        b'1\t2\t3\t"4"\n',
        b"1\t2\t3\t4\r\n",
        b"1\t2\t3\t\xff\n",
        b"1\tx\t3\t4\n",
        b"",
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(block):
    assert read_plain_columns(block, DIALECT, NAMES, plan()) is None


def test_a_single_column_is_left_to_the_parser():
    assert read_plain_columns(b"1\n\n0\n", DIALECT, ("label",), plan()) is None


def test_blocks_take_this_path_and_the_other_alike():
    file = TextFile(Path("r.tsv"), Compression.NONE, DIALECT, NAMES, has_header=False)
    plain = TextBlock(file, b"1\t2\tx\ta\n0\t\tx\t\n", 0, 0).parse(plan())
    quoted = TextBlock(file, b'1\t2\tx\t"a"\n0\t\tx\t\n', 0, 0).parse(plan())
    assert plain.table.equals(quoted.table)
    assert plain.table.schema == plan().schema
    assert plain.num_lines == quoted.num_lines == 2
