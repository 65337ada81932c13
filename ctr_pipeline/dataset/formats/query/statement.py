"""What a SELECT says before it is executed: that it is one, which files it reads, its order."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import sqlglot
from sqlglot import exp

from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.object_files import find_objects, names_object
from ctr_pipeline.errors import DataError


@dataclass(frozen=True)
class Query:
    """A SELECT of a config or a command line.

    Attributes:
        text: As it is written.
        key: Where it is written, for messages.
    """

    text: str
    key: str

    def __str__(self) -> str:
        return self.key

    @cached_property
    def tree(self) -> exp.Query:
        """Its syntax tree, of which files and order are read; DuckDB parses the text itself.

        Raises:
            DataError: It cannot be parsed, or gives no rows.
        """
        try:
            (tree,) = sqlglot.parse(self.text, dialect="duckdb")
        except (sqlglot.errors.SqlglotError, ValueError) as error:
            raise DataError(
                f"cannot be understood ({str(error).splitlines()[0].rstrip('.')})",
                place=self.key,
                remedy="Write it in plainer SQL, or make a view of it in a database under "
                "data.attach",
            ) from error
        if not isinstance(tree, exp.Query):
            raise DataError(
                "tells about rows and gives none", place=self.key, remedy="Write a SELECT"
            )
        return tree

    @property
    def has_order(self) -> bool:
        """Whether its rows come in an order that it names."""
        return self.tree.args.get("order") is not None

    def unnamed_columns(self) -> list[str]:
        """Expressions that it selects without a name."""
        return [
            one.sql("duckdb")
            for one in self.tree.selects
            if not (isinstance(one, exp.Alias | exp.Column) or one.is_star)
        ]

    def files(self) -> tuple[DataFile, ...]:
        """The files that it names and that are there, each once, in the order of their names.

        Raises:
            DataError: An object store cannot be asked.
        """
        found: dict[str, DataFile] = {}
        for pattern in self._patterns():
            if names_object(pattern):
                found |= {str(file): file for file in find_objects(pattern, self.key)}
            else:
                paths = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
                found |= {str(path): path for path in paths if path.is_file()}
        return tuple(found[name] for name in sorted(found))

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
