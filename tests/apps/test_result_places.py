"""Results are whole or absent wherever they are written, and replace nothing by accident."""

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.apps.results.target import ResultPlan, open_target
from ctr_pipeline.dataset.formats.maxcompute import client
from ctr_pipeline.dataset.formats.maxcompute.client import connect
from ctr_pipeline.dataset.formats.maxcompute.table import parse_address
from ctr_pipeline.errors import CtrPipelineError, DataError, RunFolderError
from tests.maxcompute.maxcompute_service import Fault, running_service

pytestmark = pytest.mark.usefixtures("here")

SCHEMA = pa.schema([("user", pa.string()), ("probability", pa.float32())])
MAXCOMPUTE = "odps://ads/scores/ds=1"
ADDRESSES = (
    MAXCOMPUTE,
    "scores.parquet",
    "scores.csv",
    "s3://bucket/scores.parquet",
    "duckdb://a.db/scores",
)


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


@pytest.fixture(autouse=True)
def tables(request, monkeypatch):
    """Tables in MaxCompute, for the tests that name one."""
    if "odps://" not in request.node.name:
        yield None
        return
    service = request.getfixturevalue("service")
    for name, value in service.environment().items():
        monkeypatch.setenv(name, value)
    service.add_partitions("scores", "ds", {"0": SCHEMA.empty_table()})
    service.add_table("plain", pa.Table.from_batches([rows("first")]))
    service.add_table("items", pa.table({"item": [1]}))
    service.add_table("view", SCHEMA.empty_table(), is_view=True)
    yield service


def rows(*users, chance=0.5):
    arrays = [pa.array(users, pa.string()), pa.array([chance] * len(users), pa.float32())]
    return pa.record_batch(arrays, schema=SCHEMA)


def found(address):
    """What is there, in its order; None if nothing is."""
    try:
        if address == MAXCOMPUTE:
            table = connect().open_table(parse_address(address, ""))
            batches = connect().read_range(table, 0, table.num_rows, None, address)
            return [user for batch in batches for user in batch["user"].to_pylist()]
        if address.startswith("duckdb:"):
            with duckdb.connect("a.db", read_only=True) as connection:
                query = connection.execute('SELECT "user" FROM scores')
                return [user for (user,) in query.fetchall()]
        path = address.replace("s3://bucket", "store")
        table = pq.read_table(path) if path.endswith("parquet") else pa_csv.read_csv(path)
    except (OSError, duckdb.Error, DataError):
        return None
    return table["user"].to_pylist()


def write(address, *batches, overwrite=False, **keywords):
    place = open_target(address)
    place.check(ResultPlan(SCHEMA, overwrite=overwrite, **keywords))
    place.write(SCHEMA, iter(batches))


@pytest.mark.parametrize("address", ADDRESSES)
def test_results_come_back_in_their_order_and_are_replaced_not_doubled(address):
    write(address, rows("b", "a"), rows("c"))
    assert found(address) == ["b", "a", "c"]
    with pytest.raises(RunFolderError, match="already"):
        write(address, rows("d"))
    assert found(address) == ["b", "a", "c"]
    for _ in range(2):
        write(address, rows("d"), overwrite=True)
        assert found(address) == ["d"]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("earlier", [False, True])
def test_results_that_fail_leave_what_was_there(address, earlier, here):
    if earlier:
        write(address, rows("old"))

    def failing():
        yield rows("new")
        raise DataError("too many bad rows", place="rows.csv", remedy="Mend them")

    place = open_target(address)
    place.check(ResultPlan(SCHEMA, overwrite=True))
    with pytest.raises(DataError, match="too many bad rows"):
        place.write(SCHEMA, failing())
    assert found(address) == (["old"] if earlier else None)
    assert not [path for path in here.rglob(".*") if path.is_file()]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_rows_are_results_as_well(address):
    write(address, rows())
    assert found(address) == []


@pytest.mark.parametrize("address", [one for one in ADDRESSES if "://" in one])
@pytest.mark.parametrize("use", ["reads", "spares"])
def test_data_is_no_place_for_results(address, use):
    write(address, rows("old"))
    with pytest.raises(RunFolderError, match="is read by this command"):
        write(address, rows("new"), overwrite=True, **{use: (address,)})
    assert found(address) == ["old"]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("scores.xlsx", "written as Parquet or CSV"),
        ("s3://bucket/scores", "written as Parquet or CSV"),
        ("s3://bucket/my scores.csv", "no name of an object"),
        ("s4://bucket/scores.csv", "Did you mean 's3://'"),
        ("hdfs://name/scores.csv", "cannot be written to 'hdfs://'"),
        (
            "odps://ads/items",
            "other columns. Name a table with the columns user STRING",
        ),
        ("odps://ads/view", "is a view"),
        ("odps://ads/absent", "no such table"),
        ("odps://ads/scores", "partitioned by ds"),
        ("odps://ads", "does not name a table"),
        ("duckdb://a.db", "names no table"),
        ("duckdb://absent/a.db/scores", "folder does not exist"),
        ("duckdb://text.db/scores", "does not take the results"),
        ("duckdb://shop.db/seen", "is a view"),
        ("duckdb://shop.db/items", "is a table of other columns: item INTEGER, price DOUBLE"),
    ],
)
def test_other_places_are_refused_before_any_work(address, says, here):
    (here / "text.db").write_text("no database\n" * 1000)
    with duckdb.connect("shop.db") as connection:
        connection.execute("CREATE TABLE items (item INTEGER, price DOUBLE)")
        connection.execute("CREATE VIEW seen AS SELECT item FROM items")
    with pytest.raises(CtrPipelineError) as refused:
        open_target(address).check(ResultPlan(SCHEMA, overwrite=True))
    assert says in str(refused.value)


def test_other_tables_of_the_database_stay(here):
    with duckdb.connect("a.db") as connection:
        connection.execute("CREATE TABLE clicks AS SELECT range AS x FROM range(5)")
    write("duckdb://a.db/scores", rows("a"))
    with duckdb.connect("a.db") as connection:
        assert connection.execute("SELECT sum(x) FROM clicks").fetchall() == [(10,)]


def test_a_database_that_another_process_writes_is_named(here):
    import subprocess
    import sys

    program = "import duckdb, sys; c = duckdb.connect('a.db'); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(DataError, match=r"another process uses the database"):
            write("duckdb://a.db/scores", rows("a"))
        other.communicate(b"\n")
    write("duckdb://a.db/scores", rows("a"))


@pytest.mark.parametrize("table", ["odps://ads/plain"])
def test_a_table_of_maxcompute_without_partitions_is_replaced(table):
    with pytest.raises(RunFolderError, match="has rows already"):
        write(table, rows("second"))
    write(table, rows("second"), overwrite=True)
    download = connect().open_table(parse_address(table, ""))
    (batch,) = connect().read_range(download, 0, download.num_rows, None, table)
    assert batch.to_pydict() == {"user": ["second"], "probability": [0.5]}


@pytest.mark.parametrize("table", [MAXCOMPUTE])
@pytest.mark.parametrize("status", [500, 503])
def test_a_service_that_fails_for_a_moment_gets_every_row_once(table, status, tables, monkeypatch):
    monkeypatch.setattr(client, "RETRY_SECONDS", (0.01, 0.01))
    tables.faults.append(Fault("PUT .*blockid=0", status))
    write(table, rows("a"), rows("b"))
    assert found(table) == ["a", "b"]
    assert [fault.times for fault in tables.faults] == [0]
    tables.faults.clear()
