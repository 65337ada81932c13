"""Every fitted step with its two faces: the kernel that trains and the layer that serves.

To add a transform: name it in `features`, fit it in `plan`, and give it a kernel and a layer here.
Builders import the layers when called, so that kernels alone never load TensorFlow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_pipeline.dataset.time_kernels import parse_seconds
from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.preprocessing import crosses, datetime_kernels, number_kernels, text_kernels
from ctr_pipeline.preprocessing.arrow_values import TextColumn
from ctr_pipeline.preprocessing.fitted import (
    FittedAge,
    FittedClip,
    FittedCountEncode,
    FittedCross,
    FittedDatetimePart,
    FittedFill,
    FittedHash,
    FittedIntervals,
    FittedLog,
    FittedNormalize,
    FittedRoundIdentity,
    FittedStandardize,
    FittedTargetEncode,
    FittedVocabulary,
)
from ctr_pipeline.preprocessing.text_kernels import vocabulary_table
from ctr_pipeline.preprocessing.value_tables import open_value_table
from ctr_pipeline.preprocessing.vocabulary_files import load_vocabulary

IdKernel = Callable[[Any, np.ndarray], Any]
"""Takes a column (`TextColumn`, float64 [N], or a cross's list of `CrossValues`) and writes ids
into int32 [N]."""


TextKernel = Callable[[TextColumn], np.ndarray]


@dataclass(frozen=True)
class NumberFaces:
    """The faces of a number to number step.

    Attributes:
        kernel: Step and float64 [N] to float64 [N].
        build_layer: Step to a Keras layer of type float64.
    """

    kernel: Callable[[Any, np.ndarray], np.ndarray]
    build_layer: Callable[[Any], Any]


@dataclass(frozen=True)
class TextFaces:
    """The faces of a step that makes a number of a text.

    Attributes:
        open_kernel: Step and run folder to a kernel: `TextColumn` to float64, a number for each of
            its values.
        build_layer: Step and run folder to a Keras layer of type float64.
    """

    open_kernel: Callable[[Any, Path], TextKernel]
    build_layer: Callable[[Any, Path], Any]


@dataclass(frozen=True)
class IdFaces:
    """The faces of a step that gives ids.

    Attributes:
        open_kernel: Step and run folder to a kernel, its vocabulary loaded.
        build_layer: Step and run folder to a Keras layer.
    """

    open_kernel: Callable[[Any, Path], IdKernel]
    build_layer: Callable[[Any, Path], Any]


def _build_log(_step: FittedLog) -> Any:
    from ctr_pipeline.preprocessing.layers.numbers import Log

    return Log(dtype="float64")


def _build_standardize(step: FittedStandardize) -> Any:
    from ctr_pipeline.preprocessing.layers.numbers import Standardize

    return Standardize(step.mean, step.standard_deviation, step.clip, dtype="float64")


def _build_normalize(step: FittedNormalize) -> Any:
    from ctr_pipeline.preprocessing.layers.numbers import Normalizer

    return Normalizer(step.subtractor, step.divisor, dtype="float64")


def _build_clip(step: FittedClip) -> Any:
    from ctr_pipeline.preprocessing.layers.numbers import Clip

    return Clip(step.minimum, step.maximum, dtype="float64")


def _build_fill(step: FittedFill) -> Any:
    from ctr_pipeline.preprocessing.layers.numbers import Fill

    return Fill(step.value, dtype="float64")


def _open_intervals(step: FittedIntervals, _folder: Path) -> IdKernel:
    thresholds = np.array(step.thresholds, np.float64)
    ids = np.array(step.ids, np.int64)
    return lambda values, out: number_kernels.interval_ids(
        values, thresholds, ids, step.missing_id, out
    )


def _build_intervals(step: FittedIntervals, _folder: Path) -> Any:
    from ctr_pipeline.preprocessing.layers.buckets import IntervalIds

    return IntervalIds(step.thresholds, step.ids, step.missing_id)


def _open_round_identity(step: FittedRoundIdentity, _folder: Path) -> IdKernel:
    return lambda values, out: number_kernels.rounded_ids(
        values, step.num_buckets, step.default_value, step.missing_id, out
    )


def _build_round_identity(step: FittedRoundIdentity, _folder: Path) -> Any:
    from ctr_pipeline.preprocessing.layers.buckets import RoundIdentity

    return RoundIdentity(step.num_buckets, step.default_value, missing_id=step.missing_id)


def _open_hash(step: FittedHash, _folder: Path) -> IdKernel:
    def kernel(text: TextColumn, out: np.ndarray) -> None:
        if step.function == 0:
            text_kernels.hash_ids(text, step.num_bins, missing_id=step.missing_id, out=out)
        else:
            text_kernels.mixed_hash_ids(
                text, step.num_bins, function=step.function, missing_id=step.missing_id, out=out
            )

    return kernel


def _build_hash(step: FittedHash, _folder: Path) -> Any:
    from ctr_pipeline.preprocessing.layers.hashing import Hashing

    return Hashing(step.num_bins, missing_id=step.missing_id, function=step.function)


def _open_vocabulary(step: FittedVocabulary, folder: Path) -> IdKernel:
    table = vocabulary_table(_load_fitted(step, folder), source=str(folder / step.file))

    def kernel(text: TextColumn, out: np.ndarray) -> None:
        text_kernels.lookup_ids(
            text, table, oov_buckets=step.oov_buckets, missing_id=step.missing_id, out=out
        )

    return kernel


def _build_vocabulary(step: FittedVocabulary, folder: Path) -> Any:
    from ctr_pipeline.preprocessing.layers.index_lookup import IndexLookup

    return IndexLookup(_load_fitted(step, folder), step.oov_buckets, missing_id=step.missing_id)


def _open_cross(step: FittedCross, _folder: Path) -> IdKernel:
    return lambda parts, out: crosses.cross_ids(parts, step.num_bins, step.missing_id, out)


def _build_cross(step: FittedCross, folder: Path) -> Any:
    from ctr_pipeline.preprocessing.layers.crossing import HashedCrossing

    buckets = [
        None if part.step is None else ID_FACES[part.step.kind].build_layer(part.step, folder)
        for part in step.parts
    ]
    return HashedCrossing(step.num_bins, missing_id=step.missing_id, number_layers=buckets)


def _load_fitted(step: FittedVocabulary, folder: Path) -> pa.Array:
    path = folder / step.file
    values = load_vocabulary(path)
    if len(values) != step.size:
        raise PreprocessingError(
            f"the vocabulary has {len(values):,} values, the plan was fitted with {step.size:,}",
            place=str(path),
            remedy="Delete it and run 'ctrpipe train --resume' with the config of the run",
        )
    return values


def _open_value_table(step: FittedCountEncode | FittedTargetEncode, folder: Path) -> TextKernel:
    return open_value_table(step, folder).numbers_of


def _build_value_table(step: FittedCountEncode | FittedTargetEncode, folder: Path) -> Any:
    from ctr_pipeline.preprocessing.layers.number_lookup import NumberLookup

    table = open_value_table(step, folder)
    return NumberLookup(
        table.values, table.numbers[:-2], table.numbers[-2], table.numbers[-1], dtype="float64"
    )


def _open_age(step: FittedAge, _folder: Path) -> TextKernel:
    def kernel(text: TextColumn) -> np.ndarray:
        seconds = parse_seconds(text.values, step.format)
        return datetime_kernels.ages(seconds, step.at_seconds)

    return kernel


def _build_age(step: FittedAge, _folder: Path) -> Any:
    from ctr_pipeline.preprocessing.layers.datetimes import Age

    return Age(step.at_seconds, step.format, dtype="float64")


def _open_datetime_part(step: FittedDatetimePart, _folder: Path) -> IdKernel:
    def kernel(text: TextColumn, out: np.ndarray) -> None:
        seconds = parse_seconds(text.values, step.format)
        datetime_kernels.part_ids(seconds, step.part, step.utc_offset_minutes, out)

    return kernel


def _build_datetime_part(step: FittedDatetimePart, _folder: Path) -> Any:
    from ctr_pipeline.preprocessing.layers.datetimes import DatetimePart

    return DatetimePart(step.part, step.format, step.utc_offset_minutes)


TEXT_FACES: dict[str, TextFaces] = {
    "count_encode": TextFaces(_open_value_table, _build_value_table),
    "target_encode": TextFaces(_open_value_table, _build_value_table),
    "age": TextFaces(_open_age, _build_age),
}
"""Every step that makes a number of a text, by its kind."""

NUMBER_FACES: dict[str, NumberFaces] = {
    "log": NumberFaces(lambda _step, x: number_kernels.log(x), _build_log),
    "standardize": NumberFaces(
        lambda step, x: number_kernels.standardize(
            x, step.mean, step.standard_deviation, step.clip
        ),
        _build_standardize,
    ),
    "normalize": NumberFaces(
        lambda step, x: number_kernels.normalize(x, step.subtractor, step.divisor),
        _build_normalize,
    ),
    "clip": NumberFaces(
        lambda step, x: number_kernels.clip_values(x, step.minimum, step.maximum), _build_clip
    ),
    "fill": NumberFaces(lambda step, x: number_kernels.fill(x, step.value), _build_fill),
}
"""Every number to number step by its kind."""

ID_FACES: dict[str, IdFaces] = {
    "intervals": IdFaces(_open_intervals, _build_intervals),
    "round_identity": IdFaces(_open_round_identity, _build_round_identity),
    "hash": IdFaces(_open_hash, _build_hash),
    "vocabulary": IdFaces(_open_vocabulary, _build_vocabulary),
    "datetime_part": IdFaces(_open_datetime_part, _build_datetime_part),
    "cross": IdFaces(_open_cross, _build_cross),
}
"""Every step that gives ids, by its kind."""
