import csv
import io
from dataclasses import replace

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.formats.text.records import (
    Dialect,
    count_lines,
    find_first_end,
    find_last_end,
    find_open_quote,
    find_records,
    split_record,
)

COMMA = Dialect(",", '"')
ESCAPED = Dialect(",", '"', "\\")
VALUES = st.text(alphabet='ab,"\n\r;é\\', max_size=6)


def write_quoted(rows: list[list[str]], line_end: str) -> bytes:
    return write_rows(rows, line_end, COMMA)


def write_rows(rows: list[list[str]], line_end: str, dialect: Dialect) -> bytes:
    stream = io.StringIO()
    csv.writer(
        stream,
        lineterminator=line_end,
        quoting=csv.QUOTE_ALL,
        escapechar=dialect.escape,
        doublequote=dialect.escape is None,
    ).writerows(rows)
    return stream.getvalue().encode()


@given(
    rows=st.lists(st.lists(VALUES, min_size=2, max_size=2), min_size=1, max_size=8),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    dialect=st.sampled_from([COMMA, ESCAPED]),
)
def test_records_of_quoted_text_are_its_rows(rows, line_end, dialect):
    block = write_rows(rows, line_end, dialect)
    records = find_records(block, dialect)
    texts = [block[a:b].decode() for a, b in zip(records.starts, records.ends, strict=True)]
    assert [split_record(text, dialect) for text in texts] == rows
    # The line of a record is the number of line ends before it, as an editor counts them.
    for start, line in zip(records.starts, records.lines, strict=True):
        before = block[:start].decode()
        assert line == len(before.replace("\r\n", "\n").replace("\r", "\n").split("\n")) - 1


@given(
    block=st.text(alphabet='a,"\n\r\\', min_size=1, max_size=40).map(str.encode),
    dialect=st.sampled_from([COMMA, ESCAPED, replace(ESCAPED, quote=None)]),
)
def test_records_agree_with_the_parser_on_any_text(block, dialect):
    """However oddly quotes and escapes stand, both must count the same records."""
    if find_open_quote(block, dialect) is not None:
        return
    if dialect.escape and block.endswith(b"\\"):
        return
    invalid = []
    table = pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(
            use_threads=False, block_size=len(block) + 1, column_names=["x", "y"]
        ),
        parse_options=pa_csv.ParseOptions(
            quote_char=dialect.quote or False,
            escape_char=dialect.escape or False,
            newlines_in_values=True,
            invalid_row_handler=lambda row: invalid.append(row.number) or "skip",
        ),
        convert_options=pa_csv.ConvertOptions(column_types={"x": pa.string(), "y": pa.string()}),
    )
    assert table.num_rows + len(invalid) == len(find_records(block, dialect).starts)


@given(
    rows=st.lists(st.lists(VALUES, min_size=2, max_size=2), min_size=1, max_size=8),
    at=st.integers(0, 200),
)
def test_the_last_end_leaves_whole_records_before_it(rows, at):
    block = write_quoted(rows, "\n")
    prefix = block[:at]
    cut = find_last_end(prefix, COMMA)
    whole = find_records(prefix[:cut], COMMA)
    assert prefix[:cut] == write_quoted(rows[: len(whole.starts)], "\n")


@pytest.mark.parametrize(
    ("block", "end"),
    [
        (b"a,b\nc,d\n", 8),
        (b'a,"b\nc\nd', 0),
        (b'a,"b"\n"c\n', 6),
        (b'a,5" screen\nb,"x\ny"\nc', 20),
        (b'a,"x""\n""y"\nb', 12),
        (b"no line end", 0),
    ],
)
def test_end_of_the_last_record_is_found(block, end):
    assert find_last_end(block, COMMA) == end


def test_quotes_are_plain_characters_without_a_quote_character():
    block = b'a,"b\nc,d\n'
    assert find_last_end(block, Dialect(",", None)) == len(block)
    assert split_record('a,"b', Dialect(",", None)) == ["a", '"b']


def test_the_first_record_may_hold_line_ends():
    assert find_first_end(b'"a\nb",c\nd,e\n', COMMA) == 8
    assert find_first_end(b'"a\nb",c', COMMA) is None


def test_an_open_quote_is_found():
    assert find_open_quote(b'a,b\nc,"d\ne', COMMA) == 6
    assert find_open_quote(b'a,"b"\nc,d"', COMMA) is None


@pytest.mark.parametrize(
    ("block", "lines"), [(b"", 0), (b"a\nb", 1), (b"a\r\nb\r\n", 2), (b"a\rb\r\nc\n", 3)]
)
def test_lines_are_counted_as_an_editor_does(block, lines):
    assert count_lines(block) == lines
