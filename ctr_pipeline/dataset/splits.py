"""Which split a row belongs to: pure functions of its number or of a value.

By order, the first rows train, the next validate, the last test. By time, the same holds of times:
all rows of one time stay together, wherever they stand. At random, the row's number among
the good rows and the seed decide. By hash, the MD5 of one column's value decides alone, so that a
value's rows stay together in every file and run; missing counts as one value. Every SQL engine has
that function, too.
"""

import hashlib
import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.config.models import SplitConfig
from ctr_pipeline.splitmix import GOLDEN, mix

SPLITS = ("train", "valid", "test")

_WORD = (1 << 64) - 1
HASH_DIGITS = 13
"""Hexadecimal digits of the MD5 that decide: 52 bits, which a float64 holds exactly."""
NUM_HASHES = 1 << 4 * HASH_DIGITS


@dataclass(frozen=True)
class Shares:
    """The shares of the rows that validate and test; the rest trains."""

    valid: float
    test: float

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that get rows."""
        shares = {"train": 1.0, "valid": self.valid, "test": self.test}
        return tuple(split for split in SPLITS if shares[split] > 0)


def shares_of(split: SplitConfig, own: Container[str]) -> Shares:
    """The shares of the rows of data.train.

    Args:
        split: How they are divided.
        own: Splits with rows of their own, which get none of them.
    """
    return Shares(
        valid=0.0 if "valid" in own else split.valid, test=0.0 if "test" in own else split.test
    )


def plan_order_ranges(num_rows: int, shares: Shares) -> dict[str, tuple[int, int]]:
    """The range of rows [first, after) of each split; shares are rounded to whole rows."""
    num_valid, num_test = round(num_rows * shares.valid), round(num_rows * shares.test)
    num_train = max(num_rows - num_valid - num_test, 0)
    ends = {"train": num_train, "valid": num_train + num_valid, "test": num_rows}
    ranges = {}
    first = 0
    for split in SPLITS:
        ranges[split] = (first, ends[split])
        first = ends[split]
    return {split: ranges[split] for split in shares.splits}


def plan_time_ranges(counts: npt.NDArray[np.int64], shares: Shares) -> dict[str, tuple[int, int]]:
    """The range of times [first, after) of each split, every one with at least one time.

    Borders lie between times, as near as possible to where the shares would have them.

    Args:
        counts: int64 [D], rows of each time, in the order of time.

    Raises:
        ValueError: There are fewer times than splits.
    """
    splits = shares.splits
    if len(counts) < len(splits):
        raise ValueError(f"{len(counts)} times for {len(splits)} splits")
    ends = {"train": 1.0 - shares.valid - shares.test, "valid": 1.0 - shares.test, "test": 1.0}
    rows_before = np.concatenate([[0], np.cumsum(counts)])
    ranges = {}
    first = 0
    for index, split in enumerate(splits):
        last_border = len(counts) - (len(splits) - 1 - index)
        candidates = np.arange(first + 1, last_border + 1)
        if index == len(splits) - 1:
            candidates = candidates[-1:]
        distances = np.abs(rows_before[candidates] - rows_before[-1] * ends[split])
        after = int(candidates[np.argmin(distances)])
        ranges[split] = (first, after)
        first = after
    return ranges


def random_fractions(first_row: int, num_rows: int, seed: int) -> npt.NDArray[np.float64]:
    """Uniform in [0, 1) for each row number from `first_row` on, a pure function of it and `seed`.

    SplitMix64 (Steele, Lea, Flood 2014), whose state at any step can be computed directly.
    """
    start = int(mix(np.array([seed & _WORD], dtype=np.uint64))[0])
    rows = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
    return _as_fractions(mix(np.uint64(start) + (rows + np.uint64(1)) * GOLDEN))


def hash_fractions(values: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Uniform in [0, 1) for each value of a text or float64 column, equal for equal values.

    It is the number that the first digits of an MD5 are, as a share of all such numbers: of the
    MD5 of a text's UTF-8 bytes, or of the shortest decimal form of a number.
    """
    texts = pc.cast(values, pa.string()) if pa.types.is_floating(values.type) else values
    encoded = texts.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    # No text of a file is empty, an empty one is missing: so it can stand for missing here.
    fractions = [_hash_of(text or "") / NUM_HASHES for text in encoded.dictionary.to_pylist()]
    return np.take(np.array(fractions, np.float64), np.asarray(encoded.indices))


def _hash_of(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return int(digest[:HASH_DIGITS], 16)


def plan_hash_ranges(shares: Shares) -> dict[str, tuple[int, int]]:
    """The range [first, after) of the hashes of each split, as `divide` makes it of fractions."""
    borders = (1.0 - shares.valid - shares.test, 1.0 - shares.test)
    train_end, valid_end = (math.ceil(border * NUM_HASHES) for border in borders)
    ranges = {
        "train": (0, train_end),
        "valid": (train_end, valid_end),
        "test": (valid_end, NUM_HASHES),
    }
    return {split: ranges[split] for split in shares.splits}


def divide(
    table: pa.Table, fractions: npt.NDArray[np.float64], shares: Shares
) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each split, in their order."""
    train_end, valid_end = 1.0 - shares.valid - shares.test, 1.0 - shares.test
    masks: Mapping[str, npt.NDArray[np.bool_]] = {
        "train": fractions < train_end,
        "valid": (fractions >= train_end) & (fractions < valid_end),
        "test": fractions >= valid_end,
    }
    for split in shares.splits:
        yield split, table.filter(pa.array(masks[split]))


def _as_fractions(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
