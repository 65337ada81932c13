"""Texts of key-value pairs, such as `age:31,price:2.5`, as columns.

A row's pairs may come in any order. Blanks around a key do not count; a value is all that follows
the first separator. Empty pairs are passed over, as after a last comma. A key that a row does not
have, or has without a value, is missing there.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.config.models import KeyValueConfig
from ctr_pipeline.dataset.bad_rows import BadRowReason
from ctr_pipeline.dataset.lists import ListFault, first_of_rows


class _Pairs(NamedTuple):
    """All pairs of some texts: of P pairs the text it is in, its own text, its key and its value.

    Attributes:
        rows_P: int64, ascending.
        texts_P: string.
        keys_P: string, without blanks around it; NULL where the text is no pair.
        values_P: string; NULL where the text is no pair.
    """

    rows_P: npt.NDArray[np.int64]
    texts_P: Any
    keys_P: Any
    values_P: Any


def find_keys(texts: pa.Array, cut: KeyValueConfig) -> list[str]:
    """The keys of some texts, in the order in which they come first.

    Args:
        texts: string [N], NULL where missing.
        cut: How they are cut.
    """
    keys = pc.unique(_pairs_of(texts, cut).keys_P).to_pylist()
    return [key for key in keys if key is not None]


def split_pairs(
    texts: pa.Array, cut: KeyValueConfig, keys: Sequence[str]
) -> tuple[list[pa.Array], list[ListFault]]:
    """The values of some keys, and what is wrong with the texts.

    Args:
        texts: string [N], NULL where missing.
        cut: How they are cut.
        keys: Keys that are wanted; others are passed over.

    Returns:
        The values of each key, string [N], NULL where a text lacks the key; and the texts that have
        something that is no pair, or one of the keys twice.
    """
    pairs = _pairs_of(texts, cut)
    faults = [
        ListFault(
            BadRowReason.NOT_A_PAIR,
            *first_of_rows(pairs.rows_P, pairs.texts_P, pc.is_null(pairs.keys_P)),
        )
    ]
    codes_P = pc.fill_null(pc.index_in(pairs.keys_P, value_set=pa.array(keys, pa.string())), -1)
    codes_P = np.asarray(codes_P)
    # Stable: the pairs of a key stay in the order of the texts.
    order_P = np.argsort(codes_P, kind="stable")
    ends = np.searchsorted(codes_P[order_P], np.arange(len(keys) + 1))
    is_again_P = np.zeros(len(codes_P), np.bool_)
    columns = []
    for first, after in pairwise(ends):
        places = order_P[first:after]
        rows = pairs.rows_P[places]
        is_again_P[places[1:]] = rows[1:] == rows[:-1]
        place_of_row = np.full(len(texts), -1, np.int64)
        place_of_row[rows] = places
        columns.append(pairs.values_P.take(pa.array(place_of_row, mask=place_of_row < 0)))
    again = first_of_rows(pairs.rows_P, pairs.texts_P, is_again_P)
    return columns, [*faults, ListFault(BadRowReason.KEY_REPEATED, *again)]


def _pairs_of(texts: pa.Array, cut: KeyValueConfig) -> _Pairs:
    lists = pc.split_pattern(texts, pattern=cut.pairs)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    texts_P = pc.list_flatten(lists)
    is_there = pc.not_equal(pc.utf8_trim_whitespace(texts_P), "")
    texts_P = texts_P.filter(is_there)
    rows_P = np.repeat(np.arange(len(texts)), lengths)[np.asarray(is_there)]
    halves = pc.split_pattern(texts_P, pattern=cut.value, max_splits=1)
    # So that there is a second half to ask for in each.
    is_cut = pc.equal(pc.list_value_length(halves), 2)
    halves = pc.if_else(is_cut, halves, pa.scalar([None, None], halves.type))
    keys_P = pc.utf8_trim_whitespace(pc.list_element(halves, 0))
    is_named = pc.not_equal(keys_P, "")
    nothing = pa.scalar(None, pa.string())
    return _Pairs(
        rows_P,
        texts_P,
        pc.if_else(is_named, keys_P, nothing),
        pc.if_else(is_named, pc.list_element(halves, 1), nothing),
    )
