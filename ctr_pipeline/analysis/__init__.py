"""Statistics of the training rows by SQL, and what `features: auto` makes of them."""

from ctr_pipeline.analysis.aggregates import StatisticsPlan, plan_statistics
from ctr_pipeline.analysis.collect import collect_statistics

__all__ = ["StatisticsPlan", "collect_statistics", "plan_statistics"]
