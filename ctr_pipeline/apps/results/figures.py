"""Metrics and statistics as rows of results, one figure a row.

The columns are those of `FIGURES`, whatever is measured, so that figures of many days and models
fit into one table.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from ctr_pipeline.apps.results.target import ResultPlan, open_target
from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.paths import paths_of_splits

FIGURES = pa.schema(
    [
        ("column", pa.string()),
        ("value", pa.string()),
        ("figure", pa.string()),
        ("number", pa.float64()),
    ]
)
OTHERS = "(others)"
"""The value that stands for all values that have no figures of their own."""


class Figure(NamedTuple):
    """One row.

    Attributes:
        column: The column that is measured, or whose values divide the rows; None: all rows.
        value: The value of it that rows have; None: a missing one, or rows are not divided.
        figure: What is measured, such as `auc` or `moments.mean`.
        number: How much.
    """

    column: str | None
    value: str | None
    figure: str
    number: float


class FigureTable:
    """A place for figures, checked before any is computed.

    Args:
        output: As of `open_target`.
        data: The rows of the config, which stay.
        overwrite: Whether figures that are there may be replaced.
        reads: What else is read.

    Raises:
        CtrPipelineError: As `ResultTarget.check`.
    """

    def __init__(
        self, output: str, data: DataConfig, *, overwrite: bool, reads: tuple[str, ...] = ()
    ) -> None:
        self._target = open_target(output)
        spares = paths_of_splits(data)
        self._target.check(ResultPlan(FIGURES, overwrite=overwrite, reads=reads, spares=spares))

    def write(self, figures: Iterable[Figure]) -> None:
        """Writes all figures.

        Raises:
            CtrPipelineError: They cannot be written.
        """
        rows = [figure._asdict() for figure in figures]
        self._target.write(FIGURES, [pa.RecordBatch.from_pylist(rows, schema=FIGURES)])


def figures_of_metrics(metrics: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of `ctrpipe evaluate`, those of groups of rows after those of all."""
    of_all = {key: value for key, value in metrics.items() if key != "by_column"}
    yield from _numbers_in(of_all, None, None)
    for column, found in (metrics.get("by_column") or {}).items():
        for group in found["groups"]:
            yield from _numbers_in(group, column, group["value"])
        if found["others"] is not None:
            yield from _numbers_in(found["others"], column, OTHERS)


def figures_of_statistics(statistics: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of `ctrpipe analyze`: of all rows, each column, and its most frequent values."""
    of_all = {key: statistics[key] for key in ("num_rows", "label_rate", "weighted_label_rate")}
    yield from _numbers_in(of_all, None, None)
    for column, found in statistics["columns"].items():
        yield from _numbers_in(found, column, None)
        for top in found["top_values"]:
            yield from _numbers_in(top, column, top["value"])


def _numbers_in(
    values: Mapping[str, Any], column: str | None, value: str | None, above: str = ""
) -> Iterator[Figure]:
    """Every number, with the keys that lead to it; lists are none."""
    for key, found in values.items():
        if isinstance(found, Mapping):
            yield from _numbers_in(found, column, value, f"{above}{key}.")
        elif isinstance(found, int | float) and not isinstance(found, bool):
            yield Figure(column, value, f"{above}{key}", float(found))
