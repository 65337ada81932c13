"""An ensemble: several models as one, whose logit is the mean of theirs.

Each member is trained with embedding rows of its own. A row of the ensemble holds those of all
members side by side, each as its linear weight and its embedding, so one lookup of an id finds the
values of all.

Axes: B batch, F fields, W values of a row of the ensemble, D embedding dimension of a member.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.progress import ProgressTask, SilentTask
from ctr_pipeline.training.compiled import Floats
from ctr_pipeline.training.lookup import DenseValues
from ctr_pipeline.training.scoring import ScoredRows
from ctr_pipeline.training.sequence_pooling import SequencePooling


class Network(Protocol):
    """The dense part of a trained model, or of an ensemble."""

    @property
    def num_parameters(self) -> int:
        """How many dense parameters it has."""

    @property
    def sequence_pooling(self) -> SequencePooling | None:
        """How positions become fields; None without sequences."""

    def assign(self, parameters_P: Floats) -> Any:
        """Returns the Keras model, or the `EnsembleModel`, with these parameters."""


class RowScorer(Protocol):
    """Scores encoded rows by a trained model, or by an ensemble."""

    def score(
        self, ids_RF: NDArray[np.int32], numbers_RN: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Computes logits, float32 [R]."""

    def score_split(self, reader: EncodedReader, task: ProgressTask | None = None) -> ScoredRows:
        """Computes the logits of all rows of a split, and reads their labels."""


class EnsembleModel:
    """Keras models as one, with the part of Keras's interface that the export uses.

    A mean of logits is the geometric mean of the members' odds: the logarithmic opinion pool
    (Genest & Zidek 1986, "Combining probability distributions"). Logloss is convex in the logit, so
    that of the mean is at most the mean of the members' loglosses, on any rows.

    Args:
        models: Each from {"embeddings", "linear", "numbers"} to logits (batch,).
        embedding_dim: D, the same for all.
    """

    def __init__(self, models: Sequence[keras.Model], embedding_dim: int) -> None:
        self._models = tuple(models)
        self._dim = embedding_dim
        self.trainable_variables = [one for model in models for one in model.trainable_variables]
        self.non_trainable_variables = [
            one for model in models for one in model.non_trainable_variables
        ]

    def stateless_call(
        self,
        trainable: Sequence[Any],
        non_trainable: Sequence[Any],
        inputs: Mapping[str, Any],
        *,
        training: bool = False,
    ) -> tuple[Any, list[Any]]:
        """Logits of a batch for given values of the variables, as Keras's method of this name.

        Args:
            trainable: Values of `trainable_variables`.
            non_trainable: Values of `non_trainable_variables`.
            inputs: "linear" [B, F], the first value of a row; "embeddings" [B, F, W - 1],
                the others; "numbers" [B, N], which all members take; "elements" [B, S, W - 1] and
                "coefficients" [B, S] if a member takes single elements.
            training: Whether dropout is on.

        Returns:
            Logits [B], and the values of the variables that are not trained.
        """
        rows_BFW = tf.concat([inputs["linear"][:, :, None], inputs["embeddings"]], axis=2)
        logits, states = [], []
        given, state = list(trainable), list(non_trainable)
        for number, model in enumerate(self._models):
            first = number * (1 + self._dim)
            num_given, num_state = (
                len(model.trainable_variables),
                len(model.non_trainable_variables),
            )
            logit_B, changed = model.stateless_call(
                given[:num_given],
                state[:num_state],
                {
                    "linear": rows_BFW[:, :, first],
                    "embeddings": rows_BFW[:, :, first + 1 : first + 1 + self._dim],
                    "numbers": inputs["numbers"],
                    **self._elements(model, inputs, first),
                },
                training=training,
            )
            given, state = given[num_given:], state[num_state:]
            logits.append(logit_B)
            states += changed
        return tf.add_n(logits) / float(len(logits)), states

    def _elements(
        self, model: keras.Model, inputs: Mapping[str, Any], first: int
    ) -> dict[str, Any]:
        """The inputs of a member that reads a sequence's elements one by one; none for others."""
        if "elements" not in model.input:
            return {}
        return {
            "elements": inputs["elements"][:, :, first : first + self._dim],
            "coefficients": inputs["coefficients"],
        }


@dataclass(frozen=True)
class EnsembleNetwork:
    """The dense parts of the members, with their parameters one after another.

    Attributes:
        members: Compiled models.
        embedding_dim: D, the same for all.
    """

    members: tuple[Network, ...]
    embedding_dim: int

    @property
    def num_parameters(self) -> int:
        """Dense parameters of all members."""
        return sum(member.num_parameters for member in self.members)

    @property
    def sequence_pooling(self) -> SequencePooling | None:
        """How positions become fields; as for a member that reads elements one by one, if any."""
        poolings = [member.sequence_pooling for member in self.members]
        return next((one for one in poolings if one is not None and one.apart), poolings[0])

    def assign(self, parameters_P: Floats) -> EnsembleModel:
        """Sets the members' variables to trained parameters, for the export.

        Raises:
            ValueError: The number of parameters is not that of the members.
        """
        if len(parameters_P) != self.num_parameters:
            raise ValueError(
                f"{len(parameters_P)} trained parameters, the members have {self.num_parameters}"
            )
        models, first = [], 0
        for member in self.members:
            last = first + member.num_parameters
            models.append(member.assign(parameters_P[first:last]))
            first = last
        return EnsembleModel(models, self.embedding_dim)


@dataclass(frozen=True)
class EnsembleDense:
    """Dense parameters of the members.

    Attributes:
        values: float32, those of the first member, then of the second, and so on.
    """

    values: Floats

    @classmethod
    def of(cls, members: Sequence[DenseValues]) -> "EnsembleDense":
        """Copies the members' values."""
        return cls(np.concatenate([member.values for member in members]))


class EnsembleScorer:
    """Scores rows by the mean of the members' logits.

    Args:
        members: At least one.
        block_rows: Rows of a split that are read at once.
    """

    def __init__(self, members: Sequence[RowScorer], block_rows: int) -> None:
        self._members = tuple(members)
        self._block_rows = block_rows

    def score(
        self, ids_RF: NDArray[np.int32], numbers_RN: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Computes logits, float32 [R]."""
        total = np.zeros(len(ids_RF), np.float32)
        for member in self._members:
            total += member.score(ids_RF, numbers_RN)
        return total / np.float32(len(self._members))

    def score_split(self, reader: EncodedReader, task: ProgressTask | None = None) -> ScoredRows:
        """Computes the logits of all rows of a split, and reads their labels, in one pass."""
        task = task or SilentTask()
        num_rows = reader.meta.num_rows
        scored = ScoredRows(np.empty(num_rows, np.float32), np.empty(num_rows, np.float32))
        first = 0
        for rows in reader.read_in_order(self._block_rows):
            last = first + rows.num_rows
            scored.logits[first:last] = self.score(rows.ids_BF, rows.numbers_BN)
            scored.labels[first:last] = rows.labels_B
            task.advance(rows.num_rows)
            first = last
        return scored
