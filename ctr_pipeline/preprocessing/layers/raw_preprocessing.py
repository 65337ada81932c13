"""All of a plan's layers as one module, the first part of an exported model.

Axes: B rows, F fields, S slots of ids, L slots of one field, D dense inputs, C coefficients.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from ctr_pipeline.preprocessing.arrow_values import SMALLEST_NORMAL_FLOAT32
from ctr_pipeline.preprocessing.faces import ID_FACES, NUMBER_FACES, TEXT_FACES
from ctr_pipeline.preprocessing.fitted import (
    FieldPlan,
    NumberPlan,
    PreprocessingPlan,
    TextStep,
    raw_signature,
)
from ctr_pipeline.preprocessing.layers.raw_layer import as_number, flush_subnormal
from ctr_pipeline.preprocessing.layers.sequence_slots import SequenceSlots
from ctr_pipeline.preprocessing.layers.vector_numbers import VectorNumbers
from ctr_pipeline.preprocessing.number_kernels import NUMBER_LIMIT


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
        self.vector_layers = [
            VectorNumbers(vector.length, delimiter=vector.delimiter)
            for vector in plan.vectors.values()
        ]
        self._columns = tuple(raw_signature(plan))
        num_plain = len(plan.fields) - len(plan.sequences)
        self.field_layers = [
            ID_FACES[field.step.kind].build_layer(field.step, folder)
            for field in plan.fields[:num_plain]
        ]
        self._sequence_columns = tuple(field.column for field in plan.sequences)
        self.sequence_layers = [
            SequenceSlots(
                ID_FACES[field.step.kind].build_layer(field.step, folder),
                padding_id=field.padding_id,
                **(field.sequence.model_dump() if field.sequence is not None else {}),
            )
            for field in plan.sequences
        ]
        self.number_layers = [
            [NUMBER_FACES[step.kind].build_layer(step) for step in number.steps]
            for number in plan.numbers
        ]
        # One for each transform of a column: a chain of numbers and one of ids may begin alike.
        firsts = list(plan.text_steps)
        self.text_layers = [TEXT_FACES[step.kind].build_layer(step, folder) for _, step in firsts]
        places = {key: place for place, key in enumerate(firsts)}
        self._field_firsts = [_place_of(places, field) for field in plan.fields[:num_plain]]
        self._number_firsts = [_place_of(places, number) for number in plan.numbers]
        self._text_columns = [column for column, _ in firsts]

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The vocabularies: int64 keys and ids of each vocabulary field, in the order of axis F.

        After them those of transforms that make numbers of texts, with float64 numbers.
        """
        layers = (*self.field_layers, *self.sequence_layers, *self.text_layers)
        return tuple(weight.value for layer in layers for weight in layer.weights)

    def __call__(self, columns: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Preprocesses a batch.

        Args:
            columns: By name, [B] each: text ('' = missing) or float64 (NaN = missing).

        Returns:
            int64 [B, S] and float32 [B, D + C]; S = F and C = 0 without sequences.
        """
        firsts_B = [
            layer(columns[column])
            for column, layer in zip(self._text_columns, self.text_layers, strict=True)
        ]

        vectors_BL = {
            column: tf.unstack(layer(columns[column]), num=layer.length, axis=1)
            for column, layer in zip(self._vector_columns, self.vector_layers, strict=True)
        }

        def start(names: Sequence[str], first: int | None) -> Any:
            if first is not None:
                return firsts_B[first]
            return columns[names[0]] if len(names) == 1 else [columns[name] for name in names]

        ids_BF = [
            layer(start(names, first))
            for names, first, layer in zip(
                self._field_columns, self._field_firsts, self.field_layers, strict=True
            )
        ]
        numbers_BD = [
            self._number(
                start([column], first) if place is None else vectors_BL[column][place], layers
            )
            for column, first, place, layers in zip(
                self._number_columns,
                self._number_firsts,
                self._number_places,
                self.number_layers,
                strict=True,
            )
        ]
        num_rows = tf.shape(columns[self._columns[0]])[0] if self._columns else 0
        ids_BS = tf.stack(ids_BF, axis=1) if ids_BF else tf.zeros([num_rows, 0], tf.int64)
        floats = tf.stack(numbers_BD, axis=1) if numbers_BD else tf.zeros([num_rows, 0], tf.float32)
        if not self.sequence_layers:
            return ids_BS, floats
        slots = [
            layer(columns[column])
            for column, layer in zip(self._sequence_columns, self.sequence_layers, strict=True)
        ]
        return (
            tf.concat([ids_BS, *(ids_BL for ids_BL, _ in slots)], axis=1),
            tf.concat([floats, *(coefficients_BL for _, coefficients_BL in slots)], axis=1),
        )

    def _number(
        self, values: tf.Tensor, layers: Sequence[Callable[[tf.Tensor], tf.Tensor]]
    ) -> tf.Tensor:
        values = as_number(values)
        for layer in layers:
            values = layer(values)
        return _finish_numbers(values)


def _place_of(
    places: Mapping[tuple[str, TextStep], int], part: FieldPlan | NumberPlan
) -> int | None:
    return None if part.first is None else places[part.column, part.first]


def _finish_numbers(values: tf.Tensor) -> tf.Tensor:
    """The dense input of a chain's result: float32, missing is 0, clamped to ± NUMBER_LIMIT."""
    limit = tf.constant(NUMBER_LIMIT, tf.float64)
    values = tf.where(tf.math.is_nan(values), tf.zeros_like(values), values)
    values = tf.where(values > limit, limit, values)
    values = tf.where(values < -limit, -limit, values)
    return tf.cast(flush_subnormal(values, SMALLEST_NORMAL_FLOAT32), tf.float32)
