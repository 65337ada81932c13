"""The plan before all data is read: decisions from the head of the data."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr_pipeline.analysis import (
    ColumnDecision,
    collect_statistics,
    decide_features,
    plan_statistics,
)
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.source import Source, inspect_source
from ctr_pipeline.features import ColumnType, FeatureSpec
from ctr_pipeline.pipeline.analysis_stage import load_features
from ctr_pipeline.pipeline.columns import FeatureColumns, choose_columns
from ctr_pipeline.pipeline.plan_view import describe_plan
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.results import CheckResult
from ctr_pipeline.pipeline.workspace import RunFolder
from ctr_pipeline.preprocessing.fitted import load_plan
from ctr_pipeline.progress import Progress, SilentProgress


@dataclass(frozen=True)
class Preview:
    """What the head of the data suggests.

    Attributes:
        source: The files.
        features: What would become of each column.
        left_out: Columns without a feature, with the reason.
    """

    source: Source
    features: tuple[FeatureSpec, ...]
    left_out: tuple[ColumnDecision, ...]


def check_config(loaded: LoadedConfig, *, progress: Progress) -> CheckResult:
    """Validates the config against the head of the data and shows the plan of each feature.

    If this config was analyzed before, the plan shows what the analysis found.
    """
    config = loaded.config
    progress.say("Looking at the head of the data")
    preview = preview_features(loaded)
    features, plan = preview.features, None
    run = RunFolder(config.run_folder)
    if run.preprocessing.exists() and run.features.exists():
        analyzed = load_features(run)
        if {spec.column for spec in analyzed} == {spec.column for spec in features} and (
            config.features == "auto" or analyzed == features
        ):
            features, plan = analyzed, load_plan(run.preprocessing)
    rows = describe_plan(config, features, plan)
    sizes = [row.max_bytes for row in rows if row.dimension]
    return CheckResult(
        rows=rows,
        left_out=tuple((decision.column, decision.reason) for decision in preview.left_out),
        exact=plan is not None,
        num_fields=sum(spec.id is not None for spec in features),
        num_numbers=sum(spec.number is not None for spec in features),
        max_embedding_bytes=(
            None if None in sizes else sum(size for size in sizes if size is not None)
        ),
    )


def preview_features(loaded: LoadedConfig) -> Preview:
    """Decides as a run would, from the head of the data alone."""
    source = inspect_source(loaded.config.data)
    columns = choose_columns(loaded, source.column_names, source.inferred_types)
    if not columns.automatic:
        return Preview(source, tuple(columns.explicit.values()), ())
    decided, decisions = _decide_from_head(loaded, source, columns)
    chosen = columns.explicit | {spec.column: spec for spec in decided}
    return Preview(
        source,
        tuple(chosen[name] for name in columns.types if name in chosen),
        tuple(decision for decision in decisions if not decision.used),
    )


def _decide_from_head(
    loaded: LoadedConfig, source: Source, columns: FeatureColumns
) -> tuple[tuple[FeatureSpec, ...], tuple[ColumnDecision, ...]]:
    config = loaded.config
    types = {name: columns.types[name] for name in columns.automatic}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "head.parquet"
        pq.write_table(_head(source, types, config.data.label), file)
        statistics = collect_statistics(
            plan_statistics(
                [FeatureSpec(column=name, column_type=kind) for name, kind in types.items()],
                config.data.label,
            ),
            [file],
            Path(folder),
            data_fingerprint="head",
            threads=num_threads(config.runtime),
            memory_limit_gb=config.runtime.memory_limit_gb,
            progress=SilentProgress(),
        )
    return decide_features(types, statistics, label=config.data.label, exclude=set(columns.carried))


def _head(source: Source, types: dict[str, ColumnType], label: str) -> pa.Table:
    """The head's rows that have a label, in the types of ingested rows."""
    labels = pc.cast(source.head.column(label), pa.float64(), safe=False)
    columns = {label: pc.cast(labels, pa.int8(), safe=False)}
    for name, kind in types.items():
        wanted = pa.float64() if kind is ColumnType.NUMBER else pa.string()
        columns[name] = source.head.column(name).cast(wanted)
    return pa.table(columns).filter(pc.is_in(labels, pa.array([0.0, 1.0])))
