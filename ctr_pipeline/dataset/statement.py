"""What a SELECT says before it is executed: that it is one, which files it reads, its order."""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import sqlglot
from sqlglot import exp

from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.object_files import find_objects, names_object
from ctr_pipeline.errors import DataError, NoSuchFileError

_WRITES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Into)
_CLOCKS = frozenset(
    {
        *("current_date", "current_time", "current_timestamp", "current_localtime"),
        *("current_localtimestamp", "get_current_time", "get_current_timestamp", "localtime"),
        *("localtimestamp", "now", "today", "transaction_timestamp"),
    }
)
_DRAWS = frozenset({"gen_random_uuid", "random", "uuid", "uuidv4", "uuidv7"})
"""Functions of DuckDB that, as `_CLOCKS`, give other values at each execution."""
_DATABASE_ENDINGS = frozenset({".duckdb", ".ddb", ".db"})


def missing_database(name: str, key: str) -> NoSuchFileError:
    """The error for a database that is not there."""
    return NoSuchFileError(
        f"no such file: '{name}'",
        place=key,
        remedy="Name a DuckDB database; paths are relative to the folder that the command runs in",
    )


@dataclass(frozen=True)
class Query:
    """A SELECT of a config or a command line.

    Attributes:
        text: As it is written.
        key: Where it is written, for messages.
        dialect: sqlglot's name of its SQL.
    """

    text: str
    key: str
    dialect: str = "duckdb"

    def __str__(self) -> str:
        return self.key

    @cached_property
    def tree(self) -> exp.Query:
        """The syntax tree, of which files and order are read; DuckDB parses the text itself.

        Raises:
            DataError: It cannot be parsed, or is no single SELECT.
        """
        try:
            parsed = sqlglot.parse(self.text, dialect=self.dialect)
        except (sqlglot.errors.SqlglotError, ValueError) as error:
            raise DataError(
                f"cannot be understood ({str(error).splitlines()[0].rstrip('.')})",
                place=self.key,
                remedy="Write it in plainer SQL, or make a view of it in a database under "
                "data.attach",
            ) from error
        trees = [tree for tree in parsed if tree is not None]
        if len(trees) != 1:
            raise DataError(
                f"has {len(trees)} statements, and one SELECT is a source of rows",
                place=self.key,
                remedy="Keep the SELECT; prepare tables and views before the run",
            )
        if not isinstance(trees[0], exp.Query):
            raise DataError(
                f"is no SELECT but {trees[0].key.upper()}, and a source only reads",
                place=self.key,
                remedy="Write a SELECT",
            )
        return trees[0]

    def require_reading(self) -> None:
        """Raises DataError if it writes anywhere in it."""
        writes = self.tree.find(*_WRITES)
        if writes is not None:
            raise DataError(
                f"holds {writes.key.upper()}, and a source only reads",
                place=self.key,
                remedy="Write a SELECT",
            )

    @property
    def has_order(self) -> bool:
        """Whether its rows come in an order that it names."""
        return self.tree.args.get("order") is not None

    def order_columns(self, names: Sequence[str]) -> list[str] | None:
        """The columns that its rows are ordered by.

        Args:
            names: All of its columns.

        Returns:
            They; None where it orders by something that it does not select, or not at all.
        """
        order = self.tree.args.get("order")
        if order is None:
            return None
        by_name = {name.lower(): name for name in names}
        found = []
        for ordered in order.expressions:
            key = ordered.this
            if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.name) <= len(names):
                found.append(names[int(key.name) - 1])
            elif isinstance(key, exp.Column) and key.name.lower() in by_name:
                found.append(by_name[key.name.lower()])
            elif isinstance(key, exp.Var) and key.name.upper() == "ALL":
                return list(names)
            else:
                return None
        return found

    @property
    def first_table(self) -> str:
        """Name of the first table or file that it reads; empty if it reads none."""
        table = self.tree.find(exp.Table)
        return "" if table is None else Path(table.name).stem

    def unnamed_columns(self) -> list[str]:
        """Expressions that it selects without a name."""
        return [
            one.sql(self.dialect)
            for one in self.tree.selects
            if not (isinstance(one, exp.Alias | exp.Column) or one.is_star)
        ]

    def renamed_column(self) -> str | None:
        """The first name that it gives to two columns but for case, of which DuckDB renames one."""
        named = [one.alias_or_name for one in self.tree.selects if not one.is_star]
        lower = [name.lower() for name in named]
        return next((name for name in named if lower.count(name.lower()) > 1), None)

    def check_repeatable(self) -> None:
        """Raises DataError where the same data would give other rows at each execution."""
        for call in self.tree.find_all(exp.Func):
            is_named = isinstance(call, exp.Anonymous)
            name = (call.name if is_named else call.sql("duckdb").partition("(")[0]).lower()
            if name in _CLOCKS or (name == "age" and len(call.expressions) == 1):
                raise DataError(
                    f"asks for the time by {name}, so the same data gives other rows later",
                    place=self.key,
                    remedy="Write the time into the query, such as TIMESTAMP '2026-01-31 00:00:00'",
                )
            if name in _DRAWS:
                raise DataError(
                    f"draws values by {name}, so the same data gives other rows each time",
                    place=self.key,
                    remedy="Choose rows by their values, such as hash(user_id) % 10 = 0",
                )
        if any(not sample.args.get("seed") for sample in self.tree.find_all(exp.TableSample)):
            raise DataError(
                "samples rows without a seed, so the same data gives other rows each time",
                place=self.key,
                remedy="Give it a seed, such as USING SAMPLE 10 PERCENT (bernoulli, 42)",
            )

    def files(self) -> tuple[DataFile, ...]:
        """The files and databases that it names, each once, in the order of their names.

        Raises:
            DataError: An object store cannot be asked, or a database is not there.
        """
        found: dict[str, DataFile] = dict(self.databases())
        for pattern in self._patterns():
            if names_object(pattern):
                found |= {str(file): file for file in find_objects(pattern, self.key)}
            else:
                paths = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
                found |= {str(path): path for path in paths if path.is_file()}
        return tuple(found[name] for name in sorted(found))

    def databases(self) -> dict[str, Path]:
        """The DuckDB files that it names as schemas, as in `FROM "data/shop.duckdb".clicks`.

        Raises:
            DataError: One is not there.
        """
        found = {}
        for table in self.tree.find_all(exp.Table):
            named = table.args.get("catalog") or table.args.get("db")
            if isinstance(named, exp.Identifier) and Path(named.name).suffix in _DATABASE_ENDINGS:
                found[named.name] = file = Path(named.name)
                if not file.is_file():
                    raise missing_database(named.name, self.key)
        return found

    def objects(self) -> list[str]:
        """The addresses and globs in object stores that it names."""
        return [pattern for pattern in self._patterns() if names_object(pattern)]

    def _patterns(self) -> Iterator[str]:
        """Files and globs of a FROM: quoted names, and the texts that its readers are given."""
        for table in self.tree.find_all(exp.Table):
            name = table.this
            if isinstance(name, exp.Identifier):
                if name.quoted and not table.db:
                    yield name.name
                continue
            for text in name.find_all(exp.Literal):
                if text.is_string and not isinstance(text.parent, exp.EQ | exp.PropertyEQ):
                    yield text.name


def check_names(query: Query, names: Sequence[str]) -> None:
    """Raises DataError unless each column of a SELECT has a name of its own.

    Args:
        query: The SELECT.
        names: Its columns, as the database calls them.
    """
    unnamed = query.unnamed_columns()
    if unnamed:
        raise DataError(
            f"selects {unnamed[0]} without a name",
            place=query.key,
            remedy=f"Name it: {unnamed[0]} AS name",
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is None and query.dialect == "duckdb":
        twice = query.renamed_column()
    if twice is not None:
        raise DataError(
            f"selects two columns named '{twice}'",
            place=query.key,
            remedy=f"Name one of them otherwise with AS, or join with USING ({twice})",
        )
