"""Refuses SQL that MaxCompute's reference does not name; see `maxcompute_reference.yaml`."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

_REFERENCE = yaml.safe_load((Path(__file__).parent / "maxcompute_reference.yaml").read_text())
_LIFECYCLE = re.compile(
    r"^(CREATE TABLE (?:IF NOT EXISTS )?[^()\s]+ \(.*\)) LIFECYCLE [1-9]\d*;?$", re.DOTALL
)
_LIFECYCLE_OF_SELECTED = re.compile(
    r"^(CREATE TABLE (?:IF NOT EXISTS )?[^()\s]+) LIFECYCLE [1-9]\d* (AS .*)$", re.DOTALL
)
_OPERATORS = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.Is: "IS",
    exp.In: "IN",
    exp.And: "AND",
    exp.Or: "OR",
    exp.Not: "NOT",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "DIV",
    exp.Neg: "NEG",
    exp.RegexpLike: "RLIKE",
}
_FUNCTION_NAMES = {
    exp.Case: "CASE",
    exp.IsNan: "ISNAN",
    exp.Lower: "LOWER",
    exp.Struct: "NAMED_STRUCT",
    exp.Substring: "SUBSTR",
}
_PLAIN = (
    exp.Select,
    exp.Subquery,
    exp.From,
    exp.Where,
    exp.Group,
    exp.Order,
    exp.Ordered,
    exp.Limit,
    exp.Alias,
    exp.TableAlias,
    exp.Column,
    exp.Identifier,
    exp.Table,
    exp.Literal,
    exp.Null,
    exp.Boolean,
    exp.Paren,
    exp.Star,
    exp.DataType,
    exp.DataTypeParam,
    exp.WindowSpec,
    exp.Union,
    exp.Create,
    exp.Schema,
    exp.ColumnDef,
    exp.Properties,
    exp.PartitionedByProperty,
    exp.Insert,
    exp.Partition,
    exp.Drop,
    exp.Lateral,
    exp.Dot,
    exp.With,
    exp.CTE,
)
"""Syntax of statements in the reference that has no name of its own there."""


class GrammarError(Exception):
    """The text is not SQL that MaxCompute is known to take; worded as the service words it."""


@cache
def _names(group: str) -> frozenset[str]:
    return frozenset(name for entry in _REFERENCE[group] for name in entry["names"])


def parse(text: str, settings: dict[str, Any]) -> exp.Expr:
    """The syntax tree of one statement that has passed.

    Raises:
        GrammarError: Something in it is not in the reference.
    """
    match = _LIFECYCLE.match(text)
    plain = _LIFECYCLE.sub(r"\1", text) if match else text
    plain = _LIFECYCLE_OF_SELECTED.sub(r"\1 \2", plain)
    try:
        tree = parse_one(plain.rstrip().removesuffix(";"), read="hive")
    except SqlglotError as error:
        raise GrammarError(f"ODPS-0130161:[1,1] Parse exception - {error}") from error
    for node in tree.walk():
        _check(node, tree, settings)
    return tree


def _refuse(what: str) -> GrammarError:
    return GrammarError(f"ODPS-0130071:[1,1] Semantic analysis exception - {what}")


def _check(node: exp.Expr, tree: exp.Expr, settings: dict[str, Any]) -> None:
    if isinstance(node, exp.Create):
        is_selected = isinstance(node.this, exp.Table) and isinstance(node.expression, exp.Query)
        has_columns = isinstance(node.this, exp.Schema) and node.expression is None
        if node is not tree or node.kind != "TABLE" or not (is_selected or has_columns):
            raise _refuse(f"statement {node.kind} is not known")
    elif isinstance(node, exp.Properties):
        if [type(one) for one in node.expressions] != [exp.PartitionedByProperty]:
            raise _refuse("a table property is not known")
    elif isinstance(node, exp.Insert):
        if not node.args.get("overwrite") or not isinstance(node.expression, exp.Query):
            raise _refuse("only INSERT OVERWRITE of a SELECT is known")
    elif isinstance(node, exp.Join):
        if node.side != "LEFT" or not isinstance(node.args.get("on"), exp.EQ):
            raise _refuse("only LEFT JOIN on equal columns is known")
    elif isinstance(node, exp.Lateral):
        if not node.args.get("view") or not isinstance(node.this, exp.Posexplode):
            raise _refuse("only LATERAL VIEW POSEXPLODE is known")
    elif isinstance(node, exp.PropertyEQ):
        if not isinstance(node.parent, exp.Struct):
            raise _refuse("a property is not known")
    elif isinstance(node, exp.Union):
        if node.args.get("distinct"):
            raise _refuse("only UNION ALL is known")
    elif isinstance(node, exp.Window):
        _check_function(node.this, "window_functions")
    elif isinstance(node, exp.Subquery):
        # One that gives a single value may stand in a SELECT list without a name.
        if not node.alias and isinstance(node.parent, exp.From):
            raise _refuse("a subquery needs an alias")
    elif isinstance(node, exp.Order):
        _check_order(node, settings)
    elif isinstance(node, exp.DataType):
        _check_type(node, settings)
    elif isinstance(node, exp.Placeholder):
        raise _refuse("a placeholder has no value")
    elif type(node) in _OPERATORS:
        if _OPERATORS[type(node)] not in _names("operators"):
            raise _refuse(f"operator {_OPERATORS[type(node)]} is not known")
    elif isinstance(node, exp.Func):
        if not isinstance(node.parent, exp.Window) or node.arg_key != "this":
            _check_function(node, "functions")
    elif not isinstance(node, _PLAIN):
        raise _refuse(f"{type(node).__name__} is not known")


def _check_function(node: exp.Expr, group: str) -> None:
    if isinstance(node, exp.TryCast | exp.Cast):
        name = "CAST"
    elif isinstance(node, exp.Anonymous):
        name = node.name.upper()
    else:
        name = _FUNCTION_NAMES.get(type(node), node.sql_name())
    if isinstance(node, exp.If) and isinstance(node.parent, exp.Case):
        return
    if name not in _names(group):
        raise _refuse(f"function {name} cannot be resolved")


def _check_order(node: exp.Order, settings: dict[str, Any]) -> None:
    owner = node.parent
    if isinstance(owner, exp.Window):
        return
    setting = _REFERENCE["order_by_without_limit"]
    if not owner.args.get("limit") and str(settings.get(setting, "true")).lower() != "false":
        raise _refuse("ORDER BY must be used with a LIMIT clause")


def _check_type(node: exp.DataType, settings: dict[str, Any]) -> None:
    name = {"TEXT": "STRING", "VARCHAR": "STRING"}.get(node.this.value, node.this.value)
    if name not in _names("types"):
        raise _refuse(f"type {name} is not known")
    if name == "DECIMAL":
        sizes = [int(size.this.name) for size in node.expressions]
        if len(sizes) != 2 or not 1 <= sizes[0] <= 38 or not 0 <= sizes[1] <= min(18, sizes[0]):
            raise _refuse(f"invalid precision and scale {sizes} of DECIMAL")
        if str(settings.get("odps.sql.decimal.odps2", "false")).lower() != "true":
            raise _refuse("DECIMAL with precision needs odps.sql.decimal.odps2")
