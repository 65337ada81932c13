"""The only module that talks to MaxCompute, by PyODPS.

Credentials come from the environment or from PyODPS's own configuration (`odps.inter.setup`). They
are kept out of every message: what the service says is shown without them.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import requests

from ctr_pipeline.dataset.formats.maxcompute.dialect import SETTINGS
from ctr_pipeline.dataset.formats.maxcompute.table import TableAddress, TableFacts
from ctr_pipeline.errors import CtrPipelineError, DataError, StatisticsError

_Result = TypeVar("_Result")

ID_VARIABLES = ("ODPS_ACCESS_ID", "ALIBABA_CLOUD_ACCESS_KEY_ID")
KEY_VARIABLES = ("ODPS_ACCESS_KEY", "ALIBABA_CLOUD_ACCESS_KEY_SECRET")
PROJECT_VARIABLES = ("ODPS_PROJECT", "ODPS_PROJECT_NAME")
ENDPOINT_VARIABLE = "ODPS_ENDPOINT"
_TOKEN_VARIABLES = (
    "ODPS_STS_ACCOUNT_FILE",
    "ODPS_STS_TOKEN",
    "ODPS_BEARER_TOKEN",
    "ODPS_BEARER_TOKEN_FILE",
)
_ROOM = Path("~/.pyodps/rooms/default/__ODPS__")
"""Where `odps.inter.setup` keeps a user's configuration."""
RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Waits before a request that was turned away is sent again."""
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
_POLL_SECONDS = 1.0
_SESSIONS_A_RANGE = 3
_MESSAGE_CHARACTERS = 300
_EXPIRED = frozenset({"StatusConflict", "NoSuchDownload"})
_DENIED = frozenset({"NoPermission", "AccessDenied", "ODPS-0130013", "ODPS-0420095"})
_REFUSED = frozenset(
    {"Unauthorized", "SignatureNotMatch", "AuthorizationRequired", "AuthenticationRequestExpired"}
)


class _SessionExpiredError(Exception):
    """A download session is over; another may go on from the same row."""


@dataclass(frozen=True)
class Download:
    """A session that gives ranges of rows.

    Attributes:
        session: PyODPS's own.
    """

    num_rows: int
    session: Any


@dataclass
class MaxComputeClient:
    """A project of the service.

    Attributes:
        entry: PyODPS's own.
        secrets: Texts that no message may hold, beside those of the account.
        stopping: Set when the program ends; running queries are stopped then.
    """

    entry: Any
    secrets: tuple[str, ...] = field(repr=False)
    stopping: threading.Event = field(default_factory=threading.Event)

    def ping(self) -> None:
        """Asks for the project that queries run in.

        Raises:
            DataError: The service does not answer, or refuses.
        """
        place = f"project {self.entry.project}"
        self._explained(lambda: self._retried(self.entry.get_project().reload), place)

    def describe(self, address: TableAddress, *, may_lack_partition: bool = False) -> TableFacts:
        """Looks a table or partition up.

        Args:
            address: The table.
            may_lack_partition: A partition that is not there is one without rows.

        Raises:
            DataError: It is not there, must be named with its partition, or may not be read.
        """
        from odps.errors import NoSuchPartition

        def load() -> TableFacts:
            table = self.entry.get_table(address.table, project=address.project)
            table.reload()
            names = [column.name for column in table.table_schema.partitions]
            self._check_partition(address, table, names)
            schema = _arrow_schema(table.table_schema.simple_columns, address)
            part = table
            if address.partition:
                part = table.get_partition(_spec(address))
                try:
                    part.reload()
                except NoSuchPartition:
                    if not may_lack_partition:
                        raise
                    return TableFacts(schema, is_view=False, size_bytes=0, version="")
            return TableFacts(
                schema,
                bool(table.is_virtual_view),
                max(int(part.size or 0), 0),
                f"last modified {part.last_data_modified_time}, {part.size} bytes",
            )

        return self._explained(lambda: self._retried(load), f"table {address}")

    def has_table(self, address: TableAddress) -> bool:
        """Whether there is a table of this name.

        Raises:
            DataError: The service does not answer, or refuses.
        """

        def ask() -> bool:
            return bool(self.entry.exist_table(address.table, project=address.project))

        return self._explained(lambda: self._retried(ask), f"table {address}")

    def version_of(self, address: TableAddress) -> str:
        """What changes when rows of a table do, of any partition.

        Raises:
            DataError: It is not there, is a view, or may not be read.
        """

        def load() -> str:
            table = self.entry.get_table(address.table, project=address.project)
            table.reload()
            if table.is_virtual_view:
                raise DataError(
                    "is a view, and nothing tells when its rows change",
                    place=str(address),
                    remedy="Select from the tables that it is a view of",
                )
            return f"last modified {table.last_data_modified_time}, {table.size} bytes"

        return self._explained(lambda: self._retried(load), f"table {address}")

    def _check_partition(self, address: TableAddress, table: Any, names: list[str]) -> None:
        given = [name for name, _ in address.partition]
        if given == names:
            return
        if not names:
            raise DataError(
                "the table has no partitions",
                place=str(address),
                remedy=f"Write odps://{address.project}/{address.table}",
            )
        first = next(iter(table.partitions), None)
        example = str(first.partition_spec).replace("'", "").replace(",", "/") if first else None
        raise DataError(
            f"the table is partitioned by {', '.join(names)}, and each must be given, in order",
            place=str(address),
            remedy=f"Name a partition, such as odps://{address.project}/{address.table}/{example}, "
            "or list several"
            if example
            else "It has no partition yet; name another table",
        )

    def execute(self, text: str) -> Any:
        """Runs one statement and waits for it; PyODPS's instance.

        Raises:
            DataError: A table is not there or may not be read.
            StatisticsError: The service refuses the statement or fails in it.
        """

        def run() -> Any:
            instance = self._retried(lambda: self.entry.run_sql(text, hints=dict(SETTINGS)))
            try:
                while not instance.is_terminated(retry=True):
                    if self.stopping.wait(_POLL_SECONDS):
                        break
                else:
                    instance.wait_for_success()
                    return instance
            except BaseException:
                self._stop(instance)
                raise
            self._stop(instance)
            raise StatisticsError("a query was stopped")

        return self._explained(run, f"project {self.entry.project}", is_query=True)

    def cost_of(self, text: str) -> str:
        """What the service says a SELECT costs, without running it.

        Raises:
            DataError: A table is not there or may not be read.
            StatisticsError: The service refuses the SELECT.
        """

        def ask() -> str:
            cost = self.entry.execute_sql_cost(text, hints=dict(SETTINGS))
            return f"{int(cost.input_size) / 1e9:,.2f} GB, complexity {cost.complexity}"

        place = f"project {self.entry.project}"
        return self._explained(lambda: self._retried(ask), place, is_query=True)

    def _stop(self, instance: Any) -> None:
        try:
            instance.stop()
        except Exception:  # noqa: BLE001  what stops the program is the error to tell of
            logging.getLogger(__name__).info("query %s could not be stopped", instance.id)

    def open_table(self, address: TableAddress) -> Download:
        """A download session of a table or partition, which must not be a view.

        Raises:
            DataError: As `describe`.
        """
        partition = _spec(address) if address.partition else None

        def open_() -> Download:
            table = self.entry.get_table(address.table, project=address.project)
            session = self._table_tunnel.create_download_session(table, partition_spec=partition)
            return Download(int(session.count), session)

        return self._explained(lambda: self._retried(open_), f"table {address}")

    def replace_rows(self, address: TableAddress, batches: Iterable[pa.RecordBatch]) -> None:
        """Puts rows in place of those of a table or partition, by one commit at the end.

        Args:
            address: The table; a partition is made where it is absent.
            batches: Columns of the table's names; what they raise is raised, and nothing changes.

        Raises:
            DataError: The rows cannot be written.
        """
        partition = _spec(address) if address.partition else None
        place = f"table {address}"

        def open_() -> Any:
            table = self.entry.get_table(address.table, project=address.project)
            return self._table_tunnel.create_upload_session(
                table,
                partition_spec=partition,
                create_partition=partition is not None,
                overwrite=True,
            )

        session = self._explained(lambda: self._retried(open_), place)
        # It keeps a block in memory until the service has it, and repeats what fails.
        writer = session.open_arrow_writer()

        def finish() -> None:
            writer.close()
            session.commit(writer.get_blocks_written())

        for batch in batches:
            self._explained(partial(writer.write, batch), place)
        self._explained(finish, place)

    def open_result(self, instance: Any) -> Download:
        """A download session of a query's result, without a limit on rows.

        Raises:
            DataError: It may not be downloaded.
        """

        def open_() -> Download:
            session = self._instance_tunnel.create_download_session(instance, limit=False)
            return Download(int(session.count), session)

        return self._explained(lambda: self._retried(open_), f"project {self.entry.project}")

    def read_range(
        self, download: Download, first: int, num_rows: int, columns: list[str] | None, place: str
    ) -> list[pa.RecordBatch]:
        """A range of rows; requests that fail midway are repeated from the row they came to.

        Raises:
            DataError: The rows cannot be read.
        """
        if num_rows == 0:
            return []

        def read() -> list[pa.RecordBatch]:
            # PyODPS repeats what fails within a reader, but for the request that opens it.
            reader = download.session.open_arrow_reader(
                first, num_rows, columns=columns, on_exception=self._is_final
            )
            with reader:
                batches = list(iter(reader.read_next_batch, None))
            if (found := sum(batch.num_rows for batch in batches)) != num_rows:
                raise requests.ConnectionError(f"{found} of {num_rows} rows came")
            return [_with_true_decimals(batch, download.session.schema) for batch in batches]

        return self._explained(lambda: self._retried(read), place, in_session=True)

    def _is_final(self, error: Exception) -> bool:
        return getattr(error, "code", None) in _EXPIRED or self.stopping.is_set()

    @cached_property
    def _table_tunnel(self) -> Any:
        from odps.tunnel import TableTunnel

        return TableTunnel(self.entry)

    @cached_property
    def _instance_tunnel(self) -> Any:
        from odps.tunnel import InstanceTunnel

        return InstanceTunnel(self.entry)

    def _retried(self, work: Callable[[], _Result]) -> _Result:
        for wait_seconds in RETRY_SECONDS:
            try:
                return work()
            except Exception as error:
                if not _may_pass(error) or self.stopping.wait(wait_seconds):
                    raise
        return work()

    def _explained(
        self,
        work: Callable[[], _Result],
        place: str,
        *,
        is_query: bool = False,
        in_session: bool = False,
    ) -> _Result:
        from odps.errors import BaseODPSError

        try:
            return work()
        except (CtrPipelineError, _SessionExpiredError):
            raise
        except (BaseODPSError, requests.RequestException, pa.ArrowException, OSError) as error:
            if in_session and getattr(error, "code", None) in _EXPIRED:
                raise _SessionExpiredError(str(error.code)) from None  # type: ignore[union-attr]
            # The cause is left out: PyODPS's traceback may hold headers of the request.
            raise self._explain(error, place, is_query=is_query) from None

    def _explain(self, error: Exception, place: str, *, is_query: bool) -> CtrPipelineError:
        from odps import errors

        code = str(getattr(error, "code", None) or "").partition(":")[0]
        said = self._message_of(error)
        if isinstance(error, errors.NoSuchTable) or code == "ODPS-0130131":
            return DataError(
                f"there is no such table ({said})",
                place=place,
                remedy="Check the names of project and table in data",
            )
        if isinstance(error, errors.NoSuchPartition):
            return DataError(
                "there is no such partition",
                place=place,
                remedy="Check its value; 'show partitions' in MaxCompute lists those there are",
            )
        if isinstance(error, errors.NoSuchProject):
            return DataError(
                "there is no such project",
                place=place,
                remedy=f"Check the project in data, {PROJECT_VARIABLES[0]} and {ENDPOINT_VARIABLE}",
            )
        if isinstance(error, errors.NoPermission) or code in _DENIED:
            return DataError(
                f"permission denied ({said})",
                place=place,
                remedy="Ask the project's owner for Describe, Select and Download on the table, "
                "and for CreateTable and CreateInstance in the project that queries run in",
            )
        if code in _REFUSED or "ODPS-0410" in said:
            return DataError(
                f"MaxCompute refuses the credentials ({said})",
                place=place,
                remedy=f"Check {ID_VARIABLES[0]} and {KEY_VARIABLES[0]}",
            )
        if _may_pass(error):
            return DataError(
                f"MaxCompute does not answer ({said})",
                place=place,
                remedy=f"Check {ENDPOINT_VARIABLE} and the network, and run again",
            )
        if is_query:
            return StatisticsError(
                f"MaxCompute cannot run a query ({said})",
                place=place,
                remedy="If the message does not help, ask the owner of the project what it allows",
            )
        return DataError(f"MaxCompute answers with an error ({said})", place=place)

    def _message_of(self, error: Exception) -> str:
        """The first line of what was said, without a secret in it."""
        lines = str(error.args[0] if error.args else error).strip().splitlines()
        text = lines[0] if lines else type(error).__name__
        # Keys of a token may have been renewed since the start.
        for secret in (*self.secrets, *_secrets_of(self.entry.account)):
            text = text.replace(secret, "…")
        return text[:_MESSAGE_CHARACTERS]


class RangeReader:
    """Reads ranges of rows of a table or result; opens another session when one has expired.

    Safe for several threads.

    Args:
        open_: Opens a session.
        place: For messages.
        columns: In this order; None for all.
    """

    def __init__(
        self,
        client: MaxComputeClient,
        open_: Callable[[], Download],
        place: str,
        columns: list[str] | None,
    ) -> None:
        self._client = client
        self._open = open_
        self._place = place
        self._columns = columns
        self._lock = threading.Lock()
        self._download = open_()
        self.num_rows = self._download.num_rows

    def read(self, first: int, num_rows: int) -> list[pa.RecordBatch]:
        """Rows from `first` on.

        Raises:
            DataError: They cannot be read, or the table changed.
        """
        for _ in range(_SESSIONS_A_RANGE):
            download = self._download
            try:
                batches = self._client.read_range(
                    download, first, num_rows, self._columns, self._place
                )
            except _SessionExpiredError:
                self._replace(download)
            else:
                if self._columns is None:
                    return batches
                return [batch.select(self._columns) for batch in batches]
        raise DataError(
            "download sessions end before their rows are read",
            place=self._place,
            remedy="Run again when nothing else changes the table",
        )

    def _replace(self, expired: Download) -> None:
        with self._lock:
            if self._download is not expired:
                return
            self._download = self._open()
            if self._download.num_rows != self.num_rows:
                raise DataError(
                    f"has {self._download.num_rows} rows now and had {self.num_rows} before",
                    place=self._place,
                    remedy="Let nothing write into it meanwhile, and run again",
                )


def connect() -> MaxComputeClient:
    """A client with the credentials that the environment or PyODPS's configuration holds.

    Raises:
        DataError: PyODPS is not installed, or credentials or endpoint are not to be found.
    """
    try:
        from odps import ODPS, accounts
    except ImportError as error:
        raise DataError(
            "PyODPS, the client of MaxCompute, is not installed",
            place="data",
            remedy="Run: pip install 'ctrpipe[maxcompute]'",
        ) from error
    # PyODPS writes tokens and headers to its own log.
    logging.getLogger("odps").setLevel(logging.WARNING)
    if missing := missing_variables():
        raise DataError(
            f"MaxCompute needs {' and '.join(missing)}",
            place="the environment",
            remedy="Set them in the environment, or run odps.inter.setup of PyODPS once; "
            "'ctrpipe doctor' tells whether they work",
        )
    access_id, key = _first_of(ID_VARIABLES), _first_of(KEY_VARIABLES)
    place: dict[str, Any] = {
        "project": _first_of(PROJECT_VARIABLES),
        "endpoint": os.environ.get(ENDPOINT_VARIABLE),
        "overwrite_global": False,
    }
    if access_id and key:
        entry = ODPS(access_id, key, **place)
    elif _first_of(_TOKEN_VARIABLES):
        entry = ODPS(account=accounts.from_environments(), **place)
    else:
        from odps import inter

        entry = inter.enter().odps
    return MaxComputeClient(entry, tuple(text for text in (access_id, key) if text))


def _secrets_of(account: Any) -> list[str]:
    names = ("access_id", "secret_access_key", "sts_token", "token")
    return [text for name in names if (text := getattr(account, name, None))]


def is_set_up() -> bool:
    """Whether anything is there for MaxCompute: a variable, or PyODPS's configuration."""
    variables = (*ID_VARIABLES, *KEY_VARIABLES, *PROJECT_VARIABLES, ENDPOINT_VARIABLE)
    return _ROOM.expanduser().is_file() or _first_of((*variables, *_TOKEN_VARIABLES)) is not None


def missing_variables() -> list[str]:
    """Which variables of the environment a client still needs; empty if one can be made."""
    has_pair = _first_of(ID_VARIABLES) is not None and _first_of(KEY_VARIABLES) is not None
    has_token = _first_of(_TOKEN_VARIABLES) is not None
    if not (has_pair or has_token) and _ROOM.expanduser().is_file():
        return []
    needed = {PROJECT_VARIABLES[0]: PROJECT_VARIABLES, ENDPOINT_VARIABLE: (ENDPOINT_VARIABLE,)}
    if not has_token:
        needed = {ID_VARIABLES[0]: ID_VARIABLES, KEY_VARIABLES[0]: KEY_VARIABLES} | needed
    return [name for name, names in needed.items() if _first_of(names) is None]


def _first_of(names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


def _spec(address: TableAddress) -> str:
    return ",".join(f"{name}='{value}'" for name, value in address.partition)


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    from odps.errors import ChecksumError, InternalServerError, RequestQuotaExceeded

    if getattr(error, "status_code", None) in _RETRIED_STATUS:
        return True
    kinds = (
        ChecksumError,
        InternalServerError,
        RequestQuotaExceeded,
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
    )
    return isinstance(error, kinds)


def _arrow_schema(columns: Any, address: TableAddress) -> pa.Schema:
    fields = []
    for column in columns:
        try:
            fields.append(pa.field(column.name, arrow_type(column.type)))
        except TypeError:
            # PyODPS then reads no column of the table.
            raise DataError(
                f"has the type {column.type}, which the tunnel does not give as Arrow",
                place=f"{address}, column '{column.name}'",
                remedy="Give a table without the column, or with another type of it",
            ) from None
    return pa.schema(fields)


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type in which the tunnel gives a column of this type of PyODPS."""
    from odps import types
    from odps.tunnel.io.types import odps_type_to_arrow_type

    if isinstance(kind, types.Decimal) and kind.precision is not None:
        return pa.decimal128(kind.precision, kind.scale or 0)
    return odps_type_to_arrow_type(kind)


def _with_true_decimals(batch: pa.RecordBatch, schema: Any) -> pa.RecordBatch:
    """PyODPS 0.13 reads DECIMAL(n, 0) as one with 18 digits after the point; here it is mended."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        wanted = arrow_type(schema[name].type)
        if pa.types.is_decimal128(wanted) and column.type != wanted:
            mended = pa.Array.from_buffers(
                wanted, len(column), column.buffers(), column.null_count, column.offset
            )
            columns.append(mended)
        else:
            columns.append(column)
    return pa.record_batch(columns, names=batch.schema.names)


def ranges(num_rows: int, size: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each range."""
    for first in range(0, num_rows, size):
        yield first, min(size, num_rows - first)
