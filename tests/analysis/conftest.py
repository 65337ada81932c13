from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ctr_pipeline.analysis import collect_statistics, plan_statistics
from ctr_pipeline.dataset.parts import write_part
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import Statistics

Collect = Callable[..., Statistics]


def write_rows(
    path: Path,
    columns: Mapping[str, Sequence[object]],
    labels: Sequence[int],
    *,
    label: str,
    weight: str | None = None,
) -> None:
    """Text for columns of str, float64 for others; None is NULL."""
    arrays = [pa.array(np.asarray(labels, np.int8))]
    for values in columns.values():
        is_text = any(isinstance(value, str) for value in values)
        arrays.append(pa.array(values, pa.string() if is_text else pa.float64(), from_pandas=False))
    write_part(pa.table(arrays, names=[label, *columns]), path, label, weight)


@pytest.fixture(scope="session")
def collect(tmp_path_factory: pytest.TempPathFactory) -> Collect:
    """Writes rows as a part and collects their statistics; without specs, profiles only."""

    def run(
        columns: Mapping[str, Sequence[object]],
        labels: Sequence[int] | None = None,
        specs: Sequence[FeatureSpec] | None = None,
        *,
        folder: Path | None = None,
        label: str = "label",
        profile: bool = True,
        threads: int = 2,
        weights: Sequence[float] | None = None,
    ) -> Statistics:
        folder = folder or tmp_path_factory.mktemp("run")
        if labels is None:
            labels = [0] * len(next(iter(columns.values())))
        path = folder / "rows.arrow"
        written = columns if weights is None else {**columns, "weight": weights}
        weight = None if weights is None else "weight"
        write_rows(path, written, labels, label=label, weight=weight)
        if specs is None:
            specs = [
                FeatureSpec(column=name, column_type=_type_of(values))
                for name, values in columns.items()
            ]
        return collect_statistics(
            plan_statistics(specs, label, profile=profile, weight=weight),
            [path],
            folder,
            data_fingerprint="rows",
            threads=threads,
            memory_limit_gb=0.5,
            progress=SilentProgress(),
        )

    return run


def _type_of(values: Sequence[object]) -> ColumnType:
    is_text = any(isinstance(value, str) for value in values)
    return ColumnType.TEXT if is_text else ColumnType.NUMBER
