"""Learning rates as training goes on: `train.learning_rate_schedule`, and their scaling.

A schedule is a class here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from ctr_pipeline.specs.section import NamedSection, union_of
from ctr_pipeline.specs.validation_metric import ValidationMetric, cost_of

GlobalBatch = Literal["growing", "fixed"]
LearningRateScaling = Literal["none", "linear", "sqrt"]

History = Sequence[Mapping[str, Any]]
"""Epochs that are judged, in their order: the fields of each one's `EpochRecord`."""


def scale_of(scaling: LearningRateScaling, num_batches: int) -> float:
    """The factor on every learning rate in a step of so many batches.

    `linear`: Goyal et al. 2017, "Accurate, large minibatch SGD" (arXiv:1706.02677), section 2.1.
    `sqrt`: Krizhevsky 2014 (arXiv:1404.5997), section 5, keeps the variance of the update.
    """
    if scaling == "linear":
        return float(num_batches)
    return math.sqrt(num_batches) if scaling == "sqrt" else 1.0


class LearningRateSchedule(NamedSection):
    """Factor on every learning rate as training goes on."""

    noun: ClassVar[str] = "schedule"

    name: str
    warmup_steps: int = Field(default=0, ge=0, description="Steps of linear warm-up from 0.")

    @property
    def epochs_waited(self) -> int | None:
        """Epochs without a better metric after which it acts; None: it looks at none."""
        return None

    def factor(self, step: int, history: History) -> float:
        """Computes the factor of one step.

        Args:
            step: Number of the step, from 1.
            history: The epochs before that of the step.

        Returns:
            A number in (0, 1] during warm-up and in [floor, 1] afterwards.
        """
        return self.factor_of_step(step) * self.factor_of_epoch(history)

    def factor_of_step(self, step: int) -> float:
        """Computes the part of the factor that the number of the step tells.

        Steps of the warm-up do not count in a decay.
        """
        if step <= self.warmup_steps:
            return step / (self.warmup_steps + 1)
        return self._decayed(step - self.warmup_steps)

    def factor_of_epoch(self, history: History) -> float:
        """Computes the part of the factor that the epochs before tell: the same all epoch long."""
        return 1.0

    def _decayed(self, step: int) -> float:
        """The factor of a step, counted from the end of the warm-up."""
        return 1.0


class ConstantRate(LearningRateSchedule):
    """The same learning rate all the time."""

    name: Literal["constant"] = "constant"


class CosineDecay(LearningRateSchedule):
    """Half a wave of the cosine, from 1 to the floor.

    Loshchilov and Hutter 2017 (arXiv:1608.03983), Eq. (5), without restarts.
    """

    name: Literal["cosine"] = "cosine"
    decay_steps: int = Field(ge=1, description="Steps to the floor.")
    floor: float = Field(default=0.0, ge=0, le=1, description="Smallest factor.")

    def _decayed(self, step: int) -> float:
        progress = min(step / self.decay_steps, 1.0)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


class ExponentialDecay(LearningRateSchedule):
    """A power of the decay rate, down to the floor."""

    name: Literal["exponential"] = "exponential"
    decay_steps: int = Field(ge=1, description="Steps per decay.")
    decay_rate: float = Field(default=0.96, gt=0, le=1, description="Factor per decay.")
    floor: float = Field(default=0.0, ge=0, le=1, description="Smallest factor.")

    def _decayed(self, step: int) -> float:
        return max(self.floor, math.pow(self.decay_rate, step / self.decay_steps))


class ReduceOnPlateau(LearningRateSchedule):
    """A smaller learning rate once epochs bring no better validation metric.

    As Keras's `ReduceLROnPlateau` without a cool-down.
    """

    name: Literal["reduce_on_plateau"] = "reduce_on_plateau"
    metric: ValidationMetric = Field(
        default="logloss", description="Validation metric that is watched."
    )
    patience: int = Field(
        default=1, ge=1, description="Epochs without a new best before each reduction."
    )
    min_delta: float = Field(
        default=0.0, ge=0, description="Improvement that a new best must exceed."
    )
    reduction: float = Field(default=0.1, gt=0, lt=1, description="Factor per reduction.")
    floor: float = Field(default=0.0, ge=0, le=1, description="Smallest factor.")

    @property
    def epochs_waited(self) -> int:
        """The patience."""
        return self.patience

    def factor_of_epoch(self, history: History) -> float:
        """Computes the factor after as many reductions as the epochs before call for."""
        best, waited, reductions = math.inf, 0, 0
        for epoch in history:
            cost = cost_of(self.metric, logloss=epoch["valid_logloss"], auc=epoch["valid_auc"])
            if cost < best - self.min_delta:
                best, waited = cost, 0
                continue
            waited += 1
            if waited == self.patience:
                waited, reductions = 0, reductions + 1
        return max(self.floor, math.pow(self.reduction, reductions))


if TYPE_CHECKING:
    AnySchedule: TypeAlias = LearningRateSchedule
else:
    AnySchedule = union_of(LearningRateSchedule)
