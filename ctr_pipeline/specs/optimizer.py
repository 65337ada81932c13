"""An update rule with its constants."""

from typing import Annotated, Literal

from pydantic import Field

from ctr_pipeline.specs.section import MAY_CHANGE_FROM_STEP_ON, Section

OptimizerName = Literal[
    "sgd",
    "momentum",
    "nesterov",
    "adagrad",
    "rowwise_adagrad",
    "adam",
    "amsgrad",
    "rmsprop",
    "ftrl",
]


class OptimizerSpec(Section):
    """An update rule with its constants; each rule uses the constants it knows."""

    name: OptimizerName = Field(description="Update rule.")
    learning_rate: Annotated[float, MAY_CHANGE_FROM_STEP_ON] = Field(
        gt=0, description="Learning rate."
    )
    beta_1: float = Field(
        default=0.9, ge=0, lt=1, description="Adam, AMSGrad: decay of the first moment."
    )
    beta_2: float = Field(
        default=0.999, ge=0, lt=1, description="Adam, AMSGrad: decay of the second moment."
    )
    epsilon: float = Field(
        default=1e-7,
        gt=0,
        description="Adam, AMSGrad, Adagrad, RMSprop: small constant in the denominator.",
    )
    initial_accumulator: float = Field(
        default=0.1,
        ge=0,
        description="Adagrad, FTRL: initial value of the accumulator of squared gradients.",
    )
    l1: float = Field(default=0.0, ge=0, description="FTRL: L1 strength.")
    l2: float = Field(default=0.0, ge=0, description="FTRL: L2 strength.")
    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="Momentum, Nesterov: decay of the velocity."
    )
    rho: float = Field(default=0.9, ge=0, lt=1, description="RMSprop: decay of the mean square.")
