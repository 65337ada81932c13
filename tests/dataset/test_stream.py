import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.formats.recordio.chunks import RecordIOWriter
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.specs.columns import ColumnType
from tests.dataset.example_messages import example_of

TYPES = {"n": ColumnType.NUMBER, "t": ColumnType.TEXT}


def stream(data, path, **options):
    batches = list(stream_rows(data, str(path), TYPES, **options))
    return pa.Table.from_batches(batches).to_pydict()


def test_new_rows_without_label(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("t,key,n\n007,k1,1\n,k2,\n")
    data = DataConfig(train="unused.csv")
    assert stream(data, path, label_required=False, extra_columns=["key"]) == {
        "n": [1.0, None],
        "t": ["007", None],
        "key": ["k1", "k2"],
    }
    with pytest.raises(DataError, match="no column 'label', which the model names"):
        stream(data, path, label_required=True)


def test_new_rows_with_label(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("label,t,n\n1,a,1\n0,b,2\n")
    data = DataConfig(train="unused.csv")
    assert stream(data, path, label_required=True)["label"] == [1, 0]
    assert "label" not in stream(data, path, label_required=False)


def clicks_in_every_format(folder, written):
    """Files of the same labels, by name; text with a quoted line end is read the exact way."""
    texts = [str(one) for one in written]
    lines = "".join(f"{text},a,1\n" for text in texts)
    (folder / "plain.csv").write_text(f"label,t,n\n{lines}")
    (folder / "quoted.csv").write_text(f'label,t,n\n{lines}{texts[0]},"a\nb",1\n')
    rows = {"t": ["a"] * len(written), "n": [1.0] * len(written)}
    pq.write_table(pa.table({"label": written, **rows}), folder / "typed.parquet")
    labels = pa.array(texts).dictionary_encode()
    pq.write_table(pa.table({"label": labels, **rows}), folder / "texts.parquet")
    for name, records in (
        ("lines.recordio", ["label,t,n", *(f"{text},a,1" for text in texts)]),
        ("examples.recordio", [{"label": text.encode(), "t": b"a", "n": 1} for text in texts]),
        ("numbers.recordio", [{"label": one, "t": b"a", "n": 1} for one in written]),
    ):
        if type(written[0]) in {int, float} or name != "numbers.recordio":
            with (folder / name).open("wb") as file, RecordIOWriter(file) as writer:
                for record in records:
                    is_line = isinstance(record, str)
                    writer.write(
                        record.encode() if is_line else example_of(record).SerializeToString()
                    )
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    ("positive", "written"),
    [
        ("True", [True, False, False, True]),
        ("yes", ["yes", "no", "no", "yes"]),
        (1, [1, -1, -1, 1]),
        (1, [1.0, -1.0, -1.0, 1.0]),
    ],
)
def test_labels_written_otherwise_mean_the_same_in_every_format(tmp_path, positive, written):
    data = DataConfig(train="unused.csv", positive=positive)
    for path in clicks_in_every_format(tmp_path, written):
        found = stream(data, path, label_required=True)["label"]
        assert found[:4] == [1, 0, 0, 1], path.name


@pytest.mark.parametrize("other", ["maybe", "2"])
def test_a_label_of_neither_value_is_a_bad_row(tmp_path, other):
    data = DataConfig(train="unused.csv", positive="yes")
    for path in clicks_in_every_format(tmp_path, ["yes", "no", other, "yes"]):
        with pytest.raises(DataError, match="label neither data") as caught:
            stream(data, path, label_required=True)
        assert "row" in caught.value.place
        assert f"'{other}'" in caught.value.message


@pytest.mark.parametrize("content", ["1,a,5\n0,b,6\n", "a,5\nb,6\n"])
def test_a_file_without_header_may_lack_the_label(tmp_path, content):
    path = tmp_path / "new.csv"
    path.write_text(content)
    data = DataConfig(train="unused.csv", columns=("label", "t", "n"))
    assert stream(data, path, label_required=False) == {"n": [5.0, 6.0], "t": ["a", "b"]}


@pytest.mark.parametrize("header", ["n,t", "label,t,n", "t,n,label", "more,t,n"])
def test_names_in_a_file_decide_though_training_had_none(tmp_path, header):
    values = {"label": "1", "t": "007", "n": "3", "more": "x"}
    path = tmp_path / "new.csv"
    path.write_text("\n".join([header, ",".join(values[name] for name in header.split(","))]))
    data = DataConfig(train="unused.csv", columns=("label", "t", "n"))
    assert stream(data, path, label_required=False) == {"n": [3.0], "t": ["007"]}


def test_another_format_than_that_of_training(tmp_path):
    path = tmp_path / "new.parquet"
    pq.write_table(pa.table({"n": [1, 2], "t": ["a", "b"]}), path)
    data = DataConfig(train="unused.csv", columns=("label", "t", "n"))
    assert stream(data, path, label_required=False) == {"n": [1.0, 2.0], "t": ["a", "b"]}


@pytest.mark.parametrize("header", ["", "t,n\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_above_the_rows_are_skipped_and_counted(tmp_path, header, end):
    path = tmp_path / "new.csv"
    text = f'Clicks, "all\n\n{header}a,1\nb,2\nc,bad\n'
    path.write_bytes(text.replace("\n", end).encode())
    data = DataConfig(train="unused.csv", skip_lines=2, columns=None if header else ("t", "n"))
    with pytest.raises(DataError) as caught:
        stream(data, path, label_required=False)
    line = 6 if header else 5
    assert caught.value.place == f"{path}, row {line}, column 'n'"
    path.write_bytes(path.read_bytes().replace(b"bad", b"3"))
    found = stream(data, path, label_required=False)
    assert found == {"n": [1.0, 2.0, 3.0], "t": ["a", "b", "c"]}


def test_bad_rows_stop_or_are_counted(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("t,n\n" + "a,1\n" * 200 + "a,x\n")
    with pytest.raises(DataError, match="not a number: 'x'") as caught:
        stream(DataConfig(train="unused.csv"), path, label_required=False)
    assert "row 202" in caught.value.place
    ledger = BadRowLedger("skip", 0.01)
    found = stream(DataConfig(train="unused.csv"), path, label_required=False, ledger=ledger)
    assert len(found["n"]) == ledger.num_good == 200
    assert ledger.close().total == 1
    with pytest.raises(DataError, match="max_bad_fraction"):
        stream(
            DataConfig(train="unused.csv"),
            path,
            label_required=False,
            ledger=BadRowLedger("skip", 0.001),
        )


def test_a_reader_that_stops_early_leaves_nothing_running(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("t,n\n" + "a,1\n" * 3_000_000)
    rows = stream_rows(DataConfig(train="unused.csv"), str(path), TYPES, label_required=False)
    assert next(rows).num_rows > 0
    rows.close()
