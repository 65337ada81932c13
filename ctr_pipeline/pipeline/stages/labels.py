"""Finds the label column and the values that mean 1 and 0, by the head of the data."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ctr_pipeline.config.label_values import LabelValues, find_label_values, opposite_of
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import DataError

_NAMED = 5


def label_rate_of(source: Source, data: DataConfig) -> float:
    """The share of label 1 in the head of the data.

    Raises:
        DataError: A label is no label value of the config, by default 0 and 1, or all are missing.
    """
    place = f"{next(iter(source.opened))}, column '{data.label}'"
    counts = _counts(source, data.label, data.missing_values)
    if not counts:
        raise DataError(
            "has no label in the rows looked at", place=place, remedy="Name another label column"
        )
    plain = _plain_values(source, data.label)
    values = data.label_values or plain
    numbers = {text: values.read(text) for text in counts}
    wrong = next((text for text, number in numbers.items() if number is None), None)
    if wrong is not None:
        meaning = (
            "0 or 1"
            if values is plain
            else f"'{values.positive[:40]}' (1) or '{values.negative[:40]}' (0)"
        )
        raise DataError(
            f"holds '{wrong[:40]}'; a label is {meaning}",
            place=place,
            remedy=_remedy(list(counts)),
        )
    clicked = sum(count for text, count in counts.items() if numbers[text] == 1.0)
    return clicked / sum(counts.values())


def labels_of(source: Source, data: DataConfig) -> NDArray[np.float64]:
    """The labels of the head's rows, 0 or 1; NaN where a row has none or a wrong one."""
    encoded = pc.dictionary_encode(source.head.column(data.label).combine_chunks())
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    values = data.label_values or _plain_values(source, data.label)
    texts = pc.cast(encoded.dictionary, pa.string()).to_pylist()
    numbers = [None if text is None else values.read(text) for text in texts]
    found = pa.array(numbers, pa.float64()).take(encoded.indices)
    return np.asarray(pc.fill_null(found, math.nan), np.float64)


def choose_label_values(source: Source, label: str, positive: str | None) -> LabelValues | None:
    """Finds the values that mean label 1 and 0; None if these are 1 and 0, or cannot be guessed.

    Args:
        source: The data.
        label: Name of the label column.
        positive: The value that means label 1, if the user gave it.

    Raises:
        DataError: `positive` was given, and the column has several other values.
    """
    texts = list(_counts(source, label, ()))
    if positive is None:
        plain = _plain_values(source, label)
        is_plain = all(plain.number_of(text) is not None for text in texts)
        return None if is_plain else find_label_values(texts)
    others = [text for text in texts if LabelValues(positive, "").number_of(text) != 1.0]
    opposite = others[0] if len(others) == 1 else opposite_of(positive) if not others else None
    if opposite is None:
        raise DataError(
            f"holds {len(others):,} values beside '{positive[:40]}', and a label has one other",
            place=f"{next(iter(source.opened))}, column '{label}'",
            remedy="Name another label column, or turn its values into 0 and 1",
        )
    return LabelValues(positive, opposite)


def find_label(source: Source) -> str:
    """Guesses the label column: `label`, or the only column of 0 and 1, or of yes and no.

    Raises:
        DataError: There is no such column, or there are several.
    """
    if "label" in source.column_names:
        return "label"
    found = [name for name in source.column_names if _could_be_label(source, name)]
    if len(found) == 1:
        return found[0]
    names = found or source.column_names
    shown = ", ".join(f"'{name[:40]}'" for name in names[:_NAMED])
    dots = ", …" if len(names) > _NAMED else ""
    which = "several columns hold 0 and 1: " if found else "no column holds 0 and 1; there are "
    raise DataError(
        f"{which}{shown}{dots}",
        place=str(next(iter(source.opened))),
        remedy="Name the column to predict with --label",
    )


def _could_be_label(source: Source, column: str) -> bool:
    texts = list(_counts(source, column, (), most=2))
    pair = find_label_values(texts) or _plain_values(source, column)
    return {pair.number_of(text) for text in texts} == {0.0, 1.0}


def _plain_values(source: Source, column: str) -> LabelValues:
    """The default values of label 1 and label 0."""
    is_boolean = pa.types.is_boolean(source.head.schema.field(column).type)
    return LabelValues("true", "false") if is_boolean else LabelValues("1", "0")


def _counts(
    source: Source, column: str, missing_values: Sequence[str], *, most: int | None = None
) -> dict[str, int]:
    """Counts the rows of each value of a column in the head; missing values are left out.

    Args:
        source: The data.
        column: Name of the column.
        missing_values: Texts that mean missing.
        most: The result is empty if there are more values than this.
    """
    values = source.head.column(column)
    counts: dict[str, int] = {}
    counted = pc.value_counts(values.drop_null())
    if most is not None and len(counted) > most:
        return {}
    try:
        texts = pc.cast(counted.field("values"), pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return {}
    for text, count in zip(texts.to_pylist(), counted.field("counts").to_pylist(), strict=True):
        if text.strip() not in {"", "nan", *missing_values}:
            counts[text] = counts.get(text, 0) + count
    return counts


def _remedy(texts: Sequence[str]) -> str:
    pair = find_label_values(texts)
    if pair is not None:
        return f"Say in data.positive that '{pair.positive[:40]}' is label 1"
    if len(texts) == 2:
        shown = " and ".join(f"'{text[:40]}'" for text in texts)
        return f"Say which of {shown} is label 1 in data.positive, and the other in data.negative"
    return "Name another label column, or turn its values into 0 and 1"
