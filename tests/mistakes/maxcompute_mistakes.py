"""Mistakes about tables of MaxCompute, answered by a stand-in for the service."""

import sys
from collections.abc import Callable
from typing import Any

import odps
import pyarrow as pa

from ctr_pipeline.dataset.formats.maxcompute import client
from tests.maxcompute.maxcompute_service import (
    ACCESS_ID,
    ACCESS_KEY,
    Fault,
    MaxComputeService,
    running_service,
)
from tests.mistakes.spoiled_world import CHECK, Case, World

ANALYZE = ("analyze", "c.yaml")
SPLIT = {"by": "random"}
TABLE = "odps://ads/clicks"


def _rows() -> pa.Table:
    return pa.table(
        {
            "click": [n % 2 for n in range(200)],
            "price": [float(n % 17) for n in range(200)],
            "city": [f"c{n % 5}" for n in range(200)],
            "seen": pa.array([n * 1000 for n in range(200)], pa.timestamp("ms")),
        }
    )


def there(
    change: Callable[[MaxComputeService], object] = lambda _: None, /, **values: Any
) -> Callable[[World], None]:
    """The rows are in a table; the config has these values, the service this change."""

    def spoil(world: World) -> None:
        running = running_service()
        service = running.__enter__()
        world.cleanups.append(lambda: running.__exit__(None, None, None))
        world.monkeypatch.setattr(client, "RETRY_SECONDS", (0.0,))
        for name, value in service.environment().items():
            world.monkeypatch.setenv(name, value)
        service.add_table("clicks", _rows())
        service.add_partitions("parts", "ds", {"1": _rows(), "2": _rows()})
        world.config(**{"data__train": TABLE, "data__split": SPLIT, **values})
        change(service)

    return spoil


def environment(**variables: str | None) -> Callable[[World], None]:
    """The rows are in a table; the environment has these values."""

    def spoil(world: World) -> None:
        there()(world)
        for name, value in variables.items():
            if value is None:
                world.monkeypatch.delenv(name)
            else:
                world.monkeypatch.setenv(name, value)

    return spoil


def fault(match: str, status: int, code: str, message: str = "", times: int = 9) -> Any:
    """The service answers with this error."""
    return there(lambda service: service.faults.append(Fault(match, status, code, message, times)))


def _nobody_listens(world: World) -> None:
    environment(ODPS_ENDPOINT="http://127.0.0.1:9/api")(world)
    # PyODPS itself tries again, and waits longer each time.
    retry_times = odps.options.retry_times
    odps.options.retry_times = 0
    world.cleanups.append(lambda: setattr(odps.options, "retry_times", retry_times))


def _without_pyodps(world: World) -> None:
    there()(world)
    world.monkeypatch.setitem(sys.modules, "odps", None)


ROW_MISTAKES = (
    Case(
        "maxcompute_no_credentials",
        environment(ODPS_ACCESS_ID=None, ODPS_ACCESS_KEY=None),
        ("the environment", "ODPS_ACCESS_ID and ODPS_ACCESS_KEY", "ctrpipe doctor"),
        CHECK,
        unfollowed="MaxCompute is not there",
    ),
    Case(
        "maxcompute_no_endpoint",
        environment(ODPS_ENDPOINT=None),
        ("needs ODPS_ENDPOINT", "Set them in the environment"),
        CHECK,
        unfollowed="MaxCompute is not there",
    ),
    Case(
        "maxcompute_unknown_id",
        environment(ODPS_ACCESS_ID="nobody"),
        (TABLE, "refuses the credentials", "Check ODPS_ACCESS_ID"),
        CHECK,
    ),
    Case(
        "maxcompute_wrong_key",
        environment(ODPS_ACCESS_KEY="wrong"),
        ("refuses the credentials", "ODPS_ACCESS_KEY"),
        CHECK,
    ),
    Case(
        "maxcompute_no_service",
        _nobody_listens,
        ("MaxCompute does not answer", "Check ODPS_ENDPOINT"),
        CHECK,
    ),
    Case(
        "maxcompute_no_pyodps",
        _without_pyodps,
        ("PyODPS", "not installed", "pip install 'ctrpipe[maxcompute]'"),
        CHECK,
    ),
    Case(
        "maxcompute_no_table",
        there(data__train="odps://ads/nothing"),
        ("odps://ads/nothing", "there is no such table", "Check the names"),
        CHECK,
    ),
    Case(
        "maxcompute_no_project",
        there(data__train="odps://other/clicks"),
        ("there is no such project", "ODPS_PROJECT"),
        CHECK,
    ),
    Case(
        "maxcompute_no_partition",
        there(data__train="odps://ads/parts/ds=9"),
        ("odps://ads/parts/ds=9", "there is no such partition", "show partitions"),
        CHECK,
    ),
    Case(
        "maxcompute_partition_not_named",
        there(data__train="odps://ads/parts"),
        ("partitioned by ds", "odps://ads/parts/ds=1"),
        CHECK,
    ),
    Case(
        "maxcompute_partition_of_none",
        there(data__train="odps://ads/clicks/ds=1"),
        ("the table has no partitions", "Write odps://ads/clicks"),
        CHECK,
    ),
    Case(
        "maxcompute_view",
        there(lambda service: service.add_table("clicks", _rows(), is_view=True)),
        (TABLE, "is a view", "Make a table of it"),
        CHECK,
    ),
    Case(
        "maxcompute_type_without_arrow",
        there(lambda service: service.type_names.update(city="json")),
        (TABLE, "column 'city'", "has the type JSON", "Give a table without the column"),
        CHECK,
    ),
    Case(
        "maxcompute_by_order",
        there(data__split={"by": "order"}),
        ("data.split.by", "have no order", "hash or random", "data.valid and data.test"),
        CHECK,
        tried=("data.split.by=random",),
    ),
    Case(
        "maxcompute_hash_of_no_column",
        there(data__split={"by": "hash", "column": "usr"}),
        ("data.split.column", "'usr'"),
        CHECK,
    ),
    Case(
        "maxcompute_table_and_file",
        there(data__valid="rows.csv"),
        ("data.valid", "'rows.csv' is no table of MaxCompute", "tables only"),
        CHECK,
    ),
    Case(
        "maxcompute_table_twice",
        there(data__train=[TABLE, TABLE]),
        ("named twice",),
        CHECK,
    ),
    Case(
        "maxcompute_columns_named",
        there(data__columns=["click", "price", "city"]),
        ("data.columns", "tables have names"),
        CHECK,
    ),
    Case(
        "maxcompute_no_such_column",
        there(features=[{"columns": "prize", "number": "log"}]),
        ("prize", "price"),
        CHECK,
    ),
    Case(
        "maxcompute_no_address",
        there(data__train="odps://clicks"),
        ("does not name a table", "Write odps://project/table"),
        CHECK,
    ),
    Case(
        "maxcompute_key_in_address",
        there(data__train=f"odps://{ACCESS_ID}:{ACCESS_KEY}@ads/clicks"),
        ("holds no credentials", "ODPS_ACCESS_KEY in the environment"),
        CHECK,
    ),
    Case(
        "maxcompute_key_in_config",
        there(data__access_key=ACCESS_KEY),
        ("data.access_key", "credentials do not belong in a config", "ODPS_ACCESS_KEY"),
        CHECK,
    ),
    Case(
        "maxcompute_denied",
        fault("GET /api/projects/ads/tables", 403, "NoPermission", "ODPS-0130013: no privilege"),
        (TABLE, "permission denied", "Ask the project's owner"),
        CHECK,
    ),
    Case(
        "maxcompute_download_denied",
        fault("POST /projects/ads/instances/.*downloads", 403, "AccessDenied", "Access Denied"),
        ("permission denied", "Download"),
        ANALYZE,
    ),
    Case(
        "maxcompute_query_refused",
        there(lambda service: setattr(service, "failure", "ODPS-0123049: Sql job killed - quota")),
        ("MaxCompute cannot run a query", "Sql job killed"),
        ANALYZE,
    ),
    Case(
        "maxcompute_sessions_expire",
        fault("rowrange", 400, "StatusConflict", "The download session is expired", 999),
        ("download sessions end",),
        ANALYZE,
    ),
    Case(
        "maxcompute_empty_table",
        there(lambda service: service.add_table("clicks", _rows().slice(0, 0))),
        (TABLE, "has no rows"),
        CHECK,
    ),
)

COMMAND_MISTAKES = (
    Case(
        "maxcompute_wrong_label",
        there(data__label="price", features=[{"columns": "city", "id": "vocabulary"}]),
        ("price", "a label is 0 or 1"),
        CHECK,
    ),
)
