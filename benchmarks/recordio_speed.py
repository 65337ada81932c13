"""How fast RecordIO is read and written: MB/s and records/s, one thread.

Files lie in the page cache; a record is a line in the shape of Criteo's. `records` finds every
record and checks every checksum; `lines` and `examples` also make typed columns of them, as
ingestion does.

    python benchmarks/recordio_speed.py [--megabytes 256] [--repeats 5] [--json FILE]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from machine import Spread, describe_machine, print_machine, print_table, write_results

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.columns import ReadingPlan, plan_columns
from ctr_pipeline.dataset.formats.recordio.chunks import (
    Compressor,
    RecordIOReader,
    RecordIOWriter,
    Records,
)
from ctr_pipeline.dataset.formats.recordio.examples import write_examples
from ctr_pipeline.dataset.formats.writers import lines_of, text_columns
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.rows import BLOCK_BYTES
from ctr_pipeline.specs.columns import ColumnType

NUMBERS = [f"I{n}" for n in range(1, 14)]
CATEGORIES = [f"C{n}" for n in range(1, 27)]
AIM_MB_PER_SECOND = 300


def draw_rows(count: int) -> pa.Table:
    """Rows in the shape of Criteo's: a label, 13 counts, 26 hexadecimal texts, some missing."""
    chance = np.random.default_rng(0)
    columns = {"label": pa.array(chance.integers(0, 2, count))}
    for name in NUMBERS:
        counts = np.floor(np.exp(chance.normal(2, 2, count))).astype(np.int64)
        columns[name] = pa.array(counts, mask=chance.random(count) < 0.2)
    for name in CATEGORIES:
        texts = [f"{value:08x}" for value in chance.integers(0, 1 << 32, count)]
        columns[name] = pa.array(texts, mask=chance.random(count) < 0.1)
    return pa.table(columns)


def records_of(table: pa.Table) -> Records:
    """The rows as lines."""
    lines = lines_of(text_columns(table, "rows"), "\t").to_pylist()
    parts = [line.encode() for line in lines]
    sizes = np.array([len(part) for part in parts], np.int64)
    ends = np.cumsum(sizes)
    return Records(np.frombuffer(b"".join(parts), np.uint8), ends - sizes, ends)


def write_file(path: Path, records: Records, repeats: int, compressor: Compressor) -> None:
    """The same records over and over."""
    with path.open("wb") as file, RecordIOWriter(file, compressor=compressor) as writer:
        for _ in range(repeats):
            writer.write_all(records)


def read_records(path: Path) -> None:
    """Every record of a file, found and checked."""
    with RecordIOReader(path) as reader:
        for _ in reader.chunks():
            pass


def each_record(path: Path) -> None:
    """Every record as an object of Python."""
    with RecordIOReader(path) as reader:
        for records, _ in reader.chunks():
            for _ in records:
                pass


def parse(path: Path, data: DataConfig) -> tuple[Callable[[], None], ReadingPlan]:
    """What makes typed columns of all records of a file."""
    source = inspect_source(data)
    types = dict.fromkeys(NUMBERS, ColumnType.NUMBER) | dict.fromkeys(CATEGORIES, ColumnType.TEXT)
    plan = plan_columns(data, types, label_required=True, carried=(), sensitive=())
    (unit,) = source.units("train")

    def read() -> None:
        for block in source.read(unit, plan, BLOCK_BYTES):
            block.parse(plan)

    return read, plan


def read_by_protobuf(path: Path) -> None:
    """The values of every Example as Arrow arrays, read by the library protobuf."""
    # TensorFlow, which has the message, is loaded for this alone.
    from tensorflow.core.example.example_pb2 import Example

    names = ("label", *NUMBERS, *CATEGORIES)
    example = Example()
    with RecordIOReader(path) as reader:
        for records, _ in reader.chunks():
            columns: dict[str, list[object]] = {name: [None] * len(records) for name in names}
            for number, record in enumerate(records):
                example.ParseFromString(bytes(record))
                features = example.features.feature
                for name, values in columns.items():
                    kind = features[name].WhichOneof("kind") if name in features else None
                    if kind is not None and len(found := getattr(features[name], kind).value):
                        values[number] = found[-1]
            for values in columns.values():
                pa.array(values)


def measure(call: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each repeat, after one that is not counted."""
    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256, help="of records in a file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as well")
    options = parser.parse_args()
    megabytes, repeats = (8, 2) if options.quick else (options.megabytes, options.repeats)
    machine = describe_machine()
    print_machine(machine)
    table = draw_rows(5_000)
    lines = records_of(table)
    examples = write_examples(table.combine_chunks().to_batches()[0])
    columns = ("label", *NUMBERS, *CATEGORIES)
    cases: list[tuple[str, Records, Compressor, str]] = [
        ("records, no compression", lines, Compressor.NONE, "records"),
        ("records, snappy", lines, Compressor.SNAPPY, "records"),
        ("records, gzip", lines, Compressor.GZIP, "records"),
        ("records, one by one in Python", lines, Compressor.NONE, "each"),
        ("lines to columns", lines, Compressor.NONE, "columns"),
        ("examples to columns", examples, Compressor.NONE, "columns"),
        ("examples to columns, by protobuf", examples, Compressor.NONE, "protobuf"),
    ]
    readers = {"records": read_records, "each": each_record, "protobuf": read_by_protobuf}
    rows, results = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, records, compressor, kind in cases:
            path = Path(folder) / "rows.recordio"
            copies = max(1, megabytes * 1_000_000 // records.num_bytes)
            num_bytes, num_records = copies * records.num_bytes, copies * len(records)
            start = time.perf_counter()
            write_file(path, records, copies, compressor)
            write_speed = num_bytes / 1e6 / (time.perf_counter() - start)
            is_line = records is lines
            if kind == "columns":
                data = DataConfig(train=str(path), columns=columns if is_line else None)
                call, _ = parse(path, data)
            else:
                reader = readers[kind]

                def call(reader: Callable[[Path], None] = reader, path: Path = path) -> None:
                    reader(path)

            seconds = measure(call, repeats)
            speed = Spread.of([num_bytes / 1e6 / taken for taken in seconds])
            per_second = Spread.of([num_records / 1e3 / taken for taken in seconds])
            share = path.stat().st_size / num_bytes
            rows.append(
                [name, speed.show(0), per_second.show(0), f"{write_speed:,.0f}", f"{share:.2f}"]
            )
            results[name] = {
                "megabytes_per_second": speed.as_dict(),
                "thousand_records_per_second": per_second.as_dict(),
                "write_megabytes_per_second": write_speed,
                "stored_share": share,
            }
    header = ["read", "MB/s of records", "thousand records/s", "written, MB/s", "stored / plain"]
    print_table(header, rows)
    reached = results["records, no compression"]["megabytes_per_second"]["mean"]
    verdict = "met" if reached >= AIM_MB_PER_SECOND else "missed"
    print(f"Aim for records without compression, {AIM_MB_PER_SECOND} MB/s: {verdict}")
    write_results(options.json, benchmark="recordio_speed", machine=machine, results=results)


if __name__ == "__main__":
    main()
