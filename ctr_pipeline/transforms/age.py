"""`age`."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ctr_pipeline.datetime_formats import ISO, TIME_FORMAT_HELP, check_format, iso_seconds
from ctr_pipeline.transforms.base import (
    Fitting,
    Needs,
    TextKernel,
    TextStep,
    TextTransform,
    TimeRead,
)

if TYPE_CHECKING:
    from ctr_pipeline.kernels.arrow_values import TextColumn


class AgeStep(TextStep):
    """Days from the point in time that a text tells to `at_seconds` since 1970."""

    name: Literal["age"] = "age"
    format: str
    at_seconds: int

    def open_kernel(self, folder: Path) -> TextKernel:
        """Returns a kernel of a text column."""
        from ctr_pipeline.kernels.time_parsing import parse_seconds
        from ctr_pipeline.kernels.time_parts import ages

        del folder

        def kernel(text: "TextColumn") -> np.ndarray:
            return ages(parse_seconds(text.values, self.format), self.at_seconds)

        return kernel


class Age(TextTransform):
    """Days from a point in time to `at`, as a number; negative for what comes after it.

    Formats are those of `datetime`; a text that tells no time is missing. Every transform of a
    number may follow.
    """

    example: ClassVar[str] = "{columns: joined_on, number: [age, log, standardize]}"
    sharing_remedy: ClassVar[str] = "give its `at`"
    name: Literal["age"] = "age"
    at: str | None = Field(
        default=None,
        description="Point in time in the format iso, in quotes, or YAML takes it for a date; "
        "null: the newest one of the column in the training rows.",
    )
    format: str = Field(default=ISO, description=TIME_FORMAT_HELP)

    @model_validator(mode="after")
    def _sound(self) -> "Age":
        check_format(self.format)
        if self.at is not None:
            iso_seconds(self.at)
        return self

    @property
    def needs(self) -> Needs:
        """The newest point in time, unless `at` is given."""
        return Needs(newest_time=self.format if self.at is None else None)

    @property
    def time_read(self) -> TimeRead:
        """No part of the time."""
        return TimeRead(self.format)

    @property
    def counted_to(self) -> str | None:
        """The point in time `at`."""
        return self.at

    def with_newest_time(self, at: str | None) -> Self:
        """Counts to that time."""
        return self.model_copy(update={"at": at})

    def fit(self, fitting: Fitting) -> TextStep:
        """Fits the point in time that ages are counted to."""
        if self.at is None:
            raise ValueError(
                f"feature '{fitting.column}': no point in time that ages are counted to"
            )
        return AgeStep(format=self.format, at_seconds=iso_seconds(self.at))
