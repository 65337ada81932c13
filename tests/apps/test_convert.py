import gzip
import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.apps.convert import Target, convert_rows, format_of
from ctr_pipeline.cli.main import main
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.formats.recordio.chunks import RecordIOReader
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.errors import CtrPipelineError, DataError
from ctr_pipeline.progress import SilentProgress

ROWS = {
    "label": [0, 1, 0],
    "price": [0.5, None, -2.0],
    "zip": ["007", "8", None],
    "city": ["Oslo", 'a "b"\n\t,c', "点击"],
    "big": [2**59 + 1, None, -5],
}
# What a value becomes as text: whole floats lose their point.
TEXTS = {
    "label": ["0", "1", "0"],
    "price": ["0.5", None, "-2"],
    "zip": ["007", "8", None],
    "city": ["Oslo", 'a "b"\n\t,c', "点击"],
    "big": [str(2**59 + 1), None, "-5"],
}


def convert(rows, output, *, columns=None, settings=(), overwrite=False, **options):
    target = Target(output, options.pop("format", None) or format_of(output), **options)
    return convert_rows(
        str(rows),
        target,
        columns=columns,
        settings=settings,
        overwrite=overwrite,
        progress=SilentProgress(),
    )


def start(folder, rows=ROWS):
    path = folder / "start.parquet"
    pq.write_table(pa.table(rows), path)
    return path


STEPS = {
    "csv": ("x.csv", {}),
    "csv.gz": ("x.csv.gz", {}),
    "tsv.zst": ("x.tsv.zst", {}),
    "lines": ("x.recordio", {"compression": "snappy"}),
    "examples": ("x.rio", {"record": "example", "compression": "gzip"}),
    "parquet": ("y.parquet", {}),
}


@pytest.mark.parametrize("names", list(itertools.permutations(STEPS, 2)), ids="-".join)
def test_rows_stay_the_same_through_all_formats(tmp_path, names):
    path = start(tmp_path)
    for number, name in enumerate((*names, "parquet")):
        file, options = STEPS[name]
        (tmp_path / str(number)).mkdir()
        result = convert(path, tmp_path / str(number) / file, **options)
        assert result.num_rows == 3
        assert result.num_columns == 5
        assert result.num_rounded == 0
        path = result.output
    table = pq.read_table(path)
    assert table.to_pydict() == ROWS
    assert table.schema.field("big").type == pa.int64()
    texts = convert(path, tmp_path / "end.csv").output
    head = inspect_source(DataConfig(train=str(texts))).head
    assert head.column("zip").to_pylist() == ROWS["zip"]


def test_texts_are_kept_letter_by_letter(tmp_path):
    text = 'a,b,c\n1.50,+7," x"\n1e5,,é\n007,nan,\n'
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
    lines = convert(tmp_path / "rows.csv", tmp_path / "rows.recordio").output
    with RecordIOReader(lines) as reader:
        records = [bytes(record).decode() for part in reader.read() for record in part]
    assert records == ["a\tb\tc", "1.50\t+7\t x", "1e5\t\té", "007\tnan\t"]
    back = convert(lines, tmp_path / "back.csv").output
    assert back.read_text(encoding="utf-8") == text.replace('" x"', " x")
    packed = convert(lines, tmp_path / "back.csv.gz").output
    assert gzip.decompress(packed.read_bytes()) == back.read_bytes()
    bare = convert(lines, tmp_path / "bare.tsv", header=False).output
    assert bare.read_text(encoding="utf-8").splitlines() == records[1:]
    named = convert(bare, tmp_path / "named.csv", columns=("a", "b", "c")).output
    assert named.read_bytes() == back.read_bytes()


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", ""], pa.int64()),
        (["9" * 18], pa.int64()),
        (["1", "0.5"], pa.float64()),
        (["0.5", "1"], pa.float64()),
        (["1.5", "nan"], pa.float64()),
        (["1", "x"], pa.string()),
        (["01", "1"], pa.string()),
        (["+1"], pa.float64()),
        (["-0", "1"], pa.float64()),
        (["9" * 19], pa.string()),
        (["0.5", "9" * 20], pa.string()),
        (["", ""], pa.string()),
    ],
)
def test_texts_become_numbers_where_nothing_is_lost(tmp_path, texts, kind):
    # The telling value may come late: all rows are read before the first is written.
    rows = "".join(f"{i},{text}\n" for i, text in enumerate([*texts[:1] * 9, *texts]))
    (tmp_path / "rows.csv").write_text("n,x\n" + rows, encoding="utf-8")
    table = pq.read_table(convert(tmp_path / "rows.csv", tmp_path / "rows.parquet").output)
    assert table.schema.field("x").type == kind
    assert table.num_rows == 9 + len(texts)


def test_digits_that_a_float32_has_not_are_counted(tmp_path):
    path = start(tmp_path, {"label": [0, 1, 1], "x": [0.1, 0.5, float("nan")]})
    assert convert(path, tmp_path / "x.recordio", record="example").num_rounded == 1


VALUES = st.text(st.sampled_from("ab\",;\t\n\r é'0"), max_size=5)


@given(
    st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=9),
    st.sampled_from(["x.csv", "x.tsv", "x.recordio"]),
    st.sampled_from([1, 2]),
)
def test_any_texts_come_back(tmp_path_factory, rows, name, width):
    folder = tmp_path_factory.mktemp("texts")
    names = ["first", 'sec "o"\tnd'][:width]
    columns = {key: [row[i] or None for row in rows] for i, key in enumerate(names)}
    path = start(folder, {key: pa.array(values, pa.string()) for key, values in columns.items()})
    text = convert(path, folder / name).output
    if width == 1:
        # One column has no delimiter to be known by.
        assert text.stat().st_size
        return
    back = convert(text, folder / "back.parquet").output
    found = pq.read_table(back).to_pydict()
    assert {key: [v if v is None else str(v) for v in found[key]] for key in found} == columns


def test_features_that_come_late_are_not_lost(tmp_path):
    late = {"label": [0] * 9000, "x": [None] * 8999 + [7]}
    path = start(tmp_path, {**late, "x": pa.array(late["x"], pa.int64())})
    examples = convert(path, tmp_path / "x.recordio", record="example").output
    assert pq.read_table(convert(examples, tmp_path / "x.parquet").output).to_pydict() == late


def write_files(folder, *tables):
    for number, table in enumerate(tables):
        pq.write_table(pa.table(table), folder / f"part-{number}.parquet")
    return folder / "part-*.parquet"


def test_files_of_several_types_become_one_of_the_narrowest(tmp_path):
    rows = write_files(
        tmp_path,
        {"n": pa.array([1], pa.int32()), "t": pa.array(["a"]).dictionary_encode()},
        {"t": pa.array(["b"], pa.large_string()), "n": pa.array([2]), "x": [0.5]},
        {"n": [2.5], "t": pa.nulls(1)},
    )
    convert(rows, tmp_path / "all.parquet")
    found = pq.read_table(tmp_path / "all.parquet")
    assert found.schema.types == [pa.float64(), pa.large_string(), pa.float64()]
    assert found.to_pydict() == {
        "n": [1.0, 2.0, 2.5],
        "t": ["a", "b", None],
        "x": [None, 0.5, None],
    }


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ([True], [2], "part-1.parquet, column 'n': has the types bool and int64, which no type"),
        ([2**53 + 1], [0.5], "part-0.parquet: has a value that the type of other files cannot"),
    ],
)
def test_files_of_types_that_nothing_holds_together_are_named(tmp_path, one, other, message):
    rows = write_files(tmp_path, {"n": one, "m": [1]}, {"n": other, "m": [1]})
    with pytest.raises(DataError) as refused:
        convert(rows, tmp_path / "all.parquet")
    assert message in str(refused.value)
    assert not (tmp_path / "all.parquet").exists()


def test_an_output_is_whole_or_absent(tmp_path):
    rows = [f"{i % 2},{i}" for i in range(500_000)]
    (tmp_path / "rows.csv").write_text("label,x\n" + "\n".join(rows) + "\n1\n", encoding="utf-8")
    for name in ("x.tsv", "x.parquet", "x.recordio"):
        with pytest.raises(DataError, match="wrong number of columns") as caught:
            convert(tmp_path / "rows.csv", tmp_path / name)
        assert "row 500002" in caught.value.place
        assert "bad_rows" not in caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        (pa.array([[1], [2]]), {"format": "csv"}, "has the type list<.*>, without a text"),
        (pa.array([[1], [2]]), {"record": "example"}, "has the type list<.*>, without a text"),
        (pa.array([b"a", b"\xff"]), {"format": "csv"}, "bytes that are not UTF-8"),
        (pa.array([1, 2**63], pa.uint64()), {"record": "example"}, "numbers beyond int64"),
    ],
)
def test_columns_that_the_target_cannot_hold_are_named(tmp_path, column, options, message):
    path = start(tmp_path, {"label": [0, 1], "odd": column})
    with pytest.raises(CtrPipelineError, match=message) as caught:
        convert(path, tmp_path / "x.recordio", **options)
    assert "column 'odd'" in caught.value.place
    assert not (tmp_path / "x.recordio").exists()


def test_the_command_says_what_it_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    start(tmp_path, {"label": [0, 1], "x": [0.1, 0.5]})
    call = ["convert", "start.parquet", "-o", "new/rows.recordio", "--record", "example", "-q"]
    assert main(call) == 0
    out = capsys.readouterr().out
    assert "2 rows of 2 columns as recordio" in out
    assert "1 numbers have fewer digits" in out
    assert main(call) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main([*call, "--overwrite", "--json"]) == 0
    assert '"num_rows": 2' in capsys.readouterr().out
