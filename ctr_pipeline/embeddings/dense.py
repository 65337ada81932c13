"""Dense parameters, updated by the arithmetic that updates rows."""

from pathlib import Path
from typing import IO

import numpy as np

from ctr_pipeline.embeddings import update_kernels
from ctr_pipeline.embeddings.array_file import ArrayFileReader, ArrayFileWriter
from ctr_pipeline.embeddings.arrays import Float32Array, empty_aligned
from ctr_pipeline.embeddings.optimizers import rule_of, step_constants
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.specs.optimizer import OptimizerSpec

_MAGIC = b"CTRDRNG1"


def write_range(
    file: IO[bytes],
    values: Float32Array,
    slots: Float32Array,
    optimizer: OptimizerSpec,
    *,
    first: int,
    num_dense: int,
) -> None:
    """Writes a range of the dense parameters with its optimizer state to an open binary file.

    Args:
        values: float32 [n], parameters first … first + n - 1.
        slots: As `DenseParameters.slots`.
        first: Where the range begins.
        num_dense: Dense parameters of the model.
    """
    writer = ArrayFileWriter(
        file, _MAGIC, _describe(len(values), optimizer, first=first, num_dense=num_dense)
    )
    writer.write_array(values)
    writer.write_array(slots)
    writer.finish()


def read_range(
    file: IO[bytes],
    optimizer: OptimizerSpec,
    *,
    num_values: int,
    first: int,
    num_dense: int,
    num_bytes: int | None = None,
    place: str,
) -> tuple[Float32Array, Float32Array]:
    """Values and slots that `write_range` wrote.

    Args:
        num_values: Values of the range.
        num_bytes: Size of the file, where the other numbers are not to be trusted.
        place: The file, as an error names it.

    Raises:
        CheckpointError: The file is damaged or of other parameters.
    """
    reader = ArrayFileReader(file, _MAGIC, place)
    expected = _describe(num_values, optimizer, first=first, num_dense=num_dense)
    for key, value in expected.items():
        if reader.description.get(key) != value:
            raise CheckpointError(
                f"dense parameters of another make: {key}: "
                f"{reader.description.get(key)!r} in the file, {value!r} configured",
                place=place,
                remedy="Restore the configuration of the checkpoint, or start a new run",
            )
    num_slots = rule_of(optimizer).num_slots(num_values)
    # Before room is made for what a false number promises.
    if num_bytes is not None and 4 * (num_values + num_slots) > num_bytes:
        raise reader.damaged(f"{num_bytes:,} bytes cannot hold {num_values:,} values")
    values, slots = np.empty(num_values, np.float32), np.empty(num_slots, np.float32)
    reader.read_array(values)
    reader.read_array(slots)
    reader.finish()
    if not (np.isfinite(values).all() and np.isfinite(slots).all()):
        raise reader.damaged("it holds a value that is not finite")
    return values, slots


def _describe(
    num_values: int, optimizer: OptimizerSpec, *, first: int, num_dense: int
) -> dict[str, str | int]:
    return {
        "first": first,
        "num_values": num_values,
        "num_dense": num_dense,
        "optimizer": optimizer.name,
    }


class DenseParameters:
    """All dense parameters as one vector, with optimizer state.

    Args:
        values: float32 [n]; copied.
        optimizer: How they are updated. `rowwise_adagrad` sees one row of n values.
    """

    def __init__(self, values: Float32Array, optimizer: OptimizerSpec) -> None:
        if values.ndim != 1 or values.dtype != np.float32:
            raise ValueError(
                f"values of shape {values.shape}, type {values.dtype}, not float32 [n]"
            )
        self.optimizer = optimizer
        slots = rule_of(optimizer).initial_slots(len(values), optimizer)
        # One record without a header, so that the kernels of rows serve it.
        self._record_1R = empty_aligned((1, len(values) + len(slots)))
        np.concatenate([values, slots], out=self._record_1R[0])
        self.values: Float32Array = self._record_1R[0, : len(values)]
        self.slots: Float32Array = self._record_1R[0, len(values) :]
        self._plan_SP = np.zeros((1, update_kernels.NUM_PLAN_COLUMNS), np.uint64)
        self._plan_SP[0, update_kernels.PLAN_RULE] = rule_of(optimizer).code
        self._plan_SP[0, update_kernels.PLAN_DIM] = len(values)
        self._plan_SP[0, update_kernels.PLAN_SLOTS] = len(values)

    def update(
        self, gradient: Float32Array, *, step: int, learning_rate_factor: float = 1.0
    ) -> None:
        """Moves the values by one step, in place.

        Args:
            gradient: float32 [n].
            step: Global step, from 1.
            learning_rate_factor: The schedule's factor on the learning rate.
        """
        if gradient.shape != self.values.shape or gradient.dtype != np.float32:
            raise ValueError(
                f"gradient of shape {gradient.shape}, type {gradient.dtype}; "
                f"float32 {list(self.values.shape)} is expected"
            )
        constants = step_constants(
            self.optimizer, step=step, learning_rate_factor=learning_rate_factor
        )
        # Kernels scale gradients in place; a scale of 1 writes nothing, but must be able to.
        update_kernels.update_vector(
            self._record_1R,
            np.require(gradient, requirements=["C_CONTIGUOUS", "WRITEABLE"]),
            self._plan_SP,
            constants[None],
        )

    def save(self, file: IO[bytes]) -> None:
        """Writes values and optimizer state to an open binary file."""
        num_dense = len(self.values)
        write_range(file, self.values, self.slots, self.optimizer, first=0, num_dense=num_dense)

    def load(self, file: IO[bytes]) -> None:
        """Replaces values and state by those that `save` wrote.

        Raises:
            CheckpointError: The file is damaged or of other parameters; nothing has changed then.
        """
        name = getattr(file, "name", None)
        place = Path(name).name if isinstance(name, str) else "dense parameters"
        num_dense = len(self.values)
        values, slots = read_range(
            file, self.optimizer, num_values=num_dense, first=0, num_dense=num_dense, place=place
        )
        # In place: the trainer may hold a view of the vector.
        self.values[:] = values
        self.slots[:] = slots
