import gzip
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.formats.text.blocks import read_text_blocks
from ctr_pipeline.dataset.inspection import inspect_paths, inspect_source
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError, ReadingKeyError
from ctr_pipeline.specs.columns import ColumnType

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT
GOOD = b"label,price,city\n0,1.5,rome\n1,2,oslo\n"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def write_parquet(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def inspect(*paths, **options):
    files = [str(path) for path in paths]
    return inspect_source(
        DataConfig(train=files[0] if len(files) == 1 else tuple(files), **options)
    )


def refusal(*paths, **options) -> DataError:
    with pytest.raises(DataError) as caught:
        inspect(*paths, **options)
    assert caught.value.place
    assert caught.value.remedy
    return caught.value


def test_a_csv_file_with_header(tmp_path):
    source = inspect(write(tmp_path / "a.csv", GOOD))
    assert (source.format_name, source.delimiter, source.has_header) == ("csv", ",", True)
    assert source.column_names == ("label", "price", "city")
    assert source.inferred_types == {"label": NUMBER, "price": NUMBER, "city": TEXT}
    assert source.head.to_pydict() == {
        "label": [0.0, 1.0],
        "price": [1.5, 2.0],
        "city": ["rome", "oslo"],
    }


@pytest.mark.parametrize(
    ("name", "delimiter", "found"),
    [
        ("a.csv", ",", ("csv", ",")),
        ("a.csv", ";", ("csv", ";")),
        ("a.tsv", "\t", ("tsv", "\t")),
        ("a.tsv.gz", "\t", ("tsv", "\t")),
        ("a.txt", "\t", ("tsv", "\t")),
        ("a.txt", "|", ("csv", "|")),
        ("a", ";", ("csv", ";")),
        ("a.tsv", ",", ("csv", ",")),
    ],
)
def test_the_delimiter_is_found(tmp_path, name, delimiter, found):
    content = GOOD.replace(b",", delimiter.encode())
    path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    source = inspect(path)
    assert (source.format_name, source.delimiter) == found
    assert source.column_names == ("label", "price", "city")


def test_a_delimiter_of_hive(tmp_path):
    path = write(tmp_path / "a.txt", GOOD.replace(b",", b"\x01"))
    assert inspect(path, delimiter="\x01").head.num_rows == 2


def test_quoted_names_may_hold_anything(tmp_path):
    path = write(tmp_path / "a.csv", b'label,"a,\n""b"""," c "\n0,1,2\n1,3,4\n')
    assert inspect(path).column_names == ("label", 'a,\n"b"', "c")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert inspect(write(tmp_path / "a.csv", b"\xef\xbb\xbf" + GOOD)).column_names[0] == "label"


def test_globs_are_sorted_and_lists_keep_their_order(tmp_path):
    paths = [write(tmp_path / f"{name}.csv", GOOD) for name in "bac"]
    write(tmp_path / "_SUCCESS.csv", b"")
    assert inspect(tmp_path / "*.csv").files["train"] == tuple(sorted(paths))
    assert inspect(*paths).files["train"] == tuple(paths)


def test_valid_and_test_files(tmp_path):
    path, other = write(tmp_path / "a.csv", GOOD), write(tmp_path / "b.csv", GOOD)
    data = DataConfig(train=str(path), test=str(other))
    assert inspect_source(data).files == {"train": (path,), "test": (other,)}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\n\n", "is empty"),
        ("a.csv", gzip.compress(b"", mtime=0), "is empty"),
        ("a.csv", b"label,a\n", "has a header but no rows"),
        ("a.csv", b"\x00\x01\x02" * 100, "is not text"),
        ("a.csv", bytes(range(1, 9)) * 100, "is not text"),
        ("a.xlsx", b"PK\x03\x04rest", "a ZIP archive or an Excel workbook"),
        ("a.csv", "label,a\n0,1\n".encode("utf-16"), "UTF-16"),
        ("a.csv.bz2", b"BZh9", "bzip2"),
        ("a.csv", b"label,caf\xe9\n0,1\n", "the first row is not UTF-8"),
        ("a.csv", b"label\n0\n", "the first row has no commas"),
        ("a.csv.gz", gzip.compress(GOOD, mtime=0)[:-12], "is truncated or damaged"),
        ("a.parquet", GOOD, "is not a Parquet file"),
        ("a.parquet", b"PAR1 and no more", "truncated or damaged"),
        ("a.csv", b"label,a,a\n0,1,2\n", "two columns are named 'a'"),
        ("a.csv", b"label,,a\n0,1,2\n", "column 2 has no name"),
        ("a.csv", b"click,a\n0,1\n", "no column 'label', which data.label names"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    error = refusal(path)
    assert message in error.message
    assert str(path) in error.place


def test_a_row_that_does_not_end(tmp_path):
    path = write(tmp_path / "a.csv", b'label,"a\n' + b"0,1\n" * 5_000_000)
    assert "do not end" in refusal(path).message


def test_paths_that_do_not_exist(tmp_path):
    assert "no such file" in refusal(tmp_path / "a.csv").message
    assert "no file matches" in refusal(tmp_path / "*.csv").message
    assert "is a folder" in refusal(tmp_path).message
    path = write(tmp_path / "a.csv", GOOD)
    assert "named twice" in refusal(path, path).message
    with pytest.raises(DataError, match="names no files"):
        inspect_source(DataConfig(train=()))


def test_an_unreadable_file(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", GOOD)

    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "cannot be read (Permission denied)" in refusal(path).message


ROWS = b"0,1,x\n1,2,y\n0,3,z\n"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        # As pandas writes its index, and as R writes the names of rows.
        (b",label,n,c\n0,0,1,x\n1,1,2,y\n", ("Unnamed: 0", "label", "n", "c")),
        (b'"","label","n"\n"1",0,1\n"2",1,2\n', ("Unnamed: 0", "label", "n")),
        (b"label,n,c\n7,0,1,x\n8,1,2,y\n9,0,3,z\n", ("Unnamed: 0", "label", "n", "c")),
        # A delimiter at the end of each line, with that of the names or not.
        (b"label,n,c,\n0,1,x,\n1,2,y,\n", ("label", "n", "c", "Unnamed: 3")),
        (b"label,n,c\n0,1,x,\n1,2,y,\n", ("label", "n", "c", "Unnamed: 3")),
    ],
)
def test_a_column_before_or_after_the_named_ones_needs_no_name(tmp_path, content, names):
    source = inspect(write(tmp_path / "a.csv", content))
    assert source.column_names == names
    assert source.head.column("label").to_pylist()[:2] == [0, 1]
    assert source.head.column("n").to_pylist()[:2] == [1, 2]


def test_a_delimiter_ends_each_line_of_a_file_without_names(tmp_path):
    path = write(tmp_path / "a.csv", ROWS.replace(b"\n", b",\n"))
    source = inspect(path, columns=("label", "n", "c"))
    assert source.column_names == ("label", "n", "c", "Unnamed: 3")
    assert source.head.column("c").to_pylist() == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("content", "place", "found"),
    [
        (b"label,c\n\n0,1,x\n0,2,y\n", "row 3", "the row has 3 columns, and the header names 2"),
        (b"label,n,c,d\n0,1\n1,2\n", "row 2", "the row has 2 columns, and the header names 4"),
        (b"label,n\n1,1,5\n0,2,5\n", "row 2", "the row has 3 columns, and the header names 2"),
    ],
)
def test_rows_of_another_width_than_the_header(tmp_path, content, place, found):
    path = write(tmp_path / "a.csv", content)
    error = refusal(path)
    assert (error.message, error.place) == (found, f"{path}, {place}")
    # As it advises, if the names were not complete.
    width = int(found.split()[3])
    names = ("label", *(f"c{number}" for number in range(1, width)))
    source = inspect(path, columns=names, skip_lines=1)
    assert source.column_names == names
    assert source.head.num_rows == 2


def test_data_columns_complete_a_header(tmp_path):
    path = write(tmp_path / "a.csv", b"label,c\n0,x,1\n1,y,2\n")
    source = inspect(path, columns=("label", "c", "n"))
    assert (source.column_names, source.head.num_rows) == (("label", "c", "n"), 2)


@pytest.mark.parametrize(
    "title",
    [
        b"Clicks of May\n",
        b"# made by a job\n# of Monday, May 4\n",
        b"Clicks, all\n\n",
        b"\r\nClicks\r\n",
        b"Clicks,,\n,,\n",
    ],
)
@pytest.mark.parametrize("delimiter", [b",", b";"])
def test_lines_above_the_names_are_found_and_skipped(tmp_path, title, delimiter):
    rows = (b"label,n,c\n" + ROWS * 200).replace(b",", delimiter)
    title = title.replace(b",,", 2 * delimiter)
    path = write(tmp_path / "a.csv", title + rows)
    error = refusal(path)
    assert isinstance(error, ReadingKeyError)
    assert (error.key, error.value) == ("skip_lines", title.count(b"\n"))
    assert f"data.skip_lines: {error.value}" in error.remedy
    source = inspect(path, skip_lines=error.value)
    assert source.column_names == ("label", "n", "c")
    plain = inspect(write(tmp_path / "plain.csv", rows))
    assert source.head.equals(plain.head)


def test_empty_columns_at_the_end_need_no_name(tmp_path):
    path = write(tmp_path / "a.csv", b"label,n,,,\n" + b"0,1,,,\n1,2,,,\n" * 9)
    assert inspect(path).column_names == (
        "label",
        "n",
        *(f"Unnamed: {place}" for place in (2, 3, 4)),
    )
    assert "column 3 has no name" in refusal(write(path, b"label,n,,,\n0,1,2,,\n")).message


@pytest.mark.parametrize("header", [b"label;n;price, net", b"label;n, or 0;c", b"label;n;c,d,e,f"])
def test_commas_in_names_do_not_divide_columns(tmp_path, header):
    path = write(tmp_path / "a.csv", header + b"\n" + b"0;1;2,5\n1;2;3,5\n" * 9)
    assert inspect(path).column_names == tuple(header.decode().split(";"))


def test_each_file_has_its_own_delimiter(tmp_path):
    commas = write(tmp_path / "a.csv", b"label,n,c\n" + ROWS * 9)
    others = write(tmp_path / "b.csv", (b"label,n,c\n" + ROWS * 9).replace(b",", b";"))
    source = inspect_source(DataConfig(train=(str(commas), str(others))))
    assert [file.dialect.delimiter for file in source.opened.values()] == [",", ";"]


def test_parts_without_bytes_have_no_rows(tmp_path):
    parts = [
        write(tmp_path / f"part-{n}.csv", b"label,n,c\n" + ROWS if n % 2 else b"") for n in range(4)
    ]
    source = inspect(tmp_path / "part-*.csv")
    assert source.files["train"] == (parts[1], parts[3])
    assert source.notes == (f"No bytes, and so no rows, are in {parts[0]} and 1 other file.",)
    assert refusal(parts[0]).message == "is empty"


def test_rows_without_labels_are_for_predict(tmp_path):
    train = write(tmp_path / "train.csv", b"label,n,c\n" + ROWS)
    test = write(tmp_path / "test.csv", b"n,c\n1,x\n")
    with pytest.raises(DataError, match="lacks 'label'") as caught:
        inspect_source(DataConfig(train=str(train), test=str(test)))
    assert "ctrpipe predict" in caught.value.remedy
    # New rows need no labels, but files of one kind.
    paths = {"data": (str(train), str(test))}
    with pytest.raises(DataError, match="lacks 'label'") as caught:
        inspect_paths(DataConfig(train="unused.csv"), paths, {"data": "--data"}, are_new=True)
    assert caught.value.remedy == "Give files with the same columns"


def test_values_between_apostrophes(tmp_path):
    path = write(tmp_path / "a.csv", b"'label','c'\n" + b"0,'x, y'\n1,'z'\n" * 9)
    error = refusal(path)
    assert (error.key, error.value) == ("quote", "'")
    assert inspect(path, quote="'").head.column("c")[0].as_py() == "x, y"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("columns", [None, ("label", "n", "c")])
def test_lines_above_names_are_found_where_the_last_column_is_empty(tmp_path, end, columns):
    names = b"" if columns else b"label\tn\tc\n"
    rows = b"0\t1\t\n1\t2\t\n0\t3\tx\n"
    path = write(tmp_path / "a.tsv", (b"Clicks\n" + names + rows).replace(b"\n", end))
    error = refusal(path, columns=columns)
    assert (error.key, error.value) == ("skip_lines", 1)
    assert inspect(path, columns=columns, skip_lines=1).head.num_rows == 3


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("columns", [None, ("label", "n", "c")])
def test_lines_are_skipped_however_a_file_is_cut(tmp_path, end, columns):
    names = b"" if columns else b"label,n,c\n"
    content = (b'Clicks, "all\n\n' + names + ROWS * 50).replace(b"\n", end)
    path = write(tmp_path / "a.csv", content)
    file = inspect(path, columns=columns, skip_lines=2, quote=None).opened[path]
    rows = (ROWS * 50).replace(b"\n", end)
    for block_bytes in (1, 7, 100, 10_000):
        blocks = list(read_text_blocks(file, block_bytes))
        assert b"".join(block.data for block in blocks) == rows
        assert blocks[0].num_lines_skipped == 2 + (columns is None)
    parts = file.ranges(100)
    assert len(parts) > 2
    found = [block.data for part in parts for block in read_text_blocks(file, 64, part)]
    assert b"".join(found) == rows


AS_SPARK = rb"""label,text,n
0,"he said \"no\", twice",1
1,"5\" screen",2
0,"C:\\dir\\",3
1,plain,4
"""
TEXTS = ['he said "no", twice', '5" screen', "C:\\dir\\", "plain"]


def test_quotes_that_a_backslash_escapes(tmp_path):
    path = write(tmp_path / "a.csv", AS_SPARK)
    error = refusal(path)
    assert isinstance(error, ReadingKeyError)
    assert (error.key, error.value, error.place) == ("escape", "\\", f"{path}, row 2")
    source = inspect(path, escape=error.value)
    assert source.head.column("text").to_pylist() == TEXTS
    data = DataConfig(train=str(path), escape="\\")
    read = list(stream_rows(data, str(path), {"text": TEXT}, label_required=False))
    assert [text for batch in read for text in batch.column("text").to_pylist()] == TEXTS


def test_an_escaped_quote_far_behind_is_a_bad_row_with_its_remedy(tmp_path):
    rows = b"label,text,n\n" + b'0,"a ""b""",1\n' * 100_000
    first = write(tmp_path / "a.csv", rows)
    path = write(tmp_path / "b.csv", rows + b'1,"a \\"b\\" c",2\n')
    data = DataConfig(train="unused.csv")
    with pytest.raises(DataError, match="a backslash before a quote within a value") as caught:
        list(stream_rows(data, [str(first), str(path)], {"text": TEXT}, label_required=False))
    assert caught.value.place == f"{path}, row 100002"
    assert "data.escape: \\ if" in caught.value.remedy


@pytest.mark.parametrize("value", [b'"C:\\dir\\"', b'5\\"', b'"a\\""b"'])
def test_a_backslash_may_be_a_character_as_any_other(tmp_path, value):
    path = write(tmp_path / "a.csv", b"label,text,n\n" + b"0,%b,1\n1,%b,2\n" % (value, value))
    assert inspect(path).head.column("n").to_pylist() == [1, 2]


@pytest.mark.parametrize("first", [b"sep=;\n", b'"sep=;"\r\n', b"SEP=;\n"])
def test_the_delimiter_that_excel_is_told(tmp_path, first):
    rows = b"label;n\n0;1,5\n1;2,5\n"
    source = inspect(write(tmp_path / "a.csv", first + rows))
    assert source.delimiter == ";"
    assert source.head.equals(inspect(write(tmp_path / "b.csv", rows)).head)


def test_near_names_are_suggested(tmp_path):
    path = write(tmp_path / "a.csv", b"Label,clicked,price\n0,1,2\n1,2,3\n")
    assert "'Label'" in refusal(path).remedy
    assert "'price'" in refusal(path, label="Label", key_columns=("prices",)).remedy
    split = SplitConfig(by="hash", column="user")
    assert "data.split.column" in refusal(path, label="Label", split=split).message


def test_columns_of_files_without_header(tmp_path):
    path = write(tmp_path / "a.csv", b"0,1,x\n1,2,y\n")
    source = inspect(path, columns=("label", "n", "t"))
    assert source.column_names == ("label", "n", "t")
    assert source.head.num_rows == 2
    error = refusal(path, columns=("label", "n"))
    assert error.message == "the first row has 3 columns, but data.columns names 2"
    assert "two columns" in refusal(path, columns=("label", "n", "n")).message
    parquet = write_parquet(tmp_path / "a.parquet", label=[0, 1], n=[1, 2])
    assert "Parquet files have names" in refusal(parquet, columns=("label", "n")).message


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (b"label,price,city\n", ("label", "price", "city")),
        (b"city,label,price\n", ("city", "label", "price")),
        # As exports have them that name more, or fewer.
        (b"row,label,price,city\n", ("row", "label", "price", "city")),
        (b"price,label\n", ("price", "label")),
    ],
)
def test_a_first_row_of_names_is_a_header_though_columns_are_given(tmp_path, header, names):
    row = b",".join(b"%d" % (place % 2) for place in range(len(names)))
    path = write(tmp_path / "a.csv", header + row + b"\n")
    source = inspect(path, columns=("label", "price", "city"))
    assert (source.column_names, source.has_header) == (names, True)
    assert source.head.num_rows == 1


def test_a_wrong_delimiter(tmp_path):
    path = write(tmp_path / "a.csv", GOOD)
    error = refusal(path, delimiter=";")
    assert error.message == "the first row has no semicolons to separate columns, but 2 commas"
    assert "line end" in refusal(path, delimiter="\n").remedy
    assert "'é' cannot separate" in refusal(path, delimiter="é").message
    assert "data.quote" in refusal(path, quote="»").place


def test_formats_must_be_what_they_say(tmp_path):
    text = write(tmp_path / "a.csv", GOOD)
    parquet = write_parquet(tmp_path / "a.parquet", label=[0, 1], n=[1, 2])
    assert "is Parquet, but" in refusal(parquet, format="csv").message
    assert "is not a Parquet file" in refusal(text, format="parquet").message
    assert "is Parquet, but" in refusal(text, parquet).message
    assert inspect(text, format="csv").format_name == "csv"


# --- differences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (b"label,price\n0,1\n", "it lacks 'city'"),
        (b"label,price,city,x\n0,1,a,b\n", "it has in addition 'x'"),
        (b"label,price,town\n0,1,a\n", "it lacks 'city' and has in addition 'town'"),
        (b"label,price,city\n0,rome,1\n1,oslo,2\n", "column 'price' holds texts"),
    ],
)
def test_differences_between_text_files_name_both(tmp_path, other, message):
    first, second = write(tmp_path / "a.csv", GOOD), write(tmp_path / "b.csv", other)
    error = refusal(tmp_path / "*.csv")
    assert message in error.message
    assert str(first) in error.message
    assert str(second) in error.place


def test_another_order_with_a_header_is_fine(tmp_path):
    first = write(tmp_path / "a.csv", GOOD)
    second = write(tmp_path / "b.csv", b"city,label,price\nrome,0,1\n")
    assert inspect(first, second).column_names == ("label", "price", "city")


def test_a_swapped_order_without_header_is_seen(tmp_path):
    first = write(tmp_path / "a.csv", b"0,1,rome\n1,2,oslo\n")
    second = write(tmp_path / "b.csv", b"0,rome,1\n1,oslo,2\n")
    error = refusal(first, second, columns=("label", "price", "city"))
    assert "column 'price' holds texts that are no numbers" in error.message
    third = write(tmp_path / "c.csv", b"0,1\n")
    assert "2 columns" in refusal(first, third, columns=("label", "price", "city")).message


NO_VALUE = pa.nulls(2)
DAY = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("one", "other", "column_type", "texts"),
    [
        (pa.array([1, 2], pa.int32()), pa.array([3, 4], pa.int64()), NUMBER, "1234"),
        (pa.array([1, 2]), pa.array([3.0, None]), NUMBER, ["1", "2", "3", None]),
        (pa.array(["a", "b"]), pa.array(["c", "d"], pa.large_string()), TEXT, "abcd"),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "d"]), TEXT, "abcd"),
        (NO_VALUE, pa.array(["c", "d"]), TEXT, [None, None, "c", "d"]),
        (pa.array(["a", "b"]), NO_VALUE, TEXT, ["a", "b", None, None]),
        (NO_VALUE, pa.array([3, 4]), NUMBER, [None, None, "3", "4"]),
        (NO_VALUE, pa.array([True, False]), NUMBER, [None, None, "1", "0"]),
        (None, pa.array(["c", "d"]), TEXT, [None, None, "c", "d"]),
        (pa.array([1, 2]), None, NUMBER, ["1", "2", None, None]),
        (pa.array([[1], [2, 3]]), pa.array([[4], [5]], pa.list_(pa.int32())), None, None),
        (NO_VALUE, pa.array([["a"], ["b", "c"]]), None, None),
        (
            pa.array([DAY, DAY], pa.timestamp("us")),
            pa.array([DAY, DAY], pa.timestamp("ns", "UTC")),
            None,
            None,
        ),
    ],
)
def test_columns_of_parquet_files_are_unified(tmp_path, one, other, column_type, texts):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, column in zip(paths, (one, other), strict=True):
        columns = {} if column is None else {"x": column}
        write_parquet(path, label=[0, 1], **columns, n=[1.5, 2.5])
    source = inspect(*paths)
    assert set(source.column_names) == {"label", "x", "n"}
    assert source.inferred_types.get("x") is column_type
    absent = [path for path, column in zip(paths, (one, other), strict=True) if column is None]
    assert source.notes == tuple(
        "Columns are absent from some of the 2 files, and missing in their rows: 'x' in 1, such "
        f"as '{path}'"
        for path in absent
    )
    data = DataConfig(train=tuple(map(str, paths)))
    wanted = {"x": TEXT, "n": NUMBER}
    names = [str(path) for path in paths]
    if texts is not None:
        batches = list(stream_rows(data, names, wanted, label_required=True))
        found = pa.Table.from_batches(batches).to_pydict()
        assert found == {"label": [0, 1] * 2, "x": list(texts), "n": [1.5, 2.5] * 2}
        if column_type is NUMBER:
            batches = list(stream_rows(data, names, {"x": NUMBER}, label_required=False))
            numbers = [None if text is None else float(text) for text in texts]
            assert pa.Table.from_batches(batches).to_pydict() == {"x": numbers}


def test_differences_between_parquet_files_name_both(tmp_path):
    first = write_parquet(tmp_path / "a.parquet", label=[0, 1], x=[1, 2])
    second = write_parquet(tmp_path / "b.parquet", label=[0, 1], x=["a", "b"])
    error = refusal(first, second)
    assert error.message == f"column 'x' has the type string, but int64 in '{first}'"
    assert error.place == str(second)
    third = write_parquet(tmp_path / "c.parquet", label=[0, 1], x=["a", "b"])
    none = write_parquet(tmp_path / "d.parquet", label=[0, 1], x=NO_VALUE)
    error = refusal(none, first, second, third)
    assert error.message == (
        f"column 'x' has the type string (2 of 4 files), but int64 in '{first}'"
    )
    lists = write_parquet(tmp_path / "e.parquet", label=[0, 1], x=[[1], [2]])
    assert "has the type list" in refusal(first, lists).message


def test_the_label_is_in_every_parquet_file(tmp_path):
    first = write_parquet(tmp_path / "a.parquet", label=[0, 1], x=[1, 2])
    second = write_parquet(tmp_path / "b.parquet", x=[1, 2])
    error = refusal(first, second)
    assert (error.message, error.place) == (
        f"has other columns than '{first}': it lacks 'label'",
        str(second),
    )


# --- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("price", ["1", "2.5", "-3", "+4", "0.0", ".5", "5."], NUMBER),
        ("price", ["1.5e10", "1.5E-3", "1e-05", "1e+20"], NUMBER),
        # Beyond 2^53 float64 merges whole numbers; a column with fractions is one of measures.
        ("item", ["3", "9007199254740992", "-9007199254740992"], NUMBER),
        ("item", ["3", "9007199254740993"], TEXT),
        ("item", ["-1", "-9007199254740993", ""], TEXT),
        ("item", ["+1712345678901230000", "nan"], TEXT),
        ("price", ["0.5", "1712345678901230000"], NUMBER),
        ("price", ["12345678901234567890.5"], NUMBER),
        ("price", ["1", "", " 2 "], NUMBER),
        ("price", ["1", "nan", "-inf"], NUMBER),
        ("price", ["nan", "inf"], TEXT),
        ("code", ["1", "007"], TEXT),
        ("code", ["32813e21"], TEXT),
        ("code", ["12", "abc"], TEXT),
        ("code", ["0x12"], TEXT),
        ("code", ["1_000"], TEXT),
        ("code", ["1,000"], TEXT),
        ("code", ["", ""], TEXT),
        ("0", ["0", "-0", "00"], TEXT),
        # Names play no part.
        *((name, ["1", "2"], NUMBER) for name in ("id", "user_id", "zip", "cookie_hash", "bid")),
    ],
)
def test_types_are_inferred_from_values(tmp_path, name, values, expected):
    rows = "".join(f'{i % 2},"{value}"\n' for i, value in enumerate(values))
    path = write(tmp_path / "a.csv", f"label,{name}\n{rows}".encode())
    assert inspect(path).inferred_types[name] is expected


def test_missing_values_do_not_make_a_number_a_text(tmp_path):
    path = write(tmp_path / "a.csv", b"label,n\n0,NA\n1,3\n")
    assert inspect(path).inferred_types["n"] is TEXT
    source = inspect(path, missing_values=("NA",))
    assert source.inferred_types["n"] is NUMBER
    assert source.head["n"].to_pylist() == [None, 3.0]


def test_parquet_types_come_from_the_schema(tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet",
        label=pa.array([True, False]),
        i=pa.array([1, 2], pa.uint8()),
        f=pa.array([1, 2], pa.float32()),
        d=pa.array([1, 2], pa.decimal128(5, 2)),
        s=["a", "b"],
        c=pa.array(["a", "b"]).dictionary_encode(),
        user_id=[1, 2],
        t=pa.array([1, 2], pa.timestamp("s")),
        l=[[1], [2]],
    )
    source = inspect(path)
    numbers = dict.fromkeys(["label", "i", "f", "d", "user_id"], NUMBER)
    assert source.inferred_types == {**numbers, **dict.fromkeys(["s", "c"], TEXT)}
    assert source.head.num_rows == 2
    assert source.column_names[-2:] == ("t", "l")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([2**53, -(2**53)], pa.int64(), NUMBER),
        ([2**53 + 1, None], pa.int64(), TEXT),
        ([-(2**53) - 1, 0], pa.int64(), TEXT),
        ([2**64 - 1, 0], pa.uint64(), TEXT),
        ([10**17, 0], pa.decimal128(20, 0), TEXT),
        ([10**17, 0], pa.decimal128(22, 2), NUMBER),
        ([1e17, 0], pa.float64(), NUMBER),
        ([None, None], pa.int64(), NUMBER),
    ],
    ids=str,
)
def test_whole_numbers_beyond_floats_are_texts_of_parquet(tmp_path, values, kind, expected):
    path = write_parquet(tmp_path / "a.parquet", label=[0, 1], item=pa.array(values, kind))
    assert inspect(path).inferred_types["item"] is expected
    coded = pa.array(values, kind).dictionary_encode()
    path = write_parquet(tmp_path / "b.parquet", label=[0, 1], item=coded)
    assert inspect(path).inferred_types["item"] is expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    big=st.integers(2**53 + 1, 2**63 - 1),
)
def test_ids_stay_distinct_through_csv_and_parquet(tmp_path, ids, big):
    ids = [*ids, big, big - 1]
    rows = "".join(f"{number % 2},{number}\n" for number in ids)
    write(tmp_path / "a.csv", f"label,item\n{rows}".encode())
    write_parquet(tmp_path / "a.parquet", label=[number % 2 for number in ids], item=ids)
    texts = [str(number) for number in ids]
    for path in (tmp_path / "a.csv", tmp_path / "a.parquet"):
        kind = inspect(path).inferred_types["item"]
        data = DataConfig(train=str(path))
        batches = stream_rows(data, str(path), {"item": kind}, label_required=True)
        assert [text for batch in batches for text in batch.column("item").to_pylist()] == texts


def test_parquet_without_rows(tmp_path):
    empty = pa.table({"label": pa.array([], pa.int8()), "n": pa.array([], pa.int8())})
    pq.write_table(empty, tmp_path / "a.parquet")
    assert "has no rows" in refusal(tmp_path / "a.parquet").message


def test_a_large_file_is_looked_at_in_part(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("wb") as stream:
        stream.write(b"label,n\n")
        for block in range(12):
            stream.write(b"".join(b"%d,%d\n" % (i % 2, block) for i in range(100_000)))
    source = inspect(path)
    assert source.head.num_rows == pytest.approx(4 * 2**20 / 4, rel=0.01)
    assert np.all(source.head["n"].to_numpy() < 12)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("lable", "Did you mean 'label'?"), ("age", "Name the right column; if the file has no hea")],
)
def test_a_column_is_suggested_if_it_is_like_the_one_that_is_missing(tmp_path, name, remedy):
    path = tmp_path / "rows.csv"
    path.write_text("race,label\na,1\nb,0\n")
    with pytest.raises(DataError) as caught:
        inspect_source(DataConfig(train=str(path), label=name))
    assert caught.value.remedy.startswith(remedy)
