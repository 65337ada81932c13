"""Parameters that live on parameter servers, as the stages after training take them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.distributed.worker.ps_client import PreparedKeys, PsClient, Pull
from ctr_pipeline.embeddings.spilling import MemoryBound
from ctr_pipeline.embeddings.store import RowBlock


@dataclass
class _Asked:
    """A batch and, once it is located, its values."""

    keys: PreparedKeys
    pull: Pull | None = None


class ServedRows:
    """Trained rows of a job that is over; makes none and changes none.

    Args:
        client: Knows where the servers are.
        row_bytes: Bytes of a row's record.
        memory_bound: Of the records of each server; None: there is none.
    """

    def __init__(
        self, client: PsClient, row_bytes: int, memory_bound: MemoryBound | None = None
    ) -> None:
        self._client = client
        sizes = [num_rows * row_bytes for num_rows in client.num_rows_by_server()]
        self.num_rows = sum(sizes) // row_bytes
        self._spilled_bytes = (
            0 if memory_bound is None else sum(map(memory_bound.spilled_bytes, sizes))
        )
        self._memory_bytes = sum(sizes) - self._spilled_bytes

    def memory_bytes(self) -> int:
        """Bytes of the rows' records in the memory of the servers."""
        return self._memory_bytes

    def spilled_bytes(self) -> int:
        """Bytes of records that lie in files of the servers, beyond their memory limit."""
        return self._spilled_bytes

    def iterate_rows(self, block_rows: int) -> Iterator[RowBlock]:
        """All rows by ascending key, in bounded memory."""
        return self._client.iterate_rows(block_rows)

    def release(self) -> None:
        """Nothing: the rows are those of the servers."""

    def prepare(self, ids_BF: NDArray[np.int32], num_valid: int) -> Any:
        """Makes the ids of a batch unique."""
        return _Asked(self._client.prepare(ids_BF, num_valid))

    def locate(self, prepared: Any, *, create: bool) -> None:
        """Fetches the values of a batch."""
        if create:
            raise AssertionError("training is over; no rows are made")
        prepared.pull = self._client.start_pull(prepared.keys, create=False, batch=None)
        prepared.pull.wait()

    def gather_parts(
        self, prepared: Any, num_leading: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The rows' values, as `EmbeddingStore.gather_parts`."""
        return self._client.gather_parts(prepared.pull, num_leading)


@dataclass(frozen=True)
class ServedDense:
    """Dense parameters of a job that is over.

    Attributes:
        values: All parameters, float32 [P].
    """

    values: NDArray[np.float32]

    @classmethod
    def read(cls, client: PsClient, *, num_fields: int) -> "ServedDense":
        """Fetches them with a batch that has no rows."""
        nothing = client.prepare(np.zeros((1, num_fields), np.int32), 0)
        pull = client.start_pull(nothing, create=False, batch=None)
        return cls(client.dense(pull).copy())
