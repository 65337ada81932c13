"""Statistics of the training rows by SQL, and what `features: auto` makes of them."""

from ctr_pipeline.analysis.collect import collect_statistics, collect_statistics_with
from ctr_pipeline.analysis.decide import ColumnDecision, decide_features
from ctr_pipeline.analysis.statistics_plan import StatisticsPlan, plan_statistics

__all__ = [
    "ColumnDecision",
    "StatisticsPlan",
    "collect_statistics",
    "collect_statistics_with",
    "decide_features",
    "plan_statistics",
]
