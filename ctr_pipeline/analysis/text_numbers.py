"""Statistics of numbers that a transform makes of texts by a kernel, such as ages of dates.

No database knows how those texts are read. So the distinct texts of the training rows are turned
into numbers here, and the numbers are counted and measured as those of a column are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr_pipeline.analysis.duckdb_engine import DuckDbEngine
from ctr_pipeline.analysis.measure import measure_column
from ctr_pipeline.analysis.part_counts import PartCounts
from ctr_pipeline.analysis.sql import PART_COUNTS
from ctr_pipeline.analysis.statistics_plan import (
    BoundaryPlan,
    Chain,
    ColumnPlan,
    StatisticsPlan,
)
from ctr_pipeline.analysis.value_counts import drop_query, value_counts_query
from ctr_pipeline.dataset.parts import ColumnCounts
from ctr_pipeline.features import expression_key
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import Moments
from ctr_pipeline.transforms.base import Transform

CountsOf = Callable[[str], Iterable[ColumnCounts]]
"""Gives the values of a column in the training rows, in portions."""
NumbersOf = Callable[[Transform, pa.Array], np.ndarray]
"""Makes float64, NaN where missing, of some texts, NULL where missing, by a transform."""


@dataclass
class TextNumbers:
    """What was found.

    Attributes:
        moments: By expression key.
        boundaries: By expression key, then by the number of quantiles as text.
    """

    moments: dict[str, Moments] = field(default_factory=dict)
    boundaries: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)


def collect_text_numbers(
    plan: StatisticsPlan,
    counts_of: CountsOf,
    numbers_of: NumbersOf,
    *,
    spill_folder: Path,
    memory_limit_gb: float,
) -> TextNumbers:
    """Moments and boundaries that `plan.text_numbers` asks for.

    Args:
        counts_of: Gives the values of a column of the training rows, in portions.
        numbers_of: Turns texts into numbers as a transform does.
        spill_folder: Where intermediate results go that do not fit in memory.
        memory_limit_gb: Memory of the database before it spills, in 10^9 bytes.

    Raises:
        DataError: A part is damaged.
        StatisticsError: Memory and disk do not suffice.
    """
    found = TextNumbers()
    weighted = plan.weight is not None
    wanted = [(f"numbers {place}", one) for place, one in enumerate(plan.text_numbers)]
    with (
        DuckDbEngine(
            spill_folder=spill_folder, threads=1, memory_limit_gb=memory_limit_gb
        ) as database,
        PartCounts(spill_folder / "text_numbers.arrow") as counts,
    ):
        for name, one in wanted:
            for part, texts in enumerate(counts_of(one.column)):
                numbers = pa.array(numbers_of(one.transform, texts.values), pa.float64())
                counts.add(name, part, replace(texts, values=numbers))
        for name, one in wanted:
            database.offer(PART_COUNTS, counts.read(name))
            database.execute(value_counts_query(ColumnType.NUMBER, weighted=weighted))
            # Of numbers: the chain without the step that made them.
            numbers = ColumnPlan(
                column=one.column,
                column_type=ColumnType.NUMBER,
                profile=False,
                moments=tuple(chain[1:] for chain in one.moments),
                boundaries=tuple(
                    BoundaryPlan(chain=cut.chain[1:], num_quantiles=cut.num_quantiles)
                    for cut in one.boundaries
                ),
            )
            measured = measure_column(database.rows, numbers, 0, weighted=weighted)
            database.execute(drop_query())
            for chain in one.moments:
                key = expression_key(one.column, chain)
                found.moments[key] = measured.moments[_key_of_numbers(one.column, chain)]
            for cut in one.boundaries:
                cuts = measured.boundaries[_key_of_numbers(one.column, cut.chain)]
                known = found.boundaries.setdefault(expression_key(one.column, cut.chain), {})
                known[str(cut.num_quantiles)] = cuts[str(cut.num_quantiles)]
    return found


def _key_of_numbers(column: str, chain: Chain) -> str:
    return expression_key(column, chain[1:])
