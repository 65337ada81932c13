"""An update rule with its constants."""

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True)
class OptimizerSpec:
    """An update rule with its constants; each rule uses the constants it knows.

    Attributes:
        name: Which rule.
        learning_rate: Step size.
        beta_1: Adam, AMSGrad: decay of the first moment.
        beta_2: Adam, AMSGrad: decay of the second moment.
        epsilon: Adam, AMSGrad: added to the root; Adagrad, RMSprop: added under the root.
        initial_accumulator: Adagrad, FTRL: first value of the squared-gradient sum.
        l1: FTRL: L1 strength.
        l2: FTRL: L2 strength.
        momentum: Momentum, Nesterov: decay of the velocity.
        rho: RMSprop: decay of the mean square.
    """

    name: OptimizerName
    learning_rate: float
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    momentum: float = 0.9
    rho: float = 0.9
