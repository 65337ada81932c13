"""A Keras model as pure functions: (parameters, rows, batch) → gradients, or → logits.

Axes: B batch, F fields, D embedding dimension, N numbers, P dense parameters. With sequences, a
field has several positions. For all arguments and results of this module, axis F then counts
positions, and axis N holds the coefficients after the numbers; only the model itself sees fields.
"""

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ctr_pipeline.dataset.order import mix
from ctr_pipeline.embeddings.arrays import is_aligned
from ctr_pipeline.errors import ModelError
from ctr_pipeline.training.fusion import compiled_parts
from ctr_pipeline.training.sequence_pooling import SequencePooling

Floats = NDArray[np.float32]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WRAPPED = re.compile(r"Exception encountered when calling [^\n]*\n\s*\n\s*([^\n]+)")


@dataclass(frozen=True)
class BatchGradients:
    """The results of one step of TensorFlow.

    Attributes:
        loss_sum: Weighted sum of the rows' logloss, without padding.
        parameters_P: Gradient of the *mean* loss, float32 [P].
        linear_BF1: Gradient of the loss *sum* with respect to the rows' linear weights; read-only.
        embeddings_BFD: The same with respect to their embeddings.
    """

    loss_sum: float
    parameters_P: Floats
    linear_BF1: Floats
    embeddings_BFD: Floats


class CompiledModel:
    """Compiles a model for batches of one size.

    Args:
        model: Maps {"embeddings", "linear", "numbers"} to logits (batch,); also takes "elements"
            and "coefficients" if it reads sequences one element at a time. Its variables supply the
            initial values and are never written by training.
        batch_size: Rows of every batch; the caller pads short ones.
        sequence_pooling: How positions become fields; None if each field is one position.
        training_offset: Added to the logits in training only: the log of the ratio of the odds
            among the rows trained on to the odds among all rows.
        training_model: The same model in bfloat16, used for gradients; only the shapes of its
            variables matter. Logits come from `model`. None uses `model` for both.
        use_xla: Compile with XLA, which fuses the operations between matrix products. Without it,
            TensorFlow's own kernels run; they multiply many small matrices faster and use the
            processor's bfloat16 instructions. The gradients of a `training_model` always run so,
            and only their `fused` parts are compiled.
        number_names: Names of the dense inputs, for messages.
        is_of_user: Whether the model is code of the user, whose failures are explained as such.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        batch_size: int,
        sequence_pooling: SequencePooling | None = None,
        training_offset: float = 0.0,
        training_model: keras.Model | None = None,
        use_xla: bool = True,
        number_names: Sequence[str] = (),
        is_of_user: bool = False,
    ) -> None:
        self._is_of_user = is_of_user
        self.batch_size = batch_size
        self.number_names = number_names
        self._sequence_pooling = sequence_pooling
        self._training_offset = training_offset
        self._model = model
        self._training_model = model if training_model is None else training_model
        self._shapes = _shapes_of(model)
        if _shapes_of(self._training_model) != self._shapes:
            raise ValueError("the model that is trained has other variables")
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self._num_seeds = len(model.non_trainable_variables)
        # XLA multiplies bfloat16 no faster than float32; oneDNN is three times as fast.
        self._compiles_gradients = use_xla and training_model is None
        # Nothing here branches on values of tensors, and Keras keeps AutoGraph out of its layers.
        self._gradients = tf.function(
            self._compute_gradients, jit_compile=self._compiles_gradients, autograph=False
        )
        self._forward = tf.function(self._compute_logits, jit_compile=use_xla, autograph=False)
        self._traced: dict[Any, Callable[..., Any]] = {}

    @property
    def sequence_pooling(self) -> SequencePooling | None:
        """How positions become fields; None if each field is one position."""
        return self._sequence_pooling

    @property
    def num_parameters(self) -> int:
        """P."""
        return sum(self._sizes)

    def initial_parameters(self) -> Floats:
        """The model's own initial values, concatenated: float32 [P]."""
        values = [np.ravel(variable.numpy()) for variable in self._model.trainable_variables]
        return np.concatenate([np.empty(0, np.float32), *values]).astype(np.float32)

    def assign(self, parameters_P: Floats) -> keras.Model:
        """Assigns trained parameters to the model's variables, for the export."""
        if len(parameters_P) != self.num_parameters:
            raise ValueError(
                f"{len(parameters_P)} trained parameters, the model has {self.num_parameters}"
            )
        offset = 0
        for variable, shape, size in zip(
            self._model.trainable_variables, self._shapes, self._sizes, strict=True
        ):
            variable.assign(parameters_P[offset : offset + size].reshape(shape))
            offset += size
        return self._model

    def gradients(
        self,
        *,
        parameters_P: Floats,
        linear_BF1: Floats,
        embeddings_BFD: Floats,
        numbers_BN: Floats,
        labels_B: Floats,
        num_valid: int,
        dropout_seed: int,
        weights_B: Floats | None = None,
    ) -> BatchGradients:
        """Computes the gradients of one padded batch.

        With weights, the mean loss is the weighted sum divided by the number of rows. Weights are
        relative to the mean weight of all training rows, so over an epoch this is the weighted
        mean, and a batch of light rows moves the parameters less than a batch of heavy rows.

        Args:
            parameters_P: Dense parameters, float32.
            linear_BF1: Linear weight of each field's id.
            embeddings_BFD: Embedding of each field's id.
            numbers_BN: Dense inputs.
            labels_B: 0 or 1.
            num_valid: Number of rows before the padding.
            dropout_seed: Fixes the dropout masks.
            weights_B: Row weights, whose mean over all training rows is 1; None weighs all alike.
        """
        is_valid_B = np.arange(self.batch_size) < num_valid
        if weights_B is None:
            weights_B = is_valid_B.astype(np.float32)
        else:
            weights_B = np.where(is_valid_B, weights_B, np.float32(0))
        loss_sum, parameters, linear, embeddings = self._run(
            self._gradients,
            parameters_P=as_tensor(parameters_P),
            linear_BF1=as_tensor(linear_BF1),
            embeddings_BFD=as_tensor(embeddings_BFD),
            numbers_BN=numbers_BN,
            labels_B=labels_B,
            weights_B=weights_B,
            num_valid=np.float32(num_valid),
            seeds=self._seed_states(dropout_seed),
        )
        return BatchGradients(
            float(loss_sum), parameters.numpy(), as_array(linear), as_array(embeddings)
        )

    def logits(
        self,
        *,
        parameters_P: Floats,
        linear_BF1: Floats,
        embeddings_BFD: Floats,
        numbers_BN: Floats,
    ) -> Floats:
        """Computes the logits of one padded batch, float32 [B], without dropout."""
        logits: Floats = self._run(
            self._forward,
            parameters_P=as_tensor(parameters_P),
            linear_BF1=as_tensor(linear_BF1),
            embeddings_BFD=as_tensor(embeddings_BFD),
            numbers_BN=numbers_BN,
        ).numpy()
        return logits

    def warm_up(self, *, num_fields: int, embedding_dim: int, num_numbers: int) -> None:
        """Compiles the gradients before the first batch arrives.

        Args:
            num_fields: F, or the number of positions if there are any.
            embedding_dim: D.
            num_numbers: N, coefficients included.
        """
        size = self.batch_size
        self.gradients(
            parameters_P=self.initial_parameters(),
            linear_BF1=np.zeros((size, num_fields, 1), np.float32),
            embeddings_BFD=np.zeros((size, num_fields, embedding_dim), np.float32),
            numbers_BN=np.zeros((size, num_numbers), np.float32),
            labels_B=np.zeros(size, np.float32),
            num_valid=size,
            dropout_seed=0,
        )

    def _run(self, function: Any, **arguments: Any) -> Any:
        """Calls a function of TensorFlow with arrays or tensors, whose shapes are always the same.

        Raises:
            ModelError: The user's own model fails or cannot be compiled.
        """
        try:
            # `function` itself looks for the trace of these shapes anew at each call, and makes
            # tensors of arrays ten times as slowly.
            tensors = {name: tf.convert_to_tensor(value) for name, value in arguments.items()}
            if function not in self._traced:
                self._traced[function] = function.get_concrete_function(**tensors)
            return self._traced[function](**tensors)
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(str(error.message).partition("\n")[0]) from error
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            if not self._is_of_user:
                raise
            reason = str(error.message).strip().partition("\n")[0]
            raise ModelError(
                f"TensorFlow cannot compile the model ({reason[:300]})",
                place="model.file",
                remedy="Make it of Keras layers and keras.ops that XLA can compile, without Python "
                "functions inside",
            ) from error
        except Exception as error:
            if not self._is_of_user:
                raise
            raise ModelError(
                f"the model fails when it is called ({_innermost_reason(error)})",
                place="model.file",
                remedy="The log holds the traceback",
            ) from error

    def _seed_states(self, dropout_seed: int) -> NDArray[np.uint32]:
        numbers = [mix(dropout_seed, index) for index in range(self._num_seeds)]
        states = [(number >> 32, number & 0xFFFFFFFF) for number in numbers]
        return np.array(states, dtype=np.uint32).reshape(self._num_seeds, 2)

    def _split(self, parameters_P: Any) -> list[Any]:
        if not self._sizes:
            return []
        parts = tf.split(parameters_P, self._sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _call(
        self, parameters_P: Any, seeds: Any, inputs: dict[str, Any], *, training: bool
    ) -> Any:
        states = [seeds[index] for index in range(self._num_seeds)]
        model = self._training_model if training else self._model
        in_parts = training and not self._compiles_gradients
        with compiled_parts() if in_parts else contextlib.nullcontext():
            logits_B, _ = model.stateless_call(
                self._split(parameters_P), states, inputs, training=training
            )
        return logits_B

    def _compute_gradients(
        self,
        *,
        parameters_P: Any,
        linear_BF1: Any,
        embeddings_BFD: Any,
        numbers_BN: Any,
        labels_B: Any,
        weights_B: Any,
        num_valid: Any,
        seeds: Any,
    ) -> tuple[Any, Any, Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch([parameters_P, linear_BF1, embeddings_BFD])
            inputs = model_inputs(linear_BF1, embeddings_BFD, numbers_BN, self._sequence_pooling)
            logits_B = self._call(parameters_P, seeds, inputs, training=True)
            if self._training_offset:
                logits_B += self._training_offset
            losses_B = tf.nn.sigmoid_cross_entropy_with_logits(labels_B, logits_B)
            loss_sum = tf.reduce_sum(losses_B * weights_B)
        parameters, linear, embeddings = tape.gradient(
            loss_sum,
            [parameters_P, linear_BF1, embeddings_BFD],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return loss_sum, parameters / num_valid, linear, embeddings

    def _compute_logits(
        self, *, parameters_P: Any, linear_BF1: Any, embeddings_BFD: Any, numbers_BN: Any
    ) -> Any:
        seeds = tf.zeros((self._num_seeds, 2), tf.uint32)
        inputs = model_inputs(linear_BF1, embeddings_BFD, numbers_BN, self._sequence_pooling)
        return self._call(parameters_P, seeds, inputs, training=False)


def as_tensor(array: Floats) -> Any:
    """Wraps a float32 array in a tensor, without a copy if it starts at a cache line.

    TensorFlow itself copies every array. Nothing may write to the array before the operations that
    read the tensor have ended.
    """
    flags = array.flags
    if array.size and flags.c_contiguous and flags.writeable and is_aligned(array):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.convert_to_tensor(array)


def as_array(tensor: Any) -> Floats:
    """Wraps a tensor in main memory in a read-only array, without a copy."""
    return np.asarray(memoryview(tensor))


def _shapes_of(model: keras.Model) -> list[tuple[int, ...]]:
    return [tuple(variable.shape) for variable in model.trainable_variables]


def _innermost_reason(error: Exception) -> str:
    """Extracts the user's own error from what Keras and TensorFlow wrap around it."""
    text = _COLOURS.sub("", str(error))
    wrapped = _WRAPPED.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = wrapped[-1].strip() if wrapped else (lines[-1] if lines else type(error).__name__)
    return reason[:300]


def model_inputs(
    linear_BF1: Any, embeddings_BFD: Any, numbers_BN: Any, sequence_pooling: SequencePooling | None
) -> dict[str, Any]:
    """Builds a model's inputs: fields, and the elements of sequences if it takes them."""
    apart = {}
    if sequence_pooling is not None:
        if sequence_pooling.apart:
            apart = dict(
                zip(
                    ("elements", "coefficients"),
                    sequence_pooling.elements(embeddings_BFD, numbers_BN),
                    strict=True,
                )
            )
        linear_BF1 = sequence_pooling.pool(linear_BF1, numbers_BN)
        embeddings_BFD = sequence_pooling.pool(embeddings_BFD, numbers_BN)
        numbers_BN = sequence_pooling.numbers(numbers_BN)
    return {
        "embeddings": embeddings_BFD,
        "linear": tf.squeeze(linear_BF1, -1),
        "numbers": numbers_BN,
        **apart,
    }


def configure_tensorflow(*, threads: int, deterministic: bool) -> None:
    """Bounds TensorFlow's threads; has no effect after TensorFlow's first operation.

    Args:
        deterministic: Whether every run on one machine gives the same bits.
    """
    # TensorFlow cannot change them later: a second pipeline of a process keeps the first's.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(min(threads, 2))
    if deterministic:
        tf.config.experimental.enable_op_determinism()
