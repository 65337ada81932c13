"""MaxCompute's SQL: Hive's, but for a few words.

https://www.alibabacloud.com/help/en/maxcompute/user-guide/select-syntax
"""

from collections.abc import Mapping
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


def create_table(table: exp.Table, columns: Mapping[str, str], partition: str) -> exp.Create:
    """An empty table, which the service drops after a day if nobody else does.

    Args:
        table: Its name.
        columns: Their types by name.
        partition: The column of texts that it is partitioned by.
    """
    by = exp.PartitionedByProperty(this=exp.Schema(expressions=[_column(partition, "text")]))
    lifecycle = Lifecycle(this=exp.Literal.number(1))
    defined = [_column(name, kind) for name, kind in columns.items()]
    return exp.Create(
        this=exp.Schema(this=table.copy(), expressions=defined),
        kind="TABLE",
        properties=exp.Properties(expressions=[by, lifecycle]),
    )


def create_selected(table: exp.Table, query: exp.Query, *, days: int) -> exp.Create:
    """A table of the rows of a SELECT, unless it is there.

    Args:
        table: Its name.
        query: The SELECT.
        days: The service drops it when nothing has changed it for so long.
    """
    lifecycle = Lifecycle(this=exp.Literal.number(days))
    return exp.Create(
        this=table.copy(),
        kind="TABLE",
        exists=True,
        properties=exp.Properties(expressions=[lifecycle]),
        expression=query.copy(),
    )


def insert_partitions(table: exp.Table, partition: str, query: exp.Expr) -> exp.Insert:
    """Puts the rows of a query into the partitions that its last column names."""
    named = exp.Partition(expressions=[exp.column(partition)])
    target = table.copy()
    target.set("partition", named)
    return exp.Insert(this=target, expression=query, overwrite=True)


def _column(name: str, kind: str) -> exp.ColumnDef:
    return exp.ColumnDef(this=exp.to_identifier(name), kind=exp.DataType.build(kind))


def drop_table(table: exp.Table) -> exp.Drop:
    """Drops a table if it is there."""
    return exp.Drop(tables=[table], kind="TABLE", exists=True)
