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
        DataError: All labels are equal.
        ValueError: There are no rows, or a label is not 0 or 1: rows are read so that neither can
            be, so the caller is wrong.
    """
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"{place}: no labels to evaluate, their shape is {labels.shape}")
    positive = labels == 1
    num_positive = int(np.count_nonzero(positive))
    if num_positive + int(np.count_nonzero(labels == 0)) != labels.size:
        raise ValueError(f"{place}: a label is neither 0 nor 1")
    require_both_classes(num_positive, labels.size, place=place)
    return np.asarray(positive, dtype=np.bool_)


def require_both_classes(num_positive: int, num_rows: int, *, place: str) -> None:
    """Refuses rows of one label.

    Raises:
        DataError: All labels are equal.
    """
    if num_positive in {0, num_rows}:
        only = 1 if num_positive else 0
        raise DataError(
            f"all {num_rows} labels are {only}, so no ranking can be measured",
            place=place,
            remedy="Split the rows so that both clicks and non-clicks are among them",
        )


def require_finite_scores(scores: npt.NDArray[Any], num_rows: int, *, place: str) -> None:
    """Refuses scores that are not a number each.

    Raises:
        ValueError: There is not one score per row.
        TrainingError: A score is NaN or infinite: the model has diverged.
    """
    if scores.shape != (num_rows,):
        raise ValueError(f"{place}: {num_rows} labels but scores of shape {scores.shape}")
    num_bad = scores.size - int(np.count_nonzero(np.isfinite(scores)))
    if num_bad:
        raise TrainingError(
            f"{num_bad} of {scores.size} scores are NaN or infinite",
            place=place,
            remedy="Lower the learning rates or set train.gradient_clip_norm, then train again; if "
            "only rows with extreme numbers are so, add 'clip' to the chains of their columns",
        )


def require_weights(
    weights: npt.NDArray[Any], positive: npt.NDArray[np.bool_], *, place: str
) -> npt.NDArray[np.float64]:
    """Weights as float64, both classes with some.

    Args:
        weights: [N], 0 or more, finite.
        positive: [N], which rows have label 1.
        place: What the rows are, for error messages.

    Raises:
        DataError: All rows of one label weigh 0.
        ValueError: There is not one weight per row, or one is negative or not finite: rows are read
            so that none can be, so the caller is wrong.
    """
    if weights.shape != positive.shape:
        raise ValueError(f"{place}: {positive.size} labels but weights of shape {weights.shape}")
    wide = np.asarray(weights, dtype=np.float64)
    if not np.all((wide >= 0) & (wide < np.inf)):
        raise ValueError(f"{place}: a weight is negative or not finite")
    for label, rows in ((1, positive), (0, ~positive)):
        if not wide[rows].any():
            raise DataError(
                f"all rows of label {label} weigh 0, so no ranking can be measured",
                place=place,
                remedy="Check data.weight",
            )
    return wide
