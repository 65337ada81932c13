import contextlib
import gzip
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset import object_files
from ctr_pipeline.dataset.formats.recordio.chunks import RecordIOWriter
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.object_files import find_objects
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError, StorageError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.storage import ranged_reading
from ctr_pipeline.storage.protocol import ObjectChangedError
from tests.storage.memory_buckets import MemoryBuckets

TYPES = {"price": ColumnType.NUMBER, "city": ColumnType.TEXT}
CITIES = ["Oslo", "Köln", "点击", ""]
LINES = [f"{n % 2},{n / 4},{CITIES[n % 4]}" for n in range(5_000)]


@pytest.fixture
def store(monkeypatch):
    """Buckets in this process's memory."""
    return MemoryBuckets(monkeypatch)


def in_ranges_of(patch, *, jump=1_000, ahead=3_000, buffer=500):
    patch.setattr(ranged_reading, "JUMP_BYTES", jump)
    patch.setattr(ranged_reading, "READ_AHEAD_BYTES", ahead)
    patch.setattr(ranged_reading, "BUFFER_BYTES", buffer)


def table():
    return pa.table(
        {
            "label": [n % 2 for n in range(5_000)],
            "price": [n / 4 for n in range(5_000)],
            "city": [CITIES[n % 4] for n in range(5_000)],
        }
    )


def as_text():
    return ("label,price,city\n" + "\n".join(LINES) + "\n").encode()


def as_parquet():
    file = io.BytesIO()
    pq.write_table(table(), file, row_group_size=700)
    return file.getvalue()


def as_recordio():
    file = io.BytesIO()
    with RecordIOWriter(file, chunk_bytes=9_000) as writer:
        for line in ["label,price,city", *LINES]:
            writer.write(line.encode())
    return file.getvalue()


FILES = {
    "rows.csv": as_text,
    "rows.csv.gz": lambda: gzip.compress(as_text()),
    "rows.parquet": as_parquet,
    "rows.recordio": as_recordio,
}


def rows_of(train, folder, **options):
    data = DataConfig(train=train, split=SplitConfig(valid=0, test=0), **options)
    rows = ingest(
        RowsToRead(data, inspect_source(data), TYPES, seed=0),
        folder / "in",
        threads=2,
        progress=SilentProgress(),
    )
    return read_columns(rows.splits["train"].files, ["label", *TYPES]).to_pydict()


@pytest.mark.parametrize("name", FILES)
def test_an_object_holds_what_the_same_file_holds(store, tmp_path, name, monkeypatch):
    in_ranges_of(monkeypatch)
    content = FILES[name]()
    (tmp_path / name).write_bytes(content)
    store.put(f"s3://bucket/{name}", content)
    address = f"s3://bucket/{name}"
    here = inspect_source(DataConfig(train=str(tmp_path / name)))
    there = inspect_source(DataConfig(train=address))
    assert there.head == here.head
    assert (there.format, there.inferred_types) == (here.format, here.inferred_types)
    assert there.size_bytes == len(content)

    found = rows_of(address, tmp_path / "there")
    assert found == rows_of(str(tmp_path / name), tmp_path / "here")
    assert found["city"][:4] == ["Oslo", "Köln", "点击", None]
    assert len(found["label"]) == 5_000


def test_local_addresses_are_paths(tmp_path):
    (tmp_path / "rows.csv").write_bytes(as_text())
    source = inspect_source(DataConfig(train=f"file://{tmp_path}/rows.csv"))
    assert source.files["train"] == (tmp_path / "rows.csv",)


def addresses(address):
    return [str(file) for file in find_objects(address, "data.train")]


def test_globs_find_objects_by_name(store):
    for name in ("b.csv", "a.csv", "_SUCCESS", "c.tsv", "deep/d.csv", "odd[1].csv"):
        store.put(f"s3://bucket/day/{name}", b"label,x\n0,1\n")
    assert addresses("s3://bucket/day/*.csv") == [
        "s3://bucket/day/a.csv",
        "s3://bucket/day/b.csv",
        "s3://bucket/day/odd[1].csv",
    ]
    assert "s3://bucket/day/deep/d.csv" in addresses("s3://bucket/**/*.csv")
    assert addresses("s3://bucket/day/odd[1].csv") == ["s3://bucket/day/odd[1].csv"]
    files = find_objects("s3://bucket/day/*", "data.train")
    assert [file.name for file in files] == ["a.csv", "b.csv", "c.tsv", "odd[1].csv"]


def test_folders_of_objects_are_columns(store):
    for day in ("2024-03-02", "2024-03-01"):
        part = io.BytesIO()
        pq.write_table(table().slice(0, 3), part)
        store.put(f"s3://bucket/clicks/ds={day}/part-0.parquet", part.getvalue())
    store.put("s3://bucket/clicks/_temporary/ds=9/part-0.parquet", b"PAR1")
    store.put("s3://bucket/clicks/_SUCCESS", b"")
    source = inspect_source(DataConfig(train="s3://bucket/clicks/"))
    assert source.column_names == ("label", "price", "city", "ds")
    rows = pa.concat_tables(source.format.read_typed(source, SilentProgress()))
    assert rows.column("ds").to_pylist() == ["2024-03-01"] * 3 + ["2024-03-02"] * 3

    store.put("s3://bucket/clicks/ds=2024-03-01/notes.txt", b"text")
    with pytest.raises(DataError, match=r"notes\.txt: is no Parquet file by its name"):
        find_objects("s3://bucket/clicks", "data.train")
    with pytest.raises(DataError, match=r"is a folder, not a file.*s3://bucket/\*\.parquet"):
        find_objects("s3://bucket/", "data.train")


@given(
    size=st.integers(0, 400),
    moves=st.lists(
        st.tuples(st.sampled_from(["read", "seek"]), st.integers(0, 450)), min_size=1, max_size=30
    ),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
)
def test_ranges_are_the_bytes_of_the_object(size, moves, sizes):
    content = bytes(n * 7 % 251 for n in range(size))
    expected = io.BytesIO(content)
    with pytest.MonkeyPatch.context() as patch:
        MemoryBuckets(patch).put("s3://bucket/bytes", content)
        in_ranges_of(patch, **dict(zip(("jump", "ahead", "buffer"), sizes, strict=True)))
        (file,) = find_objects("s3://bucket/bytes", "data.train")
        with file.open() as stream:
            for move, amount in moves:
                if move == "seek":
                    assert stream.seek(amount) == expected.seek(amount)
                else:
                    assert stream.read(amount) == expected.read(amount)
                assert stream.tell() == expected.tell()


def test_object_that_is_read_in_order_is_asked_for_once(store, monkeypatch):
    in_ranges_of(monkeypatch, jump=100, ahead=1_000, buffer=64)
    content = bytes(range(256)) * 40
    store.put("s3://bucket/bytes", content)
    (file,) = find_objects("s3://bucket/bytes", "data.train")
    with store.counted_ranges() as ranges, file.open() as stream:
        assert b"".join(iter(lambda: stream.read(37), b"")) == content
    asked = sorted(ranges)
    assert [start for start, _ in asked] == [0, *(end for _, end in asked[:-1])]
    assert asked[-1][1] == len(content)
    assert len(asked) == 2 + -(-(len(content) - 200) // 1_000)


def test_a_look_reads_only_the_start(store):
    content = ("label,price,city\n" + "0,1.5,Oslo\n" * 2_000_000).encode()
    store.put("s3://bucket/rows.csv", content)
    with store.counted_ranges() as ranges:
        inspect_source(DataConfig(train="s3://bucket/rows.csv"))
    assert sum(end - start for start, end in ranges) < len(content) / 2


# How often an object is opened for a look, before its rows are read.
@pytest.mark.parametrize(
    ("name", "at"), [("rows.csv", 3), ("rows.parquet", 3), ("rows.recordio", 3)]
)
def test_an_object_that_changes_while_it_is_read_is_refused(store, monkeypatch, name, at):
    in_ranges_of(monkeypatch)
    content = FILES[name]()
    if name == "rows.csv":
        # More than one block, which is one range, and so of one version.
        content += ("\n".join(LINES * 100) + "\n").encode()
    store.put(f"s3://bucket/{name}", content)
    address = f"s3://bucket/{name}"
    data = DataConfig(train=address)
    batches = stream_rows(data, address, TYPES, label_required=False, threads=1)
    opened = object_files.ObjectFile.open

    def open_and_change(file, *arguments):
        stream = opened(file, *arguments)
        if len(changes) == at:
            # As many bytes: some ranges could be of the one, some of the other.
            store.put(f"s3://bucket/{name}", content)
        changes.append(file)
        return stream

    changes = []
    monkeypatch.setattr(object_files.ObjectFile, "open", open_and_change)
    with pytest.raises(ObjectChangedError, match="was written again while it was read"):
        list(batches)
    assert len(changes) > at


def test_an_object_of_another_size_than_was_found_is_refused(store):
    store.put("s3://bucket/rows.csv", as_text())
    (file,) = find_objects("s3://bucket/rows.csv", "data.train")
    store.put("s3://bucket/rows.csv", as_text()[:-20])
    with pytest.raises(DataError, match=r"changed since it was found\. Let nothing write"):
        file.open()
    store.delete("s3://bucket/rows.csv")
    with pytest.raises(DataError, match="cannot be found any more"):
        file.open()


def test_rows_are_read_again_only_if_the_object_changed(store, tmp_path):
    store.put("s3://bucket/rows.csv", as_text())
    address = "s3://bucket/rows.csv"
    rows_of(address, tmp_path)
    written = (tmp_path / "in" / "ingested.json").stat().st_mtime_ns
    rows_of(address, tmp_path)
    assert (tmp_path / "in" / "ingested.json").stat().st_mtime_ns == written
    store.put("s3://bucket/rows.csv", as_text())
    rows_of(address, tmp_path)
    assert (tmp_path / "in" / "ingested.json").stat().st_mtime_ns != written


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s33://bucket/a.csv", r"'s33://' is no scheme that is read.*Did you mean 's3://'"),
        ("ftp://host/a.csv", r"'ftp://' is no scheme.*s3://, .*Write one of these"),
        ("S3://bucket/a.csv", r"Did you mean 's3://'"),
        ("s3://", "names no object"),
        ("s3://bucket/a.csv", r"data\.train: no such object: 's3://bucket/a\.csv'"),
        ("s3://bucket/*.csv", r"data\.train: no object matches"),
        ("s3://bucket/a.zip::s3://b", "chains several file systems"),
        ("s3://AKIA:hunter2@bucket/a.csv", "holds a password or a signature"),
        ("https://b.s3.example/a.csv?X-Amz-Signature=hunter2", "password or a signature"),
        ("https://example/a.csv?sv=1&sig=hunter2", "password or a signature"),
        ("https://example/a.csv?access_token=hunter2", "password or a signature"),
        ("https://example/a.csv?day=1&api_key=hunter2", "password or a signature"),
        ("https://example/a.csv?API-Key=hunter2", "password or a signature"),
        ("https://example/a.csv?password=hunter2", "password or a signature"),
        ("https://example/a.csv?client_secret=hunter2", "password or a signature"),
        ("https://example/a.csv?%74oken=hunter2", "password or a signature"),
        ("https://example/a.csv?key=hunter2", "password or a signature"),
    ],
)
def test_addresses_that_cannot_be_used(store, address, says):
    with pytest.raises(DataError, match=says) as caught:
        find_objects(address, "data.train")
    assert caught.value.remedy
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("oss://bucket/a.csv", "OSS is read as S3: write s3://, and set AWS_ENDPOINT_URL"),
        ("gcs://bucket/a.csv", "Write it as gs://"),
        ("https://example/a.csv?day=1", "Name the file without it"),
        ("s3://bucket//a.csv", "as the store lists it"),
        ("s3://bucket/../a.csv", "as the store lists it"),
    ],
)
def test_an_address_that_other_tools_know_is_told_how_to_write(address, remedy):
    with pytest.raises(DataError, match=remedy):
        find_objects(address, "data.train")


def test_one_object_twice_would_count_twice(store):
    store.put("s3://bucket/rows.csv", as_text())
    train = ("s3://bucket/rows.csv", "s3://bucket/*.csv")
    with pytest.raises(DataError, match="named twice"):
        inspect_source(DataConfig(train=train))


class Web(BaseHTTPRequestHandler):
    """Serves a folder in ranges."""

    folder: Path
    serves_ranges = True
    asked: list[str]

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def _answer(self, *, with_body):
        path = self.folder / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        self.asked.append(f"{self.command} {self.headers.get('Range')}")
        status, part = 200, content
        if self.serves_ranges and self.headers.get("Range"):
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            status, part = 206, content[int(first) : int(last) + 1]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        if self.serves_ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if with_body:
            # Who is refused a range reads no further.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(part)

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def web(tmp_path):
    """The address of a server of a folder, and what answers."""
    (tmp_path / "web").mkdir()
    handler = type("Handler", (Web,), {"folder": tmp_path / "web", "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_a_web_server_is_read_in_ranges(web, tmp_path, name, monkeypatch):
    address, handler = web
    in_ranges_of(monkeypatch, ahead=10_000)
    (handler.folder / name).write_bytes(FILES[name]())
    found = rows_of(f"{address}/{name}", tmp_path)
    assert found["price"] == [n / 4 for n in range(5_000)]
    assert all("bytes=" in asked for asked in handler.asked if asked.startswith("GET"))
    with pytest.raises(DataError, match="no such object"):
        inspect_source(DataConfig(train=f"{address}/other.csv"))


def test_a_web_server_without_ranges_is_refused(web):
    address, handler = web
    handler.serves_ranges = False
    content = as_text() * 20
    (handler.folder / "rows.csv").write_bytes(content)
    with pytest.raises(StorageError, match=r"is served as a whole, .*and not in ranges"):
        inspect_source(DataConfig(train=f"{address}/rows.csv"))
