"""MaxCompute's SQL: Hive's, but for a few words.

https://www.alibabacloud.com/help/en/maxcompute/user-guide/select-syntax
"""

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.hive import Hive
from sqlglot.generators.hive import HiveGenerator

SETTINGS = {
    # BIGINT, DOUBLE, DECIMAL(38, 0) and the others as the second edition of the types has them.
    "odps.sql.type.system.odps2": "true",
    "odps.sql.decimal.odps2": "true",
    "odps.sql.hive.compatible": "false",
    # Vocabularies are sorted as a whole; without this, ORDER BY needs LIMIT.
    "odps.sql.validate.orderby.limit": "false",
}
"""Settings that every statement is sent with."""


class Lifecycle(exp.Property):
    """`LIFECYCLE n`: the service drops the table when nothing has changed it for n days."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


class MaxCompute(Hive):
    """The dialect; names are always quoted, so that no column is taken for a key word."""

    class Generator(HiveGenerator):
        """Writes it."""

        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            **HiveGenerator.TRANSFORMS,
            Lifecycle: lambda self, node: f"LIFECYCLE {self.sql(node, 'this')}",
        }
        PROPERTIES_LOCATION: ClassVar[dict[Any, Any]] = {
            **HiveGenerator.PROPERTIES_LOCATION,
            Lifecycle: exp.Properties.Location.POST_SCHEMA,
        }


def render(tree: exp.Expr) -> str:
    """The text of a statement."""
    return tree.sql(dialect=MaxCompute, identify=True)


def create_table_as(table: exp.Table, query: exp.Expr) -> exp.Create:
    """A table of the rows of a query, which the service drops after a day if nobody else does."""
    lifecycle = Lifecycle(this=exp.Literal.number(1))
    return exp.Create(
        this=table,
        kind="TABLE",
        properties=exp.Properties(expressions=[lifecycle]),
        expression=query,
    )


def drop_table(table: exp.Table) -> exp.Drop:
    """Drops a table if it is there."""
    return exp.Drop(tables=[table], kind="TABLE", exists=True)
