"""Whether there is a Spark to run, for the tests that need one."""

import pytest

from ctr_pipeline.analysis.spark_connection import require_spark
from ctr_pipeline.config.models import AnalysisConfig
from ctr_pipeline.errors import StatisticsError

SPARK = AnalysisConfig(
    engine="spark",
    master="local[2]",
    conf={
        # Small rows and many queries: most of the time is Java's own, spent on making them fast.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": 1,
    },
)


def skip_without_spark() -> None:
    """Skips the tests that ask for it, with the reason."""
    try:
        require_spark(SPARK)
    except StatisticsError as error:
        pytest.skip(f"no Spark here: {error}")
