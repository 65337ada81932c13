"""Checks of moments that transforms are fitted to."""

import math

from ctr_pipeline.errors import PreprocessingError


def require_finite(*values: float) -> None:
    """Raises PreprocessingError, without a place, if a value is infinite or NaN."""
    if not all(math.isfinite(value) for value in values):
        raise PreprocessingError(
            "has values so large that their moments overflow",
            remedy="Put clip or log first in its chain",
        )
