"""What a transform is: its options, how it is fitted, its SQL, and its kernel.

A transform stands in the config (`Log`, `Bucketize`); fitting it to the training rows gives a
*step*, which the preprocessing plan keeps and whose kernel encodes rows. The Keras layer of a step
that ends in the exported model is in `preprocessing.layers`, in the module of the step's name.

What loads Numba or PyArrow is imported when a kernel is opened: configs are read, and the master
of a job starts, without them.
"""

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from sqlglot import exp

    from ctr_pipeline.kernels.arrow_values import TextColumn
    from ctr_pipeline.statistics import Moments, Statistics, VocabularyStatistics

MAX_IDS = 2**31 - 1
"""Ids are int32 in a batch, so a field has at most this many, the missing id included."""

IdKernel = Callable[[Any, np.ndarray], Any]
"""Takes a column (`TextColumn`, float64 [N], or a cross's list of `CrossValues`) and writes ids
into int32 [N]."""

TextKernel = Callable[["TextColumn"], np.ndarray]
"""Takes a text column and returns float64, a number for each of its values."""

NumberFunction = Callable[[np.ndarray], np.ndarray]


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
        name: What the YAML calls it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    kind: ClassVar[TransformKind]
    example: ClassVar[str]
    rank: ClassVar[int] = 0
    short_form: ClassVar[dict[str, Any]] = {}
    name: str

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
    """A transform from numbers to numbers, nondecreasing.

    Attributes:
        needs_moments: Whether it is fitted to the moments of the values before it.
    """

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_NUMBER
    rank: ClassVar[int] = 30
    needs_moments: ClassVar[bool] = False

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
    """A transform that makes a number of a text."""

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_NUMBER

    def fit(self, fitting: Fitting) -> TextStep:
        """Fits the transform to the training rows."""
        raise NotImplementedError


class IdTransform(Transform):
    """A transform that gives ids."""

    rank: ClassVar[int] = 90

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
