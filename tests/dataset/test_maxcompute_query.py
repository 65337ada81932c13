"""Rows of a SELECT that MaxCompute executes: they are a table, which is made once."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.formats.maxcompute import client as client_module
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from tests.maxcompute.maxcompute_service import service_in_environment

pytestmark = pytest.mark.slow

TYPES = {"price": ColumnType.NUMBER, "city": ColumnType.TEXT}
QUERY = """
    WITH cheap AS (SELECT click, price, shop AS city FROM ads.clicks WHERE price < 50)
    SELECT click, price, city FROM cheap WHERE city <> 's1'
"""
WHOLE = SplitConfig(valid=0.0, test=0.0)


def clicks(num_rows=400):
    numbers = range(num_rows)
    return pa.table(
        {
            "click": pa.array([int(n % 3 == 0) for n in numbers], pa.int64()),
            "price": pa.array([n / 4 for n in numbers], pa.float64()),
            "shop": pa.array([f"s{n % 4}" for n in numbers]),
        }
    )


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_SECONDS", (0.0,))
    with service_in_environment(monkeypatch) as running:
        running.add_table("clicks", clicks())
        yield running


def config(query=QUERY, **values):
    connection = {"driver": "maxcompute"}
    return DataConfig(query=query, connection=connection, label="click", **values)


def origin_of(data):
    return RowsToRead(data, inspect_source(data), TYPES, seed=3).origin


def test_rows_are_those_that_the_select_gives_and_it_is_executed_once(service, tmp_path):
    data = config(split=WHOLE)
    source = inspect_source(data)
    rows = ingest(
        RowsToRead(data, source, TYPES, seed=3), tmp_path, threads=2, progress=SilentProgress()
    )
    found = read_columns(rows.splits["train"].files, list(TYPES))
    wanted = clicks().filter((pc.field("price") < 50) & (pc.field("shop") != "s1"))
    assert found["price"].to_pylist() == wanted["price"].to_pylist()
    assert found["city"].cast(pa.string()).to_pylist() == wanted["shop"].to_pylist()
    # As another member of the job, or a run that is resumed.
    assert len(inspect_source(data).units("train", source.size_bytes // 3)) > 1
    (created,) = service.queries
    assert created.startswith("CREATE TABLE IF NOT EXISTS ads.ctrpipe_query_")
    assert " LIFECYCLE 7 AS WITH cheap AS (" in created


def test_query_version_is_the_text_and_the_versions_of_its_tables(service):
    data = config(split=WHOLE)
    first = origin_of(data)
    made = next(name for name in service.tables if name.startswith("ctrpipe_query_"))
    # The service drops it after a week, and it is made again.
    service.database.execute(f"DROP TABLE ads.{made}")
    del service.tables[made]
    service.modified[made] = 0
    assert origin_of(data) == first
    assert origin_of(config(QUERY.replace("50", "60"), split=WHOLE)) != first
    service.add_table("clicks", clicks(500))
    assert origin_of(data) != first


@pytest.mark.parametrize(
    ("query", "split", "message"),
    [
        ("SELECT * FROM ads.clicks ORDER BY price", {}, "ORDER BY"),
        ("SELECT * FROM ads.clicks", {"by": "order"}, "have no order.*hash or random"),
        ("SELECT * FROM ads.clicks; SELECT 1", {}, "2 statements"),
        ("WITH x AS (SELECT 1) INSERT INTO ads.t SELECT * FROM x", {}, "INSERT"),
        ("SELECT click, price / 2 FROM ads.clicks", {}, "price / 2 without a name"),
        ("SELECT click, price, shop AS price FROM ads.clicks", {}, "two columns named 'price'"),
        ("SELECT * FROM ads.shown", {}, "is a view"),
        ("SELECT * FROM ads.absent", {}, "no such table"),
        ("SELECT * FROM ads.stage.clicks", {}, "with a schema"),
        (
            "SELECT click, MEDIAN(price) AS m FROM ads.clicks GROUP BY click",
            {},
            "data.query: fails",
        ),
        ("SELECT * FROM ads.clicks WHERE price < 0", {}, "has no rows"),
        ("SELECT FROM ads.clicks WHERE", {}, "data.query: "),
    ],
)
def test_mistakes_are_named(service, query, split, message):
    service.add_table("shown", clicks(), is_view=True)
    data = config(query, split=SplitConfig(**({"by": "random"} | split)))
    with pytest.raises(CtrPipelineError, match=message):
        inspect_source(data, seed=3)
    # Only what the service alone can know has cost a query.
    assert bool(service.queries) == ("MEDIAN" in query or "< 0" in query)


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"driver": "maxcompute", "uri_env": "SHOP"}, "uri_env. is for ADBC drivers"),
        ({"driver": "postgresql"}, "uri_env. is missing"),
    ],
)
def test_a_connection_has_the_address_that_its_driver_needs(connection, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(query=QUERY, connection=connection)
