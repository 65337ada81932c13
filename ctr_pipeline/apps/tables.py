"""Tables that belong to no run: what they hold, and how far one is from another."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ctr_pipeline import durable
from ctr_pipeline.analysis import collect_statistics, decide_features, plan_statistics
from ctr_pipeline.apps.outputs import require_output
from ctr_pipeline.config import config_from_mapping
from ctr_pipeline.config.label_values import LabelValues
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.config.models import DataConfig, RuntimeConfig
from ctr_pipeline.config.ranges import RangeError, expand_range
from ctr_pipeline.dataset.bad_rows import BadRows
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.dataset.inspection import inspect_paths
from ctr_pipeline.dataset.parts import counts_in_parts
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.tables import write_table
from ctr_pipeline.errors import DataError, ReadingKeyError, RunFolderError
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.pipeline.feature_file import load_features
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.columns import UNFIT
from ctr_pipeline.pipeline.stages.labels import choose_label_values, label_rate_of
from ctr_pipeline.pipeline.stages.plan_view import chain_text, statistics_used
from ctr_pipeline.pipeline.stages.time_drift import times_read, with_time_drift
from ctr_pipeline.pipeline.stages.whole_numbers import WholeNumberJudge
from ctr_pipeline.progress import Progress
from ctr_pipeline.reporting import data as page
from ctr_pipeline.reporting.render import render_drift, render_profile
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnDrift, Statistics
from ctr_pipeline.tracebacks import conceal_values
from ctr_pipeline.transforms.base import TimeRead

_OPTIONS = (
    (", and the other in data.negative", ""),
    ("data.positive", "--positive"),
    ("data.columns", "--columns"),
    ("data.label", "--label"),
)
"""What keys of a config are called where there is none."""
_DIALECT = ("format", "record", "delimiter", "quote", "escape", "skip_lines")
_SETTABLE = (*_DIALECT, "missing_values", "bad_rows", "max_bad_fraction")
"""What `--set` says of a table: how it is read, as far as a command has no option for it."""
_LENIENT = {"bad_rows": "skip", "max_bad_fraction": 1.0}
"""Bad rows are left out and counted."""
_PARTS_OF_TIME = ("hour", "weekday")
"""What `features: auto` reads of points in time."""


@dataclass(frozen=True)
class ProfileResult:
    """What a table holds.

    Attributes:
        shown: Everything the page shows.
        output: The page, if one was written.
    """

    shown: page.ProfileData
    output: Path | None

    def to_payload(self) -> dict[str, Any]:
        """The result for programs; without a label, nothing that would need one."""
        statistics = self.shown.statistics.model_dump(
            mode="json", include={"num_rows", "label_rate", "columns"}
        )
        if self.shown.label is None:
            statistics = _without_label(statistics)
        return {
            "data": self.shown.source,
            "format": self.shown.format,
            "label": self.shown.label,
            **statistics,
            "left_out": [
                {"column": column, "reason": reason}
                for column, reason in self.shown.left_out.items()
            ],
            "bad_rows": self.shown.bad_rows.by_reason,
            "seconds": self.shown.seconds,
            "output": self.output,
        }


def _without_label(value: Any) -> Any:
    if isinstance(value, dict):
        told_by_it = {"label_rate", "missing_label_rate", "label_information"}
        return {key: _without_label(one) for key, one in value.items() if key not in told_by_it}
    return [_without_label(one) for one in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class DriftResult:
    """How far one table is from another.

    Attributes:
        shown: Everything the page shows.
        num_bad_rows: Rows of either that were left out.
        output: The page, if one was written.
    """

    shown: page.DriftData
    num_bad_rows: int
    output: Path | None

    def above(self, psi: float) -> tuple[ColumnDrift, ...]:
        """Columns whose index is above `psi` and above what sampling explains."""
        return tuple(one for one in self.shown.drift.columns.values() if one.exceeds(psi))

    def to_payload(self) -> dict[str, Any]:
        """The result for programs; no value of the data is in it."""
        return {
            "old": self.shown.old,
            "new": self.shown.new,
            "num_old_rows": self.shown.num_old_rows,
            **self.shown.drift.to_metrics(),
            "num_bad_rows": self.num_bad_rows,
            "notes": list(self.shown.notes),
            "output": self.output,
        }


def profile_table(
    data: str,
    *,
    label: str | None = None,
    positive: str | None = None,
    columns: Sequence[str] | None = None,
    settings: Sequence[str] = (),
    output: Path | None = None,
    overwrite: bool = False,
    progress: Progress,
) -> ProfileResult:
    """Reads a whole table and says what is in it, column by column.

    Args:
        data: A file, a glob or the address of a table.
        label: The column of clicks, if there is one.
        positive: What label 1 is written as, where that is not plain from the labels.
        columns: Names of a file without a header; ranges such as I1..I13 are fine.
        settings: How the file is read, as KEY=VALUE each.
        output: The page to write.
        overwrite: Replace a file that stands there.

    Raises:
        DataError: The data cannot be read, the label is not 0 or 1, or there is no column.
        ConfigError: The columns are no names.
        RunFolderError: `output` cannot be written.
    """
    started = time.perf_counter()
    if output is not None:
        require_output(output, overwrite=overwrite, reads=[data])
    with named_by_options():
        config = table_config(data, label, columns, settings)
        source, config = inspect_table(config, data, "DATA")
        if label is not None:
            source.require([label], "--label")
            config = with_label_values(config, choose_label_values(source, label, positive))
            label_rate_of(source, config)
    if label is None:
        config = config.model_copy(update={"label": _free_name(source.column_names)})
    # What is a number stays one here, also where it is a point in time.
    texts = dict.fromkeys((*source.times, *source.lists), ColumnType.TEXT)
    types = {
        name: kind
        for name, kind in {**texts, **source.inferred_types}.items()
        if name != config.label
    }
    types = {name: types[name] for name in source.column_names if name in types}
    judge = WholeNumberJudge(source, config)
    whole_numbers = {
        name: judged
        for name, kind in types.items()
        if kind is ColumnType.NUMBER and (judged := judge(name)) is not None
    }
    for name, judged in whole_numbers.items():
        if judged.are_ids:
            types[name] = ColumnType.TEXT
    if not types:
        raise DataError(
            "has no column that could be a feature",
            place=str(next(iter(source.opened))),
            remedy="Give a file with columns of numbers or texts",
        )
    with tempfile.TemporaryDirectory(prefix="ctrpipe-profile-") as name:
        folder = Path(name)
        table = write_table(
            config,
            source,
            types,
            folder / "rows",
            labelled=label is not None,
            threads=num_threads(RuntimeConfig()),
            progress=progress,
            lists=source.lists,
        )
        statistics = _collect(config, types, table.files, folder, progress)
    features, decisions = decide_features(
        types,
        statistics,
        label=config.label,
        lists=source.lists,
        times=source.times,
        whole_numbers=whole_numbers,
    )
    chosen = {feature.column: feature for feature in features}
    reasons = {decision.column: decision.reason for decision in decisions}
    unfit = [name for name in source.column_names if name not in types and name != label]
    shown = page.ProfileData(
        name=Path(data).name,
        source=data,
        format=source.format_name,
        created=datetime.now(UTC),
        label=label,
        statistics=statistics,
        plan=tuple(
            page.PlanRow(
                feature=name,
                column_type=kind,
                number=_chain(chosen[name].number) if name in chosen else None,
                id=_chain(chosen[name].id) if name in chosen else None,
                statistics=tuple(statistics_used(chosen[name])) if name in chosen else (),
                reason=reasons[name],
            )
            for name, kind in types.items()
        ),
        left_out={
            **{one.column: one.reason for one in decisions if not one.used},
            **dict.fromkeys(unfit, UNFIT),
        },
        bad_rows=table.bad_rows,
        seconds=time.perf_counter() - started,
    )
    if output is not None:
        durable.write_text(output, render_profile(shown))
    return ProfileResult(shown, output)


def measure_drift(
    old: str,
    new: str,
    *,
    columns: Sequence[str] | None = None,
    settings: Sequence[str] = (),
    output: Path | None = None,
    overwrite: bool = False,
    progress: Progress,
) -> DriftResult:
    """Says how far the rows of `new` are from those of `old`, column by column.

    Args:
        old: A file, a glob or the address of a table; or a run folder, or its config: its training
            rows and features.
        new: A file, a glob or the address of a table.
        columns: Names of files without a header; ranges such as I1..I13 are fine. Of a run, only
            the new rows are meant, and so they are by `settings`.
        settings: How the files are read, as KEY=VALUE each.
        output: The page to write.
        overwrite: Replace a file that stands there.

    Raises:
        DataError: The data cannot be read, or the two have no column in common.
        ConfigError: The columns are no names.
        RunFolderError: The run folder has no training rows, or `output` cannot be written.
    """
    if output is not None:
        require_output(output, overwrite=overwrite, reads=[old, new])
    run = _run_folder_of(old)
    with named_by_options(), tempfile.TemporaryDirectory(prefix="ctrpipe-drift-") as name:
        folder = Path(name)
        config = table_config(new, None, columns, settings)
        if run is None:
            before = _read_old_file(old, config, folder, progress)
            config = before.config
        else:
            before = _open_run(run)
            said = said_keys(columns, settings)
            config = before.config.model_copy(update={key: getattr(config, key) for key in said})
        source = inspect_paths(config, {"new": new}, {"new": "NEW"}, are_new=run is not None)
        types = {name: kind for name, kind in before.types.items() if name in source.column_names}
        notes = _notes_on_columns(before, source, in_run=run is not None)
        if not types:
            raise DataError(
                f"has none of the columns of '{old}'",
                place=str(next(iter(source.opened))),
                remedy="Give files of the same table; --columns names the columns of files "
                "without a header",
            )
        table = write_table(
            config,
            source,
            types,
            folder / "new",
            labelled=False,
            threads=num_threads(RuntimeConfig()),
            progress=progress,
            sensitive=before.sensitive,
        )
        statistics = _collect(before.config, types, before.files, folder, progress, new=table.files)
        times = {
            **{
                name: TimeRead(format, _PARTS_OF_TIME)
                for name, format in source.times.items()
                if types.get(name) is ColumnType.TEXT
            },
            **before.times,
        }
        statistics = with_time_drift(
            statistics,
            times,
            lambda column, split: counts_in_parts(
                table.files if split == "new" else before.files, column
            ),
        )
    drift = statistics.drift["new"]
    for where, bad in ((old, before.bad_rows), (new, table.bad_rows)):
        notes += [
            f"{count:,} rows of {where} are left out: {reason.value}."
            for reason, count in bad.by_reason.items()
        ]
    shown = page.DriftData(
        old=old,
        new=new,
        created=datetime.now(UTC),
        num_old_rows=statistics.num_rows,
        drift=drift,
        sensitive=before.sensitive,
        notes=tuple(notes),
    )
    if output is not None:
        durable.write_text(output, render_drift(shown))
    return DriftResult(shown, before.bad_rows.total + table.bad_rows.total, output)


@dataclass(frozen=True)
class _OldRows:
    """The rows to compare with.

    Attributes:
        config: How they were read.
        types: Columns to compare.
        files: Parts.
        bad_rows: What was left out when they were read for this comparison.
        sensitive: Columns whose values are not shown.
        names: All columns of the data, if they are known.
        times: Columns of points in time that texts do not tell, and how they are read.
    """

    config: DataConfig
    types: dict[str, ColumnType]
    files: tuple[Path, ...]
    bad_rows: BadRows = field(default_factory=BadRows)
    sensitive: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    times: Mapping[str, TimeRead] = field(default_factory=dict)


def _run_folder_of(old: str) -> RunFolder | None:
    """The run folder that is meant, if one is: by its own path or that of its config."""
    path = Path(old).expanduser()
    if path.is_dir() and RunFolder(path).config.exists():
        return RunFolder(path)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        return RunFolder(load_config(path).config.run_folder)
    return None


def _open_run(run: RunFolder) -> _OldRows:
    ingested = load_ingested(run.ingested)
    if ingested is None or not run.config.exists() or not run.features.exists():
        raise RunFolderError(
            "holds no training rows to compare with",
            place=str(run.path),
            remedy="Run 'ctrpipe analyze' with its config, or name the file of the training rows",
        )
    config = load_config(run.config).config
    conceal_values(config.has_sensitive_columns)
    features = load_features(run.features)
    parts = [part for feature in features for part in feature.parts]
    return _OldRows(
        config=_lenient(config.data),
        types={part.column: part.column_type for part in parts},
        files=ingested.splits["train"].files,
        sensitive=frozenset(part.column for part in parts if part.sensitive),
        times=times_read(features),
    )


def _read_old_file(old: str, config: DataConfig, folder: Path, progress: Progress) -> _OldRows:
    source, config = inspect_table(config, old, "OLD")
    config = config.model_copy(update={"label": _free_name(source.column_names)})
    types = {**source.inferred_types, **dict.fromkeys(source.times, ColumnType.TEXT)}
    table = write_table(
        config,
        source,
        types,
        folder / "old",
        labelled=False,
        threads=num_threads(RuntimeConfig()),
        progress=progress,
    )
    return _OldRows(
        config,
        types,
        table.files,
        table.bad_rows,
        names=tuple(source.column_names),
        times={name: TimeRead(format, _PARTS_OF_TIME) for name, format in source.times.items()},
    )


def _notes_on_columns(before: _OldRows, new: Source, *, in_run: bool) -> list[str]:
    """What cannot be compared, a sentence each."""
    notes = []
    gone = [name for name in before.types if name not in new.column_names]
    if gone:
        notes.append(f"Only the old rows have {_listed(gone)}.")
    came = [name for name in new.column_names if name not in before.names]
    if came and not in_run:
        notes.append(f"Only the new rows have {_listed(came)}.")
    unfit = [name for name in before.names if name not in before.types]
    if unfit:
        notes.append(f"Neither numbers nor texts, so not compared: {_listed(unfit)}.")
    return notes


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name[:40]}'" for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more columns"


@contextmanager
def named_by_options() -> Iterator[None]:
    """Errors about keys of a config name the options that a command without one has for them."""
    try:
        yield
    except DataError as error:
        parts = [error.message, error.place or "", error.remedy or ""]
        for key, option in _OPTIONS:
            parts = [part.replace(key, option) for part in parts]
        message, place, remedy = parts
        raise DataError(message, place=place or None, remedy=remedy or None) from error


def with_label_values(data: DataConfig, values: LabelValues | None) -> DataConfig:
    """The section with what labels are written as."""
    if values is None:
        return data
    return data.model_copy(update={"positive": values.positive, "negative": values.negative})


def table_config(
    data: str,
    label: str | None,
    columns: Sequence[str] | None,
    settings: Sequence[str],
    *,
    whole: bool = False,
) -> DataConfig:
    """How a table without a config is read.

    Args:
        data: A file, a glob or the address of a table.
        label: The column to predict, if one is.
        columns: Names of files without a header.
        settings: More of how it is read, as KEY=VALUE each.
        whole: No row may be left out, and no text means missing.

    Raises:
        DataError: `columns` has a range that is none, or `settings` another key.
        ConfigError: A value is none for its key.
    """
    section: dict[str, Any] = {"train": data}
    if not whole:
        section |= _LENIENT
    if label is not None:
        section["label"] = label
    if columns is not None:
        try:
            names = [name for item in columns for name in expand_range(item)]
        except RangeError as error:
            raise DataError(str(error), place="--columns") from error
        if len(names) < 2:
            raise DataError(
                "names fewer than two columns", place="--columns", remedy="Name all columns"
            )
        section["columns"] = names
        # A config wants the label among the columns, and a table need not have one.
        section.setdefault("label", names[0])
    _check_keys(settings, _DIALECT if whole else _SETTABLE)
    mapping = {"name": "table", "data": section, "output": "runs/table"}
    return config_from_mapping(mapping, settings).config.data


def said_keys(columns: Sequence[str] | None, settings: Sequence[str]) -> list[str]:
    """The keys of the section data that these options of a command set."""
    keys = [_key_of(setting).removeprefix("data.") for setting in settings]
    return keys if columns is None else ["columns", *keys]


def _check_keys(settings: Sequence[str], known: Sequence[str]) -> None:
    allowed = [f"data.{name}" for name in known]
    for key in map(_key_of, settings):
        if key not in allowed:
            raise DataError(
                f"'{key}' is no key that this command takes",
                place="--set",
                remedy=f"Leave it out, or set one of {', '.join(allowed)}",
            )


def _key_of(setting: str) -> str:
    return setting.partition("=")[0].strip()


def inspect_table(config: DataConfig, data: str, named: str) -> tuple[Source, DataConfig]:
    """What files without a config hold, and how they are read, as far as they tell it themselves.

    Args:
        config: As of `table_config`.
        data: The files.
        named: The argument that names them.

    Raises:
        DataError: They cannot be read.
    """
    while True:
        try:
            return inspect_paths(config, {"train": data}, {"train": named}), config
        except ReadingKeyError as error:
            if getattr(config, error.key) == error.value:
                raise
            config = config.model_copy(update={error.key: error.value})


def _lenient(data: DataConfig) -> DataConfig:
    return data.model_copy(update=_LENIENT)


def _free_name(names: Sequence[str]) -> str:
    """A name for the column that stands in for a label, which no column has."""
    name = "label"
    while name in names:
        name += "_"
    return name


def _collect(
    config: DataConfig,
    types: Mapping[str, ColumnType],
    files: Sequence[Path],
    folder: Path,
    progress: Progress,
    **others: Sequence[Path],
) -> Statistics:
    specs = [FeatureSpec(column=name, column_type=kind) for name, kind in types.items()]
    runtime = RuntimeConfig()
    return collect_statistics(
        plan_statistics(specs, config.label),
        files,
        folder,
        data_fingerprint="table",
        threads=num_threads(runtime),
        memory_limit_gb=runtime.memory_limit_gb,
        progress=progress,
        others=others,
    )


def _chain(chain: Any) -> str | None:
    return None if chain is None else chain_text(chain)
