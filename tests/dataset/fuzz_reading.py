"""Reads damaged files in a process of its own: each must give rows or a refusal, nothing else.

As a program: `python -m tests.dataset.fuzz_reading FIRST_SEED COUNT FOLDER KIND…` makes a mutant
of each seed and kind, reads it, and writes one line of JSON. Kind and seed are in `FOLDER/seed` and
the mutant in `FOLDER/KIND` while it is read: a process that dies of one leaves both. An alarm ends
it if a mutant takes too long, and memory is limited.
"""

import dataclasses
import gzip
import json
import os
import random
import resource
import signal
import struct
import sys
import traceback
import zlib
from contextlib import closing
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from ctr_pipeline.dataset.formats.recordio.chunks import Compressor, RecordIOWriter
from ctr_pipeline.durable import crc32_of
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.dense_log import restore_range, save_range
from ctr_pipeline.embeddings.optimizers import rule_of
from ctr_pipeline.embeddings.row_log import restore_rows
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from tests.dataset.example_messages import example_of
from tests.dataset.hostile_reading import memory_bytes, read_all

MUTANT_SECONDS = 60
SPARE_BYTES = 3 << 30
NUM_ROWS = 60
LABELS = [row % 2 for row in range(NUM_ROWS)]
PRICES = [row / 4 for row in range(NUM_ROWS)]
CITIES = [f"city {row % 7}" for row in range(NUM_ROWS)]
LINES = [f"{row[0]},{row[1]},{row[2]}" for row in zip(LABELS, PRICES, CITIES, strict=True)]
TEXT = "\n".join(["label,price,city", *LINES, ""]).encode()
_NUMBERS = [
    0,
    1,
    127,
    128,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
]


def mutated(content, chance, first=0):
    """Some bytes changed, taken out, put in or cut off, from `first` on."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 4, 8])):
        if len(data) <= first:
            break
        place = chance.randrange(first, len(data))
        match chance.randrange(7):
            case 0 | 1:
                data[place] = chance.randrange(256)
            case 2:
                data[place] ^= 1 << chance.randrange(8)
            case 3:
                size = chance.choice([1, 2, 4, 8])
                number = chance.choice(_NUMBERS) & ((1 << 8 * size) - 1)
                data[place : place + size] = number.to_bytes(size, "little")
            case 4:
                del data[place : place + chance.choice([1, 2, 4, 16, 64])]
            case 5:
                start = chance.randrange(first, len(data))
                data[place:place] = data[start : start + chance.choice([1, 4, 16, 64])]
            case 6 if chance.random() < 0.3:
                del data[place:]
    return bytes(data)


class Files:
    """Files of rows in one format.

    Args:
        folder: Where mutants go.
        name: Of a file.
    """

    def __init__(self, folder, name):
        self.path = folder / name
        self.address = str(self.path)

    def write(self, content):
        self.path.write_bytes(content)

    def read(self):
        read_all(self.address)


class Parquet(Files):
    def __init__(self, folder):
        super().__init__(folder, "a.parquet")
        columns = {
            "label": LABELS,
            "price": PRICES,
            "city": CITIES,
            "tags": [["x", "yy"][: row % 3] for row in range(NUM_ROWS)],
            "vector": pa.array([[1.0, 2.0]] * NUM_ROWS, pa.list_(pa.float32(), 2)),
            "day": pa.array(range(NUM_ROWS), pa.date32()),
            "part": [{"one": row, "two": {"three": "x"}} for row in range(NUM_ROWS)],
        }
        self._contents = []
        for options in (
            {"compression": "snappy"},
            {"compression": "zstd", "data_page_version": "2.0", "write_page_index": True},
            {"compression": "gzip", "use_dictionary": False, "write_statistics": False},
            {"compression": "none", "use_dictionary": False, "use_byte_stream_split": ["price"]},
            {
                "compression": "none",
                "use_dictionary": False,
                "column_encoding": {"city": "DELTA_BYTE_ARRAY", "label": "DELTA_BINARY_PACKED"},
            },
        ):
            pq.write_table(pa.table(columns), self.path, row_group_size=25, **options)
            self._contents.append(self.path.read_bytes())

    def mutate(self, chance):
        content = chance.choice(self._contents)
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        if chance.random() < 0.5:
            # The footer's length stays right, so that more of what is inside is reached.
            inside = mutated(content[footer:-8], chance)
            self.write(content[:footer] + inside + struct.pack("<I", len(inside)) + b"PAR1")
        else:
            self.write(mutated(content, chance))


class RecordIO(Files):
    def __init__(self, folder, name="a.recordio"):
        super().__init__(folder, name)
        self._payload = self.payload_of(self.records())

    def records(self):
        return [b"label,price,city", *(line.encode() for line in LINES)]

    @staticmethod
    def payload_of(records):
        return b"".join(struct.pack("<I", len(one)) + one for one in records)

    def mutate(self, chance):
        if chance.random() < 0.3:
            with self.path.open("wb") as file:
                compressor = chance.choice(list(Compressor))
                with RecordIOWriter(file, compressor=compressor, chunk_bytes=500) as writer:
                    for record in self.records():
                        writer.write(record)
            self.write(mutated(self.path.read_bytes(), chance))
            return
        # The checksum of the chunk is right.
        kind = chance.choice([0, 2])
        records = self.records()
        place = chance.randrange(len(records))
        damaged = [*records[:place], mutated(records[place], chance), *records[place + 1 :]]
        payload = self.payload_of(damaged)
        stored = payload if chance.random() < 0.7 else mutated(self._payload, chance)
        stored = gzip.compress(stored, 1) if kind == 2 else stored
        count = len(self.records()) + chance.choice([0, 0, 0, 1, -1, 2**20])
        head = struct.pack("<5I", 0x01020304, zlib.crc32(stored), kind, len(stored), count)
        self.write(head + stored)


class Example(RecordIO):
    def records(self):
        if not hasattr(self, "_records"):
            rows = zip(LABELS, PRICES, CITIES, strict=True)
            self._records = [
                example_of({"label": one, "price": two, "city": three.encode(), "many": [1, 2]})
                for one, two, three in rows
            ]
            self._records = [one.SerializeToString() for one in self._records]
        return self._records

    def mutate(self, chance):
        records = [mutated(one, chance) if chance.random() < 0.2 else one for one in self.records()]
        self._payload = self.payload_of(records)
        stored = self._payload
        head = struct.pack("<5I", 0x01020304, zlib.crc32(stored), 0, len(stored), len(records))
        self.write(head + stored)


class DuckDB(Files):
    def __init__(self, folder):
        super().__init__(folder, "a.duckdb")
        with closing(duckdb.connect(str(self.path))) as connection:
            rows = pa.table({"label": LABELS, "price": PRICES, "city": CITIES})
            connection.register("rows", rows)
            connection.sql("CREATE TABLE t AS SELECT * FROM rows")
        self._content = self.path.read_bytes()
        self._used = [n for n, byte in enumerate(self._content) if byte]
        self.address = f'SELECT * FROM "{self.path}".t ORDER BY rowid'

    def mutate(self, chance):
        # Most of the file is room that is left.
        content = bytearray(self._content)
        for _ in range(chance.choice([1, 2, 4])):
            content[chance.choice(self._used)] = chance.randrange(256)
        self.write(bytes(content) if chance.random() < 0.9 else mutated(content, chance))


class Compressed(Files):
    def __init__(self, folder, name, compress):
        super().__init__(folder, name)
        self._compress = compress

    def mutate(self, chance):
        if chance.random() < 0.5:
            self.write(mutated(self._compress(TEXT), chance))
        else:
            self.write(self._compress(mutated(TEXT, chance)))


class RowLog(Files):
    TABLES = (TableSpec("a", 50), TableSpec("b", 900))
    SEGMENTS = (
        SegmentSpec("linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum"),
        SegmentSpec(
            "vector",
            3,
            OptimizerSpec(name="adam", learning_rate=0.01),
            "mean",
            initializer=InitializerSpec(name="uniform", scale=0.1),
        ),
    )

    def __init__(self, folder):
        store = self._store()
        keys = np.arange(40, dtype=np.int64)
        store.read_rows(keys, create=True)
        snapshot = RowSnapshot(store, cut=1)
        snapshot.begin(full=True)
        (self._file,) = snapshot.write(CutStorage.at(folder), num_partitions=1, partitions=[0])
        super().__init__(folder, self._file.name)
        self._content = self.path.read_bytes()

    def _store(self):
        store = EmbeddingStore(self.TABLES, self.SEGMENTS, seed=3, threads=1)
        store.set_training_counts(
            [IdCounts.of_all(np.arange(table.num_ids) + 5) for table in self.TABLES]
        )
        return store

    def mutate(self, chance):
        self.write(mutated(self._content, chance))

    def read(self):
        size = self.path.stat().st_size
        file = dataclasses.replace(self._file, num_bytes=size, crc32=crc32_of(self.path))
        folder = self.path.parent
        restore_rows(self._store(), CutStorage.at(folder), [(file,)], num_partitions=1, cut=1)


class Dense(Files):
    def __init__(self, folder):
        values = np.arange(50, dtype=np.float32)
        self._optimizer = OptimizerSpec(name="adam", learning_rate=0.1)
        slots = np.zeros(rule_of(self._optimizer).num_slots(50), np.float32)
        self._file = save_range(
            CutStorage.at(folder), values, slots, self._optimizer, cut=1, first=0, num_dense=50
        )
        super().__init__(folder, self._file.name)
        self._content = self.path.read_bytes()

    def mutate(self, chance):
        content = self._content
        if chance.random() < 0.5:
            inside = mutated(content[:-4], chance)
            content = inside + struct.pack("<I", zlib.crc32(inside))
        else:
            content = mutated(content, chance)
        self._rows = chance.choice([50, 50, 50, 49, 10**6])
        self.write(content)

    def read(self):
        size = self.path.stat().st_size
        file = dataclasses.replace(
            self._file, num_bytes=size, crc32=crc32_of(self.path), num_rows=self._rows
        )
        dense = DenseParameters(np.zeros(50, np.float32), self._optimizer)
        restore_range(dense, CutStorage.at(self.path.parent), [file], first=0, num_dense=50)


KINDS = {
    "parquet": Parquet,
    "recordio": RecordIO,
    "example": Example,
    "duckdb": DuckDB,
    "gzip": lambda folder: Compressed(folder, "a.csv.gz", lambda text: gzip.compress(text, 6)),
    "zstd": lambda folder: Compressed(
        folder, "a.csv.zst", zstandard.ZstdCompressor(write_checksum=True).compress
    ),
    "row log": RowLog,
    "dense": Dense,
}


def limit_memory():
    used = memory_bytes("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_mutants(kind, first, count, folder, note):
    (folder / kind).mkdir()
    target = KINDS[kind](folder / kind)
    faults, num_refused = [], 0
    for seed in range(first, first + count):
        os.pwrite(note, f"{kind:10} {seed:020}".encode(), 0)
        target.mutate(random.Random(f"{kind} {seed}"))
        signal.setitimer(signal.ITIMER_REAL, MUTANT_SECONDS)
        try:
            target.read()
        except CtrPipelineError:
            num_refused += 1
        except BaseException:  # noqa: BLE001  each is what is looked for
            faults.append({"seed": seed, "error": traceback.format_exc(limit=-4)})
        signal.setitimer(signal.ITIMER_REAL, 0)
        if seed == first:
            limit_memory()
    return {"refused": num_refused, "faults": faults}


def main(first, count, folder, kinds):
    note = os.open(folder / "seed", os.O_CREAT | os.O_RDWR, 0o600)
    found = {kind: read_mutants(kind, first, count, folder, note) for kind in kinds}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
