"""Whether parameter servers have room for the rows that training makes."""

import math
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from ctr_pipeline.config.models import Config
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.pipeline.model.embedding_rows import row_layout
from ctr_pipeline.pipeline.stages.encode import Encoding
from ctr_pipeline.specs.launchers import LAUNCHERS, load_code

_BESIDE_RECORD_BYTES = 64
"""Most that the key, the mark and the index of a row take."""
_PROCESS_BYTES = 300_000_000
"""Bytes of a server without rows, with what it receives and writes."""
_TIMES = 1.25
"""Times what is needed, for servers that get more than their share of the rows."""


def warning_of_memory(config: Config, encoding: Encoding) -> str:
    """A sentence with the size to set, if servers are too small; empty if they are not.

    Nothing is said where a launcher gives servers no memory of their own.
    """
    kind = LAUNCHERS.get(config.runtime.mode)
    if kind is None or kind.server_memory is None:
        return ""
    key, reader = kind.server_memory
    needed = server_bytes(
        count_rows(encoding.counts, admit_after=config.train.embeddings.admit_after),
        record_bytes=row_layout(config, encoding.plan).record_bytes,
        num_servers=config.runtime.parameter_servers,
        most_record_bytes=config.train.embeddings.memory_limit_bytes,
    )
    memory = attrgetter(key)(config)
    if needed <= load_code(reader)(memory):
        return ""
    return (
        f"{key} is {memory}, and the rows of the ids of the training rows probably need more: "
        f"set it to {math.ceil(_TIMES * needed / 2**30)}Gi"
    )


def count_rows(counts: Sequence[IdCounts], *, admit_after: int) -> int:
    """How many embedding rows training makes.

    Args:
        counts: How often each id is in the training rows, of each table.
        admit_after: Times that an id has to occur.
    """
    return sum(int(np.count_nonzero(one.counts >= max(1, admit_after))) for one in counts)


def server_bytes(
    num_rows: int, *, record_bytes: int, num_servers: int, most_record_bytes: int | None
) -> int:
    """Memory that a server needs.

    Args:
        num_rows: Rows that all servers hold together.
        record_bytes: Values and optimizer state of a row.
        most_record_bytes: Records beyond it lie in a file; None: all are in memory.
    """
    share = math.ceil(num_rows / num_servers)
    records = share * record_bytes
    if most_record_bytes is not None:
        records = min(records, most_record_bytes)
    return _PROCESS_BYTES + records + share * _BESIDE_RECORD_BYTES
