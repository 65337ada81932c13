"""What the peers of `criteo_peers.py` are given: ids as published runs on Criteo prepare them.

The 13 integers become categories by `floor(ln(x)^2)` above 2 and stay as they are up to it
(FuxiCTR's `datasets/criteo.py`, after Juan et al. 2014); values seen at least `min_count` times in
the training rows have an id of their own, all others share one, and a missing value has another.
Trees get the integers as numbers beside them, and of each category either its id or how many
training rows have it, which says nothing of clicks. Nothing of validation and test rows is counted.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from logistic_regression import CATEGORIES, NUMBERS
from numpy.typing import NDArray

PARTS = ("train", "valid", "test")
MISSING_ID, UNKNOWN_ID, FIRST_ID = 0, 1, 2


def write_ids(rows: dict[str, pd.DataFrame], path: Path, *, min_count: int) -> None:
    """Writes `path` (.npz) for the training, validation and test rows of one origin.

    Args:
        rows: `PARTS`, all texts, '' for missing.
        path: Arrays `PART_ids` [rows, 39] int32, `PART_numbers` [rows, 13] float32 with NaN for
            missing, `PART_counts` [rows, 26] float32, `PART_labels` [rows] float32, and `sizes`
            [39] int64, the number of ids of each column.
        min_count: Training rows that a value needs for an id of its own.
    """
    arrays: dict[str, list[NDArray[np.float32]]] = {}
    sizes = []
    for name in (*NUMBERS, *CATEGORIES):
        texts = {
            part: _bucket(rows[part][name]) if name in NUMBERS else rows[part][name]
            for part in PARTS
        }
        known = texts["train"][texts["train"] != ""].value_counts()
        kept = sorted(known[known >= min_count].index)
        ids = {"": MISSING_ID} | {text: FIRST_ID + order for order, text in enumerate(kept)}
        sizes.append(FIRST_ID + len(kept))
        for part, values in texts.items():
            column = values.map(ids).fillna(UNKNOWN_ID).to_numpy(np.int32)
            arrays.setdefault(f"{part}_ids", []).append(column)
            if name in NUMBERS:
                numbers = pd.to_numeric(rows[part][name]).to_numpy(np.float32)
                arrays.setdefault(f"{part}_numbers", []).append(numbers)
            else:
                counts = values.map(known).fillna(0).to_numpy(np.float32)
                arrays.setdefault(f"{part}_counts", []).append(counts)
    np.savez(
        path,
        sizes=np.array(sizes, np.int64),
        **{name: np.column_stack(columns) for name, columns in arrays.items()},
        **{f"{part}_labels": rows[part]["label"].to_numpy(np.float32) for part in PARTS},
    )


def write_lines(rows: dict[str, pd.DataFrame], folder: Path) -> None:
    """Writes `PART.vw`: integers as numbers (`n`) and as buckets (`b`), categories (`c`)."""
    for part in PARTS:
        frame = rows[part]
        numbers = [_features(name, frame[name], ":") for name in NUMBERS]
        buckets = [_features(name, _bucket(frame[name]), "_") for name in NUMBERS]
        categories = [_features(name, frame[name], "_") for name in CATEGORIES]
        labels = frame["label"].map({"1": "1", "0": "-1"})
        with (folder / f"{part}.vw").open("w", encoding="utf-8") as lines:
            for label, *features in zip(labels, *numbers, *buckets, *categories, strict=True):
                n, b, c = features[:13], features[13:26], features[26:]
                lines.write(f"{label} |n{''.join(n)} |b{''.join(b)} |c{''.join(c)}\n")


def _bucket(values: pd.Series) -> pd.Series:
    """An integer's `floor(ln(x)^2)` above 2, itself up to it, as text; '' for missing."""
    numbers = pd.to_numeric(values)
    logs = np.log(numbers.where(numbers > 2))
    whole = np.floor(logs**2).where(numbers > 2, numbers)
    return whole.map(lambda bucket: "" if np.isnan(bucket) else str(int(bucket)))


def _features(name: str, values: pd.Series, joint: str) -> list[str]:
    """A missing value is no feature."""
    return [f" {name}{joint}{text}" if text else "" for text in values]
