"""The best possible figures of sample data, where they lie beside it."""

import json
from pathlib import Path
from typing import Any

from ctr_pipeline.config.models import Config


def truth_path(path: Path) -> Path:
    """Where the figures of the sample at `path` stand: `rows.tsv` has `rows.truth.json`."""
    return path.with_suffix(".truth.json")


def planted_figures(config: Config) -> dict[str, Any] | None:
    """What the planted model of the sample's rows knows; None for real data.

    The figures are about the last rows of the sample, so they are given only where the split makes
    the same rows test rows.
    """
    data = config.data
    if not isinstance(data.train, str) or data.test is not None or data.split.by != "order":
        return None
    try:
        figures = json.loads(truth_path(Path(data.train)).read_text(encoding="utf-8"))
        test_rows, num_rows = int(figures["num_test_rows"]), int(figures["num_rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if abs(test_rows - data.split.test * num_rows) > 1:
        return None
    return dict(figures)
