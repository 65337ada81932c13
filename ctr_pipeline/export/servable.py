"""Writes the SavedModel, its warm-up request and its card; publishes it in one rename."""

import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from ctr_pipeline.durable import explain_os_error, os_errors_explained, sync_folder
from ctr_pipeline.embeddings.store import RowBlock
from ctr_pipeline.errors import ExportError
from ctr_pipeline.export.bundle import replace_rows
from ctr_pipeline.export.input_names import choose_input_names
from ctr_pipeline.export.model_card import ModelCardInfo, write_model_card
from ctr_pipeline.export.raw_table import columns_as_arrays, columns_as_texts
from ctr_pipeline.export.rows import gather_blocks
from ctr_pipeline.export.serving_module import RawPreprocessing, RawType, ServingModule
from ctr_pipeline.export.warmup import write_warmup_requests
from ctr_pipeline.training.ensemble import EnsembleModel
from ctr_pipeline.training.sequence_pooling import SequencePooling

_WARMUP_ROWS = 8


@dataclass(frozen=True)
class ExportedModel:
    """An export that nobody serves yet.

    Attributes:
        folder: Where it is; a server ignores the name, which is no number.
        version_folder: Where `publish_export` puts it.
        column_types: Every raw column and its type.
        input_names: Every raw column and its input's name.
        num_rows: Embedding rows.
    """

    folder: Path
    version_folder: Path
    column_types: Mapping[str, RawType]
    input_names: Mapping[str, str]
    num_rows: int


def export_servable(
    *,
    model: keras.Model | EnsembleModel,
    preprocessing: RawPreprocessing,
    column_types: Mapping[str, RawType],
    row_blocks: Iterable[RowBlock],
    num_rows: int,
    width: int,
    version_folder: Path,
    info: ModelCardInfo,
    list_columns: Collection[str] = (),
    position_tables: Sequence[int] | None = None,
    sequence_pooling: SequencePooling | None = None,
) -> ExportedModel:
    """Writes the model beside its version folder, ready to be proved and published.

    Memory holds the dense parameters, the vocabularies and about 70 MB of rows, however many there
    are.

    Args:
        model: Trained model: {"embeddings", "linear", "numbers"} to logits; a Keras model, or one
            with variables and `stateless_call` as a Keras model has them.
        preprocessing: Raw columns to ids and numbers.
        column_types: Every raw column and its type.
        row_blocks: Embedding rows, in ascending order of keys.
        num_rows: How many.
        width: Values of a row: the linear weight and the embedding.
        version_folder: `…/export/<version>`; left as it is until `publish_export`.
        info: For the model card.
        list_columns: Text columns of which a text is no value but a list of them.
        position_tables: Table of each column of ids; None if column f is of table f.
        sequence_pooling: How columns of ids become fields; None if they are fields.

    Raises:
        ExportError: TensorFlow cannot write the model.
        ValueError: The rows are not as announced.
        RunFolderError: The disk is full or cannot be written.
    """
    folder = version_folder.with_name(f".{version_folder.name}.{os.getpid()}.tmp")
    input_names = choose_input_names(column_types)
    module = ServingModule(
        model=model,
        preprocessing=preprocessing,
        width=width,
        column_types=column_types,
        input_names=input_names,
        missing_values=info.missing_values,
        list_columns=list_columns,
        position_tables=position_tables,
        sequence_pooling=sequence_pooling,
    )
    exported = ExportedModel(folder, version_folder, dict(column_types), input_names, num_rows)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        tf.saved_model.save(module, str(folder), signatures=module.signatures())
        replace_rows(
            folder,
            gather_blocks(row_blocks, num_rows=num_rows, width=width),
            num_rows=num_rows + 1,
            width=width,
            keys_name="row_keys",
            values_name="row_values",
        )
        write_warmup_requests(folder, _warmup_requests(exported), model_name=info.name)
        write_model_card(
            folder,
            info,
            column_types=column_types,
            input_names=input_names,
            num_rows=num_rows,
            embedding_dim=width - 1,
        )
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise explain_os_error(error, version_folder) from error
        if isinstance(error, tf.errors.OpError):
            raise ExportError(
                f"TensorFlow cannot write the model ({error.message})",
                place=str(version_folder),
                remedy="Check that the disk has room and can be written",
            ) from error
        raise
    return exported


def publish_export(exported: ExportedModel) -> Path:
    """Puts the export in its version folder, durably, in place of what was there.

    Returns:
        The version folder.

    Raises:
        RunFolderError: The folder cannot be written.
    """
    target = exported.version_folder
    replaced = target.with_name(f".{target.name}.{os.getpid()}.old")
    with os_errors_explained(target):
        _sync_tree(exported.folder)
        shutil.rmtree(replaced, ignore_errors=True)
        if target.exists():
            target.rename(replaced)
        exported.folder.rename(target)
        sync_folder(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    return target


def discard_export(exported: ExportedModel) -> None:
    """Removes an export that is not to be published."""
    shutil.rmtree(exported.folder, ignore_errors=True)


def _warmup_requests(exported: ExportedModel) -> dict[str, dict[str, Any]]:
    """Made-up rows: the model goes where its training rows may not."""
    rows = pa.table(
        {
            column: pa.array([0.0] * _WARMUP_ROWS if kind == "double" else ["0"] * _WARMUP_ROWS)
            for column, kind in exported.column_types.items()
        }
    )

    def named(columns: Mapping[str, Any]) -> dict[str, Any]:
        return {exported.input_names[column]: values for column, values in columns.items()}

    typed = columns_as_arrays(rows, exported.column_types)
    texts = columns_as_texts(rows, exported.column_types)
    return {
        "serving_default": named(
            {
                column: values if values.dtype == np.float64 else values.astype(object)
                for column, values in typed.items()
            }
        ),
        "serving_strings": named(
            {column: values.astype(object) for column, values in texts.items()}
        ),
    }


def _sync_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)
