"""Columns of the data."""

from enum import StrEnum


class ColumnType(StrEnum):
    """How the reader reads a column."""

    NUMBER = "number"
    TEXT = "text"
