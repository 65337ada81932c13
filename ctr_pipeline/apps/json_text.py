"""Results as JSON for programs."""

import json
import math
from pathlib import Path
from typing import Any


def json_text(payload: Any) -> str:
    """One JSON object; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(payload), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a NumPy scalar
        return _finite(value.item())
    return value
