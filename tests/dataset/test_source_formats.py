"""Formats of sources: how they are recognised, and rows in units."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.apps.convert import Target, convert_rows
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset import inspection
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.columns import plan_columns
from ctr_pipeline.dataset.formats import FORMATS
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.dataset.rows import read_good_rows
from ctr_pipeline.dataset.source import Unit
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from tests.dataset.feather_format import FeatherFormat

TYPES = {"price": ColumnType.NUMBER, "city": ColumnType.TEXT}
NUM_ROWS = 700


@pytest.fixture
def rows():
    return pa.table(
        {
            "label": [n * 7 % 3 == 0 for n in range(NUM_ROWS)],
            "price": [None if n % 11 == 0 else n / 4 for n in range(NUM_ROWS)],
            "city": [None if n % 13 == 0 else f"Ørsta {n % 40}" for n in range(NUM_ROWS)],
        }
    ).set_column(0, "label", pa.array([int(n * 7 % 3 == 0) for n in range(NUM_ROWS)]))


@pytest.fixture
def with_feather(monkeypatch):
    monkeypatch.setattr(inspection, "FORMATS", (FeatherFormat(("feather",)), *FORMATS))


def write_feather(table, path):
    pyarrow.feather.write_feather(table, path, compression="uncompressed", chunksize=100)


def write_parquet(table, path):
    pq.write_table(table, path, row_group_size=100)


def write_text(table, path):
    lines = [f"{label}\t{price}\t{city}" for label, price, city in zip(*texts(table), strict=True)]
    # A mark and blank lines stand before the names, which belong to the first unit.
    path.write_text("\ufeff\n\n" + "\n".join(["label\tprice\tcity", *lines]), encoding="utf-8")


def write_recordio(record):
    def write(table, path):
        whole = path.with_suffix(".parquet")
        pq.write_table(table, whole)
        from ctr_pipeline.dataset.formats.recordio import chunks

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(chunks.RecordIOWriter.__init__.__kwdefaults__, "chunk_bytes", 4096)
            convert_rows(str(whole), Target(path, "recordio", record), progress=SilentProgress())

    return write


def texts(table):
    return [["" if value is None else str(value) for value in one.to_pylist()] for one in table]


FILES = {
    "rows.feather": write_feather,
    "rows.parquet": write_parquet,
    "rows.tsv": write_text,
    "lines.recordio": write_recordio("line"),
    "examples.recordio": write_recordio("example"),
}


def read(source, data, units):
    plan = plan_columns(data, TYPES, label_required=True, carried=(), sensitive=())
    with ThreadPoolExecutor(1) as pool:
        tables = read_good_rows(
            source, units, plan, BadRowLedger("fail", 0.0), pool, max_ahead=1, block_bytes=1 << 12
        )
        return pa.concat_tables([plan.schema.empty_table(), *tables])


@pytest.mark.parametrize("name", FILES)
def test_units_hold_all_rows_and_are_read_alone(name, rows, tmp_path, monkeypatch, with_feather):
    monkeypatch.chdir(tmp_path)
    FILES[name](rows, tmp_path / name)
    data = DataConfig(train=name, quote=None)
    source = inspect_source(data)
    (whole,) = source.units("train")
    assert whole == Unit("train", name)
    expected = read(source, data, [whole])
    assert [column.to_pylist() for column in expected] == [one.to_pylist() for one in rows]
    for unit_bytes in (1, 1_500, 4_000, 1 << 30):
        units = source.units("train", unit_bytes)
        assert (len(units) > 1) == (unit_bytes < 1 << 30)
        there = [Unit(**json.loads(json.dumps(asdict(unit)))) for unit in units]
        assert there == units
        found = [read(inspect_source(data), data, [unit]) for unit in there]
        assert pa.concat_tables(found).equals(expected)
        assert read(source, data, units).equals(expected)


@pytest.mark.parametrize("options", [{}, {"quote": None, "compressed": True}])
def test_text_that_quotes_or_is_compressed_is_not_cut(rows, tmp_path, options):
    path = tmp_path / "rows.tsv"
    write_text(rows, path)
    if options.pop("compressed", False):
        packed = path.with_suffix(".tsv.gz")
        with pa.output_stream(str(packed), compression="gzip") as stream:
            stream.write(path.read_bytes())
        path = packed
    source = inspect_source(DataConfig(train=str(path), **options))
    assert source.units("train", 1) == [Unit("train", str(path))]


def test_a_format_is_one_file_and_one_line(rows, tmp_path, with_feather):
    feather, parquet = tmp_path / "rows.feather", tmp_path / "rows.parquet"
    write_feather(rows, feather)
    write_parquet(rows, parquet)
    found = {}
    for path in (feather, parquet):
        data = DataConfig(train=str(path))
        source = inspect_source(data)
        ingested = ingest(
            RowsToRead(data, source, TYPES, seed=0),
            tmp_path / path.suffix,
            threads=1,
            progress=SilentProgress(),
        )
        found[path] = {
            split: read_columns(one.files, ["label", *TYPES])
            for split, one in ingested.splits.items()
        }
    assert source.format_name == "parquet"
    assert found[feather] == found[parquet]
    back = tmp_path / "back.parquet"
    convert_rows(str(feather), Target(back, "parquet"), progress=SilentProgress())
    assert pq.read_table(back).equals(rows)


WITH_THE_LINE = """
import sys
from ctr_pipeline.specs import source_formats

line = source_formats.RegisteredFormat("tests.dataset.feather_format:FeatherFormat", ("feather",))
source_formats.SOURCE_FORMATS = (line, *source_formats.SOURCE_FORMATS)
from ctr_pipeline.cli.main import main

sys.exit(main(sys.argv[1:5]) or main(sys.argv[5:]))
"""


@pytest.mark.slow
def test_config_and_commands_know_the_format_by_its_line(rows, tmp_path):
    write_feather(rows, tmp_path / "rows.feather")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    commands = ["init", "rows.feather", "-o", "config.yaml", "analyze", "config.yaml", "--json"]
    commands += ["--set", "data.format=feather"]
    done = subprocess.run(
        [sys.executable, "-c", WITH_THE_LINE, *commands],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout


def test_files_of_the_format_are_held_against_the_others(rows, tmp_path, with_feather):
    write_feather(rows, tmp_path / "a.feather")
    write_parquet(rows, tmp_path / "b.parquet")
    with pytest.raises(DataError, match="' is Feather"):
        inspect_source(DataConfig(train=(f"{tmp_path}/a.feather", f"{tmp_path}/b.parquet")))
    (tmp_path / "c.feather").write_bytes(b"label,a\n0,1\n")
    with pytest.raises(DataError, match="is not a Feather file: it does not begin with the bytes"):
        inspect_source(DataConfig(train=f"{tmp_path}/c.feather"))
