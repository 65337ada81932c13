"""`datetime`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from ctr_pipeline.datetime_formats import ISO, TIME_FORMAT_HELP, check_format
from ctr_pipeline.transforms.base import (
    Fitting,
    IdKernel,
    IdStep,
    IdTransform,
    TimeRead,
    TransformKind,
)

if TYPE_CHECKING:
    from ctr_pipeline.kernels.arrow_values import TextColumn

DatetimePart = Literal["minute", "hour", "hour_of_week", "weekday", "is_weekend", "day", "month"]

PART_SIZES: dict[str, int] = {
    "minute": 60,
    "hour": 24,
    "hour_of_week": 168,
    "weekday": 7,
    "is_weekend": 2,
    "day": 31,
    "month": 12,
}
"""Number of ids of each part; the id of a missing value follows them."""


class DatetimePartStep(IdStep):
    """One part of the point in time that a text tells."""

    name: Literal["datetime"] = "datetime"
    part: str
    format: str
    utc_offset_minutes: int

    def open_kernel(self, folder: Path) -> IdKernel:
        """Returns a kernel of a text column."""
        from ctr_pipeline.kernels.time_parsing import parse_seconds
        from ctr_pipeline.kernels.time_parts import part_ids

        del folder

        def kernel(text: "TextColumn", out: np.ndarray) -> None:
            seconds = parse_seconds(text.values, self.format)
            part_ids(
                seconds, self.part, self.utc_offset_minutes, missing_id=self.missing_id, out=out
            )

        return kernel


class Datetime(IdTransform):
    """Parts of a point in time as ids: one field for each part.

    Weeks begin on Monday, and is_weekend is 1 on Saturday and Sunday. Formats are
    `iso` (`2024-03-31`, `2024-03-31T18:05:59.250+02:00`; minutes, seconds, fraction and offset may
    be left out, a blank may stand for the T, and `UTC`, `+02` or `+0200` for the offset), numbers
    since 1970, whose fractions are dropped, or a pattern in terms of strptime such as
    `%d.%m.%Y %H:%M` or `%m/%d/%Y %I:%M %p`; a day, a month or an hour may have one digit where no
    other one stands beside it, as spreadsheets write them. A text without an offset is in UTC.
    Whatever the format, a text in `iso` is read as well, as dates and timestamps of Parquet and
    DataFrames are. A text that tells no time counts as missing, which has an id of its own; how
    many training rows do is said, and a column in which all do is refused.
    """

    kind: ClassVar[TransformKind] = TransformKind.TEXT_TO_ID
    example: ClassVar[str] = "{columns: seen_at, id: {datetime: {parts: [hour, weekday]}}}"
    short_form: ClassVar[dict[str, Any]] = {"parts": ["hour", "weekday"]}
    name: Literal["datetime"] = "datetime"
    parts: tuple[DatetimePart, ...] = Field(
        min_length=1,
        description="minute, hour, hour_of_week, weekday, is_weekend, day (of the month), month.",
    )
    format: str = Field(default=ISO, description=TIME_FORMAT_HELP)
    utc_offset_minutes: int = Field(
        default=0,
        ge=-840,
        le=840,
        description="How far the clock that tells the parts is ahead of UTC.",
    )

    @model_validator(mode="after")
    def _sound(self) -> "Datetime":
        check_format(self.format)
        if len(set(self.parts)) < len(self.parts):
            raise ValueError("names a part twice")
        return self

    @property
    def time_read(self) -> TimeRead:
        """The parts of the time."""
        return TimeRead(self.format, self.parts, self.utc_offset_minutes)

    @property
    def num_fields(self) -> int:
        """One of each part."""
        return len(self.parts)

    def fit(self, fitting: Fitting) -> tuple[IdStep, int]:
        """Returns the step of the only part."""
        del fitting
        (part,) = self.parts
        return self._step(part)

    def fit_fields(self, fitting: Fitting) -> list[tuple[str, IdStep, int]]:
        """Returns a field for each part."""
        del fitting
        if len(self.parts) == 1:
            return [("", *self._step(self.parts[0]))]
        return [(f".{part}", *self._step(part)) for part in self.parts]

    def _step(self, part: DatetimePart) -> tuple[IdStep, int]:
        size = PART_SIZES[part]
        step = DatetimePartStep(
            part=part,
            format=self.format,
            utc_offset_minutes=self.utc_offset_minutes,
            missing_id=size,
        )
        return step, size + 1
