"""`round_identity`."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ctr_pipeline.transforms.base import (
    Fitting,
    IdKernel,
    IdStep,
    IdTransform,
    TransformKind,
    too_many_ids,
)
from ctr_pipeline.transforms.shared.intervals import in_range_ids, round_level


class RoundIdentityStep(IdStep):
    """`round(x)` within [0, num_buckets), else the default."""

    name: Literal["round_identity"] = "round_identity"
    num_buckets: int
    default_value: int

    def open_kernel(self, folder: Path) -> IdKernel:
        """Returns a kernel of float64 [N]."""
        from ctr_pipeline.kernels.numbers import rounded_ids

        del folder
        return lambda values, out: rounded_ids(
            values, self.num_buckets, self.default_value, self.missing_id, out
        )


class RoundIdentity(IdTransform):
    """`round(x)` as an id in [0, num_buckets); half to even; outside that range: the default."""

    kind: ClassVar[TransformKind] = TransformKind.NUMBER_TO_ID
    example: ClassVar[str] = "{columns: age, id: {round_identity: {num_buckets: 120}}}"
    name: Literal["round_identity"] = "round_identity"
    num_buckets: int = Field(ge=1, description="Number of ids.")
    default_value: int = Field(default=0, ge=0, description="Id of values out of range.")

    def option_problems(self) -> list[str]:
        """Returns what is wrong with the options."""
        problems = too_many_ids(self.name, "num_buckets", self.num_buckets)
        if self.default_value >= self.num_buckets:
            problems.append(
                f"round_identity has default_value {self.default_value}, and its ids end at "
                f"{self.num_buckets - 1}. Choose a default_value below num_buckets"
            )
        return problems + super().option_problems()

    def ids_before_fit(self) -> int | None:
        """The ids, and the missing id."""
        return self.num_buckets + 1

    def fit(self, fitting: Fitting) -> tuple[IdStep, int]:
        """Fits the step, as thresholds if other steps stand before it."""
        size = self.num_buckets
        if fitting.has_steps_before:
            level = round_level(size)
            return fitting.intervals(level, in_range_ids(level, size, self.default_value), size)
        # Rounding is exact in kernel and layer, so that millions of buckets need no thresholds.
        step = RoundIdentityStep(
            num_buckets=size, default_value=self.default_value, missing_id=size
        )
        return step, size + 1
