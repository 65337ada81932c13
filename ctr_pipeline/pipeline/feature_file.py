"""`features.json`: what became of each column."""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from ctr_pipeline import durable
from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.features import FeatureSpec

_FEATURES = TypeAdapter(tuple[FeatureSpec, ...])


def save_features(path: Path, features: Sequence[FeatureSpec]) -> None:
    """Writes features, durably."""
    values = _FEATURES.dump_python(tuple(features), mode="json")
    durable.write_text(path, json.dumps(values, indent=1) + "\n")


def load_features(path: Path) -> tuple[FeatureSpec, ...]:
    """The features that the analysis decided on.

    Raises:
        PreprocessingError: There are none, or they are damaged.
    """
    try:
        return _FEATURES.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PreprocessingError(
            "cannot be read",
            place=str(path),
            remedy="Run 'ctrpipe train --resume' with the config of the run, which writes it again",
        ) from error
