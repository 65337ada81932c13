from pathlib import Path
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.partitions import partition_of
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.dataset.paths import resolve_files
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT


def write(path: Path, **columns) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def clicks(tmp_path):
    """Two days of two hours, a few rows each, and what Hadoop leaves beside them."""
    folder = tmp_path / "clicks"
    number = 0
    for day in ("2024-03-02", "2024-03-01"):
        for hour in ("07", "08"):
            number += 10
            place = folder / f"ds={day}" / f"hour={hour}"
            write(place / "part-0.parquet", label=[0, 1], x=[number, number + 1])
    (folder / "_SUCCESS").write_text("")
    (folder / "ds=2024-03-01" / "hour=07" / ".part-0.parquet.crc").write_text("crc")
    write(folder / "_temporary" / "ds=9" / "hour=9" / "part-0.parquet", label=[1], x=[99])
    return folder


def inspect(train, **options):
    return inspect_source(DataConfig(train=str(train), **options))


def rows_of(train, types, folder, **options):
    data = DataConfig(train=str(train), split=SplitConfig(valid=0, test=0), **options)
    rows = ingest(
        RowsToRead(data, inspect_source(data), types, seed=0),
        folder / "in",
        threads=2,
        progress=SilentProgress(),
    )
    return read_columns(rows.splits["train"].files, list(types)).to_pydict()


@pytest.mark.parametrize("train", ["", "ds=*/**/*.parquet", "ds=2024-*/hour=0?/*"])
def test_folders_are_columns_and_files_are_sorted(clicks, tmp_path, train):
    place = clicks / train
    source = inspect(place)
    assert source.column_names == ("label", "x", "ds", "hour")
    assert source.inferred_types == {"label": NUMBER, "x": NUMBER, "ds": TEXT, "hour": TEXT}
    found = rows_of(place, {"x": NUMBER, "ds": TEXT, "hour": TEXT}, tmp_path)
    assert found == {
        "x": [30, 31, 40, 41, 10, 11, 20, 21],
        "ds": ["2024-03-01"] * 4 + ["2024-03-02"] * 4,
        "hour": ["07", "07", "08", "08"] * 2,
    }


def test_a_column_of_a_folder_is_whatever_the_config_wants(clicks, tmp_path):
    assert rows_of(clicks, {"hour": NUMBER}, tmp_path)["hour"] == [7.0, 7.0, 8.0, 8.0] * 2
    keys = rows_of(clicks, {"x": NUMBER, "ds": TEXT}, tmp_path, key_columns=("ds", "hour"))
    assert keys["ds"][0] == "2024-03-01"


def test_the_head_sees_several_folders(clicks):
    assert inspect(clicks).head.column("ds").unique().to_pylist() == ["2024-03-01", "2024-03-02"]


def test_whole_numbers_are_numbers(tmp_path):
    for age in (18, 9, 40):
        write(tmp_path / "t" / f"age={age}" / "a.parquet", label=[0, 1], x=[1, 2])
    source = inspect(tmp_path / "t")
    assert source.inferred_types["age"] is NUMBER
    # Sorted by path, as a glob's files are.
    assert source.head.column("age").to_pylist() == [18.0, 18.0, 40.0, 40.0, 9.0, 9.0]


def test_missing_values_and_escapes(tmp_path):
    for value in ("__HIVE_DEFAULT_PARTITION__", "", "a%2Fb%3Dc%20%E7%82%B9", "NA", "plain=x"):
        write(tmp_path / "t" / f"kind={value}" / "a.parquet", label=[0, 1], x=[1, 2])
    found = rows_of(tmp_path / "t", {"kind": TEXT}, tmp_path, missing_values=("", "NA"))
    present = [value for value in found["kind"] if value is not None]
    assert sorted(set(present)) == ["a/b=c 点", "plain=x"]
    assert (len(present), len(found["kind"])) == (4, 10)


def test_partitions_that_duckdb_writes_are_read_as_duckdb_reads_them(tmp_path):
    folder = tmp_path / "written"
    with duckdb.connect() as connection:
        connection.sql(
            "SELECT (i % 2)::INT AS label, i AS x, ['a b', 'ü/=%', NULL][1 + i % 3] AS city, "
            "i % 2 AS half FROM range(60) t(i)"
        ).write_parquet(str(folder), partition_by=["city", "half"])
        expected = connection.sql(
            f"SELECT x, city, half FROM read_parquet('{folder}/**/*.parquet', "
            "hive_partitioning=true) ORDER BY x"
        ).fetchall()
    found = rows_of(folder, {"x": NUMBER, "city": TEXT, "half": NUMBER}, tmp_path)
    assert sorted(zip(*found.values(), strict=True)) == expected
    assert len(expected) == 60


def test_new_rows_of_one_day_have_its_columns(clicks):
    data = DataConfig(train=str(clicks))
    types = {"ds": TEXT, "hour": NUMBER}
    for place in ("ds=2024-03-02", "ds=2024-03-02/hour=0*/*", "ds=2024-03-02/hour=07"):
        batches = list(stream_rows(data, str(clicks / place), types, label_required=False))
        assert set(pa.Table.from_batches(batches).column("ds").to_pylist()) == {"2024-03-02"}
        assert batches[0].column("hour").to_pylist() == [7.0, 7.0]


def test_converted_rows_have_the_columns_of_their_folders(clicks):
    source = inspect(clicks)
    tables = list(source.format.read_typed(source, SilentProgress()))
    found = pa.concat_tables(tables)
    assert found.column_names == ["label", "x", "ds", "hour"]
    assert found.column("x").to_pylist() == [30, 31, 40, 41, 10, 11, 20, 21]
    assert found.column("hour").to_pylist() == ["07", "07", "08", "08"] * 2


def test_folders_beside_files_that_are_no_parquet_change_nothing(tmp_path):
    path = tmp_path / "ds=1" / "a.csv"
    path.parent.mkdir()
    path.write_text("label,x\n0,1\n1,2\n")
    assert inspect(path).column_names == ("label", "x")


def refusal(train, **options) -> DataError:
    with pytest.raises(DataError) as caught:
        inspect(train, **options)
    assert caught.value.place
    assert caught.value.remedy
    return caught.value


def test_a_column_of_both_is_refused(clicks):
    path = write(clicks / "ds=2024-03-02" / "hour=09" / "b.parquet", label=[0], x=[1], hour=[9])
    found = refusal(clicks)
    assert found.place == str(path)
    assert "own column 'hour' and its folder 'hour=09'" in found.message


def test_files_of_different_folders_are_refused(clicks):
    path = write(clicks / "ds=2024-03-03" / "a.parquet", label=[0], x=[1])
    found = refusal(clicks)
    assert found.place == str(path)
    assert "lacks 'hour'" in found.message


def test_one_key_twice_is_refused(tmp_path):
    write(tmp_path / "t" / "ds=1" / "ds=2" / "a.parquet", label=[0], x=[1])
    assert "two of its folders are named 'ds=…'" in refusal(tmp_path / "t").message


@pytest.mark.parametrize("name", ["notes.txt", "a.csv", "part-0.parquet.gz"])
def test_other_files_in_the_folders_are_refused(clicks, name):
    (clicks / "ds=2024-03-01" / name).write_text("label,x\n0,1\n")
    found = refusal(clicks)
    assert "is no Parquet file by its name" in found.message
    assert name in found.place


def test_folders_without_files_are_refused(tmp_path):
    (tmp_path / "t" / "ds=1").mkdir(parents=True)
    assert "no file is in the folder" in refusal(tmp_path / "t").message


def test_names_that_are_not_utf8_are_refused(tmp_path):
    write(tmp_path / "t" / "ds=%FF" / "a.parquet", label=[0], x=[1])
    assert "not UTF-8" in refusal(tmp_path / "t").message


def test_a_plain_folder_is_still_refused(tmp_path):
    write(tmp_path / "plain" / "a.parquet", label=[0], x=[1])
    assert "is a folder, not a file" in refusal(tmp_path / "plain").message


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(st.dictionaries(names, names, min_size=1, max_size=4))
def test_any_names_and_values_come_back(values):
    folders = [f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in values.items()]
    path = Path("data", *folders, "a.parquet")
    assert dict(partition_of(path)) == values


def test_one_file_is_not_named_twice(clicks):
    with pytest.raises(DataError, match="named twice"):
        resolve_files([str(clicks), str(clicks / "ds=2024-03-01")], "data.train")
