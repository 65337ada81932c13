"""Rows of tables through the real client: the same as those of a file, whatever goes wrong."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.columns import plan_columns
from ctr_pipeline.dataset.formats.maxcompute import client as client_module
from ctr_pipeline.dataset.formats.maxcompute import reading
from ctr_pipeline.dataset.formats.maxcompute.table import TableAddress, parse_address
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from tests.maxcompute.maxcompute_service import ACCESS_KEY, PROJECT, Fault, service_in_environment

pytestmark = pytest.mark.slow

TYPES = {
    "price": ColumnType.NUMBER,
    "amount": ColumnType.NUMBER,
    "flag": ColumnType.NUMBER,
    "city": ColumnType.TEXT,
    "user": ColumnType.TEXT,
}
NUM_ROWS = 2500


def clicks(num_rows: int = NUM_ROWS, start: int = 0) -> pa.Table:
    numbers = range(start, start + num_rows)
    return pa.table(
        {
            "click": pa.array([n % 3 == 0 for n in numbers]),
            "price": pa.array([None if n % 7 == 0 else n / 4 for n in numbers], pa.float64()),
            "amount": pa.array([n % 11 for n in numbers], pa.decimal128(12, 0)),
            "flag": pa.array([n % 2 == 0 for n in numbers]),
            "city": pa.array(["", "Zürich", "日本", None][n % 4] for n in numbers),
            "user": pa.array([2**53 + n for n in numbers], pa.int64()),
        }
    )


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(reading, "RANGE_ROWS", 300)
    with service_in_environment(monkeypatch) as running:
        yield running


def config(train="odps://ads/clicks", **values) -> DataConfig:
    return DataConfig(train=train, label="click", key_columns=("user",), **values)


def read(data: DataConfig, folder) -> dict[str, pa.Table]:
    source = inspect_source(data, seed=3)
    rows = ingest(
        RowsToRead(data, source, TYPES, seed=3), folder, threads=2, progress=SilentProgress()
    )
    return {
        split: read_columns(found.files, ["click", *TYPES]) for split, found in rows.splits.items()
    }


WHOLE = {"split": SplitConfig(valid=0.0, test=0.0)}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The same rows by way of a Parquet file."""
    folder = tmp_path_factory.mktemp("parquet")
    pq.write_table(clicks(), folder / "rows.parquet")
    return read(config(str(folder / "rows.parquet"), **WHOLE), folder / "parts")["train"]


def test_a_table_reads_as_a_file_of_the_same_rows(service, expected, tmp_path):
    service.add_table("clicks", clicks())
    assert read(config(**WHOLE), tmp_path / "parts")["train"].equals(expected)
    ranges = [line for line in service.requests if "&arrow" in line and "rowrange" in line]
    assert len(ranges) == 1 + -(-NUM_ROWS // 300)


def test_faults_on_the_way_cost_no_row(service, expected, tmp_path):
    service.add_table("clicks", clicks())
    service.faults += [
        Fault("POST /projects/ads/tables/clicks.downloads", 503),
        Fault(r"GET .*rowrange=%28300%2C", 500, "InternalServerError"),
        Fault(r"GET .*rowrange=%28600%2C", 0),
        Fault(
            r"GET .*rowrange=%28900%2C", 400, "StatusConflict", "The download session is expired"
        ),
        Fault("GET /api/projects/ads/tables/clicks", 502, times=2),
    ]
    assert read(config(**WHOLE), tmp_path / "parts")["train"].equals(expected)
    assert all(fault.times == 0 for fault in service.faults)


def test_throttled_requests_wait_and_go_on(service, expected, tmp_path):
    service.add_table("clicks", clicks())
    service.faults.append(Fault(r"GET .*rowrange=%28300%2C", 429, "FlowExceeded", "quota"))
    assert read(config(**WHOLE), tmp_path / "parts")["train"].equals(expected)


def test_an_expired_session_is_replaced_by_another(service, expected, tmp_path, monkeypatch):
    service.add_table("clicks", clicks())
    monkeypatch.setattr(reading, "READ_AHEAD", 1)
    source = inspect_source(config(**WHOLE))
    table = source.opened[source.files["train"][0]]
    reader = reading.open_rows(table, ["price"])
    first = reader.read(0, 10)
    service.expire_sessions()
    assert sum(batch.num_rows for batch in [*first, *reader.read(10, 10)]) == 20


def test_ranges_of_a_table_hold_its_rows(service):
    service.add_table("clicks", clicks())
    data = config(**WHOLE)
    source = inspect_source(data)
    plan = plan_columns(data, TYPES, label_required=True, carried=(), sensitive=())
    units = source.units("train", source.size_bytes // 3)
    assert len(units) > 1
    found = []
    for cut in (source.units("train"), units):
        blocks = [block for unit in cut for block in source.read(unit, plan, 1 << 20)]
        found.append(pa.concat_tables([block.parse(plan).table for block in blocks]))
    assert found[0].num_rows == NUM_ROWS
    assert found[1].equals(found[0])


def test_partitions_are_read_one_after_another(service, expected, tmp_path):
    service.add_partitions("parts", "ds", {"1": clicks(1000), "2": clicks(1500, 1000)})
    data = config(("odps://ads/parts/ds=1", "odps://ads/parts/ds=2"), **WHOLE)
    assert read(data, tmp_path / "parts")["train"].equals(expected)


def test_splits_have_tables_of_their_own(service, tmp_path):
    service.add_partitions("parts", "ds", {"1": clicks(900), "2": clicks(100), "3": clicks(50)})
    data = config(
        "odps://ads/parts/ds=1", valid="odps://ads/parts/ds=2", test="odps://ads/parts/ds=3"
    )
    found = read(data, tmp_path / "parts")
    assert {split: table.num_rows for split, table in found.items()} == {
        "train": 900,
        "valid": 100,
        "test": 50,
    }


def test_the_service_divides_rows_at_random_by_what_they_hold(service, tmp_path):
    split = SplitConfig(by="random", valid=0.2, test=0.1)
    service.add_table("clicks", clicks())
    found = read(config(split=split), tmp_path / "parts")
    users = {name: set(table.column("user").to_pylist()) for name, table in found.items()}
    assert sum(table.num_rows for table in found.values()) == NUM_ROWS
    assert len(set.union(*users.values())) == NUM_ROWS
    assert abs(found["train"].num_rows / NUM_ROWS - 0.7) < 0.05
    assert abs(found["valid"].num_rows / NUM_ROWS - 0.2) < 0.05
    again = read(config(split=split), tmp_path / "again")
    assert {name: set(table.column("user").to_pylist()) for name, table in again.items()} == users


@pytest.mark.parametrize(("by", "column"), [("hash", "user"), ("hash", "seen"), ("time", "seen")])
def test_a_table_is_divided_as_a_file_of_the_same_rows(service, tmp_path, by, column):
    seen = pa.array([n * 7919 % 1000 * 60_000 for n in range(NUM_ROWS)], pa.timestamp("ms"))
    rows = clicks().append_column("seen", seen)
    service.add_table("clicks", rows)
    pq.write_table(rows, tmp_path / "rows.parquet")
    split = SplitConfig(by=by, column=column, valid=0.3, test=0.3)
    there = read(config(split=split), tmp_path / "there")
    here = read(config(str(tmp_path / "rows.parquet"), split=split), tmp_path / "here")
    assert there.keys() == here.keys()
    for name, table in here.items():
        assert there[name].equals(table), name
    assert service.queries == []


def test_the_same_rows_are_not_read_twice(service, tmp_path):
    service.add_table("clicks", clicks())
    read(config(**WHOLE), tmp_path / "parts")
    num_requests = len(service.requests)
    read(config(**WHOLE), tmp_path / "parts")
    assert not [line for line in service.requests[num_requests:] if "rowrange=%280%2C300" in line]


def test_a_table_that_changes_while_it_is_read_is_refused(service, tmp_path):
    service.add_table("clicks", clicks())
    source = inspect_source(config(**WHOLE))
    original = reading.read_table_blocks

    def read_and_change(*arguments):
        yield from original(*arguments)
        service.modified["clicks"] += 60

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "read_table_blocks", read_and_change)
        with pytest.raises(DataError, match="changed while it was read"):
            ingest(
                RowsToRead(config(**WHOLE), source, TYPES, seed=0),
                tmp_path / "parts",
                threads=2,
                progress=SilentProgress(),
            )
    assert not (tmp_path / "parts").exists()


def test_new_rows_of_a_table_are_streamed(service):
    service.add_table("new", clicks(700).drop_columns(["click"]))
    batches = list(stream_rows(config(), "odps://ads/new", TYPES, label_required=False))
    assert sum(batch.num_rows for batch in batches) == 700


def test_no_key_is_in_logs_or_requests(service, tmp_path, caplog):
    caplog.set_level("DEBUG")
    service.add_table("clicks", clicks())
    read(config(**WHOLE), tmp_path / "parts")
    assert ACCESS_KEY not in caplog.text
    assert not any(ACCESS_KEY in line for line in service.requests)


def test_addresses():
    found = parse_address("odps://ads/clicks/ds=20240101/hour=07", "data.train")
    assert found == TableAddress(PROJECT, "clicks", (("ds", "20240101"), ("hour", "07")))
    assert str(found) == "odps://ads/clicks/ds=20240101/hour=07"


@pytest.mark.parametrize(
    "text",
    [
        "odps://",
        "odps://ads",
        "odps://ads/",
        "odps://ads/clicks/ds",
        "odps://ads/clicks/ds=",
        "odps://ads/cl icks",
        "odps://ads/x;drop",
        "odps://ads/clicks/ds='1'",
    ],
)
def test_address_that_names_no_table_is_refused(text):
    with pytest.raises(DataError, match=r"Write odps://project/table"):
        parse_address(text, "data.train")


def test_credentials_in_an_address_are_refused_unseen():
    with pytest.raises(DataError, match="holds no credentials") as caught:
        parse_address("odps://LTAI:secret@ads/clicks", "data.train")
    assert "secret" not in str(caught.value)
