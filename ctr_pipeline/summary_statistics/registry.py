"""All summary statistics, in the order of the report."""

from ctr_pipeline.summary_statistics.kinds import NumberStatistic, TextStatistic
from ctr_pipeline.summary_statistics.singletons import SINGLETONS
from ctr_pipeline.summary_statistics.skew import SKEW

NUMBER_STATISTICS: tuple[NumberStatistic, ...] = (SKEW,)
TEXT_STATISTICS: tuple[TextStatistic, ...] = (SINGLETONS,)
LABELS = {
    **{one.name: one.label for one in NUMBER_STATISTICS},
    **{one.name: one.label for one in TEXT_STATISTICS},
}
"""Labels by name."""
