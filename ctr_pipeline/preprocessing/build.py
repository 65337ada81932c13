"""A preprocessing plan to what the exported model begins with."""

from pathlib import Path
from typing import TYPE_CHECKING

from ctr_pipeline.preprocessing.plan import PreprocessingPlan

if TYPE_CHECKING:
    from ctr_pipeline.preprocessing.layers.raw_preprocessing import RawPreprocessing


def build_preprocessing(plan: PreprocessingPlan, folder: Path) -> "RawPreprocessing":
    """Raw tensors to ids and numbers, equal to `ColumnEncoder` but for the last bit of a logarithm.

    Imports TensorFlow.

    Args:
        plan: What to compute.
        folder: The run folder, which vocabulary files are below; not needed afterwards.

    Raises:
        PreprocessingError: A vocabulary file is missing or is not the one the plan was fitted with.
    """
    from ctr_pipeline.preprocessing.layers.raw_preprocessing import RawPreprocessing

    return RawPreprocessing(plan, folder)
