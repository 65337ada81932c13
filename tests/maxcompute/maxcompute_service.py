"""A stand-in for MaxCompute's HTTP interface on a loopback port, for the real PyODPS client.

Tables live in DuckDB. SQL is checked against MaxCompute's reference (`maxcompute_grammar`), then
executed by DuckDB. The tunnel serves ranges of rows as Arrow batches in checksummed chunks. What
it answers follows what PyODPS's source reads; faults are put in by tests.
"""

import copy
import json
import re
import struct
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import duckdb
import pyarrow as pa
import pytest
from odps.accounts import BaseAccount
from odps.tunnel.checksum import Checksum
from sqlglot import exp

from tests.maxcompute import maxcompute_grammar

ACCESS_ID = "LTAI-test-id"
ACCESS_KEY = "very-secret-test-key"
PROJECT = "ads"
CHUNK_BYTES = 64 << 10
BATCH_ROWS = 1000
_ARROW_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.bool_(): "boolean",
    pa.timestamp("ms"): "datetime",
}


@dataclass
class Fault:
    """One answer that goes wrong.

    Attributes:
        match: A regular expression for `GET /path?query`.
        status: The HTTP status; 0: the answer goes out, but its body breaks off in the middle.
        code: The error's code.
        message: Its text.
        times: How often.
    """

    match: str
    status: int
    code: str = "ServiceUnavailable"
    message: str = "try again later"
    times: int = 1


@dataclass(frozen=True)
class _Table:
    columns: pa.Schema
    partition_columns: tuple[str, ...] = ()
    partitions: tuple[tuple[str, ...], ...] = ()
    is_view: bool = False


@dataclass
class _Upload:
    table: str
    partition: str | None
    overwrites: bool
    blocks: dict[int, pa.Table] = field(default_factory=dict)


@dataclass
class _Instance:
    failure: str | None = None
    result: pa.Table | None = None
    cost: str | None = None


class _Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message
        super().__init__(message)


@dataclass
class MaxComputeService:
    """The service; `endpoint` is what ODPS_ENDPOINT names.

    Attributes:
        requests: Every request as `GET /path?query`, in order.
        queries: Every SQL text, in order.
        faults: Answers that go wrong, consumed as they match.
        expired: Download sessions that are over.
        failure: What every query fails with, if it is set.
        type_names: What the type of a column is called, by its name, if not as usual.
    """

    requests: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    expired: set[str] = field(default_factory=set)
    failure: str | None = None
    type_names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.database = duckdb.connect(":memory:")
        self.database.execute(f"CREATE SCHEMA {PROJECT}")
        self.tables: dict[str, _Table] = {}
        self.modified: dict[str, int] = {}
        self.instances: dict[str, _Instance] = {}
        self.sessions: dict[str, pa.Table] = {}
        self.uploads: dict[str, _Upload] = {}
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.endpoint = f"http://{self.address}/api"

    def environment(self) -> dict[str, str]:
        """What a user sets."""
        return {
            "ODPS_ACCESS_ID": ACCESS_ID,
            "ODPS_ACCESS_KEY": ACCESS_KEY,
            "ODPS_PROJECT": PROJECT,
            "ODPS_ENDPOINT": self.endpoint,
        }

    def add_table(self, name: str, rows: pa.Table, *, is_view: bool = False) -> None:
        """A table without partitions."""
        with self.lock:
            self._store(name, rows)
            self.tables[name] = _Table(rows.schema, is_view=is_view)
            self.modified[name] = 1_700_000_000 + len(self.modified)

    def add_partitions(self, name: str, column: str, parts: Mapping[str, pa.Table]) -> None:
        """A table with one partition column."""
        with self.lock:
            first = next(iter(parts.values()))
            rows = pa.concat_tables(
                [
                    table.append_column(column, pa.array([value] * len(table), pa.string()))
                    for value, table in parts.items()
                ]
            )
            self._store(name, rows)
            values = tuple((value,) for value in parts)
            self.tables[name] = _Table(first.schema, (column,), values)
            self.modified[name] = 1_700_000_000 + len(self.modified)

    def expire_sessions(self) -> None:
        """Every download session there is has expired."""
        with self.lock:
            self.expired |= set(self.sessions)

    def left_tables(self) -> list[str]:
        """Tables that queries have made and not dropped."""
        found = self.database.execute("SELECT table_name FROM information_schema.tables").fetchall()
        return sorted({name for (name,) in found} - set(self.tables))

    def _store(self, name: str, rows: pa.Table) -> None:
        self.database.register("incoming", rows)
        self.database.execute(f'CREATE OR REPLACE TABLE {PROJECT}."{name}" AS FROM incoming')
        self.database.unregister("incoming")

    # What a request does.

    def fault_for(self, line: str) -> Fault | None:
        with self.lock:
            self.requests.append(line)
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.match, line):
                    fault.times -= 1
                    return fault
        return None

    def submit(self, body: bytes) -> str:
        root = ElementTree.fromstring(body)  # noqa: S314  from the client under test
        query = (root.findtext(".//Query") or "").strip()
        settings: dict[str, Any] = {}
        for entry in root.iter("Property"):
            if entry.findtext("Name") == "settings":
                settings = json.loads(entry.findtext("Value") or "{}")
        instance = _Instance(self.failure)
        with self.lock:
            self.queries.append(query)
            try:
                if self.failure is not None:
                    raise maxcompute_grammar.GrammarError(self.failure)
                tree = maxcompute_grammar.parse(query, settings)
                cursor = self.database.cursor()
                # Names without a project are of the one that the query runs in.
                cursor.execute(f"SET schema = '{PROJECT}'")
                text = _for_duckdb(tree).sql(dialect="duckdb")
                if root.find(".//SQLCost") is not None:
                    instance.cost = self._cost(tree)
                elif tree.args.get("kind") or isinstance(tree, exp.Insert):
                    cursor.execute(text)
                    if isinstance(tree, exp.Create) and tree.expression is not None:
                        self._keep_selected(tree.this.name)
                else:
                    instance.result = _as_served(cursor.sql(text).to_arrow_table())
            except maxcompute_grammar.GrammarError as error:
                instance.failure = str(error)
            except duckdb.CatalogException as error:
                instance.failure = f"ODPS-0130131:[1,1] Table not found - {error}"
            except duckdb.Error as error:
                instance.failure = f"ODPS-0123144: Fuxi job failed - {error}"
            name = uuid.uuid4().hex
            self.instances[name] = instance
        return name

    def _keep_selected(self, name: str) -> None:
        """A table that CREATE TABLE AS has made can be described and downloaded."""
        text = f'SELECT * FROM {PROJECT}."{name}" LIMIT 0'
        if name not in self.tables:
            columns = _as_served(self.database.cursor().sql(text).to_arrow_table()).schema
            self.tables[name] = _Table(columns)
            self.modified[name] = 1_700_000_000 + len(self.modified)

    def _cost(self, tree: exp.Expr) -> str:
        """Of the tables that a statement reads; eight bytes a value."""
        names = {table.name for table in tree.find_all(exp.Table)}
        num_bytes = 0
        for name in names & set(self.tables):
            text = f'SELECT COUNT(*) FROM {PROJECT}."{name}"'
            (count,) = self.database.cursor().execute(text).fetchone()
            num_bytes += 8 * count * len(self.tables[name].columns)
        return json.dumps({"Cost": {"SQL": {"UDF": 0, "Complexity": 1.5, "Input": num_bytes}}})

    def rows_of(self, name: str, partition: str | None) -> pa.Table:
        table = self.table(name)
        if table.is_view:
            raise _Refusal(405, "MethodNotAllowed", "views cannot be downloaded")
        columns = ", ".join(f'"{column}"' for column in table.columns.names)
        text = f'SELECT {columns} FROM {PROJECT}."{name}"'
        values: list[str] = []
        if table.partition_columns:
            if partition is None:
                raise _Refusal(400, "MissingPartitionSpec", "no partition is specified")
            values = list(self.partition_values(table, partition))
            text += " WHERE " + " AND ".join(f'"{key}" = ?' for key in table.partition_columns)
        found = self.database.cursor().sql(text, params=values).to_arrow_table()
        return _as_served(found.cast(table.columns))

    def table(self, name: str) -> _Table:
        if name not in self.tables:
            message = f"ODPS-0130131:Table not found - table {PROJECT}.{name} cannot be resolved"
            raise _Refusal(404, "NoSuchTable", message)
        return self.tables[name]

    def partition_values(self, table: _Table, partition: str) -> tuple[str, ...]:
        pairs = dict(part.split("=", 1) for part in partition.replace("'", "").split(","))
        values = tuple(pairs.get(key, "") for key in table.partition_columns)
        if set(pairs) != set(table.partition_columns) or values not in table.partitions:
            raise _Refusal(404, "NoSuchPartition", "the specified partition does not exist")
        return values

    def open_session(self, rows: pa.Table) -> dict[str, Any]:
        session = uuid.uuid4().hex
        with self.lock:
            self.sessions[session] = rows
        return self.describe_session(session)

    def open_upload(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        table, partition = self.table(name), query.get("partition")
        if table.is_view or bool(table.partition_columns) != (partition is not None):
            raise _Refusal(400, "InvalidPartitionSpec", "The specified partition spec is not valid")
        if partition is not None and "create_partition" not in query:
            self.partition_values(table, partition)
        upload = uuid.uuid4().hex
        self.uploads[upload] = _Upload(name, partition, "overwrite" in query)
        return self.describe_upload(upload)

    def describe_upload(self, upload: str, status: str = "NORMAL") -> dict[str, Any]:
        session = self.uploads[upload]
        columns = [
            {"name": f.name, "type": _type_name(f.type)} for f in self.tables[session.table].columns
        ]
        return {
            "UploadID": upload,
            "Status": status,
            "UploadedBlockList": [{"BlockID": block} for block in session.blocks],
            "Schema": {"columns": columns, "partitionKeys": []},
        }

    def take_block(self, name: str, query: Mapping[str, str], body: bytes) -> None:
        rows = _unframed(body, self.table(name).columns)
        self.uploads[query["uploadid"]].blocks[int(query["blockid"])] = rows

    def commit(self, upload: str) -> dict[str, Any]:
        with self.lock:
            session = self.uploads[upload]
            table, name = self.tables[session.table], session.table
            blocks = [rows for _, rows in sorted(session.blocks.items())]
            rows = pa.concat_tables([table.columns.empty_table(), *blocks])
            condition, values = "TRUE", ()
            if session.partition is not None:
                pairs = [
                    part.split("=", 1) for part in session.partition.replace("'", "").split(",")
                ]
                values = tuple(value for _, value in pairs)
                for key, value in pairs:
                    rows = rows.append_column(key, pa.array([value] * len(rows), pa.string()))
                condition = " AND ".join(f'"{key}" = ?' for key, _ in pairs)
                found = dict.fromkeys([*table.partitions, values])
                self.tables[name] = replace(table, partitions=tuple(found))
            self.database.register("incoming", rows)
            if session.overwrites:
                self.database.execute(f'DELETE FROM {PROJECT}."{name}" WHERE {condition}', values)
            self.database.execute(f'INSERT INTO {PROJECT}."{name}" FROM incoming')
            self.database.unregister("incoming")
            self.modified[name] += 1
            return self.describe_upload(upload, "CLOSED")

    def size_bytes(self, name: str, partition: str | None) -> int:
        table = self.table(name)
        if table.is_view or (table.partition_columns and partition is None):
            return 4096
        return 4096 if len(self.rows_of(name, partition)) else 0

    def describe_session(self, session: str) -> dict[str, Any]:
        rows = self.sessions[session]
        columns = [{"name": f.name, "type": _type_name(f.type)} for f in rows.schema]
        return {
            "DownloadID": session,
            "Status": "normal",
            "RecordCount": len(rows),
            "Schema": {"columns": columns, "partitionKeys": []},
        }

    def session_rows(self, query: Mapping[str, str]) -> pa.Table:
        session = query["downloadid"]
        if session in self.expired or session not in self.sessions:
            raise _Refusal(400, "StatusConflict", "The download session is expired")
        first, count = (int(n) for n in query["rowrange"].strip("()").split(","))
        rows = self.sessions[session]
        if first < 0 or count < 1 or first + count > len(rows):
            raise _Refusal(400, "InvalidRowRange", "The specified row range is not valid")
        if "columns" in query:
            chosen = set(query["columns"].split(","))
            rows = rows.select([name for name in rows.column_names if name in chosen])
        return rows.slice(first, count)


@contextmanager
def running_service() -> Iterator[MaxComputeService]:
    """The service on an ephemeral port, for as long as the block lasts."""
    service = MaxComputeService()
    thread = threading.Thread(target=service.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.server.shutdown()
        service.server.server_close()
        thread.join()
        service.database.close()


@contextmanager
def service_in_environment(patch: pytest.MonkeyPatch) -> Iterator[MaxComputeService]:
    """As `running_service`; the variables of the environment name it."""
    with running_service() as service:
        for name, value in service.environment().items():
            patch.setenv(name, value)
        yield service


def _for_duckdb(tree: exp.Expr) -> exp.Expr:
    """The same statement without partitions: they are columns here."""
    tree = tree.copy()
    for schema in tree.find_all(exp.Schema):
        by = tree.find(exp.PartitionedByProperty)
        if by is not None and schema is tree.this:
            schema.append("expressions", *(one.copy() for one in by.this.expressions))
    if isinstance(tree, exp.Create):
        tree.set("properties", None)
    if isinstance(tree, exp.Insert):
        tree.this.set("partition", None)
        tree.set("overwrite", False)
    return tree


def _as_served(rows: pa.Table) -> pa.Table:
    """Columns in the types that the tunnel has."""
    columns = []
    for column in rows.columns:
        kind = column.type
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            kind = pa.string()
        elif pa.types.is_timestamp(kind):
            kind = pa.timestamp("ms")
        columns.append(column.cast(kind).combine_chunks())
    return pa.table(columns, names=rows.column_names)


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _ARROW_NAMES[kind]


def _framed(rows: pa.Table) -> bytes:
    """Arrow messages without the schema, in chunks that a CRC32C follows each."""
    messages = b"".join(
        batch.serialize().to_pybytes() for batch in rows.to_batches(max_chunksize=BATCH_ROWS)
    )
    content = messages + b"\xff\xff\xff\xff\x00\x00\x00\x00"
    out = [struct.pack("!I", CHUNK_BYTES)]
    whole = Checksum()
    for start in range(0, len(content) + 1, CHUNK_BYTES):
        chunk = content[start : start + CHUNK_BYTES]
        whole.update(chunk)
        checksum = whole
        if len(chunk) == CHUNK_BYTES:
            checksum = Checksum()
            checksum.update(chunk)
        out += [chunk, struct.pack("!I", int(checksum.getvalue()))]
    return b"".join(out)


def _unframed(body: bytes, columns: pa.Schema) -> pa.Table:
    """Rows of a block as the tunnel takes them; refused if a checksum is wrong."""
    (size,) = struct.unpack_from("!I", body)
    content, at, whole = b"", 4, Checksum()
    while at < len(body):
        chunk = body[at : min(at + size, len(body) - 4)]
        at += len(chunk) + 4
        (given,) = struct.unpack_from("!I", body, at - 4)
        whole.update(chunk)
        own = Checksum()
        own.update(chunk)
        if given != (own if len(chunk) == size else whole).getvalue() & 0xFFFFFFFF:
            raise _Refusal(400, "ChecksumMismatch", "The checksum of a chunk is wrong")
        content += chunk
    reader = pa.BufferReader(content)
    batches = []
    while reader.tell() < len(content):
        batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(reader), columns))
    return pa.Table.from_batches(batches, columns)


def _handler_of(service: MaxComputeService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self._body()
            fault = service.fault_for(f"{self.command} {self.path}")
            try:
                if fault is not None and fault.status:
                    raise _Refusal(fault.status, fault.code, fault.message)
                self._check_signature()
                status, headers, content = self._route(body)
                self._send(status, headers, content, cut=fault is not None)
            except _Refusal as refusal:
                text = (
                    '<?xml version="1.0" encoding="UTF-8"?><Error>'
                    f"<Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message>"
                    "<RequestId>5AB6A15D</RequestId><HostId>http://service.test</HostId></Error>"
                )
                self._send(refusal.status, {}, text.encode())

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _send(
            self, status: int, headers: Mapping[str, str], content: bytes, *, cut: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("x-odps-request-id", "5AB6A15D")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self.close_connection = True

        def _check_signature(self) -> None:
            given = self.headers.get("Authorization", "")
            prefix = "/api" if self.path.startswith("/api") else ""
            headers = dict(self.headers.items())
            request = SimpleNamespace(method=self.command, headers=headers)
            url = urlsplit(unquote(self.path.removeprefix(prefix)))
            signed = _Account(ACCESS_ID, ACCESS_KEY)
            text = signed._build_canonical_str(url, request)
            credential = given.removeprefix("ODPS ").rpartition(":")[0]
            region = credential.split("/")[2] if "/" in credential else None
            if not credential.startswith(ACCESS_ID):
                message = (
                    "ODPS-0410031:Authentication failed - The specified access id is not found"
                )
                raise _Refusal(401, "Unauthorized", message)
            if given != signed.calc_auth_str(text, region):
                message = "ODPS-0410042:Invalid signature value"
                raise _Refusal(403, "SignatureNotMatch", message)

        def _route(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            parts = [unquote(part) for part in url.path.removeprefix("/api").strip("/").split("/")]
            if parts[0] == "tenants":
                return 200, {}, b'{"TenantId": "1", "TenantMeta": "{}", "Parameters": {}}'
            if parts[0] != "projects" or parts[1] != PROJECT:
                raise _Refusal(404, "NoSuchProject", "The specified project name does not exist")
            match [self.command, *parts[2:]]:
                case ["GET", "tunnel"]:
                    return 200, {}, service.address.encode()
                case ["GET"]:
                    headers = {
                        "x-odps-owner": "me",
                        "x-odps-creation-time": "Tue, 01 Oct 2024 00:00:00 GMT",
                        "Last-Modified": "Tue, 01 Oct 2024 00:00:00 GMT",
                    }
                    return 200, headers, _PROJECT_XML.encode()
                case ["POST", "instances"]:
                    name = service.submit(body)
                    place = f"{service.endpoint}/projects/{PROJECT}/instances/{name}"
                    return 201, {"Location": place}, b""
                case [method, "instances", name]:
                    return self._instance(method, name, query)
                case [method, "tables", name]:
                    return self._table(method, name, query, body)
            raise _Refusal(404, "NoSuchPath", f"{self.command} {url.path} is not served")

        def _instance(
            self, method: str, name: str, query: Mapping[str, str]
        ) -> tuple[int, dict[str, str], bytes]:
            instance = service.instances[name]
            if method == "PUT":
                return 200, {}, b""
            if method == "POST" and "downloads" in query:
                if instance.result is None:
                    raise _Refusal(400, "InvalidArgument", "the instance has no result")
                return 200, {}, json.dumps(service.open_session(instance.result)).encode()
            if "data" in query:
                return 200, {}, _framed(service.session_rows(query))
            return 200, {"x-odps-owner": "me"}, _instance_xml(instance, query).encode()

        def _table(
            self, method: str, name: str, query: Mapping[str, str], body: bytes
        ) -> tuple[int, dict[str, str], bytes]:
            if method == "POST" and "downloads" in query:
                rows = service.rows_of(name, query.get("partition"))
                return 200, {}, json.dumps(service.open_session(rows)).encode()
            if method == "POST" and "uploads" in query:
                return 200, {}, json.dumps(service.open_upload(name, query)).encode()
            if method == "PUT" and "uploadid" in query:
                service.take_block(name, query, body)
                return 200, {}, b""
            if "uploadid" in query:
                upload = query["uploadid"]
                done = service.commit(upload) if method == "POST" else None
                return 200, {}, json.dumps(done or service.describe_upload(upload)).encode()
            if "data" in query:
                return 200, {}, _framed(service.session_rows(query))
            if "downloadid" in query:
                return 200, {}, json.dumps(service.describe_session(query["downloadid"])).encode()
            return 200, {}, _table_xml(service, name, query).encode()

    return Handler


class _Account(BaseAccount):
    """Signs as the client must have signed."""

    def __init__(self, access_id: str, access_key: str) -> None:
        from odps import ODPS

        self._signer = copy.copy(ODPS._build_account(access_id, access_key))

    def calc_auth_str(self, text: str, region: str | None) -> str:
        return str(self._signer.calc_auth_str(text, region))


_PROJECT_XML = (
    '<?xml version="1.0"?><Project><Name>ads</Name><Owner>me</Owner>'
    "<Properties></Properties></Project>"
)


def _instance_xml(instance: _Instance, query: Mapping[str, str]) -> str:
    status = "Failed" if instance.failure else "Success"
    task = f"<Name>AnonymousSQLTask</Name><Status>{status}</Status>"
    if "result" in query:
        text = escape(re.sub(r"[\x00-\x1f]", " ", instance.failure or instance.cost or ""))
        task += f'<Result Format="text">{text}</Result>'
    tasks = "" if not query else f'<Tasks><Task Type="SQL">{task}</Task></Tasks>'
    return f'<?xml version="1.0"?><Instance><Status>Terminated</Status>{tasks}</Instance>'


def _table_xml(service: MaxComputeService, name: str, query: Mapping[str, str]) -> str:
    table = service.table(name)
    facts: dict[str, Any] = {
        "createTime": 1_600_000_000,
        "lastModifiedTime": service.modified[name],
        "lastDDLTime": 1_600_000_000,
    }
    if "partition" in query and "partitions" not in query:
        service.partition_values(table, query["partition"])
        facts |= {
            "partitionSize": service.size_bytes(name, query["partition"]),
            "partitionRecordNum": -1,
        }
        return (
            f'<?xml version="1.0"?><Partition><Schema>{escape(json.dumps(facts))}</Schema>'
            "</Partition>"
        )
    if "partitions" in query:
        entries = "".join(
            "<Partition>"
            + "".join(
                f'<Column Name="{key}" Value="{escape(value)}"/>'
                for key, value in zip(table.partition_columns, values, strict=True)
            )
            + "</Partition>"
            for values in table.partitions
        )
        return f'<?xml version="1.0"?><Partitions><Marker/>{entries}</Partitions>'
    facts |= {
        "columns": [
            {"name": f.name, "type": service.type_names.get(f.name) or _type_name(f.type)}
            for f in table.columns
        ],
        "partitionKeys": [{"name": key, "type": "string"} for key in table.partition_columns],
        "isVirtualView": table.is_view,
        "size": service.size_bytes(name, None),
        "recordNum": -1,
    }
    stamp = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(service.modified[name]))
    kind = "VIRTUAL_VIEW" if table.is_view else "MANAGED_TABLE"
    return (
        f'<?xml version="1.0"?><Table><Name>{name}</Name><Owner>me</Owner><Type>{kind}</Type>'
        f"<LastModifiedTime>{stamp}</LastModifiedTime>"
        f'<Schema format="Json">{escape(json.dumps(facts))}</Schema></Table>'
    )
