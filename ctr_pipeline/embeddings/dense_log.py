"""Dense parameters of a cut: a file for each range, read back under any division of ranges."""

from collections.abc import Sequence

import numpy as np

from ctr_pipeline.embeddings.arrays import Float32Array
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters, read_range, write_range
from ctr_pipeline.embeddings.log_chain import CutFile, dense_name
from ctr_pipeline.embeddings.optimizers import Slot, rule_of
from ctr_pipeline.embeddings.row_log import require_finite, verify_files
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.specs.optimizer import OptimizerSpec


def save_range(
    storage: CutStorage,
    values: Float32Array,
    slots: Float32Array,
    optimizer: OptimizerSpec,
    *,
    cut: int,
    first: int,
    num_dense: int,
) -> CutFile:
    """Writes a range of the dense parameters with its optimizer state, durably.

    Args:
        storage: Where the file goes.
        values: float32 [n], parameters first … first + n - 1.
        slots: As `DenseParameters.slots`.
        cut: Number of the cut.
        first: Where the range begins.
        num_dense: Dense parameters of the model.

    Raises:
        ValueError: The range is empty; it needs no file.
        TrainingError: A value is not finite.
        RunFolderError: The disk is full or the folder cannot be written.
    """
    if not len(values):
        raise ValueError(f"no dense parameters at {first}: an empty range has no file")
    require_finite(values, slots)
    name = storage.key_of(dense_name(first, cut))
    with storage.creating(name) as file:
        write_range(file, values, slots, optimizer, first=first, num_dense=num_dense)
    return CutFile(
        name=name,
        num_bytes=storage.num_bytes(name),
        crc32=storage.crc32_of(name),
        num_rows=len(values),
        partition=-1,
        kind="dense",
        first=first,
    )


def restore_range(
    dense: DenseParameters,
    storage: CutStorage,
    files: Sequence[CutFile],
    *,
    first: int,
    num_dense: int,
) -> None:
    """Replaces a range of dense parameters, or all, by what a cut holds of it.

    State that the optimizer keeps once for a whole range, not for each value, becomes the mean over
    the overlapping ranges of the cut, weighted by the overlap.

    Args:
        dense: Parameters first … first + n - 1.
        storage: Where the files are.
        files: All files of dense parameters of the cut.
        first: Where the range begins.
        num_dense: Dense parameters of the model.

    Raises:
        CheckpointError: A file is missing, damaged or of other parameters, or the files do not
            cover the range; nothing has changed then.
        StorageError: A file cannot be read at this moment; nothing has changed either.
    """
    num_values = len(dense.values)
    last = first + num_values
    overlapping = [
        file for file in files if file.first < last and first < file.first + file.num_rows
    ]
    verify_files(storage, overlapping)
    rule = rule_of(dense.optimizer)
    values, slots = np.empty_like(dense.values), np.zeros_like(dense.slots)
    covered = np.zeros(num_values, np.bool_)
    for file in overlapping:
        with storage.reading(file.name, place=file.name) as opened:
            found_values, found_slots = read_range(
                opened,
                dense.optimizer,
                num_values=file.num_rows,
                first=file.first,
                num_dense=num_dense,
                num_bytes=file.num_bytes,
                place=file.name,
            )
        begin, end = max(first, file.first), min(last, file.first + file.num_rows)
        source = slice(begin - file.first, end - file.first)
        target = slice(begin - first, end - first)
        values[target] = found_values[source]
        covered[target] = True
        place = found_place = 0
        for slot in rule.slots:
            if slot is Slot.ROW_ACCUMULATOR:
                slots[place] += found_slots[found_place] * np.float32((end - begin) / num_values)
                place, found_place = place + 1, found_place + 1
            else:
                slots[place:][target] = found_slots[found_place:][source]
                place, found_place = place + num_values, found_place + file.num_rows
    if not covered.all():
        raise CheckpointError(
            f"dense parameter {first + int(np.argmin(covered))} is in no file of the checkpoint",
            place=storage.address,
            remedy="Use an earlier checkpoint",
        )
    # In place: a trainer may hold a view of the vector.
    dense.values[:] = values
    dense.slots[:] = slots
