"""Predictions of test rows in a folder: a file a model, seed and origin, so that runs go on later.

`FOLDER/MODEL/seed0-origin66000.npy` holds float64 probabilities of that origin's test rows in their
order, the `.json` beside it what else is known of them, such as seconds. `FOLDER/labels-66000.npy`
holds the clicks of those rows: a folder filled from other data is refused.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]


class OtherRowsError(ValueError):
    """A folder's predictions are of other rows."""


@dataclass(frozen=True)
class Prediction:
    """Predictions of the test rows of one origin.

    Attributes:
        probabilities: In the order of the rows.
        facts: What was written beside them.
    """

    probabilities: Float64s
    facts: dict[str, Any]


class PredictionFolder:
    """The predictions of one folder for these test rows.

    Args:
        folder: Made if it is not there.
        labels: Clicks of the test rows, by origin.

    Raises:
        OtherRowsError: If the folder has other clicks for one of the origins.
    """

    def __init__(self, folder: Path, labels: Mapping[int, Float64s]) -> None:
        self._folder = folder.expanduser()
        self._labels = dict(labels)
        for origin, clicks in labels.items():
            path = self._folder / f"labels-{origin}.npy"
            if not path.exists():
                _write_array(path, clicks)
            elif not np.array_equal(np.load(path, allow_pickle=False), clicks):
                raise OtherRowsError(
                    f"{self._folder} holds predictions of other rows; name another folder"
                )

    def load(self, name: str, *, seed: int, origin: int) -> Prediction | None:
        """What is kept, if it is."""
        path = self._path(name, seed, origin)
        if not path.exists():
            return None
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return Prediction(np.load(path, allow_pickle=False), facts)

    def save(self, name: str, prediction: Prediction, *, seed: int, origin: int) -> None:
        """Keeps it, or replaces it. The array is written last: where it is, the rest is."""
        path = self._path(name, seed, origin)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").write_text(json.dumps(prediction.facts), encoding="utf-8")
        _write_array(path, prediction.probabilities)

    def pooled(self, name: str) -> dict[int, Prediction]:
        """Rows of all origins in turn, by seed, `seconds` summed; whole seeds only."""
        found = sorted((self._folder / name).glob("seed*-origin*.npy"))
        seeds = sorted({int(path.name.removeprefix("seed").partition("-")[0]) for path in found})
        pooled = {}
        for seed in seeds:
            parts = [self.load(name, seed=seed, origin=origin) for origin in self._labels]
            whole = [part for part in parts if part is not None]
            if len(whole) == len(parts):
                pooled[seed] = pool(whole)
        return pooled

    def _path(self, name: str, seed: int, origin: int) -> Path:
        return self._folder / name / f"seed{seed}-origin{origin}.npy"


def pool(parts: Sequence[Prediction]) -> Prediction:
    """The rows of several origins one after another, their `seconds` summed."""
    seconds = sum(float(part.facts["seconds"]) for part in parts)
    probabilities = np.concatenate([part.probabilities for part in parts])
    return Prediction(probabilities, {"seconds": seconds})


def _write_array(path: Path, values: Float64s) -> None:
    """Under its name only once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.npy")
    np.save(partial, values, allow_pickle=False)
    partial.replace(path)
