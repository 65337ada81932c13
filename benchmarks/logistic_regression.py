"""scikit-learn's logistic regression on one-hot Criteo columns: the baseline to be ahead of.

Categories: a column of its own for each value with at least two training rows, one for all other
values, one for missing. Integers twice: one-hot of the contest winners' floor(ln(x)^2) for x > 2
(Juan et al. 2014, "3 Idiots' Approach for Display Advertising Challenge"), and log(1 + x)
standardised. The strength of L2 is chosen on the validation rows.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
COLUMNS = ("label", *NUMBERS, *CATEGORIES)
INVERSE_STRENGTHS = (0.015, 0.03, 0.06, 0.12, 0.25)


@dataclass(frozen=True)
class BaselineResult:
    """What the baseline says about the test rows.

    Attributes:
        probabilities: Of the test rows, float64.
        inverse_strength: The `C` chosen on the validation rows.
    """

    probabilities: NDArray[np.float64]
    inverse_strength: float


def _ln2_bucket(values: pd.Series) -> pd.Series:
    """The bucket of an integer as text; '' for missing."""
    numbers = pd.to_numeric(values)
    logs = np.log(numbers.where(numbers > 2))
    large = np.floor(logs**2).map(lambda bucket: "" if np.isnan(bucket) else f"L{int(bucket)}")
    return large.where(numbers > 2, values)


class OneHotEncoder:
    """Fitted on training rows; encodes any rows as a sparse matrix."""

    def __init__(self, train: pd.DataFrame) -> None:
        self._positions: dict[str, dict[str, int]] = {}
        self._others: dict[str, int] = {}
        width = 0
        for name, values in self._texts(train):
            counts = values[values != ""].value_counts()
            kept = sorted(counts[counts >= 2].index)
            self._positions[name] = {text: width + order for order, text in enumerate(["", *kept])}
            self._others[name] = width + len(kept) + 1
            width += len(kept) + 2
        self._width = width
        logs = self._logs(train)
        self._means, self._deviations = np.nanmean(logs, axis=0), np.nanstd(logs, axis=0)

    @staticmethod
    def _texts(rows: pd.DataFrame) -> list[tuple[str, pd.Series]]:
        buckets = [(name, _ln2_bucket(rows[name])) for name in NUMBERS]
        return [*buckets, *((name, rows[name]) for name in CATEGORIES)]

    @staticmethod
    def _logs(rows: pd.DataFrame) -> NDArray[np.float64]:
        numbers = rows[list(NUMBERS)].apply(pd.to_numeric).to_numpy(dtype=np.float64)
        return np.log1p(np.maximum(numbers, 0.0))

    def encode(self, rows: pd.DataFrame) -> sparse.csr_matrix:
        """[rows, one-hot columns + 13], float64."""
        positions = np.column_stack(
            [
                values.map(self._positions[name]).fillna(self._others[name]).to_numpy(np.int64)
                for name, values in self._texts(rows)
            ]
        )
        num_rows, num_fields = positions.shape
        one_hot = sparse.csr_matrix(
            (
                np.ones(positions.size),
                positions.ravel(),
                np.arange(0, positions.size + 1, num_fields),
            ),
            shape=(num_rows, self._width),
        )
        numbers = (self._logs(rows) - self._means) / self._deviations
        numbers = np.clip(np.nan_to_num(numbers, nan=0.0), -5.0, 5.0)
        return sparse.hstack([one_hot, sparse.csr_matrix(numbers)], format="csr")


def fit_baseline(
    train: pd.DataFrame, valid: pd.DataFrame, test: pd.DataFrame, *, refit: bool
) -> BaselineResult:
    """Chooses `C` on the validation rows, then scores the test rows.

    Args:
        train: Rows to fit on; columns `COLUMNS`, all texts, '' for missing.
        valid: Rows that choose `C`.
        test: Rows to score.
        refit: Fit again on training and validation rows with the chosen `C`.
    """
    encoder = OneHotEncoder(train)
    train_x, valid_x = encoder.encode(train), encoder.encode(valid)
    train_y, valid_y = train["label"].astype(int), valid["label"].astype(int)
    best: tuple[float, float, LogisticRegression] | None = None
    for inverse_strength in INVERSE_STRENGTHS:
        model = LogisticRegression(C=inverse_strength, max_iter=500)
        model.fit(train_x, train_y)
        loss = log_loss(valid_y, model.predict_proba(valid_x)[:, 1])
        if best is None or loss < best[0]:
            best = (loss, inverse_strength, model)
    assert best is not None  # noqa: S101 - the tuple of strengths is not empty
    _, chosen, model = best
    if refit:
        both = pd.concat([train, valid])
        encoder = OneHotEncoder(both)
        model = LogisticRegression(C=chosen, max_iter=500)
        model.fit(encoder.encode(both), both["label"].astype(int))
    return BaselineResult(model.predict_proba(encoder.encode(test))[:, 1], chosen)
