"""Rows of a SELECT, which the service puts into a table that is then read as any other.

The table's name tells its rows: it is made of the text and the versions of the tables that the
text names. Whoever needs the same rows within a week finds the table: another member of a job, a
run that is resumed. The service drops it after that.
"""

import hashlib

from sqlglot import exp

from ctr_pipeline.dataset.formats.maxcompute.client import MaxComputeClient
from ctr_pipeline.dataset.formats.maxcompute.dialect import MaxCompute, create_selected
from ctr_pipeline.dataset.formats.maxcompute.table import TableAddress, TableRows
from ctr_pipeline.dataset.statement import Query, check_names
from ctr_pipeline.errors import DataError, StatisticsError

KEPT_DAYS = 7


def select_into_table(client: MaxComputeClient, query: Query) -> TableRows:
    """The rows of a SELECT, executed unless its table is there.

    Args:
        client: A client of the project that queries run in, which gets the table.
        query: The SELECT.

    Raises:
        DataError: It is no single SELECT, names an order, a view or a table that is not there,
            leaves a column without a name, or the service refuses it.
    """
    query.require_reading()
    _refuse_order(query)
    check_names(query, [one.alias_or_name for one in query.tree.selects if not one.is_star])
    sources = {
        str(one): client.version_of(one) for one in source_tables(query, client.entry.project)
    }
    facts = repr((query.text, sorted(sources.items())))
    name = f"ctrpipe_query_{hashlib.sha256(facts.encode()).hexdigest()[:24]}"
    address = TableAddress(client.entry.project, name)
    if not client.has_table(address):
        table = exp.table_(name, db=client.entry.project)
        created = create_selected(table, query.tree, days=KEPT_DAYS)
        try:
            # Names are quoted as they were: the service knows which of them are key words.
            client.execute(created.sql(dialect=MaxCompute))
        except StatisticsError as error:
            raise DataError(
                f"fails: {error.message}",
                place=query.key,
                remedy="Try it in a client of MaxCompute",
            ) from error
    return TableRows(address, key=query.key)


def source_tables(query: Query, project: str) -> list[TableAddress]:
    """The tables that a SELECT names, each once.

    Args:
        query: The SELECT.
        project: The project whose tables have none before their name.

    Raises:
        DataError: A table is named with more than its project.
    """
    ctes = {cte.alias.lower() for cte in query.tree.find_all(exp.CTE)}
    found: dict[TableAddress, None] = {}
    for table in query.tree.find_all(exp.Table):
        if table.catalog:
            raise DataError(
                f"names a table with a schema, '{table.sql(MaxCompute)}'",
                place=query.key,
                remedy="Name tables as project.table",
            )
        if table.db or table.name.lower() not in ctes:
            found[TableAddress(table.db or project, table.name)] = None
    return list(found)


def _refuse_order(query: Query) -> None:
    if query.has_order and query.tree.args.get("limit") is None:
        raise DataError(
            "orders its rows, and a table of MaxCompute, which they become, has no order",
            place=query.key,
            remedy="Leave ORDER BY out, and set data.split.by to random or hash; with LIMIT, ORDER "
            "BY says which rows there are",
        )
