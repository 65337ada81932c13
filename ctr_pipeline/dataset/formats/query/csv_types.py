"""Gives the CSV files that a SELECT reads the types that they have everywhere else.

DuckDB guesses types from some rows, by rules of its own: an id such as `00078` becomes a number, a
time loses its hour, and 48.75 is rounded where the first rows were whole. Here each scan of a CSV
file is told the types: numbers where all of the first rows are, and texts. Whole numbers are
integers, and a later one that is not whole is an error. DuckDB's own syntax tree of the statement
is changed, so the rest of the SELECT stays what it was.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from ctr_pipeline.dataset.inference import infer_type
from ctr_pipeline.dataset.source import HEAD_ROWS
from ctr_pipeline.errors import DataError
from ctr_pipeline.specs.columns import ColumnType

Node = dict[str, Any]

_READERS = frozenset({"read_csv", "read_csv_auto"})
_ENDINGS = frozenset({".csv", ".tsv"})
_COMPRESSED = frozenset({".gz", ".zst"})
_TYPED_BY = frozenset({"all_varchar", "auto_detect", "auto_type_candidates", "columns"})
_TYPES = frozenset({"types", "dtypes", "column_types"})
_BESIDE_FILE = frozenset({"filename", "hive_partitioning", "hive_types", "hive_types_autocast"})
"""Options that add columns which the file does not have."""
NOT_WHOLE = " is no whole number"
"""Begins, after the value, what DuckDB says of one that is not; a remedy follows a full stop."""

_NUMBER, _INTEGER = "DOUBLE", "BIGINT"
_TO_SQL = "SELECT json_deserialize_sql(?::JSON)"
_PLAIN: Node = {"sample": None, "column_name_alias": []}
"""What a scan has that is neither sampled nor gives its columns other names."""
_WHOLE = r"^-?(0|[1-9]\d{0,17})$"


def type_csv(
    text: str, ask: Callable[[str, list[str]], Any], read: Callable[[str], pa.Table], place: str
) -> str:
    """A SELECT whose CSV files have types.

    Args:
        text: The SELECT.
        ask: Has DuckDB execute a statement with values for its parameters; gives the one result.
        read: Has it execute a SELECT; gives all rows.
        place: Where the SELECT is written.

    Returns:
        The text itself, if it reads no CSV file without types.

    Raises:
        DataError: DuckDB cannot say what it understands of the SELECT.
    """
    lower = text.lower()
    if not any(word in lower for word in (*_ENDINGS, *_READERS)):
        return text

    def parse(select: str) -> Node:
        tree: Node = json.loads(ask("SELECT json_serialize_sql(?)", [select]))
        return tree

    tree = parse(text)
    if tree["error"]:
        raise DataError(
            f"reads CSV, and it cannot be told the types there ({tree['error_message']})",
            place=place,
            remedy="Write it in plainer SQL, or read a table of data.attach, or Parquet",
        )
    known: dict[str, dict[str, str]] = {}

    def find_types(scan: Node) -> dict[str, str]:
        texts = _from_of(parse("FROM f(all_varchar = true, hive_partitioning = false)"))
        own = [one for one in _arguments(scan) if _name_of(one) not in _BESIDE_FILE]
        look = parse("FROM f")
        look["statements"][0]["node"]["from_table"] = (
            scan | _PLAIN | {"function": scan["function"] | {"arguments": own + _arguments(texts)}}
        )
        head = f"{ask(_TO_SQL, [json.dumps(look)])} LIMIT {HEAD_ROWS}"
        if head not in known:
            known[head] = _types_of(read(head))
        return known[head]

    scans = list(_untyped_scans(tree))
    for scan in scans:
        outer = {key: scan[key] for key in ("alias", *_PLAIN)}
        if scan["type"] == "BASE_TABLE":
            name = scan["table_name"]
            outer["alias"] = outer["alias"] or PurePath(name).name.split(".")[0]
            call = exp.Anonymous(this="read_csv", expressions=[exp.Literal.string(name)])
            typed = _from_of(parse(exp.select("*").from_(call).sql("duckdb")))
        else:
            outer["alias"] = outer["alias"] or scan["function"]["function_name"]
            typed = {**scan}
        types = find_types(typed)
        _add_types(typed, _from_of(parse(f"FROM f(types = {_struct(types)})")))
        whole = [name for name, kind in types.items() if kind == _INTEGER]
        if whole:
            select = exp.select(exp.Star(replace=[_checked(name) for name in whole])).from_("f")
            around = _from_of(parse(exp.select("*").from_(select.subquery("f")).sql("duckdb")))
            around["subquery"]["node"]["from_table"] = typed | _PLAIN
            typed = around
        scan.clear()
        scan.update(typed | outer)
    return str(ask(_TO_SQL, [json.dumps(tree)])) if scans else text


def _from_of(tree: Node) -> Node:
    node: Node = tree["statements"][0]["node"]["from_table"]
    return node


def _arguments(scan: Node) -> list[Node]:
    arguments: list[Node] = scan["function"]["arguments"]
    return arguments


def _add_types(scan: Node, told: Node) -> None:
    """Names the types of a scan's columns; those that it names itself stay."""
    (added,) = _arguments(told)
    own = next((one for one in _arguments(scan) if _name_of(one) in _TYPES), None)
    if own is None:
        scan["function"] = scan["function"] | {"arguments": [*_arguments(scan), added]}
        return
    named = own["expression"]["right"]["arguments"]
    names = {one["name"].lower() for one in named}
    named += [
        one for one in added["expression"]["right"]["arguments"] if one["name"].lower() not in names
    ]


def _checked(name: str) -> exp.Expr:
    """A column of numbers as integers; another number is an error."""
    column = exp.column(name, quoted=True)
    advice = (
        f"{NOT_WHOLE} in column '{name}' of a CSV file. Its first rows hold whole numbers alone: "
        f"name its type, as in read_csv('FILE', types = {_struct({name: _NUMBER})})"
    )
    value = exp.DPipe(this=column.copy(), expression=exp.Literal.string(advice))
    error = exp.Anonymous(this="error", expressions=[value])
    is_whole = exp.EQ(
        this=column.copy(), expression=exp.Anonymous(this="trunc", expressions=[column.copy()])
    )
    whole = exp.cast(column.copy(), "BIGINT")
    is_there = exp.Not(this=exp.Is(this=column.copy(), expression=exp.null()))
    chosen = exp.Case().when(is_whole, whole).when(is_there, exp.cast(error, "BIGINT"))
    return exp.alias_(chosen, name, quoted=True)


def _untyped_scans(tree: Any) -> Iterator[Node]:
    """The nodes of FROM that read CSV files and do not say the types of their columns."""
    if isinstance(tree, list):
        for one in tree:
            yield from _untyped_scans(one)
    if not isinstance(tree, dict):
        return
    if tree.get("type") == "BASE_TABLE" and not tree.get("schema_name"):
        suffixes = [suffix.lower() for suffix in PurePath(tree["table_name"]).suffixes]
        if suffixes and suffixes[-1] in _COMPRESSED:
            suffixes.pop()
        if suffixes and suffixes[-1] in _ENDINGS:
            yield tree
    elif tree.get("type") == "TABLE_FUNCTION":
        function = tree["function"]
        names = {_name_of(one) for one in function["arguments"]}
        is_reader = function["function_name"].lower() in _READERS
        if is_reader and not names & _TYPED_BY and not _lists_types(function["arguments"]):
            yield tree
    for one in list(tree.values()):
        yield from _untyped_scans(one)


def _lists_types(arguments: list[Node]) -> bool:
    """Whether the types of all columns are given as a list."""
    own = next((one for one in arguments if _name_of(one) in _TYPES), None)
    return own is not None and own["expression"]["right"].get("function_name") != "struct_pack"


def _name_of(argument: Node) -> str:
    """The name of an argument that is given as `name = value`; else empty."""
    if argument["name"]:
        return str(argument["name"]).lower()
    expression = argument["expression"]
    left = expression.get("left", {})
    return str(left["column_names"][0]).lower() if left.get("column_names") else ""


def _types_of(head: pa.Table) -> dict[str, str]:
    """DuckDB's type of each column."""
    types = {}
    for name, texts in zip(head.column_names, head.columns, strict=True):
        # Another type is one that the SELECT names.
        if pa.types.is_string(texts.type):
            types[name] = _NUMBER if infer_type(texts) is ColumnType.NUMBER else "VARCHAR"
            if types[name] == _NUMBER and pc.all(pc.match_substring_regex(texts, _WHOLE)).as_py():
                types[name] = _INTEGER
    return types


def _struct(types: dict[str, str]) -> str:
    items = [
        exp.PropertyEQ(
            this=exp.to_identifier(name, quoted=True),
            # A double first: DuckDB would round what is not whole.
            expression=exp.Literal.string(_NUMBER if kind == _INTEGER else kind),
        )
        for name, kind in types.items()
    ]
    return exp.Struct(expressions=items).sql("duckdb")
