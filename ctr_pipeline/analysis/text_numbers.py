"""Statistics of numbers that a transform makes of texts by a kernel, such as ages of dates.

No database knows how those texts are read. So the distinct texts of each part of the training rows
are turned into numbers here, and the numbers are counted and measured as those of a column are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.analysis.duckdb_engine import DuckDbEngine
from ctr_pipeline.analysis.measure import measure_column
from ctr_pipeline.analysis.part_counts import PartCounts
from ctr_pipeline.analysis.sql import PART_COUNTS
from ctr_pipeline.analysis.statistics_plan import (
    BoundaryPlan,
    Chain,
    ColumnPlan,
    StatisticsPlan,
    TextNumbersPlan,
)
from ctr_pipeline.analysis.value_counts import drop_query, value_counts_query
from ctr_pipeline.dataset.parts import count_values, read_batches
from ctr_pipeline.features import expression_key
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import Moments
from ctr_pipeline.transforms.base import Transform

NumbersOf = Callable[[Transform, pa.Array], np.ndarray]
"""From a transform of texts and some texts, NULL where missing, to float64, NaN where missing."""


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
    files: Sequence[Path],
    numbers_of: NumbersOf,
    *,
    spill_folder: Path,
    memory_limit_gb: float,
) -> TextNumbers:
    """Moments and boundaries that `plan.text_numbers` asks for.

    Args:
        files: Parts of the training rows.
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
        _count(plan, files, wanted, counts, numbers_of)
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


def _count(
    plan: StatisticsPlan,
    files: Sequence[Path],
    wanted: Sequence[tuple[str, TextNumbersPlan]],
    counts: PartCounts,
    numbers_of: NumbersOf,
) -> None:
    weight = [] if plan.weight is None else [plan.weight]
    columns = dict.fromkeys([plan.label, *weight, *(one.column for _, one in wanted)])
    for part, batch in enumerate(read_batches(files, list(columns))):
        is_click = pc.fill_null(batch.column(plan.label), -1).to_numpy() == 1
        weights = None if plan.weight is None else batch.column(plan.weight).to_numpy()
        for name, one in wanted:
            texts = count_values(batch, one.column, is_click, weights)
            numbers = numbers_of(one.transform, texts.values)
            counts.add(name, part, replace(texts, values=pa.array(numbers, pa.float64())))
