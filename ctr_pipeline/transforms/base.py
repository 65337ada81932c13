"""What a transform is: its options, how it is fitted, its SQL, and its kernel.

A transform stands in the config (`Log`, `Bucketize`); fitting it to the training rows gives a
*step*, which the preprocessing plan keeps and whose kernel encodes rows. The Keras layer of a step
that ends in the exported model is in `preprocessing.layers`, in the module of the step's name.

What loads Numba or PyArrow is imported when a kernel is opened: configs are read, and the master
of a job starts, without them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from sqlglot import exp

    from ctr_pipeline.kernels.arrow_values import TextColumn
    from ctr_pipeline.specs.columns import ColumnType
    from ctr_pipeline.statistics import Moments, Statistics, VocabularyStatistics

MAX_IDS = 2**31 - 1
"""Ids are int32 in a batch, so a field has at most this many, the missing id included."""

IdKernel = Callable[[Any, np.ndarray], Any]
"""Takes a column (`TextColumn`, float64 [N], or a cross's list of `CrossValues`) and writes ids
into int32 [N]."""

TextKernel = Callable[["TextColumn"], np.ndarray]
"""Takes a text column and returns float64, a number for each of its values."""

NumberFunction = Callable[[np.ndarray], np.ndarray]


class VocabularyNeed(BaseModel):
    """Which values a vocabulary has.

    Attributes:
        min_count: Values that occur so often in the training rows.
        max_size: The most frequent ones, so many at most; None: all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    min_count: int
    max_size: int | None


@dataclass(frozen=True)
class Needs:
    """What a transform is fitted to, of the values before it in the training rows.

    Attributes:
        moments: Whether it is fitted to mean, deviation and extremes.
        quantiles: Number of intervals of equally many rows that it is cut by; None: none.
        vocabulary: The values that it knows; None: none.
        table_min_count: With a table of values, their rows and clicks: the values that occur so
            often; None: no table.
        newest_time: Format of the points in time whose newest one it is fitted to; None: none.
        words: Names of these statistics for a person.
    """

    moments: bool = False
    quantiles: int | None = None
    vocabulary: VocabularyNeed | None = None
    table_min_count: int | None = None
    newest_time: str | None = None
    words: tuple[str, ...] = ()

    @property
    def is_of_one_column(self) -> bool:
        """Whether what it is fitted to differs by column, so that columns cannot share it."""
        return (
            self.moments
            or self.newest_time is not None
            or self.quantiles is not None
            or self.table_min_count is not None
        )


@dataclass(frozen=True)
class CountedText:
    """A text of a column, and what is counted of it in the training rows, as columns of a query.

    Attributes:
        text: The text; NULL: missing.
        num_rows: Rows with it, a whole number.
        rows: Rows with it as a double; of weighted rows, as many as would weigh as much.
        clicks: Rows of these with label 1, in the same way.
        base: Click rate of all rows.
        weighs: Whether its rows weigh anything; None: rows have no weights.
    """

    text: "exp.Expr"
    num_rows: "exp.Expr"
    rows: "exp.Expr"
    clicks: "exp.Expr"
    base: "exp.Expr"
    weighs: "exp.Expr | None"


@dataclass(frozen=True)
class TimeRead:
    """How the points in time of a column are read.

    Attributes:
        format: One of `datetime_formats`.
        parts: Parts of a time that a model reads, or would by `features: auto`.
        utc_offset_minutes: Offset of the local time that the parts are of.
    """

    format: str
    parts: tuple[str, ...] = ()
    utc_offset_minutes: int = 0


class TransformKind(StrEnum):
    """What a transform takes and gives."""

    NUMBER_TO_NUMBER = "number to number"
    NUMBER_TO_ID = "number to id"
    TEXT_TO_NUMBER = "text to number"
    TEXT_TO_ID = "text to id"

    @property
    def takes_text(self) -> bool:
        """Whether it reads the text of the column, and so stands first in its chain."""
        return self in {TransformKind.TEXT_TO_NUMBER, TransformKind.TEXT_TO_ID}

    @property
    def gives_id(self) -> bool:
        """Whether its result is an id, so that it ends an `id` chain."""
        return self in {TransformKind.NUMBER_TO_ID, TransformKind.TEXT_TO_ID}


class Step(BaseModel):
    """A fitted transform, as the preprocessing plan keeps it.

    Attributes:
        name: Name of the step; its Keras layer is in `preprocessing.layers.NAME`.
    """

    # Thresholds may be infinite, and JSON as pydantic writes it has no infinity otherwise.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
    name: str

    @property
    def files(self) -> tuple[str, ...]:
        """Paths below the run folder of the files that it reads."""
        return ()


class NumberStep(Step):
    """A step from numbers to numbers."""

    def kernel(self, values: np.ndarray) -> np.ndarray:
        """Computes the step.

        Args:
            values: float64 [N], NaN where missing, without subnormal numbers.

        Returns:
            float64 [N], NaN where missing, without subnormal numbers.
        """
        raise NotImplementedError

    def sql_numbers(self) -> dict[str, float]:
        """Returns the numbers for the placeholders of the transform's `sql`, by their names."""
        return {}


class TextStep(Step):
    """A step that makes a number of a text."""

    def open_kernel(self, folder: Path) -> TextKernel:
        """Returns the kernel, its tables loaded from the run folder."""
        raise NotImplementedError


class IdStep(Step):
    """A step that gives ids.

    Attributes:
        missing_id: Id of a missing value.
    """

    missing_id: int

    @property
    def unknown_ids(self) -> range | None:
        """Ids that tell the model nothing of the value; None: it knows all values."""
        return None

    @property
    def columns_read(self) -> "Mapping[str, ColumnType] | None":
        """Types of the columns that it makes one id of, by name; None: it reads its own column."""
        return None

    def open_kernel(self, folder: Path) -> IdKernel:
        """Returns the kernel, its vocabulary loaded from the run folder."""
        raise NotImplementedError


class Fitting(Protocol):
    """What a transform is fitted to: one column of the training rows, after the steps before it.

    Attributes:
        column: Name of the column.
        folder: The run folder, below which vocabularies lie.
        statistics: Statistics of the training rows.
        has_steps_before: Whether other transforms stand before this one.
    """

    column: str
    folder: Path
    statistics: "Statistics"

    @property
    def has_steps_before(self) -> bool:
        """Whether other transforms stand before this one."""

    def moments(self) -> "Moments":
        """Returns the moments of the values after the steps before."""

    def quantiles(self, count: int) -> tuple[float, ...]:
        """Returns the cut points of `count` quantiles of the values after the steps before."""

    def value_table(self, min_count: int) -> "VocabularyStatistics":
        """Returns the table of the column's values and their counts."""

    def intervals(
        self, level: NumberFunction, id_of: NumberFunction, num_ids: int
    ) -> tuple[IdStep, int]:
        """Fits the whole chain as thresholds on the raw value.

        Args:
            level: Nondecreasing integer function of the value before this step.
            id_of: Ids of these values, constant where `level` is.
            num_ids: Number of ids, without the missing id.

        Returns:
            The step, and the number of ids with the missing id.
        """

    def stale(self, what: str) -> ValueError:
        """Returns the error that the statistics are not those of these features."""


class Transform(BaseModel):
    """One transform of a chain, with its options.

    Attributes:
        kind: What it takes and gives.
        example: One entry of `features:` in YAML that uses it, for the reference page.
        rank: Place in a chain of the short form: transforms of a smaller rank come first, of those
            of one rank and kind a column takes one.
        short_form: Its options in the short form where none are given.
        sharing_remedy: What to do where columns are to share a table and it is fitted to each.
        name: What the YAML calls it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    kind: ClassVar[TransformKind]
    example: ClassVar[str]
    rank: ClassVar[int] = 0
    short_form: ClassVar[dict[str, Any]] = {}
    sharing_remedy: ClassVar[str] = "use explicit boundaries, hash or vocabulary"
    name: str

    @property
    def needs(self) -> Needs:
        """What it is fitted to; by default nothing."""
        return Needs()

    @property
    def time_read(self) -> TimeRead | None:
        """How it reads a point in time; None: it reads none."""
        return None

    @property
    def counted_to(self) -> str | None:
        """The point in time, in the format iso, that it counts to; None: none."""
        return None

    def with_newest_time(self, at: str | None) -> Self:
        """The transform with the newest point in time of the column; None takes it away again."""
        del at
        return self

    @property
    def is_of_value(self) -> bool:
        """Whether the click rates of the column's values say what its results say of the click."""
        return not self.kind.takes_text

    def option_problems(self) -> list[str]:
        """Returns what is wrong with the options, each as the end of a sentence."""
        problems = []
        for option in type(self).model_fields:
            value = getattr(self, option)
            if isinstance(value, float) and not math.isfinite(value):
                problems.append(f"{self.name} has {option} {value}. Use a finite number")
        return problems


def too_many_ids(name: str, option: str, size: int) -> list[str]:
    """Returns the problem of an option that makes more ids than fit, if it does."""
    if size < MAX_IDS:
        return []
    return [
        f"{name} has {size:,} {option}, and ids are 32-bit integers. Use fewer than {MAX_IDS:,}"
    ]


class NumberTransform(Transform):
    """A transform from numbers to numbers, nondecreasing."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_NUMBER
    rank: ClassVar[int] = 30

    def fit(self, moments: "Moments | None") -> NumberStep:
        """Fits the transform.

        Args:
            moments: Moments of the values before it; None unless it needs them.
        """
        raise NotImplementedError

    def step_with(self, numbers: Mapping[str, float]) -> NumberStep:
        """Returns the step whose `sql_numbers` these are.

        Args:
            numbers: Numbers for the placeholders of `sql`, by their names.
        """
        del numbers
        return self.fit(None)

    def sql(self, value: "exp.Expr", number: "Callable[[str], exp.Expr]") -> "exp.Expr":
        """Returns the transform in SQL; NULL is a missing value and stays NULL.

        Args:
            value: The value before, as an expression that is cheap to repeat.
            number: Gives the placeholder of a number of `NumberStep.sql_numbers`.
        """
        raise NotImplementedError


class PlainNumberTransform(NumberTransform, NumberStep):
    """A transform from numbers to numbers that depends on its options alone: it is its own step."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )
    name: str

    def fit(self, moments: "Moments | None") -> NumberStep:
        """Returns the transform itself."""
        del moments
        return self


class TextTransform(Transform):
    """A transform that makes a number of a text.

    Attributes:
        reads_labels: Whether the numbers are made of labels, so that a training row must not be
            encoded by its own.
        has_sql: Whether `sql_of_counts` gives the number; else the kernel alone does.
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_NUMBER
    reads_labels: ClassVar[bool] = False
    has_sql: ClassVar[bool] = False

    def sql_of_counts(self, text: CountedText) -> "exp.Expr":
        """The number of a text in SQL, NULL where it is missing.

        Args:
            text: The text, and what is counted of it in the training rows.
        """
        raise NotImplementedError

    def fit(self, fitting: Fitting) -> TextStep:
        """Fits the transform to the training rows."""
        raise NotImplementedError


class IdTransform(Transform):
    """A transform that gives ids.

    Attributes:
        takes_cross: Whether it makes an id of the texts of several columns.
    """

    rank: ClassVar[int] = 90
    takes_cross: ClassVar[bool] = False

    @property
    def num_fields(self) -> int:
        """Fields that it makes."""
        return 1

    def ids_before_fit(self) -> int | None:
        """Ids of its fields before the statistics, or an upper bound; None: unknown until then."""
        return None

    def fit_cross(self, parts: tuple[Any, ...]) -> tuple[IdStep, int]:
        """Returns the step that makes an id of several columns, and the number of its ids.

        Args:
            parts: The columns, `CrossPart`s of `transforms.cross`.

        Raises:
            ValueError: It takes no cross.
        """
        raise ValueError(f"a cross is hashed, not '{self.name}'")

    def fit(self, fitting: Fitting) -> tuple[IdStep, int]:
        """Fits the transform to the training rows.

        Returns:
            The step, and the number of its ids with the missing id.
        """
        raise NotImplementedError

    def fit_fields(self, fitting: Fitting) -> list[tuple[str, IdStep, int]]:
        """Fits each field that the transform makes.

        Returns:
            Of each field the ending of its name, the step, and the number of its ids.
        """
        return [("", *self.fit(fitting))]
