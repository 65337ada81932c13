"""Columns of lists: read as texts of delimited elements, their weights and numbers checked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.bad_rows import BadRowReason
from ctr_pipeline.dataset.value_texts import as_float64, texts_of_floats
from ctr_pipeline.features import (
    VECTOR_NUMBER,
    WEIGHT_NUMBER,
    ListSpec,
    SequenceSpec,
    VectorSpec,
)


@dataclass(frozen=True)
class ListFault:
    """Rows with one thing wrong in a column of lists.

    Attributes:
        reason: What is wrong.
        rows: int64, ascending.
        shown: The text at fault in each.
        notes: What may be told of each where the text is not shown; None: nothing.
    """

    reason: BadRowReason
    rows: npt.NDArray[np.int64]
    shown: list[str]
    notes: list[str] | None = None


def is_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def as_texts(array: Any, cut: ListSpec) -> tuple[pa.Array, list[ListFault]]:
    """Lists as the texts that they are read as; see `join_lists` and `join_vectors`."""
    if isinstance(cut, VectorSpec):
        return join_vectors(array, cut.delimiter), []
    return join_lists(array, cut.delimiter)


def join_vectors(array: Any, delimiter: str) -> pa.Array:
    """Lists of numbers as texts, string [N], with as many digits as tell each number from others.

    A number that is NULL becomes `null`, which is no number; a list of none is NULL, as a NULL is.

    Args:
        array: Lists of floats or integers, [N].
        delimiter: Between numbers.
    """
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0), np.int64)
    elements = pc.list_flatten(array)
    if pa.types.is_floating(elements.type):
        elements = as_float64(elements)
    elements = pc.fill_null(elements.cast(pa.string()), "null")
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, elements), delimiter)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def join_lists(array: Any, delimiter: str) -> tuple[pa.Array, list[ListFault]]:
    """Lists of texts, integers or floats as texts of delimited elements.

    Elements that are NULL, NaN or empty are left out; a list without others is NULL, as a NULL is.

    Args:
        array: [N].
        delimiter: Between elements.

    Returns:
        Texts, string [N], and the rows that have an element with a delimiter inside or a float
        that has no one text.
    """
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0), np.int64)
    elements = pc.list_flatten(array)
    if pa.types.is_dictionary(elements.type):
        elements = elements.dictionary_decode()
    parents = np.repeat(np.arange(len(array)), lengths)
    faults = []
    if pa.types.is_floating(elements.type):
        given = elements
        elements, has_none = texts_of_floats(given)
        shown = as_float64(given).cast(pa.string())
        faults.append(
            ListFault(BadRowReason.FLOAT_AS_TEXT, *first_of_rows(parents, shown, has_none))
        )
    elements = elements.cast(pa.string())
    is_kept = pc.fill_null(pc.not_equal(elements, ""), False)
    elements, parents = elements.filter(is_kept), parents[np.asarray(is_kept)]
    counts = np.bincount(parents, minlength=len(array))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, elements), delimiter)
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    cut = first_of_rows(parents, elements, pc.match_substring(elements, delimiter))
    return texts, [*faults, ListFault(BadRowReason.DELIMITER_INSIDE, *cut)]


def find_list_faults(texts: pa.Array, cut: ListSpec) -> list[ListFault]:
    """What is wrong with texts that are lists.

    Args:
        texts: string [N], NULL where missing.
        cut: How they are cut.
    """
    if isinstance(cut, VectorSpec):
        return find_bad_vectors(texts, cut)
    if not cut.weights:
        return []
    return [ListFault(BadRowReason.BAD_WEIGHT, *find_bad_weights(texts, cut))]


def find_bad_vectors(texts: pa.Array, vector: VectorSpec) -> list[ListFault]:
    """Vectors of another length, and those with an element that is no finite decimal number.

    Args:
        texts: string [N], NULL where missing.
        vector: How texts are cut.
    """
    lists = pc.split_pattern(texts, pattern=vector.delimiter)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), -1), np.int64)
    wrong = np.flatnonzero((lengths >= 0) & (lengths != vector.length))
    notes = [f"length {length} instead of {vector.length}" for length in lengths[wrong]]
    elements = pc.list_flatten(lists)
    is_number = pc.match_substring_regex(elements, f"^({VECTOR_NUMBER})$")
    numbers = pc.if_else(is_number, elements, "inf").cast(pa.float64())
    parents = np.repeat(np.arange(len(texts)), np.maximum(lengths, 0))
    bad = first_of_rows(parents, elements, ~np.isfinite(np.asarray(numbers)))
    return [
        ListFault(BadRowReason.WRONG_LENGTH, wrong, texts.take(pa.array(wrong)).to_pylist(), notes),
        ListFault(BadRowReason.NOT_A_VECTOR, *bad),
    ]


def find_bad_weights(
    texts: pa.Array, sequence: SequenceSpec
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Texts with an element whose weight is no finite decimal number of at least 0.

    Args:
        texts: string [N], NULL where missing.
        sequence: How texts are cut, with weights.

    Returns:
        Their places, and the first such element of each.
    """
    lists = pc.split_pattern(texts, pattern=sequence.delimiter)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    elements = pc.list_flatten(lists)
    is_given = pc.match_substring(elements, sequence.weight_delimiter)
    written = pc.replace_substring_regex(
        elements, pattern=rf"(?s)^.*{sequence.weight_mark}", replacement=""
    )
    is_number = pc.match_substring_regex(written, f"^({WEIGHT_NUMBER})$")
    numbers = pc.if_else(pc.and_(is_given, is_number), written, "1").cast(pa.float64())
    is_bad = np.asarray(pc.and_(is_given, pc.invert(is_number))) | np.isinf(np.asarray(numbers))
    parents = np.repeat(np.arange(len(texts)), lengths)
    return first_of_rows(parents, elements, is_bad)


def first_of_rows(
    parents: npt.NDArray[np.int64], elements: pa.Array, chosen: Any
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The rows of chosen elements, ascending, and the first of them in each."""
    places = np.flatnonzero(np.asarray(chosen))
    rows, firsts = np.unique(parents[places], return_index=True)
    return rows, elements.take(pa.array(places[firsts])).to_pylist()
