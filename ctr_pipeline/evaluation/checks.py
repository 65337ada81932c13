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
