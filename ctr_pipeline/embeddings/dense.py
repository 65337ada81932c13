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

_MAGIC = b"CTRDENS1"


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
        writer = ArrayFileWriter(file, _MAGIC, self._description())
        writer.write_array(self.values)
        writer.write_array(self.slots)
        writer.finish()

    def load(self, file: IO[bytes]) -> None:
        """Replaces values and state by those that `save` wrote.

        Raises:
            CheckpointError: The file is damaged or of other parameters; nothing has changed then.
        """
        name = getattr(file, "name", None)
        place = Path(name).name if isinstance(name, str) else "dense parameters"
        reader = ArrayFileReader(file, _MAGIC, place)
        for key, value in self._description().items():
            if reader.description.get(key) != value:
                raise CheckpointError(
                    f"dense parameters of another make: {key}: "
                    f"{reader.description.get(key)!r} in the file, {value!r} configured",
                    place=place,
                    remedy="Restore the configuration of the checkpoint, or start a new run",
                )
        values, slots = np.empty_like(self.values), np.empty_like(self.slots)
        reader.read_array(values)
        reader.read_array(slots)
        reader.finish()
        # In place: the trainer may hold a view of the vector.
        self.values[:] = values
        self.slots[:] = slots

    def _description(self) -> dict[str, str | int]:
        return {"num_values": len(self.values), "optimizer": self.optimizer.name}
