"""What an export says about itself, for a person and for a client of the server."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ctr_pipeline
from ctr_pipeline.durable import write_text

MODEL_CARD_FILE = "model_card.json"


@dataclass(frozen=True)
class ModelCardInfo:
    """What only the caller knows of the model.

    Attributes:
        name: The job's name, which is also the name of the model on a server.
        architecture: The model's YAML name.
        created: When it was trained, with a time zone.
        training_rows: Rows it was trained on.
        base_rate: Click rate of these rows.
        metrics: By split, then by metric.
        features: One mapping a feature: column, type, transforms, reason.
        missing_values: Texts that mean "missing" beside the empty one.
        extra: Anything else, as JSON values.
    """

    name: str
    architecture: str
    created: datetime
    training_rows: int
    base_rate: float
    metrics: Mapping[str, Any]
    features: Sequence[Mapping[str, Any]]
    missing_values: Sequence[str] = ()
    extra: Mapping[str, Any] | None = None


def library_versions() -> dict[str, str]:
    """Versions that decide what an export computes."""
    return {
        "ctrpipe": ctr_pipeline.__version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


def write_model_card(
    folder: Path,
    info: ModelCardInfo,
    *,
    column_types: Mapping[str, str],
    input_names: Mapping[str, str],
    num_rows: int,
    embedding_dim: int,
) -> None:
    """Writes `model_card.json`."""
    card = {
        "name": info.name,
        "architecture": info.architecture,
        "created": info.created.isoformat(timespec="seconds"),
        "signatures": {
            "serving_default": "numbers as double (NaN: missing), texts as string ('': missing)",
            "serving_strings": "every column as string; '' or what is no number: missing",
        },
        "inputs": [
            {"column": column, "name": input_names[column], "type": kind, "shape": ["batch"]}
            for column, kind in column_types.items()
        ],
        "outputs": {
            "probability": {"type": "float", "shape": ["batch"], "meaning": "of a click"},
            "logit": {"type": "float", "shape": ["batch"], "meaning": "before the sigmoid"},
        },
        "missing_values": ["", *(text for text in info.missing_values if text)],
        "training_rows": info.training_rows,
        "base_rate": info.base_rate,
        "embedding_rows": num_rows,
        "embedding_dim": embedding_dim,
        "metrics": info.metrics,
        "features": list(info.features),
        "versions": library_versions(),
        **(info.extra or {}),
    }
    write_text(folder / MODEL_CARD_FILE, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
