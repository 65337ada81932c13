"""Sample data from a planted model, so that the best possible figures are known."""

from ctr_pipeline.apps.sample.criteo_sample import (
    RealizedFigures,
    SampleSummary,
    write_criteo_sample,
)

__all__ = ["RealizedFigures", "SampleSummary", "write_criteo_sample"]
