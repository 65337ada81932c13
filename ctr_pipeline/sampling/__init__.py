"""Sample data from a planted model, so that the best possible figures are known."""

from ctr_pipeline.sampling.criteo_sample import (
    RealizedFigures,
    SampleSummary,
    truth_path,
    write_criteo_sample,
)

__all__ = ["RealizedFigures", "SampleSummary", "truth_path", "write_criteo_sample"]
