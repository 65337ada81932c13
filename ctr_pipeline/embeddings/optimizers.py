"""The optimizers by name: their kernel branch, their slots, their constants of a step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import numpy as np

from ctr_pipeline.embeddings import update_kernels as kernels
from ctr_pipeline.embeddings.arrays import Float32Array
from ctr_pipeline.specs.optimizer import OptimizerName, OptimizerSpec


class Slot(Enum):
    """State that an optimizer keeps beside the values."""

    ZERO = "one a value, starts at 0"
    ACCUMULATOR = "one a value, starts at initial_accumulator"
    ROW_ACCUMULATOR = "one a row, starts at initial_accumulator"


@dataclass(frozen=True)
class OptimizerRule:
    """How an optimizer is carried out.

    Attributes:
        code: Its branch in `update_kernels`.
        slots: Its state, in the order of the kernel.
    """

    code: int
    slots: tuple[Slot, ...]

    def num_slots(self, dim: int) -> int:
        """Float32 values of state beside `dim` values."""
        return sum(1 if slot is Slot.ROW_ACCUMULATOR else dim for slot in self.slots)

    def initial_slots(self, dim: int, spec: OptimizerSpec) -> Float32Array:
        """The state of `dim` values that were never updated, float32 [num_slots]."""
        parts = [
            np.full(
                1 if slot is Slot.ROW_ACCUMULATOR else dim,
                0.0 if slot is Slot.ZERO else spec.initial_accumulator,
                np.float32,
            )
            for slot in self.slots
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)


OPTIMIZERS: Mapping[OptimizerName, OptimizerRule] = MappingProxyType(
    {
        "sgd": OptimizerRule(kernels.SGD, ()),
        "momentum": OptimizerRule(kernels.MOMENTUM, (Slot.ZERO,)),
        "nesterov": OptimizerRule(kernels.NESTEROV, (Slot.ZERO,)),
        "adagrad": OptimizerRule(kernels.ADAGRAD, (Slot.ACCUMULATOR,)),
        "rowwise_adagrad": OptimizerRule(kernels.ROWWISE_ADAGRAD, (Slot.ROW_ACCUMULATOR,)),
        "adam": OptimizerRule(kernels.ADAM, (Slot.ZERO, Slot.ZERO)),
        "amsgrad": OptimizerRule(kernels.AMSGRAD, (Slot.ZERO, Slot.ZERO, Slot.ZERO)),
        "rmsprop": OptimizerRule(kernels.ADAGRAD, (Slot.ZERO,)),
        "ftrl": OptimizerRule(kernels.FTRL, (Slot.ACCUMULATOR, Slot.ZERO)),
    }
)


def rule_of(spec: OptimizerSpec) -> OptimizerRule:
    """The rule that a spec names."""
    return OPTIMIZERS[spec.name]


def step_constants(
    spec: OptimizerSpec,
    *,
    step: int,
    learning_rate_factor: float,
    gradient_scale: float = 1.0,
    l2_strength: float = 0.0,
) -> Float32Array:
    """What the kernels need to know of one step, float32 [NUM_CONSTANTS].

    Adam's bias is corrected with the decay rates as float32 has them, as Keras does: the rounding
    of 0.999 alone moves the first steps by 6e-6.

    Args:
        spec: The optimizer.
        step: Global step, counted from 1.
        learning_rate_factor: The schedule's factor on the learning rate, at least 0.
        gradient_scale: Factor on the summed gradient.
        l2_strength: Strength of the count-scaled L2.

    Raises:
        ValueError: `step` is below 1 or the factor is negative.
    """
    if step < 1:
        raise ValueError(f"step {step} is below 1")
    if not learning_rate_factor >= 0:
        raise ValueError(f"learning_rate_factor {learning_rate_factor} is negative or not a number")
    rate = spec.learning_rate * learning_rate_factor
    rest_1 = 1.0 - float(np.float32(spec.beta_1)) ** step
    rest_2 = 1.0 - float(np.float32(spec.beta_2)) ** step
    constants = np.zeros(kernels.NUM_CONSTANTS, np.float32)
    constants[kernels.CONSTANT_LEARNING_RATE] = rate
    constants[kernels.CONSTANT_ADAM_RATE] = rate * math.sqrt(rest_2) / rest_1
    constants[kernels.CONSTANT_ONE_MINUS_BETA_1] = 1.0 - spec.beta_1
    constants[kernels.CONSTANT_ONE_MINUS_BETA_2] = 1.0 - spec.beta_2
    constants[kernels.CONSTANT_EPSILON] = spec.epsilon
    constants[kernels.CONSTANT_L1] = spec.l1
    constants[kernels.CONSTANT_TWO_L2] = 2.0 * spec.l2
    constants[kernels.CONSTANT_INVERSE_RATE] = 1.0 / rate if rate > 0 else 0.0
    constants[kernels.CONSTANT_MOMENTUM] = spec.momentum
    averages = spec.name == "rmsprop"
    constants[kernels.CONSTANT_SQUARES_KEPT] = spec.rho if averages else 1.0
    constants[kernels.CONSTANT_SQUARES_ADDED] = 1.0 - spec.rho if averages else 1.0
    constants[kernels.CONSTANT_GRADIENT_SCALE] = gradient_scale
    constants[kernels.CONSTANT_L2_STRENGTH] = l2_strength
    return constants
