"""Decides features by the head of the data, before all of it is read."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from ctr_pipeline.analysis import (
    ColumnDecision,
    collect_statistics,
    plan_statistics,
)
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.merging import MergedEntry, merge_entries
from ctr_pipeline.config.models import Config, FeatureEntry
from ctr_pipeline.dataset.arrow_columns import convert_column
from ctr_pipeline.dataset.bad_rows import BadRow, BlockFaults
from ctr_pipeline.dataset.columns import plan_columns
from ctr_pipeline.dataset.ingest import check_division
from ctr_pipeline.dataset.ingested import IngestedRows
from ctr_pipeline.dataset.parts import counts_in_parts, write_part
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.times import find_time_column
from ctr_pipeline.embeddings.log_chain import base_bytes, most_kept_bytes
from ctr_pipeline.errors import ConfigError, DataError
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.pipeline.feature_file import load_features
from ctr_pipeline.pipeline.model.embedding_rows import memory_bound_of, row_layout
from ctr_pipeline.pipeline.resources import num_threads, refuse_huge_layers
from ctr_pipeline.pipeline.results import CheckResult
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import (
    add_text_numbers,
    choose_columns_of,
    prepare_counting,
    with_newest_times,
)
from ctr_pipeline.pipeline.stages.columns import FeatureColumns, complete_features, no_feature
from ctr_pipeline.pipeline.stages.header import inspect_named
from ctr_pipeline.pipeline.stages.labels import label_rate_of
from ctr_pipeline.pipeline.stages.plan_view import describe_plan, most_embedding_rows
from ctr_pipeline.pipeline.stages.statistics_engines.protocol import ScanPlan
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.preprocessing.plan import PreprocessingPlan, load_plan
from ctr_pipeline.preprocessing.text_ages import open_ages, reopen_ages
from ctr_pipeline.progress import Progress, SilentProgress
from ctr_pipeline.statistics import Statistics


@dataclass(frozen=True)
class HeadDecisions:
    """Features decided by the head of the data.

    Attributes:
        source: The files.
        features: The features.
        left_out: Columns without a feature, with the reason.
        warnings: Warnings about columns, a sentence each.
        rows: Good rows of the head.
        columns: Which columns are read, and how.
    """

    source: Source
    features: tuple[FeatureSpec, ...]
    left_out: tuple[ColumnDecision, ...]
    warnings: tuple[str, ...]
    rows: pa.Table
    columns: FeatureColumns


@dataclass(frozen=True)
class Preview(HeadDecisions):
    """Features decided by the head of the data, and transforms fitted to it.

    Attributes:
        plan: Transforms fitted to the head.
        open_ages: Columns and formats of ages that count to the newest time of the training rows.
    """

    plan: PreprocessingPlan
    open_ages: tuple[tuple[str, str], ...]


def check_config(loaded: LoadedConfig, *, progress: Progress) -> CheckResult:
    """Validates the config against the head of the data and shows the plan of each feature.

    Sizes are those of an earlier analysis with this config, or else those of the head.
    """
    config = loaded.config
    refuse_huge_layers(loaded)
    progress.log("Reading the first rows")
    preview = preview_features(loaded)
    features, plan, exact = preview.features, preview.plan, False
    num_inputs = len(plan.fields) * config.model.embedding_dim + len(plan.numbers)
    refuse_huge_layers(loaded, num_inputs=num_inputs)
    run = RunFolder(config.run_folder)
    if run.preprocessing.exists() and run.features.exists():
        analyzed = load_features(run.features)
        if {spec.column for spec in analyzed} == {spec.column for spec in features} and (
            config.features == "auto"
            or reopen_ages(analyzed, preview.open_ages) == reopen_ages(features, preview.open_ages)
        ):
            features, plan, exact = analyzed, load_plan(run.preprocessing), True
    # A refit trains on the validation rows, too; without files of their own they are in train's.
    splits = {"train", "valid"} if config.train.refit else {"train"}
    num_rows = sum(map(preview.source.estimate_rows, splits & preview.source.files.keys()))
    described = describe_plan(config, features, plan, num_rows=num_rows)
    places = places_of_features(loaded, [row.feature for row in described])
    rows = tuple(replace(row, place=places[row.feature]) for row in described)
    max_bytes = sum(row.max_bytes or 0 for row in rows)
    disk_bytes = checkpoint_bytes(config, plan, num_rows)
    local_bytes = 0 if config.checkpoints_at is not None else disk_bytes or 0
    spilled = _max_spilled_bytes(config, max_bytes)
    free_bytes = free_space(config.run_folder)
    return CheckResult(
        rows=rows,
        left_out=tuple((decision.column, decision.reason) for decision in preview.left_out),
        exact=exact,
        num_fields=len(plan.fields),
        num_numbers=len(plan.numbers),
        max_embedding_bytes=max_bytes,
        warnings=(
            *preview.warnings,
            *memory_warnings(max_bytes - spilled, psutil.virtual_memory().available),
            *disk_warnings(local_bytes, free_bytes),
            *_spill_warnings(spilled, free_bytes - local_bytes),
        ),
        max_checkpoint_bytes=disk_bytes,
        scans=_plan_scans(loaded, preview),
        working_copy=None if config.stored_at is None else config.run_folder,
    )


def _plan_scans(loaded: LoadedConfig, preview: Preview) -> ScanPlan | None:
    """What an engine that counts rows where they are would read; None if none does."""

    def read() -> IngestedRows:
        raise AssertionError("a check reads no row but those of the head")

    prepared = prepare_counting(
        loaded,
        preview.source,
        preview.columns,
        origin="",
        read=read,
        progress=SilentProgress(),
    )
    return prepared.plan_scans()


def places_of_features(loaded: LoadedConfig, names: Sequence[str]) -> dict[str, str]:
    """The place in the config that decides on each feature: `config.yaml:14, features[2]`.

    Where several entries name a feature, each key has its place, with the entries it overrides. The
    place of what the statistics decide is that of `auto`.
    """
    features = loaded.config.features
    if features == "auto":
        return dict.fromkeys(names, f"{loaded.place_of('features')}, features: auto")
    merged = merge_entries(features, names)
    return {name: _place_of(loaded, features, merged.get(name)) for name in names}


def _place_of(
    loaded: LoadedConfig, features: Sequence[FeatureEntry], merged: MergedEntry | None
) -> str:
    if merged is None:
        return ""

    def place(index: int) -> str:
        word = ", auto" if features[index].names_all else ""
        return f"{loaded.place_of(f'features[{index}]')}, features[{index}]{word}"

    if len(merged.named_by) == 1:
        return place(merged.named_by[0])
    told = []
    for key, index in merged.given.items():
        over = [place(other) for other in merged.overruled.get(key, ())]
        told.append(f"{key}: {place(index)}" + (f", over {' and '.join(over)}" if over else ""))
    if merged.decided:
        auto = next(index for index in merged.named_by if features[index].names_all)
        told.append(f"the rest: {place(auto)}")
    return "; ".join(told)


def checkpoint_bytes(config: Config, plan: PreprocessingPlan, num_rows: int) -> int | None:
    """An upper bound of the bytes of a job's checkpoints on disk.

    Dense parameters are left out: they are small beside rows.

    Args:
        config: The config.
        plan: Fitted transforms; in the worst case each id of their tables that can occur has a row.
        num_rows: Training rows.

    Returns:
        None in local mode.
    """
    if not config.runtime.has_members:
        return None
    layout = row_layout(config, plan)
    full_cut = base_bytes(
        sum(most_embedding_rows(plan, num_rows).values()),
        width=layout.width,
        num_slots=layout.num_slots,
        num_partitions=config.runtime.partitions,
    )
    return most_kept_bytes(full_cut, num_kept=config.train.keep_checkpoints)


def free_space(folder: Path) -> int:
    """Free bytes on the disk of a folder, which may not exist yet."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(existing).free


def disk_warnings(max_checkpoint_bytes: int, free_bytes: int) -> tuple[str, ...]:
    """What to say if checkpoints may not fit on the disk; empty if they do."""
    if max_checkpoint_bytes <= free_bytes:
        return ()
    return (
        f"checkpoints may take up to {max_checkpoint_bytes / 1e9:.1f} GB on disk, and "
        f"{free_bytes / 1e9:.1f} GB are free: lower train.keep_checkpoints or the size of the "
        "embeddings, or choose another 'output'",
    )


def memory_warnings(max_embedding_bytes: int, available_bytes: int) -> tuple[str, ...]:
    """What to say if embedding rows may not fit into memory; empty if they do."""
    if max_embedding_bytes <= available_bytes:
        return ()
    return (
        f"embedding rows may need up to {max_embedding_bytes / 1e9:.1f} GB, and "
        f"{available_bytes / 1e9:.1f} GB are free: lower hash buckets, vocabulary.max_size or "
        "model.embedding_dim, or set train.embeddings.memory_limit_gb",
    )


def _max_spilled_bytes(config: Config, max_embedding_bytes: int) -> int:
    """Bytes beyond the memory limits of all processes with rows, at most."""
    bound = memory_bound_of(config)
    runtime = config.runtime
    holders = runtime.parameter_servers if runtime.has_members else 1
    return 0 if bound is None else max(max_embedding_bytes - holders * bound.num_bytes, 0)


def _spill_warnings(max_spilled_bytes: int, free_bytes: int) -> tuple[str, ...]:
    if max_spilled_bytes <= max(free_bytes, 0):
        return ()
    return (
        f"embedding rows beyond train.embeddings.memory_limit_gb may take up to "
        f"{max_spilled_bytes / 1e9:.1f} GB on disk, and the run folder has room "
        f"for {max(free_bytes, 0) / 1e9:.1f} GB of them: raise the limit, lower hash buckets or "
        "model.embedding_dim, or choose another 'output'",
    )


def decide_from_head(loaded: LoadedConfig, source: Source) -> HeadDecisions:
    """Decides as a run would, from the head of the data alone.

    Args:
        loaded: The config.
        source: The data that it names.

    Raises:
        ConfigError: Columns or chains that do not fit, all at once.
        DataError: The head holds a bad row, or no row with a label.
    """
    with _part_of_head(loaded, source) as head:
        return _decide(loaded, source, head)


def preview_features(loaded: LoadedConfig) -> Preview:
    """Decides as `decide_from_head`, and fits transforms to the head.

    Raises:
        ConfigError: Columns or chains that do not fit, all at once, or none that does.
        DataError: The head holds a bad row, no row with a label, or all rows, of which a split
            lacks a class; or files cannot be read.
    """
    source = inspect_named(loaded)
    with _part_of_head(loaded, source) as head:
        decided, file = _decide(loaded, source, head), head.file
        if not decided.features:
            message = no_feature(decided.left_out)
            raise ConfigError([loaded.problem_at("features", message)])
        if source.head_is_all:
            check_division(head.rows, loaded.config.data, source, seed=loaded.config.train.seed)
        label = loaded.config.data.label
        features = with_newest_times(
            decided.features, lambda column: counts_in_parts([file], column, label)
        )
        statistics = _collect(loaded, features, file, file.parent)
        return Preview(
            source=source,
            features=features,
            left_out=decided.left_out,
            warnings=decided.warnings,
            rows=head.rows,
            columns=head.columns,
            plan=plan_preprocessing(features, statistics, file.parent),
            open_ages=tuple(open_ages(decided.features)),
        )


@dataclass(frozen=True)
class _Head:
    """The head of the data.

    Attributes:
        columns: Which columns are read.
        rows: Its good rows.
        file: A part file of these rows, alone in its folder.
    """

    columns: FeatureColumns
    rows: pa.Table
    file: Path


@contextmanager
def _part_of_head(loaded: LoadedConfig, source: Source) -> Iterator[_Head]:
    label_rate_of(source, loaded.config.data)
    columns = choose_columns_of(loaded, source)
    with tempfile.TemporaryDirectory() as name:
        rows = _good_rows(loaded, source, columns)
        file = Path(name) / "head.arrow"
        write_part(rows, file, loaded.config.data.label)
        yield _Head(columns, rows, file)


def _decide(loaded: LoadedConfig, source: Source, head: _Head) -> HeadDecisions:
    columns, profile = head.columns, None
    if columns.automatic:
        plain = [
            FeatureSpec(column=name, column_type=columns.types[name]) for name in columns.automatic
        ]
        profile = _collect(loaded, plain, head.file, head.file.parent / "profile")
    split = loaded.config.data.split
    share = 1.0 if len(source.files) > 1 else 1.0 - split.valid - split.test
    growth = share * source.estimate_rows("train") / max(head.rows.num_rows, 1)
    features, left_out = complete_features(loaded, columns, source.head, profile, growth)
    warnings = (*source.notes, *columns.warnings)
    return HeadDecisions(source, features, left_out, warnings, head.rows, columns)


def _collect(
    loaded: LoadedConfig, features: Sequence[FeatureSpec], file: Path, folder: Path
) -> Statistics:
    folder.mkdir(exist_ok=True)
    config = loaded.config
    plan = plan_statistics(features, config.data.label)
    found = collect_statistics(
        plan,
        [file],
        folder,
        data_fingerprint="head",
        threads=num_threads(config.runtime),
        memory_limit_gb=config.runtime.memory_limit_gb,
        progress=SilentProgress(),
    )
    return add_text_numbers(
        found,
        plan,
        lambda column: counts_in_parts([file], column, config.data.label),
        folder,
        config.runtime,
    )


def _good_rows(loaded: LoadedConfig, source: Source, read: FeatureColumns) -> pa.Table:
    """The good rows of the head, as they are read.

    Raises:
        DataError: There is a bad row, and the config does not allow any.
    """
    data = loaded.config.data
    plan = plan_columns(
        data,
        read.types,
        label_required=True,
        carried=[] if data.split.column is None else [data.split.column],
        sensitive=read.sensitive,
        lists=read.lists,
        time=find_time_column(data, source.head, read.types),
    )
    if source.head_block is not None:
        parsed = source.head_block.parse(plan)
        if parsed.faults and data.bad_rows == "fail":
            fault, row = parsed.faults[0]
            raise BadRow.of(fault, source.head_block.path, row).as_error()
        return parsed.table
    head = source.head.combine_chunks()
    faults = BlockFaults(head.num_rows, plan.sensitive)
    records = np.arange(head.num_rows)
    columns = {}
    for name in plan.names:
        chunks = head.column(name).chunks
        values = chunks[0] if chunks else pa.array([], head.schema.field(name).type)
        columns[name] = convert_column(values, name, plan, faults, records)
    if data.bad_rows == "fail":
        for fault in faults.first():
            # The head may hold rows of several files.
            first = next(iter(source.opened))
            error = BadRow.of(fault, first, fault.record + 1).as_error()
            place = f"{first}, among the first rows, column '{fault.column}'"
            raise DataError(error.message, place=place, remedy=error.remedy)
    return pa.table(columns, plan.schema).filter(pa.array(faults.good))
