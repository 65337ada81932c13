"""The graph from raw columns to probabilities.

Axes: B batch, C text columns, F fields, N numbers, D embedding dimension, R rows, W = 1 + D.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

import keras
import numpy as np
import tensorflow as tf

from ctr_pipeline.dataset.columns import missing_numbers
from ctr_pipeline.dataset.value_texts import missing_texts
from ctr_pipeline.export.request_texts import one_texts, parse_numbers
from ctr_pipeline.export.rows import FIELD_SHIFT, SENTINEL_KEY
from ctr_pipeline.training.compiled import model_inputs
from ctr_pipeline.training.ensemble import EnsembleModel
from ctr_pipeline.training.sequence_pooling import SequencePooling

RawType = Literal["string", "double"]


class RawPreprocessing(Protocol):
    """Raw columns to model inputs: a `tf.Module` or other trackable whose state is variables."""

    def __call__(self, columns: Mapping[str, Any]) -> tuple[Any, Any]:
        """Takes string and float64 tensors [B] by column.

        Returns:
            Ids, int64 [B, F], and numbers, float32 [B, N]; with sequences, of positions, and
            coefficients after the numbers.
        """


class ServingModule(tf.Module):
    """Raw columns → ids and numbers → rows → logit; rows are placeholders of one element.

    Args:
        model: Trained model; its values are copied.
        preprocessing: Raw columns to ids and numbers.
        width: Values of a row, 1 + D.
        column_types: Every raw column and its type.
        input_names: Every raw column and its input's name.
        missing_values: Texts that mean "missing" beside the empty one.
        list_columns: Text columns of which a text is no value but a list of them.
        position_tables: Table of each column of ids; None if column f is of table f.
        sequence_pooling: How these columns become fields; None if they are fields.
    """

    def __init__(
        self,
        *,
        model: keras.Model | EnsembleModel,
        preprocessing: RawPreprocessing,
        width: int,
        column_types: Mapping[str, RawType],
        input_names: Mapping[str, str],
        missing_values: Sequence[str] = (),
        list_columns: Collection[str] = (),
        position_tables: Sequence[int] | None = None,
        sequence_pooling: SequencePooling | None = None,
    ) -> None:
        super().__init__(name="ctrpipe_model")
        self.preprocessing = preprocessing
        self.row_keys = tf.Variable([SENTINEL_KEY], shape=[None], dtype=tf.int64, trainable=False)
        self.row_values = tf.Variable(tf.zeros([1, width]), shape=[None, width], trainable=False)
        # Copies under names of this module: Keras objects do not belong into a served graph.
        self.dense = [
            tf.Variable(variable.value, trainable=False) for variable in model.trainable_variables
        ]
        self.state = [
            tf.Variable(variable.value, trainable=False)
            for variable in model.non_trainable_variables
        ]
        self._position_tables = None if position_tables is None else list(position_tables)
        self._sequence_pooling = sequence_pooling
        self._forward = model.stateless_call
        self._column_types = dict(column_types)
        self._input_names = dict(input_names)
        self._missing_values = missing_texts(missing_values)
        self._list_columns = frozenset(list_columns)

    def signatures(self) -> dict[str, Any]:
        """Concrete functions by signature name.

        "serving_default" takes float64 and string columns, NaN and '' meaning missing;
        "serving_strings" takes every column as a string. Both take and return tensors [B].
        """
        typed = {
            name: tf.TensorSpec([None], tf.as_dtype(self._column_types[column]), name=name)
            for column, name in self._input_names.items()
        }
        texts = {
            name: tf.TensorSpec([None], tf.string, name=name) for name in self._input_names.values()
        }

        def score(**inputs: Any) -> dict[str, Any]:
            return self._score(self._columns(inputs))

        return {
            "serving_default": tf.function(score, autograph=False).get_concrete_function(**typed),
            "serving_strings": tf.function(score, autograph=False).get_concrete_function(**texts),
        }

    def _columns(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs by column as float64 and one text of each value, NaN and empty where missing."""
        columns = {column: inputs[name] for column, name in self._input_names.items()}
        numbers = [column for column, kind in self._column_types.items() if kind == "double"]
        texts = [column for column in columns if column not in numbers]
        lists = [column for column in texts if column in self._list_columns]
        values = [column for column in texts if column not in self._list_columns]
        groups = ((numbers, self._numbers), (values, self._values), (lists, self._present_texts))
        for group, read in groups:
            if group:
                # All columns at once: thousands of small operations would cost more.
                read_CB = read(tf.stack([columns[column] for column in group]))
                columns |= dict(zip(group, tf.unstack(read_CB, num=len(group)), strict=True))
        return columns

    def _numbers(self, given_CB: Any) -> Any:
        numbers_CB = parse_numbers(given_CB) if given_CB.dtype == tf.string else given_CB
        for missing in missing_numbers(self._missing_values):
            numbers_CB = tf.where(
                numbers_CB == missing, tf.constant(np.nan, tf.float64), numbers_CB
            )
        return numbers_CB

    def _values(self, texts_CB: Any) -> Any:
        return self._present_texts(one_texts(texts_CB))

    def _present_texts(self, texts_CB: Any) -> Any:
        for missing in self._missing_values:
            if missing:
                texts_CB = tf.where(texts_CB == missing, "", texts_CB)
        return texts_CB

    def _score(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        ids_BF, numbers_BN = self.preprocessing(columns)
        rows_BFW = self._lookup(ids_BF)
        inputs = model_inputs(
            rows_BFW[:, :, :1], rows_BFW[:, :, 1:], numbers_BN, self._sequence_pooling
        )
        logit_B, _ = self._forward(list(self.dense), list(self.state), inputs, training=False)
        return {"probability": tf.sigmoid(logit_B), "logit": tf.identity(logit_B)}

    def _lookup(self, ids_BF: Any) -> Any:
        if self._position_tables is None:
            field_F = tf.range(ids_BF.shape[1], dtype=tf.int64)
        else:
            field_F = tf.constant(self._position_tables, tf.int64)
        key_BF = tf.bitwise.bitwise_or(tf.bitwise.left_shift(field_F, FIELD_SHIFT)[None, :], ids_BF)
        keys_R = self.row_keys.read_value()
        key_K = tf.reshape(key_BF, [-1])
        place_K = tf.searchsorted(keys_R, key_K, out_type=tf.int64)
        # The last key is above all others, so that every place exists; its row is zeros.
        is_found_K = tf.gather(keys_R, place_K) == key_K
        last = tf.size(keys_R, out_type=tf.int64) - 1
        row_K = tf.where(is_found_K, place_K, last)
        return tf.nn.embedding_lookup(self.row_values, tf.reshape(row_K, tf.shape(ids_BF)))
