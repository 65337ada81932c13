"""Whether the label is one, from the head of the data."""

import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import DataError


def label_rate_of(source: Source, label: str) -> float:
    """The share of label 1 in the head of the data.

    Raises:
        DataError: A label is neither 0 nor 1, or all are missing.
    """
    values = source.head.column(label)
    present = values.drop_null()
    try:
        numbers = pc.cast(present, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Text: all of it is shown as wrong but what reads as 0 or 1.
        numbers = None
    place = f"{next(iter(source.opened))}, column '{label}'"
    if len(present) == 0:
        raise DataError(
            "has no label in the rows looked at", place=place, remedy="Name another label column"
        )
    texts = pc.cast(present, pa.string())
    wrong = (
        pc.invert(pc.is_in(texts, pa.array(["0", "1"])))
        if numbers is None
        else pc.invert(pc.is_in(numbers, pa.array([0.0, 1.0])))
    )
    if pc.any(wrong).as_py():
        example = pc.filter(texts, wrong)[0].as_py()
        raise DataError(
            f"holds '{str(example)[:40]}'; a label is 0 or 1",
            place=place,
            remedy="Name another label column, or turn its values into 0 and 1",
        )
    return float(pc.mean(numbers if numbers is not None else pc.equal(texts, "1")).as_py())
