"""`log_round`."""

from typing import ClassVar, Literal

from pydantic import Field

from ctr_pipeline.transforms.base import (
    Fitting,
    IdStep,
    IdTransform,
    TransformKind,
    too_many_ids,
)
from ctr_pipeline.transforms.shared.intervals import in_range_ids, log_round_level


class LogRound(IdTransform):
    """`round(log(x))` as an id in [0, num_bins); half to even; outside that range: the default."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_ID
    example: ClassVar[str] = "{columns: price, id: {log_round: {num_bins: 16, base: 2}}}"
    name: Literal["log_round"] = "log_round"
    num_bins: int = Field(ge=1, description="Number of ids.")
    base: float | None = Field(default=None, gt=1, description="Base of the logarithm; null: e.")
    default_value: int = Field(default=0, ge=0, description="Id of x <= 0 and of out of range.")

    def option_problems(self) -> list[str]:
        """Returns what is wrong with the options."""
        problems = too_many_ids(self.name, "num_bins", self.num_bins)
        if self.default_value >= self.num_bins:
            problems.append(
                f"log_round has default_value {self.default_value}, and its ids end at "
                f"{self.num_bins - 1}. Choose a default_value below num_bins"
            )
        return problems + super().option_problems()

    def ids_before_fit(self) -> int | None:
        """The ids, and the missing id."""
        return self.num_bins + 1

    def fit(self, fitting: Fitting) -> tuple[IdStep, int]:
        """Fits the thresholds between rounded logarithms."""
        level = log_round_level(self.num_bins, self.base)
        id_of = in_range_ids(level, self.num_bins, self.default_value)
        return fitting.intervals(level, id_of, self.num_bins)
