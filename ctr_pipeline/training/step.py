"""The arithmetic of one training step, independent of where the parameters are kept.

Axes: B batch, F fields, D embedding dimension, P dense parameters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.dataset.encoded import EncodedRows
from ctr_pipeline.dataset.order import mix
from ctr_pipeline.errors import TrainingError
from ctr_pipeline.kernels.numbers import LARGEST_SCALED
from ctr_pipeline.specs.course import TrainingCourse
from ctr_pipeline.training.batches import Position
from ctr_pipeline.training.compiled import CompiledModel

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class StepGradients:
    """Gradients of one batch, ready for the optimizers.

    Attributes:
        loss_sum: Weighted sum of the rows' logloss; finite.
        parameters_P: Gradient of the mean loss with its norm bounded, float32 [P].
        linear_BF1: Gradient of the loss sum with respect to the rows' linear weights.
        embeddings_BFD: The same with respect to their embeddings.
    """

    loss_sum: float
    parameters_P: Floats
    linear_BF1: Floats
    embeddings_BFD: Floats


class TrainingStep:
    """Computes steps as a function of parameters, batch and position, so that a step is repeatable.

    Args:
        course: Seed of the steps, and the bound of their gradients.
        compiled: The model.
    """

    def __init__(self, course: TrainingCourse, compiled: CompiledModel) -> None:
        self._course = course
        self._compiled = compiled

    def compute(
        self,
        rows: EncodedRows,
        num_valid: int,
        *,
        position: Position,
        step: int,
        parameters_P: Floats,
        linear_BF1: Floats,
        embeddings_BFD: Floats,
    ) -> StepGradients:
        """Computes the gradients of one padded batch.

        Args:
            rows: Rows, padded to the batch size.
            num_valid: Number of rows before the padding.
            position: Position of the batch; with the seed, it fixes the dropout masks.
            step: Number of the step, from 1, for messages.
            parameters_P: Dense parameters.
            linear_BF1: Linear weight of each field's id.
            embeddings_BFD: Embedding of each field's id.

        Raises:
            TrainingError: The loss is not finite; names the step and the likely cause.
        """
        gradients = self._compiled.gradients(
            parameters_P=parameters_P,
            linear_BF1=linear_BF1,
            embeddings_BFD=embeddings_BFD,
            numbers_BN=rows.numbers_BN,
            labels_B=rows.labels_B,
            weights_B=rows.weights_B,
            num_valid=num_valid,
            dropout_seed=mix(self._course.seed, position.epoch, position.task, position.batch),
        )
        if not math.isfinite(gradients.loss_sum):
            raise TrainingError(
                f"the loss is {gradients.loss_sum} at step {step} (epoch {position.epoch + 1})",
                remedy=_explain_loss(rows.numbers_BN, self._compiled.number_names),
            )
        return StepGradients(
            loss_sum=gradients.loss_sum,
            parameters_P=clip_norm(gradients.parameters_P, self._course.gradient_clip_norm),
            linear_BF1=gradients.linear_BF1,
            embeddings_BFD=gradients.embeddings_BFD,
        )


def clip_norm(gradient: Floats, bound: float | None) -> Floats:
    """Scales the gradient down to the bound if its Euclidean norm is larger."""
    if bound is None:
        return gradient
    norm = float(np.linalg.norm(gradient))
    return gradient if norm <= bound else gradient * np.float32(bound / norm)


def _explain_loss(numbers_BN: Floats, names: Sequence[str]) -> str:
    largest_N = np.abs(numbers_BN).max(axis=0, initial=0.0)
    if largest_N.size and not largest_N.max() < LARGEST_SCALED:
        place = int(largest_N.argmax())
        name = f"'{names[place]}'" if place < len(names) else str(place)
        return (
            f"Most likely dense input {name} is too large, as it is above {LARGEST_SCALED:,.0f}: "
            "add log, clip or standardize to its `number`"
        )
    return (
        "Most likely the learning rate is too high: lower train.optimizer.learning_rate or "
        "train.embeddings, or set train.gradient_clip_norm; --resume goes on from the last "
        "checkpoint"
    )
