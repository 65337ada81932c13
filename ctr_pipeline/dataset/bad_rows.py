"""Rows that cannot be used: why, where, and how many of them are too many.

A row is counted once, under the first reason found: quotes, wrong number of columns, then the
columns in the order they are read. Rows are numbered from 1: in text files by the line the row
starts in, as an editor shows it; in Parquet and RecordIO files by record.
"""

import ast
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from ctr_pipeline.errors import DataError

EXAMPLES_PER_REASON = 5
_SHOWN_CHARACTERS = 60


class BadRowReason(StrEnum):
    """Why a row cannot be used."""

    WRONG_COLUMN_COUNT = "wrong number of columns"
    ESCAPED_QUOTE = "a backslash before a quote within a value"
    BAD_UTF8 = "not UTF-8"
    NOT_A_NUMBER = "not a number"
    BAD_WEIGHT = "weight of an element not a finite number of at least 0"
    WRONG_LENGTH = "vector of another length"
    NOT_A_VECTOR = "number of a vector not a finite number"
    DELIMITER_INSIDE = "delimiter inside an element of a list"
    LABEL_MISSING = "label missing"
    LABEL_NOT_BINARY = "label not 0 or 1"
    LABEL_OF_NEITHER = "label neither data.positive nor its opposite"
    NOT_ONE_LINE = "not one line"
    NOT_AN_EXAMPLE = "not a tf.train.Example"
    SEVERAL_VALUES = "several values in one record"
    FLOAT_AS_TEXT = "a float without one text, but the column is used as text"
    WEIGHT_MISSING = "weight missing"
    WEIGHT_OUT_OF_RANGE = "weight negative or not finite"
    TIME_MISSING = "time missing"
    NOT_A_TIME = "not a point in time"
    NOT_A_PAIR = "not a pair of key and value"
    KEY_REPEATED = "key repeated"


_REMEDIES = {
    BadRowReason.WRONG_COLUMN_COUNT: "Check data.delimiter and data.quote, mend the row",
    BadRowReason.ESCAPED_QUOTE: "Set data.escape: \\ if it escapes the quote, or "
    "data.quote: null if quotes are plain characters",
    BadRowReason.BAD_UTF8: "Convert the file to UTF-8",
    BadRowReason.NOT_A_NUMBER: "Mend the value, list it in data.missing_values, or use the column "
    "as categorical",
    BadRowReason.BAD_WEIGHT: "Mend the weight, or check the feature's sequence.delimiter and "
    "weight_delimiter",
    BadRowReason.WRONG_LENGTH: "Mend the vector, or check the feature's vector.length and "
    "vector.delimiter",
    BadRowReason.NOT_A_VECTOR: "Mend the number, leave the whole vector empty if it is missing, or "
    "check the feature's vector.delimiter",
    BadRowReason.DELIMITER_INSIDE: "Choose another sequence.delimiter for the feature",
    BadRowReason.LABEL_MISSING: "Remove the row",
    BadRowReason.LABEL_NOT_BINARY: "Make the label 0 or 1, say in data.positive what label 1 is "
    "written as, or name another column in data.label",
    BadRowReason.LABEL_OF_NEITHER: "Mend the label, or say in data.positive and data.negative what "
    "labels 1 and 0 are written as",
    BadRowReason.NOT_ONE_LINE: "Write exactly one row a record, with every quote closed",
    BadRowReason.NOT_AN_EXAMPLE: "Write the record again, or check data.record",
    BadRowReason.SEVERAL_VALUES: "Write one value, or leave the column out of features",
    BadRowReason.FLOAT_AS_TEXT: "Write it as a text or an integer, or use the column as a "
    "number, as with id: round_identity or bucketize",
    BadRowReason.WEIGHT_MISSING: "Give the row a weight, 0 to leave it out",
    BadRowReason.WEIGHT_OUT_OF_RANGE: "Make the weight a number from 0 to 1e30, or name another "
    "column in data.weight",
    BadRowReason.TIME_MISSING: "Give the row a time, which data.split divides rows by",
    BadRowReason.NOT_A_TIME: "Mend the value, or say in data.split.time_format how times are "
    "written",
    BadRowReason.NOT_A_PAIR: "Mend the pair, or check data.key_value.pairs and "
    "data.key_value.value",
    BadRowReason.KEY_REPEATED: "Write each key once",
}


class BadRow(BaseModel):
    """One bad row.

    Attributes:
        file: The file it is in.
        row: Its number, from 1.
        column: The column at fault; None if the row as a whole is.
        reason: What is wrong.
        value: The value, shortened; None where values are kept out of messages.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    file: str
    row: int
    column: str | None
    reason: BadRowReason
    value: str | None

    @classmethod
    def of(cls, fault: "Fault", file: object, row: int) -> "BadRow":
        """A fault of a block, in its file."""
        return cls(
            file=str(file), row=row, column=fault.column, reason=fault.reason, value=fault.value
        )

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.reason is BadRowReason.NOT_A_NUMBER and self.value is not None:
            # It brings Arrow, which pages about a run do without.
            from ctr_pipeline.dataset.near_numbers import means_missing

            text = ast.literal_eval(self.value)
            if means_missing(text):
                return (
                    f"If {text} means missing, write data.missing_values: ['{text}'] (beside what "
                    "it lists already); else mend the value or use the column as categorical"
                )
        return _REMEDIES[self.reason]

    def as_error(self, *, may_skip: bool = True) -> DataError:
        """The error that stops a reading at this row; `may_skip` if it could go on without."""
        column = f", column '{self.column}'" if self.column is not None else ""
        value = f": {self.value}" if self.value is not None else " (value not shown: sensitive)"
        return DataError(
            f"{self.reason}{value}",
            place=f"{self.file}, row {self.row}{column}",
            remedy=self.remedy + (", or set data.bad_rows: skip" if may_skip else ""),
        )


class BadRows(BaseModel):
    """All bad rows of a reading.

    Attributes:
        total: How many.
        by_reason: How many of each reason.
        examples: The first few of each reason, in the order of the files and rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    total: int = 0
    by_reason: dict[BadRowReason, int] = {}
    examples: tuple[BadRow, ...] = ()


@dataclass(frozen=True)
class Fault:
    """One bad row of a block: its record in the block, and what is shown of it."""

    record: int
    reason: BadRowReason
    column: str | None
    value: str | None


@dataclass
class BlockFaults:
    """The bad rows of one block, gathered column by column.

    Args:
        num_records: Records in the block, bad ones included.
        sensitive: Columns whose values are never shown.
    """

    num_records: int
    sensitive: Collection[str]
    good: npt.NDArray[np.bool_] = field(init=False)
    counts: Counter[BadRowReason] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.good = np.ones(self.num_records, dtype=np.bool_)

    def reject(
        self,
        records: npt.NDArray[np.int64],
        reason: BadRowReason,
        column: str | None,
        show: Callable[[int], str],
        note: Callable[[int], str] | None = None,
    ) -> None:
        """Marks records as bad; those already bad keep their first reason.

        Args:
            records: Ascending record numbers, from 0.
            reason: What is wrong with them.
            column: The column at fault, or None.
            show: From the position in `records` to the text of the value.
            note: From it to what may be told of a value that is not shown.
        """

        def describe(index: int) -> str | None:
            parts = [note(index)] if note is not None else []
            if not hidden:
                parts.append(shorten(show(index)))
            return ": ".join(parts) or None

        fresh = np.flatnonzero(self.good[records])
        self.good[records] = False
        self.counts[reason] += len(fresh)
        hidden = column in self.sensitive if column is not None else bool(self.sensitive)
        self.faults.extend(
            Fault(int(records[i]), reason, column, describe(int(i)))
            for i in fresh[:EXAMPLES_PER_REASON]
        )

    def first(self) -> list[Fault]:
        """The first few faults of each reason, by record; the very first fault is among them."""
        taken: Counter[BadRowReason] = Counter()
        chosen = []
        for fault in sorted(self.faults, key=lambda fault: fault.record):
            if taken[fault.reason] < EXAMPLES_PER_REASON:
                taken[fault.reason] += 1
                chosen.append(fault)
        return chosen


@dataclass(frozen=True)
class FileRows:
    """Consecutive rows of a file.

    Attributes:
        file: The file; `str` names it.
        num_lines: Lines, or records, bad ones included.
        num_good: Rows that are good.
        counts: Bad rows by reason.
        faults: The first bad rows of each reason, by their row numbers among these, from 1.
    """

    file: Any
    num_lines: int
    num_good: int
    counts: Mapping[BadRowReason, int]
    faults: Sequence[tuple[Fault, int]]


class RowCounter(Protocol):
    """Told of the rows of a reading, block by block; blocks of a file follow one another."""

    def enter(self, rows: FileRows) -> None:
        """Adds the rows of one block."""


class RowRecorder:
    """Keeps what a `RowCounter` is told, for one of another process.

    Args:
        name_of: What the other process calls a file.

    Attributes:
        files: What was read of each file, in order.
    """

    def __init__(self, name_of: Callable[[object], str]) -> None:
        self._name_of = name_of
        self.files: list[FileRows] = []

    def enter(self, rows: FileRows) -> None:
        """As `RowCounter.enter`."""
        before = FileRows(self._name_of(rows.file), 0, 0, {}, ())
        if self.files and self.files[-1].file == before.file:
            before = self.files.pop()
        taken = Counter(fault.reason for fault, _ in before.faults)
        first = list(before.faults)
        for fault, row in rows.faults:
            taken[fault.reason] += 1
            if taken[fault.reason] <= EXAMPLES_PER_REASON:
                first.append((fault, before.num_lines + row))
        self.files.append(
            FileRows(
                before.file,
                before.num_lines + rows.num_lines,
                before.num_good + rows.num_good,
                Counter(before.counts) + Counter(rows.counts),
                first,
            )
        )


@dataclass
class BadRowLedger:
    """Counts bad rows over a whole reading and stops it where the config says so.

    Args:
        policy: `fail` stops at the first bad row, `skip` counts.
        max_fraction: With `skip`, the largest share of bad rows that `close` lets pass.
        num_good: Rows that are good.
        may_skip: Whether the user may choose `skip` instead of `fail`.
    """

    policy: str
    max_fraction: float
    num_good: int = 0
    may_skip: bool = True
    _counts: Counter[BadRowReason] = field(default_factory=Counter)
    _examples: dict[BadRowReason, list[BadRow]] = field(default_factory=dict)
    _file: object = None
    _num_lines: int = 0

    def enter(self, rows: FileRows) -> None:
        """As `RowCounter.enter`.

        Raises:
            DataError: There is a bad row and the policy is `fail`.
        """
        if rows.file != self._file:
            self._file, self._num_lines = rows.file, 0
        before = self._num_lines
        self._num_lines += rows.num_lines
        self.num_good += rows.num_good
        self._counts.update(rows.counts)
        for fault, row in rows.faults:
            bad = BadRow.of(fault, rows.file, before + row)
            if self.policy == "fail":
                raise bad.as_error(may_skip=self.may_skip)
            examples = self._examples.setdefault(fault.reason, [])
            if len(examples) < EXAMPLES_PER_REASON:
                examples.append(bad)

    def end_file(self) -> None:
        """Rows that come next are of another file, whatever its name."""
        self._file = None

    def close(self) -> BadRows:
        """The sum.

        Raises:
            DataError: More rows are bad than the config allows.
        """
        total = self._counts.total()
        bad = BadRows(
            total=total,
            by_reason={
                reason: self._counts[reason] for reason in BadRowReason if self._counts[reason]
            },
            examples=tuple(row for rows in self._examples.values() for row in rows),
        )
        num_rows = total + self.num_good
        if total and total > self.max_fraction * num_rows:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in bad.by_reason.items())
            first = bad.examples[0]
            raise DataError(
                f"{total} of {num_rows} rows are bad ({total / num_rows:.2%}), more than the "
                f"{self.max_fraction:.2%} of data.max_bad_fraction ({reasons})",
                place=f"{first.file}, row {first.row}",
                remedy=f"{first.remedy}, or raise data.max_bad_fraction",
            )
        return bad


def shorten(value: str) -> str:
    """`value` in quotes, control characters escaped, cut after 60 characters."""
    cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
    return repr(cut)
