"""What labels and scores must be before any metric has a meaning."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ctr_pipeline.errors import DataError, TrainingError


def require_binary_labels(labels: npt.NDArray[Any], *, place: str) -> npt.NDArray[np.bool_]:
    """Labels as booleans, with both classes present.

    Args:
        labels: [N], zeros and ones of any dtype.
        place: What the rows are, for the message, such as `test rows`.

    Raises:
        DataError: There are no rows, a label is not 0 or 1, or all labels are equal.
    """
    if labels.ndim != 1 or labels.size == 0:
        raise DataError(
            "there are no rows to evaluate", place=place, remedy="Give the split more rows"
        )
    positive = labels == 1
    num_positive = int(np.count_nonzero(positive))
    if num_positive + int(np.count_nonzero(labels == 0)) != labels.size:
        raise DataError(
            "a label is neither 0 nor 1", place=place, remedy="Give the label column 0 and 1 only"
        )
    if num_positive in {0, labels.size}:
        only = 1 if num_positive else 0
        raise DataError(
            f"all {labels.size} labels are {only}, so no ranking can be measured",
            place=place,
            remedy="Split the rows so that both clicks and non-clicks are among them",
        )
    return np.asarray(positive, dtype=np.bool_)


def require_finite_scores(scores: npt.NDArray[Any], num_rows: int, *, place: str) -> None:
    """Refuses scores that are not a number each.

    Raises:
        DataError: There is not one score per row.
        TrainingError: A score is NaN or infinite: the model has diverged.
    """
    if scores.shape != (num_rows,):
        raise DataError(f"{num_rows} labels but scores of shape {scores.shape}", place=place)
    num_bad = scores.size - int(np.count_nonzero(np.isfinite(scores)))
    if num_bad:
        raise TrainingError(
            f"{num_bad} of {scores.size} scores are NaN or infinite",
            place=place,
            remedy="Lower the learning rates or set train.gradient_clip_norm, then train again",
        )
