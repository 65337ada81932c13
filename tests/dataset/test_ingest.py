import csv
import gzip
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.columns import known_texts
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import column_names, read_batches, read_columns
from ctr_pipeline.errors import DataError, RunFolderError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT
ALL_TRAIN = SplitConfig(valid=0, test=0)


def run(data, types, folder, **options):
    options = {"threads": 2, "progress": SilentProgress(), **options}
    of_rows = {"sensitive", "lists", "extra_columns"} & set(options)
    rows = {"seed": options.pop("seed", 0), **{name: options.pop(name) for name in of_rows}}
    return ingest(RowsToRead(data, inspect_source(data), types, **rows), folder, **options)


def rows_of(ingested, split="train"):
    files = ingested.splits[split].files
    return read_columns(files, column_names(files)).to_pydict()


def write_csv(path: Path, header, rows, **options):
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, **{"lineterminator": "\n", **options})
        writer.writerows([header, *rows])
    return path


def config(path, **options):
    return DataConfig(train=str(path), **{"split": ALL_TRAIN, **options})


# Any text that UTF-8 can hold; NUL is refused as binary content.
CELLS = st.text(
    alphabet=st.one_of(
        st.sampled_from(list(',;"\n\r\t 0é漢😀')),
        st.characters(min_codepoint=32, exclude_categories=["Cs"]),
    ),
    max_size=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(
    cells=[("", "\x7f"), ("\x7f", "\x7f"), ("TRUE", "7.0")],
    delimiter=",",
    line_end="\n",
    block_bytes=16,
    bom=False,
    final_newline=False,
)
@given(
    cells=st.lists(st.tuples(CELLS, CELLS), min_size=2, max_size=20),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    block_bytes=st.sampled_from([16, 64, 1 << 20]),
    bom=st.booleans(),
    final_newline=st.booleans(),
)
def test_any_text_survives(
    tmp_path_factory, cells, delimiter, line_end, block_bytes, bom, final_newline
):
    folder = tmp_path_factory.mktemp("any")
    rows = [[i % 2, *row, i] for i, row in enumerate(cells)]
    path = write_csv(
        folder / "rows.csv",
        ["label", "a", "b", "n"],
        rows,
        delimiter=delimiter,
        lineterminator=line_end,
        quoting=csv.QUOTE_NONNUMERIC,
    )
    content = path.read_bytes()
    if not final_newline:
        content = content.removesuffix(line_end.encode())
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + content)
    data = config(path, delimiter=delimiter)
    result = run(data, {"a": TEXT, "b": TEXT, "n": NUMBER}, folder / "in", block_bytes=block_bytes)
    found = rows_of(result)
    for name, texts in zip("ab", zip(*cells, strict=True), strict=True):
        written = pa.array([text or None for text in texts], pa.string())
        assert found[name] == known_texts(written, ("",)).to_pylist()
    assert found["n"] == [float(i) for i in range(len(cells))]
    assert found["label"] == [i % 2 for i in range(len(cells))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.one_of(st.floats(width=64), st.integers(-(10**20), 10**20), st.none()),
        min_size=2,
        max_size=20,
    ),
    pad=st.sampled_from(["", " ", "+"]),
)
def test_any_number_survives(tmp_path_factory, values, pad):
    folder = tmp_path_factory.mktemp("numbers")
    texts = ["" if v is None else repr(v) for v in values]
    texts = [pad + t if not (pad == "+" and t.startswith("-")) and t else t for t in texts]
    rows = [[i % 2, text, "x"] for i, text in enumerate(texts)]
    path = write_csv(folder / "rows.csv", ["label", "n", "t"], rows)
    found = rows_of(run(config(path), {"n": NUMBER}, folder / "in"))["n"]
    expected = [None if v is None or v != v else float(v) for v in values]
    assert found == expected


def test_texts_that_look_like_numbers_stay_as_they_are(tmp_path):
    ids = ["32813e21", "007", "1.50", "1e5", "0", "+5", "5 5", "nan", "inf", "-0"]
    path = write_csv(tmp_path / "r.csv", ["label", "id"], [[i % 2, v] for i, v in enumerate(ids)])
    assert rows_of(run(config(path), {"id": TEXT}, tmp_path / "in"))["id"] == ids


def test_missing_values_are_null_in_every_kind_of_column(tmp_path):
    rows = [[0, "", ""], [1, "NA", "NA"], [0, "-", "nan"], [1, "x", "-"], [0, "nan", " NA "]]
    path = write_csv(tmp_path / "r.csv", ["label", "t", "n"], rows)
    data = config(path, missing_values=("NA", "-"))
    found = rows_of(run(data, {"t": TEXT, "n": NUMBER}, tmp_path / "in"))
    assert found["t"] == [None, None, None, "x", "nan"]
    assert found["n"] == [None] * 5


def test_windows_lines_blank_lines_and_no_last_line_end(tmp_path):
    path = tmp_path / "r.csv"
    path.write_bytes(b"\r\nlabel,a\r\n\r\n0,x\r\n\r\n\r\n1,y")
    assert rows_of(run(config(path), {"a": TEXT}, tmp_path / "in")) == {
        "label": [0, 1],
        "a": ["x", "y"],
    }


def test_a_file_without_header(tmp_path):
    path = tmp_path / "r.txt"
    path.write_bytes(b"1\t5\ta\n0\t\tb\n")
    data = config(path, columns=("label", "n", "t"))
    found = rows_of(run(data, {"n": NUMBER, "t": TEXT}, tmp_path / "in"))
    assert found == {"label": [1, 0], "n": [5.0, None], "t": ["a", "b"]}


def test_ingest_keeps_only_columns_asked_for_and_keys(tmp_path):
    rows = [[0, "u1", 3, "x"], [1, "u2", 4, "y"]]
    path = write_csv(tmp_path / "r.csv", ["label", "user", "n", "unused"], rows)
    data = config(path, key_columns=("user", "n"))
    ingested = run(data, {"n": NUMBER}, tmp_path / "in")
    names = ["label", "n", "user"]
    table = read_columns(ingested.splits["train"].files, names)
    assert column_names(ingested.splits["train"].files) == names
    assert table.schema.names == ["label", "n", "user"]
    assert [str(field.type) for field in table.schema] == ["int8", "double", "string"]


def test_a_quote_character_may_be_plain(tmp_path):
    path = tmp_path / "r.csv"
    path.write_bytes(b'label,a\n0,"x\n1,5" screen\n')
    found = rows_of(run(config(path, quote=None), {"a": TEXT}, tmp_path / "in"))
    assert found["a"] == ['"x', '5" screen']


@pytest.mark.parametrize("label", ["0", "1", "0.0", "1.0", "+1", " 1"])
def test_labels_may_be_written_as_numbers(tmp_path, label):
    path = write_csv(tmp_path / "r.csv", ["label", "a"], [[label, "x"], [0, "y"], [1, "z"]])
    assert rows_of(run(config(path), {"a": TEXT}, tmp_path / "in"))["label"][0] == float(label)


# --- compression ---------------------------------------------------------------------------------


def many_rows(n=5000):
    rng = np.random.default_rng(1)
    return [[int(rng.random() < 0.3), f"u{rng.integers(50)}", i] for i in range(n)]


@pytest.mark.parametrize("kind", ["gz", "zst", "gz members", "zst frames"])
def test_compressed_files_are_read_whole(tmp_path, kind):
    rows = many_rows()
    plain = write_csv(tmp_path / "plain.csv", ["label", "u", "n"], rows).read_bytes()
    half = len(plain) // 2
    pieces = [plain[:half], plain[half:]] if " " in kind else [plain]
    compress = gzip.compress if kind.startswith("gz") else zstandard.compress
    # The ending need not tell.
    path = tmp_path / "rows.csv"
    path.write_bytes(b"".join(compress(piece) for piece in pieces))
    found = rows_of(run(config(path), {"n": NUMBER}, tmp_path / "in", block_bytes=1 << 12))
    assert found["n"] == [float(row[2]) for row in rows]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_truncated_file_is_an_error(tmp_path, compress):
    rng = np.random.default_rng(0)
    rows = [[i % 2, rng.bytes(40).hex()] for i in range(80_000)]
    plain = write_csv(tmp_path / "plain.csv", ["label", "t"], rows).read_bytes()
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(compress(plain)[:-100])
    with pytest.raises(DataError, match=r"rows\.csv\.gz: is truncated or damaged"):
        run(config(path), {"t": TEXT}, tmp_path / "in")
    assert not (tmp_path / "in").exists()
    assert [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []


# --- bad rows ------------------------------------------------------------------------------------

HEADER = b"label,n,t\n"
BAD_ROWS = {
    "too few": (b"1,5\n", None, "wrong number of columns: 2 instead of 3: '1,5'"),
    "too many": (b"1,5,a,b\n", None, "wrong number of columns: 4 instead of 3: '1,5,a,b'"),
    "number": (b"1,five,a\n", "n", "not a number: 'five'"),
    "utf8": (b"1,5,caf\xe9\n", "t", r"not UTF-8: 'caf\\xe9'"),
    "utf8 and count": (b"1,5,caf\xe9,x\n", None, "wrong number of columns: 4 instead of 3"),
    "label missing": (b",5,a\n", "label", "label missing"),
    "label nan": (b"nan,5,a\n", "label", "label missing"),
    "label 2": (b"2,5,a\n", "label", "label not 0 or 1: '2'"),
    "label text": (b"yes,5,a\n", "label", "label not 0 or 1: 'yes'"),
}


def bad_file(tmp_path, bad: bytes, at: int = 300):
    path = tmp_path / "rows.csv"
    good = [
        b'%d,%d,"a\nb"\n' % (i % 2, i) if i == 7 else b"%d,%d,a\n" % (i % 2, i) for i in range(500)
    ]
    good.insert(at, bad)
    path.write_bytes(HEADER + b"".join(good))
    # One header line, one quoted line end before, numbered from 1.
    return path, at + 1 + 1 + 1


@pytest.mark.parametrize("block_bytes", [256, 1 << 20])
@pytest.mark.parametrize("kind", BAD_ROWS)
def test_the_first_bad_row_stops_and_is_named(tmp_path, kind, block_bytes):
    bad, column, message = BAD_ROWS[kind]
    path, line = bad_file(tmp_path, bad)
    with pytest.raises(DataError) as caught:
        run(config(path), {"n": NUMBER, "t": TEXT}, tmp_path / "in", block_bytes=block_bytes)
    place = f"{path}, row {line}" + (f", column '{column}'" if column else "")
    assert caught.value.place == place
    assert caught.value.message.startswith(message)
    assert "data.bad_rows: skip" in caught.value.remedy
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize("block_bytes", [256, 1 << 20])
def test_bad_rows_are_skipped_and_counted(tmp_path, block_bytes):
    path = tmp_path / "rows.csv"
    lines = [b"%d,%d,a\n" % (i % 2, i) for i in range(500)]
    for bad, _, _ in BAD_ROWS.values():
        lines.insert(100, bad)
    path.write_bytes(HEADER + b"".join(lines))
    data = config(path, bad_rows="skip", max_bad_fraction=0.1)
    result = run(data, {"n": NUMBER, "t": TEXT}, tmp_path / "in", block_bytes=block_bytes)
    assert result.bad_rows.total == len(BAD_ROWS)
    assert {str(k): v for k, v in result.bad_rows.by_reason.items()} == {
        "wrong number of columns": 3,
        "not UTF-8": 1,
        "not a number": 1,
        "label missing": 2,
        "label not 0 or 1": 2,
    }
    assert sorted(example.row for example in result.bad_rows.examples) == list(range(102, 111))
    assert rows_of(result)["n"] == [float(i) for i in range(500)]


def test_examples_are_few(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(
        HEADER + b"".join(b"%d,x%d,a\n" % (i % 2, i) for i in range(100)) + b"0,1,a\n1,1,a\n"
    )
    data = config(path, bad_rows="skip", max_bad_fraction=1.0)
    bad = run(data, {"n": NUMBER}, tmp_path / "in", block_bytes=128).bad_rows
    assert bad.total == 100
    assert [example.value for example in bad.examples] == [f"'x{i}'" for i in range(5)]


def test_bad_rows_are_an_error_beyond_max_bad_fraction(tmp_path):
    path, line = bad_file(tmp_path, b"2,5,a\n")
    data = config(path, bad_rows="skip", max_bad_fraction=0.001)
    with pytest.raises(
        DataError, match=r"1 of 501 rows are bad \(0\.20%\).*max_bad_fraction"
    ) as caught:
        run(data, {"n": NUMBER, "t": TEXT}, tmp_path / "in")
    assert f"row {line}" in caught.value.place


@pytest.mark.parametrize("bad", [b"1,secret,a\n", b"1,secret,a,b\n"])
def test_sensitive_values_are_not_shown(tmp_path, bad):
    path, _ = bad_file(tmp_path, bad)
    with pytest.raises(DataError) as caught:
        run(config(path), {"n": NUMBER, "t": TEXT}, tmp_path / "in", sensitive={"n"})
    assert "secret" not in str(caught.value)
    data = config(path, bad_rows="skip")
    run(data, {"n": NUMBER, "t": TEXT}, tmp_path / "in", sensitive={"n"})
    assert "secret" not in (tmp_path / "in" / "ingested.json").read_text()


def test_long_values_are_shortened(tmp_path):
    path, _ = bad_file(tmp_path, b"1," + b"z" * 1000 + b",a\n")
    with pytest.raises(DataError) as caught:
        run(config(path), {"n": NUMBER, "t": TEXT}, tmp_path / "in")
    assert len(str(caught.value)) < 400


def test_bad_utf8_in_a_column_that_is_not_read_is_no_fault(tmp_path):
    path, _ = bad_file(tmp_path, b"1,+5,caf\xe9\n")
    assert run(config(path), {"n": NUMBER}, tmp_path / "in").splits["train"].num_rows == 501


@pytest.mark.parametrize(
    ("rows", "line"), [(b'0,1,a\n1,2,"b\n0,3,c\n', 3), (b'1,2,"b\n0,3,c\n', 2)]
)
def test_a_quote_that_never_closes_is_an_error(tmp_path, rows, line):
    path = tmp_path / "rows.csv"
    path.write_bytes(HEADER + rows)
    with pytest.raises(DataError, match="never closed") as caught:
        run(config(path), {"t": TEXT}, tmp_path / "in")
    assert caught.value.place.endswith(f"row {line}")


def test_a_record_longer_than_any_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_pipeline.dataset.formats.text.blocks.LONGEST_VALUE_BYTES", 1 << 20)
    path = tmp_path / "rows.csv"
    path.write_bytes(HEADER + b"0,1,a\n1,2," + b"x" * (3 << 20))
    with pytest.raises(DataError, match="a row is longer than 1 MiB") as caught:
        run(config(path), {"t": TEXT}, tmp_path / "in", block_bytes=1 << 18)
    assert caught.value.place.endswith("row 3")
    path.write_bytes(HEADER + b'0,1,a\n1,2,"' + b"x\n" * (2 << 20))
    with pytest.raises(DataError, match="never closed") as caught:
        run(config(path), {"t": TEXT}, tmp_path / "in", block_bytes=1 << 18)
    assert caught.value.place.endswith("row 3")


def test_long_records_are_fine(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(HEADER + b"0,1,%s\n1,2,b\n" % (b"x" * (6 << 20)))
    found = rows_of(run(config(path), {"t": TEXT}, tmp_path / "in"))["t"]
    assert [len(text) for text in found] == [6 << 20, 1]


def test_two_thousand_columns(tmp_path):
    names = [f"c{i}" for i in range(2000)]
    rows = [[row % 2, *(row + i for i in range(2000))] for row in range(50)]
    path = write_csv(tmp_path / "r.csv", ["label", *names], rows)
    found = rows_of(run(config(path), dict.fromkeys(names, NUMBER), tmp_path / "in"))
    assert found["c1999"] == [float(row + 1999) for row in range(50)]


def test_files_with_other_column_orders_are_read_by_name(tmp_path):
    write_csv(tmp_path / "a.csv", ["label", "a", "b"], [[0, "a1", "b1"]])
    write_csv(tmp_path / "b.csv", ["b", "label", "a"], [["b2", 1, "a2"]])
    found = rows_of(run(config(tmp_path / "*.csv"), {"a": TEXT, "b": TEXT}, tmp_path / "in"))
    assert found == {"label": [0, 1], "a": ["a1", "a2"], "b": ["b1", "b2"]}


def test_rows_of_a_later_file_are_numbered_from_its_start(tmp_path):
    write_csv(tmp_path / "a.csv", ["label", "n"], [[i % 2, i] for i in range(100)])
    write_csv(tmp_path / "b.csv", ["label", "n"], [[1, 1]] * 10 + [[1, "x"]])
    with pytest.raises(DataError) as caught:
        run(config(tmp_path / "*.csv"), {"n": NUMBER}, tmp_path / "in", block_bytes=100)
    assert caught.value.place == f"{tmp_path / 'b.csv'}, row 12, column 'n'"


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path):
    path = split_file(tmp_path)

    class Touch(SilentProgress):
        def task(self, name, *, total, unit="rows"):
            os.utime(path, ns=(1, 1))
            return super().task(name, total=total, unit=unit)

    with pytest.raises(DataError, match="changed while it was read"):
        run(config(path), {"n": NUMBER}, tmp_path / "in", progress=Touch())


def test_a_full_disk_is_an_error_of_the_run_folder(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", refuse)
    with pytest.raises(RunFolderError, match="the disk is full"):
        run(config(split_file(tmp_path)), {"n": NUMBER}, tmp_path / "in")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.csv"]


@pytest.mark.skipif(
    "CTRPIPE_CRITEO_DATA" not in os.environ, reason="CTRPIPE_CRITEO_DATA names no Criteo rows"
)
def test_criteo_rows_agree_with_a_plain_reading(tmp_path):
    names = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
    path = Path(os.environ["CTRPIPE_CRITEO_DATA"])
    types = {name: NUMBER if name.startswith("I") else TEXT for name in names[1:]}
    found = rows_of(run(config(path, columns=names, format="tsv"), types, tmp_path / "in"))
    with path.open(encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split("\t") for line in stream]
    for index, name in enumerate(names):
        read = float if name.startswith("I") else int if name == "label" else str
        assert found[name] == [read(row[index]) if row[index] else None for row in rows]


# --- splits --------------------------------------------------------------------------------------


def split_file(tmp_path, n=4000):
    return write_csv(tmp_path / "r.csv", ["label", "u", "n"], many_rows(n))


@pytest.mark.parametrize("block_bytes", [1000, 1 << 20])
def test_split_by_order_trains_on_the_first_rows_and_tests_on_the_last(tmp_path, block_bytes):
    data = config(split_file(tmp_path), split=SplitConfig(valid=0.15, test=0.25))
    result = run(data, {"n": NUMBER}, tmp_path / "in", block_bytes=block_bytes)
    assert rows_of(result, "train")["n"] == list(range(2400))
    assert rows_of(result, "valid")["n"] == list(range(2400, 3000))
    assert rows_of(result, "test")["n"] == list(range(3000, 4000))


@pytest.mark.parametrize("by", ["random", "hash"])
def test_splits_are_disjoint_complete_and_do_not_depend_on_blocks(tmp_path, by):
    split = SplitConfig(valid=0.2, test=0.2, by=by, column="u" if by == "hash" else None)
    data = config(split_file(tmp_path), split=split)
    found = []
    for block_bytes in (500, 1 << 20):
        result = run(data, {"n": NUMBER}, tmp_path / str(block_bytes), block_bytes=block_bytes)
        found.append({name: rows_of(result, name)["n"] for name in result.splits})
    assert found[0] == found[1]
    assert sorted(itertools.chain(*found[0].values())) == list(range(4000))
    assert all(values == sorted(values) for values in found[0].values())
    assert len(found[0]["train"]) == pytest.approx(2400, abs=100 if by == "random" else 600)


def test_the_random_split_depends_on_the_seed(tmp_path):
    data = config(split_file(tmp_path), split=SplitConfig(by="random"))
    one = run(data, {"n": NUMBER}, tmp_path / "in", seed=1)
    two = run(data, {"n": NUMBER}, tmp_path / "in", seed=2)
    assert one.fingerprint != two.fingerprint
    assert rows_of(two, "test") == rows_of(run(data, {"n": NUMBER}, tmp_path / "x", seed=2), "test")


def test_split_by_hash_keeps_a_value_in_one_split_and_drops_its_column(tmp_path):
    split = SplitConfig(valid=0.2, test=0.2, by="hash", column="u")
    path = split_file(tmp_path)
    kept = run(config(path, split=split), {"u": TEXT}, tmp_path / "in")
    users = [set(rows_of(kept, name)["u"]) for name in kept.splits]
    assert sum(len(group) for group in users) == len(set.union(*users)) == 50
    dropped = run(config(path, split=split), {"n": NUMBER}, tmp_path / "in2")
    assert list(rows_of(dropped)) == ["label", "n"]


def test_splits_of_their_own_files(tmp_path):
    header, rows = ["label", "n"], [[i % 2, i] for i in range(100)]
    for name, part in (("train", rows[:80]), ("valid", rows[80:90]), ("test", rows[90:])):
        write_csv(tmp_path / f"{name}.csv", header, part)
    data = DataConfig(
        train=str(tmp_path / "train.csv"),
        valid=str(tmp_path / "valid.csv"),
        test=str(tmp_path / "test.csv"),
    )
    result = run(data, {"n": NUMBER}, tmp_path / "in")
    assert [split.num_rows for split in result.splits.values()] == [80, 10, 10]
    only_test = DataConfig(train=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv"))
    result = run(only_test, {"n": NUMBER}, tmp_path / "in")
    assert {k: v.num_rows for k, v in result.splits.items()} == {
        "train": 72,
        "valid": 8,
        "test": 10,
    }


def test_labels_are_counted(tmp_path):
    rows = many_rows(1000)
    data = config(write_csv(tmp_path / "r.csv", ["label", "u", "n"], rows), split=SplitConfig())
    result = run(data, {"n": NUMBER}, tmp_path / "in")
    counts = [sum(row[0] for row in part) for part in (rows[:800], rows[800:900], rows[900:])]
    assert [split.num_positive for split in result.splits.values()] == counts


@pytest.mark.parametrize(
    ("rows", "split", "message"),
    [
        ([[0, 1], [1, 2]], SplitConfig(), "the valid split has no rows"),
        ([[0, 1], [0, 2]], ALL_TRAIN, "all 2 labels of the train split are 0"),
        ([[1, 1], [1, 2]], ALL_TRAIN, "all 2 labels of the train split are 1"),
        ([[0, 1]] * 5 + [[1, 1]] * 5, SplitConfig(valid=0, test=0.2), "all 2 labels of the test"),
    ],
)
def test_splits_without_rows_or_with_one_class_are_refused(tmp_path, rows, split, message):
    path = write_csv(tmp_path / "r.csv", ["label", "n"], rows)
    with pytest.raises(DataError, match=message):
        run(config(path, split=split), {"n": NUMBER}, tmp_path / "in")
    assert not (tmp_path / "in").exists()


# --- the record, reuse, failure -------------------------------------------------------------------


def test_the_record_round_trips_and_the_folder_can_be_moved(tmp_path):
    result = run(config(split_file(tmp_path)), {"n": NUMBER}, tmp_path / "in")
    assert load_ingested(tmp_path / "in") == result
    (tmp_path / "in").rename(tmp_path / "moved")
    moved = load_ingested(tmp_path / "moved")
    assert moved.splits["train"].files[0] == tmp_path / "moved" / "train" / "part-00000.arrow"
    assert rows_of(moved)["n"] == list(range(4000))


def test_equal_ingestions_are_reused_and_others_are_not(tmp_path):
    path = split_file(tmp_path)
    first = run(config(path), {"n": NUMBER}, tmp_path / "in")
    inode = first.splits["train"].files[0].stat().st_ino
    again = run(config(path), {"n": NUMBER}, tmp_path / "in", seed=7)
    assert again == first
    assert again.splits["train"].files[0].stat().st_ino == inode
    other = run(config(path), {"n": TEXT}, tmp_path / "in")
    assert other.fingerprint != first.fingerprint
    os.utime(path, ns=(1, 1))
    assert run(config(path), {"n": TEXT}, tmp_path / "in").fingerprint != other.fingerprint


def test_a_failed_ingestion_leaves_the_one_before(tmp_path):
    path = split_file(tmp_path)
    first = run(config(path), {"n": NUMBER}, tmp_path / "in")
    with pytest.raises(DataError, match="not a number"):
        run(config(path), {"u": NUMBER}, tmp_path / "in")
    assert load_ingested(tmp_path / "in") == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "r.csv"]


def test_leftovers_of_a_killed_ingestion_go(tmp_path):
    (tmp_path / ".in.12345.tmp" / "train").mkdir(parents=True)
    run(config(split_file(tmp_path)), {"n": NUMBER}, tmp_path / "in")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "r.csv"]


def test_a_damaged_record_counts_as_none_and_is_replaced(tmp_path):
    path = split_file(tmp_path)
    whole = run(config(path), {"n": NUMBER}, tmp_path / "in")
    record = tmp_path / "in" / "ingested.json"
    facts = json.loads(record.read_text())
    record.write_text(json.dumps({**facts, "version": 0}))
    assert load_ingested(tmp_path / "in") is None
    record.write_text("{")
    assert load_ingested(tmp_path / "in") is None
    rows = run(config(path), {"n": NUMBER}, tmp_path / "in")
    assert (rows.splits, rows.fingerprint) == (whole.splits, whole.fingerprint)
    rows.splits["train"].files[0].unlink()
    assert load_ingested(tmp_path / "in") is None
    assert load_ingested(tmp_path / "nowhere") is None
    assert run(config(path), {"n": NUMBER}, tmp_path / "in").splits["train"].num_rows == 4000


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError):
        run(config(split_file(tmp_path)), {"n": NUMBER}, tmp_path / "file" / "in")


def test_a_column_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no column 'nn', which features names"):
        run(config(split_file(tmp_path)), {"nn": NUMBER}, tmp_path / "in")


def test_batches_are_bounded_in_order_and_dictionary_encoded(tmp_path):
    result = run(config(split_file(tmp_path)), {"u": TEXT, "n": NUMBER}, tmp_path / "in")
    batches = list(read_batches(result.splits["train"].files, ["n", "u"], 300))
    assert {batch.num_rows for batch in batches} == {300, 100}
    assert batches[0].schema.names == ["n", "u"]
    assert all(pa.types.is_dictionary(field.type) for field in batches[0].schema)
    expected = Counter(row[1] for row in many_rows(4000))
    assert Counter(u for batch in batches for u in batch.column("u").to_pylist()) == expected


MEMORY_PROGRAM = """
import resource, sys
from pathlib import Path
from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.progress import SilentProgress
data = DataConfig(train=sys.argv[1], split=SplitConfig(by=sys.argv[2]))
source = inspect_source(data)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ingest(RowsToRead(data, source, {"t": ColumnType.TEXT}, seed=0), Path(sys.argv[3]), threads=2,
       progress=SilentProgress(), block_bytes=1 << 20)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "rows.csv"
    rng = np.random.default_rng(0)
    text = "".join(f"{i % 2},{rng.bytes(48).hex()}\n" for i in range(20_000))
    with path.open("wb") as stream:
        stream.write(b"label,t\n")
        for _ in range(100):
            stream.write(text.encode())
    # 2 M rows, 197 MB of text; the parts in the making and the allocator's reserve stay.
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_PROGRAM, path, "order", tmp_path / "in"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) < 150
