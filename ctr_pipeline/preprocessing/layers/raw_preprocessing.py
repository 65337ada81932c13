"""All of a plan's layers as one module, the first part of an exported model.

Axes: B rows, F fields, S positions of ids, L positions of a field, D dense inputs, C coefficients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_pipeline.kernels.float64 import SMALLEST_NORMAL_FLOAT32
from ctr_pipeline.kernels.numbers import NUMBER_LIMIT
from ctr_pipeline.preprocessing.layers.buckets import IntervalIds
from ctr_pipeline.preprocessing.layers.index_lookup import IndexLookup
from ctr_pipeline.preprocessing.layers.raw_layer import as_number, build_layer, flush_subnormal
from ctr_pipeline.preprocessing.layers.sequence_elements import SequenceElements
from ctr_pipeline.preprocessing.layers.vector_numbers import VectorNumbers
from ctr_pipeline.preprocessing.plan import FieldPlan, NumberPlan, PreprocessingPlan, raw_signature
from ctr_pipeline.transforms import AnyTextStep


class RawPreprocessing(tf.Module):
    """Raw columns to ids and numbers.

    Vocabularies are variables, never constants of the graph.

    Args:
        plan: What to compute.
        folder: The run folder, which vocabulary files are below.
    """

    def __init__(self, plan: PreprocessingPlan, folder: Path) -> None:
        super().__init__(name="raw_preprocessing")
        self._field_columns = tuple(
            tuple(field.inputs) for field in plan.fields if field.sequence is None
        )
        self._number_columns = tuple(number.column for number in plan.numbers)
        self._number_places = tuple(number.place for number in plan.numbers)
        self._vector_columns = tuple(plan.vectors)
        self._columns = tuple(raw_signature(plan))
        num_plain = len(plan.fields) - len(plan.sequences)
        self._sequence_columns = tuple(field.column for field in plan.sequences)
        # One for each transform of a column: a chain of numbers and one of ids may begin alike.
        firsts = list(plan.text_steps)
        self._layers = _Layers(
            fields=[build_layer(field.step, folder) for field in plan.fields[:num_plain]],
            sequences=[
                SequenceElements(
                    build_layer(field.step, folder),
                    padding_id=field.padding_id,
                    **(field.sequence.model_dump() if field.sequence is not None else {}),
                )
                for field in plan.sequences
            ],
            numbers=[
                [build_layer(step, folder) for step in number.steps] for number in plan.numbers
            ],
            vectors=[
                VectorNumbers(vector.length, delimiter=vector.delimiter)
                for vector in plan.vectors.values()
            ],
            texts=[build_layer(step, folder) for _, step in firsts],
        )
        self.tables = [
            weight.value
            for layer in (*self._layers.fields, *self._layers.sequences, *self._layers.texts)
            for weight in layer.weights
        ]
        places = {key: place for place, key in enumerate(firsts)}
        self._field_firsts = [_place_of(places, field) for field in plan.fields[:num_plain]]
        self._number_firsts = [_place_of(places, number) for number in plan.numbers]
        self._text_columns = [column for column, _ in firsts]

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The vocabularies: int64 keys and ids of each vocabulary field, in the order of axis F.

        After them those of transforms that make numbers of texts, with float64 numbers.
        """
        return tuple(self.tables)

    def __call__(self, columns: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Preprocesses a batch.

        Args:
            columns: By name, [B] each: text ('' = missing) or float64 (NaN = missing).

        Returns:
            int64 [B, S] and float32 [B, D + C]; S = F and C = 0 without sequences.
        """
        firsts_B = [
            layer(columns[column])
            for column, layer in zip(self._text_columns, self._layers.texts, strict=True)
        ]

        num_rows = tf.shape(columns[self._columns[0]])[0] if self._columns else 0
        vectors_BL = {
            column: tf.unstack(layer(columns[column]), num=layer.length, axis=1)
            for column, layer in zip(self._vector_columns, self._layers.vectors, strict=True)
        }

        def start(names: Sequence[str], first: int | None) -> Any:
            if first is not None:
                return firsts_B[first]
            return columns[names[0]] if len(names) == 1 else [columns[name] for name in names]

        ids_BS = self._ids(
            [
                start(names, first)
                for names, first in zip(self._field_columns, self._field_firsts, strict=True)
            ],
            num_rows=num_rows,
        )
        floats = self._numbers(
            [
                start([column], first) if place is None else vectors_BL[column][place]
                for column, first, place in zip(
                    self._number_columns, self._number_firsts, self._number_places, strict=True
                )
            ],
            num_rows=num_rows,
        )
        if not self._layers.sequences:
            return ids_BS, floats
        positions = [
            layer(columns[column])
            for column, layer in zip(self._sequence_columns, self._layers.sequences, strict=True)
        ]
        return (
            tf.concat([ids_BS, *(ids_BL for ids_BL, _ in positions)], axis=1),
            tf.concat([floats, *(coefficients_BL for _, coefficients_BL in positions)], axis=1),
        )

    def _ids(self, starts: Sequence[Any], num_rows: Any) -> tf.Tensor:
        """int64 [B, F]; columns whose layers are alike take the same few operations."""
        if not starts:
            return tf.zeros([num_rows, 0], tf.int64)
        rows = []
        pairs = zip(self._layers.fields, starts, strict=True)
        for group in _groups([_kind_of(*pair) for pair in pairs]):
            layers = [self._layers.fields[index] for index in group]
            values = [starts[index] for index in group]
            if len(group) == 1:
                rows.append((group, layers[0](values[0])[None, :]))
            elif isinstance(layers[0], IntervalIds):
                rows.append((group, IntervalIds.of_rows(layers, as_number(tf.stack(values)))))
            else:
                rows.append((group, IndexLookup.of_rows(layers, tf.stack(values))))
        return _in_order(rows)

    def _numbers(self, starts: Sequence[tf.Tensor], num_rows: Any) -> tf.Tensor:
        """float32 [B, D]; columns whose chains are alike take the same few operations."""
        if not starts:
            return tf.zeros([num_rows, 0], tf.float32)
        kinds = [
            (values.dtype, *map(type, chain))
            for chain, values in zip(self._layers.numbers, starts, strict=True)
        ]
        rows = []
        for group in _groups(kinds):
            values = as_number(tf.stack([starts[index] for index in group]))
            for layers in zip(*(self._layers.numbers[index] for index in group), strict=True):
                values = flush_subnormal(type(layers[0]).of_rows(layers, values))
            rows.append((group, values))
        return _finish_numbers(_in_order(rows))


@dataclass(frozen=True)
class _Layers:
    """The layers, out of the sight of `tf.Module`: it would save every object that Keras keeps."""

    fields: list[Any]
    sequences: list[Any]
    numbers: list[list[Any]]
    vectors: list[Any]
    texts: list[Any]


def _kind_of(layer: Any, start: Any) -> tuple[Any, ...]:
    """Equal for layers that have a function of rows of values together."""
    if isinstance(layer, IntervalIds):
        # Rows are filled up to the longest: its length is at most twice that of the others.
        return IntervalIds, start.dtype, layer.num_thresholds.bit_length()
    if isinstance(layer, IndexLookup) and tf.is_tensor(start) and start.dtype == tf.string:
        return IndexLookup, layer.num_oov_tokens, layer.missing_id is None
    return (id(layer),)


def _groups(kinds: Sequence[tuple[Any, ...]]) -> list[list[int]]:
    """The places of each kind."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, kind in enumerate(kinds):
        found.setdefault(kind, []).append(place)
    return list(found.values())


def _in_order(rows: Sequence[tuple[Sequence[int], tf.Tensor]]) -> tf.Tensor:
    """[B, N] of some rows [C, B] each, and their places among the N."""
    places = [place for group, _ in rows for place in group]
    stacked_NB = tf.concat([values for _, values in rows], axis=0)
    if places != sorted(places):
        stacked_NB = tf.gather(stacked_NB, np.argsort(places))
    return tf.transpose(stacked_NB)


def _place_of(
    places: Mapping[tuple[str, AnyTextStep], int], part: FieldPlan | NumberPlan
) -> int | None:
    return None if part.first is None else places[part.column, part.first]


def _finish_numbers(values: tf.Tensor) -> tf.Tensor:
    """The dense input of a chain's result: float32, missing is 0, clamped to ± NUMBER_LIMIT."""
    limit = tf.constant(NUMBER_LIMIT, tf.float64)
    values = tf.where(tf.math.is_nan(values), tf.zeros_like(values), values)
    values = tf.where(values > limit, limit, values)
    values = tf.where(values < -limit, -limit, values)
    return tf.cast(flush_subnormal(values, SMALLEST_NORMAL_FLOAT32), tf.float32)
