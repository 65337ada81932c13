"""Large variables of a SavedModel, written slice by slice.

`tf.saved_model.save` holds every variable in memory, and a second time while it writes. So the
graph is saved with placeholders of one element, and this module replaces their values in the
checkpoint ("tensor bundle") below `variables/`: every block of rows becomes a bundle of its own
that holds a *slice* of the whole tensor, and TensorFlow's own merge of partial checkpoints makes
one of them. The merge renames data files and reads none.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from ctr_pipeline.embeddings.store import RowBlock

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def replace_rows(
    saved_model: Path,
    blocks: Iterable[RowBlock],
    *,
    num_rows: int,
    width: int,
    keys_name: str,
    values_name: str,
) -> None:
    """Replaces two placeholder variables by all rows, in memory of about one block.

    Args:
        saved_model: Folder that `tf.saved_model.save` wrote.
        blocks: `num_rows` rows in all, none of the blocks empty.
        num_rows: Rows.
        width: Values of a row.
        keys_name: Attribute of the saved module that holds keys, int64 [None].
        values_name: Attribute that holds values, float32 [None, width].

    Raises:
        ValueError: The saved model has no such variables.
    """
    variables = saved_model / "variables"
    prefix = variables / "variables"
    parts = saved_model / "variables.parts"
    parts.mkdir()
    replaced = [keys_name + _SUFFIX, values_name + _SUFFIX]
    prefixes = [_copy_others(prefix, parts / "others", replaced)]
    start = 0
    for index, block in enumerate(blocks):
        count = len(block.keys)
        part = str(parts / f"rows-{index:06d}")
        tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=replaced,
            shape_and_slices=[
                f"{num_rows} {start},{count}",
                f"{num_rows} {width} {start},{count}:-",
            ],
            tensors=[block.keys, block.values],
        )
        prefixes.append(part)
        start += count
        del block
    shutil.rmtree(variables)
    variables.mkdir()
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=prefixes, destination_prefix=str(prefix), delete_old_dirs=False
    )
    shutil.rmtree(parts)
    # It hashes the checkpoint as it was; readers take a missing one for unknown.
    (saved_model / "fingerprint.pb").unlink(missing_ok=True)


def _copy_others(prefix: Path, target: Path, left_out: list[str]) -> str:
    """Copies all entries but some, the object graph among them."""
    reader = tf.train.load_checkpoint(str(prefix))
    names = sorted(reader.get_variable_to_dtype_map())
    missing = set(left_out) - set(names)
    if missing:
        raise ValueError(f"the saved model has no variables {sorted(missing)}")
    kept = [name for name in names if name not in left_out]
    dtypes = reader.get_variable_to_dtype_map()
    tensors = tf.raw_ops.RestoreV2(
        prefix=str(prefix),
        tensor_names=kept,
        shape_and_slices=[""] * len(kept),
        dtypes=[dtypes[name] for name in kept],
    )
    tf.raw_ops.SaveV2(
        prefix=str(target),
        tensor_names=kept,
        shape_and_slices=[""] * len(kept),
        tensors=tensors,
    )
    return str(target)
