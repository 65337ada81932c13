"""Tables and partitions of MaxCompute: their names, which rows of them, what is known of them.

`odps://project/table/ds=20240101/hour=07` names a partition.
"""

import re
from dataclasses import dataclass

import pyarrow as pa

from ctr_pipeline.errors import DataError

SCHEME = "odps://"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FORM = "Write odps://project/table, or odps://project/table/ds=20240101 for a partition"


@dataclass(frozen=True)
class TableAddress:
    """A table, or one partition of it.

    Attributes:
        project: The project that holds it.
        table: Its name.
        partition: Name and value of each partition column, in the order given; empty for a table
            without partitions.
    """

    project: str
    table: str
    partition: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        parts = [f"{key}={value}" for key, value in self.partition]
        return SCHEME + "/".join([self.project, self.table, *parts])


@dataclass(frozen=True)
class HashRange:
    """Rows whose hash is one of a range.

    Attributes:
        columns: Columns to hash, in this order, and their types.
        salt: Hashed before them; None: the text of a single column is hashed, as
            `splits.hash_fractions` does.
        hashes: The first hash, and that after the last, as of `splits.plan_hash_ranges`.
        missing_values: Texts that mean missing, the empty one among them.
    """

    columns: tuple[tuple[str, pa.DataType], ...]
    salt: str | None
    hashes: tuple[int, int]
    missing_values: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class TableRows:
    """Rows of one split in one table or partition.

    Attributes:
        address: The table.
        chosen: Which of its rows; None: all.
        key: Where the SELECT is written that made the table, which then tells its rows by its
            name; None: it is one of the config.
    """

    address: TableAddress
    chosen: HashRange | None = None
    key: str | None = None

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True)
class TableFacts:
    """What the service says of a table or partition.

    Attributes:
        schema: Schema of its columns, partition columns left out.
        is_view: Whether it is a view, which can be queried but not downloaded.
        size_bytes: On the service's disks; 0 if unknown.
        version: Changes when its rows do.
    """

    schema: pa.Schema
    is_view: bool
    size_bytes: int
    version: str


def is_address(text: str) -> bool:
    """Whether a path of the config is meant as a table."""
    return text.startswith(SCHEME)


def parse_address(text: str, key: str) -> TableAddress:
    """The table that an address names.

    Args:
        text: As in the config.
        key: The config key, for messages.

    Raises:
        DataError: It is no address, or holds what looks like credentials.
    """
    rest = text.removeprefix(SCHEME)
    if "@" in rest.partition("/")[0]:
        # The text is not shown: what stands before the @ may be a key.
        raise DataError(
            "an address holds no credentials",
            place=key,
            remedy="Set ODPS_ACCESS_ID and ODPS_ACCESS_KEY in the environment, write "
            "odps://project/table, and change the key if others may have read it",
        )
    names, parts = rest.strip("/").split("/")[:2], rest.strip("/").split("/")[2:]
    if len(names) != 2 or not all(_NAME.fullmatch(name) for name in names):
        raise DataError(f"'{text}' does not name a table", place=key, remedy=_FORM)
    project, table = names
    partition = []
    for part in parts:
        name, equals, value = part.partition("=")
        if not (equals and value and _NAME.fullmatch(name)) or "'" in value or "," in value:
            raise DataError(f"'{part}' in '{text}' is no partition", place=key, remedy=_FORM)
        partition.append((name, value))
    return TableAddress(project, table, tuple(partition))
