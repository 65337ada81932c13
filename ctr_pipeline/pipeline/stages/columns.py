"""Decides which columns are read and how, from the config and the head of the data."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from ctr_pipeline.analysis import ColumnDecision, decide_features
from ctr_pipeline.analysis.decide import MIN_COUNT
from ctr_pipeline.analysis.whole_numbers import WholeNumbers
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.merging import MergedEntry, merge_entries
from ctr_pipeline.config.models import Config, FeatureEntry
from ctr_pipeline.config.ranges import names_itself
from ctr_pipeline.dataset.inference import counts_rows, infer_sequence
from ctr_pipeline.dataset.near_numbers import NearNumber
from ctr_pipeline.errors import ConfigError, ConfigProblem
from ctr_pipeline.features import FeatureSpec, ListSpec, SequenceSpec
from ctr_pipeline.pipeline.stages.column_problems import (
    group_problems,
    override_problems,
    require_columns,
    require_named,
    sharing_problems,
)
from ctr_pipeline.preprocessing.chains import check_chain
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import Statistics
from ctr_pipeline.transforms.vocabulary import Vocabulary

TAKEN_OUT = "the config gives it neither number nor id"
UNFIT = "its type fits no feature (a list of lists, bytes, …): convert it to a number or a text"
NO_FEATURE = "no column can serve as a feature: there is none, or no type fits"
PASSING = "rows are divided by it, so no later value occurs in training"

_ROWS_OF_SEQUENCES = 2000
_MOST_LEFT_OUT = 5
_INDEX_OF_PANDAS = re.compile(r"__index_level_\d+__|Unnamed: \d+")
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class FeatureColumns:
    """Which columns are read, how, and what is decided before the statistics.

    Attributes:
        names: Features, in their order.
        types: Type of each column that a feature reads.
        entries: The merged entries of the config, by feature.
        explicit: Features whose chains the config gives, both or one.
        automatic: Columns whose chains the statistics decide, unless `explicit` has them.
        sensitive: Columns whose values are never shown.
        unfit: Columns without a feature: no type fits, rows are divided by their time, or the
            config takes them out.
        times: Formats of automatic columns of points in time that are not stored as text.
        found_lists: How automatic columns of lists are split.
        near_numbers: Automatic columns of texts that would be numbers but for a few values.
        whole_numbers: Automatic columns of whole numbers, and how these relate to the click.
    """

    names: tuple[str, ...]
    types: dict[str, ColumnType]
    entries: dict[str, MergedEntry]
    explicit: dict[str, FeatureSpec]
    automatic: tuple[str, ...]
    sensitive: frozenset[str]
    unfit: tuple[ColumnDecision, ...] = ()
    times: Mapping[str, str] = field(default_factory=dict)
    found_lists: Mapping[str, ListSpec] = field(default_factory=dict)
    near_numbers: Mapping[str, NearNumber] = field(default_factory=dict)
    whole_numbers: Mapping[str, WholeNumbers] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about columns, a sentence each."""
        return tuple(
            near.describe(name, is_sensitive=name in self.sensitive)
            for name, near in self.near_numbers.items()
        )

    @property
    def lists(self) -> dict[str, ListSpec]:
        """How the texts of list columns are split."""
        cuts = {name: spec.sequence or spec.vector for name, spec in self.explicit.items()}
        return {**self.found_lists, **{name: cut for name, cut in cuts.items() if cut is not None}}


def sequences_in(
    loaded: LoadedConfig, head: pa.Table, names: Collection[str]
) -> dict[str, SequenceSpec]:
    """Finds lists among automatic columns by the head of the data.

    A column that the config calls categorical is no list.
    """
    entries = merge_entries(loaded.config.features, list(names))
    found = {}
    for name in names:
        values = head.column(name)
        is_asked = name in entries and entries[name].entry.type != "auto"
        if pa.types.is_string(values.type) and not is_asked:
            sequence = infer_sequence(values.slice(0, _ROWS_OF_SEQUENCES))
            if sequence is not None:
                found[name] = sequence
    return found


@dataclass(frozen=True)
class _ColumnChoice:
    """What the config and the head of the data make of one column.

    Attributes:
        column_type: How it is read.
        explicit: The feature whose chains the config gives; None if it gives none.
        is_automatic: Whether the statistics decide its chains, or those that the config leaves.
        unfit_reason: Why it is no feature; empty if it is one.
    """

    column_type: ColumnType = ColumnType.TEXT
    explicit: FeatureSpec | None = None
    is_automatic: bool = False
    unfit_reason: str = ""


def _choose_column(
    config: Config,
    column: str,
    merged: MergedEntry,
    inferred: Mapping[str, ColumnType],
    *,
    is_read_as_text: bool,
) -> _ColumnChoice:
    """Chooses for a column that is no cross.

    Args:
        config: The config.
        column: Its name.
        merged: What the config says about it.
        inferred: The type of each column by the head of the data.
        is_read_as_text: Whether it is a time or a list there, which are read as text.
    """
    if not merged.is_named and (reason := _reason_of_name(column)):
        return _ColumnChoice(unfit_reason=reason)
    entry = merged.entry
    has_both_chains = {"number", "id"} <= merged.given.keys()
    is_list = entry.vector is not None or entry.sequence is not None
    if entry.number is not None or entry.id is not None or is_list:
        spec = spec_of(column, entry)
        is_automatic = merged.decided and not is_list and not has_both_chains
        return _ColumnChoice(spec.column_type, spec, is_automatic)
    if merged.decided and has_both_chains:
        return _ColumnChoice(unfit_reason=TAKEN_OUT)
    if entry.type == "auto" and is_read_as_text:
        return _ColumnChoice(is_automatic=True)
    if reason := _unfit_reason(config, column, merged, inferred):
        return _ColumnChoice(unfit_reason=reason)
    column_type = _type_of_entry(entry, inferred.get(column, ColumnType.TEXT))
    return _ColumnChoice(column_type, is_automatic=True)


def choose_columns(
    loaded: LoadedConfig,
    names: Sequence[str],
    inferred: Mapping[str, ColumnType],
    *,
    times: Mapping[str, str] = _NONE,
    lists: Mapping[str, ListSpec] = _NONE,
    near_numbers: Mapping[str, NearNumber] = _NONE,
    judge: Callable[[str], WholeNumbers | None] = lambda _column: None,
) -> FeatureColumns:
    """Decides which columns are read and how.

    Args:
        loaded: The config.
        names: Columns of the data, in order.
        inferred: Type of each column by the head of the data; absent where none fits.
        times: Formats of columns of points in time that are not stored as text.
        lists: How columns of lists are split.
        near_numbers: Columns of texts that would be numbers but for a few values.
        judge: Returns how the whole numbers of a column relate to the click; None if they are not
            whole.

    Raises:
        ConfigError: With every column that does not exist or whose chains do not fit.
    """
    config, problems = loaded.config, list[ConfigProblem]()
    require_named(loaded, names, problems)
    types: dict[str, ColumnType] = {}
    explicit: dict[str, FeatureSpec] = {}
    automatic: list[str] = []
    unfit: dict[str, str] = {}
    sensitive: set[str] = set()
    kept_out = {config.data.label, config.data.weight, *config.data.key_columns}
    entries = merge_entries(config.features, [name for name in names if name not in kept_out])
    for column, merged in entries.items():
        if merged.entry.cross is not None:
            continue
        require_columns(loaded, names, f"{merged.key}.columns", [column], problems)
        if merged.entry.sensitive:
            sensitive.add(column)
        choice = _choose_column(
            config, column, merged, inferred, is_read_as_text=column in times or column in lists
        )
        if choice.unfit_reason:
            unfit[column] = choice.unfit_reason
            continue
        types[column] = choice.column_type
        if choice.is_automatic:
            automatic.append(column)
        if choice.explicit is not None:
            explicit[column] = choice.explicit
            messages = check_chain(choice.explicit)
            problems += [loaded.problem_at(merged.key, message) for message in messages]
    whole_numbers = _read_ids_as_texts(judge, automatic, entries, types)
    specs, crossed_sensitive = _crosses(loaded, names, entries, types, problems)
    explicit |= specs
    sensitive |= crossed_sensitive
    for part in (part for spec in specs.values() for part in spec.parts):
        types.setdefault(part.column, part.column_type)
    problems += [
        *group_problems(loaded),
        *sharing_problems(loaded, entries, explicit, automatic),
        *override_problems(loaded, entries, explicit, automatic),
    ]
    if not explicit and not automatic and not problems:
        problems.append(loaded.problem_at("features", NO_FEATURE))
    if problems:
        raise ConfigError(problems)
    found = {
        name for name in automatic if name not in explicit and entries[name].entry.type == "auto"
    }
    return FeatureColumns(
        tuple(name for name in entries if name not in unfit),
        types,
        entries,
        explicit,
        tuple(automatic),
        frozenset(sensitive),
        tuple(ColumnDecision(name, used=False, reason=reason) for name, reason in unfit.items()),
        {name: format for name, format in times.items() if name in found},
        {name: cut for name, cut in lists.items() if name in found},
        {name: near for name, near in near_numbers.items() if name in found},
        whole_numbers,
    )


def complete_features(
    loaded: LoadedConfig,
    columns: FeatureColumns,
    head: pa.Table,
    profile: Statistics | None,
    growth: float = 1.0,
) -> tuple[tuple[FeatureSpec, ...], tuple[ColumnDecision, ...]]:
    """Decides the automatic features; returns all features, and the columns without one.

    Args:
        loaded: The config.
        columns: Columns, as `choose_columns` chose them.
        head: The first rows of the data.
        profile: Statistics of the automatic columns; None if there are none.
        growth: As for `decide_features`.
    """
    if profile is None:
        return tuple(columns.explicit[name] for name in columns.names), columns.unfit
    types = {name: columns.types[name] for name in columns.automatic}
    decided, decisions = decide_features(
        types,
        profile,
        label=loaded.config.data.label,
        lists={**sequences_in(loaded, head, types), **columns.found_lists},
        times=columns.times,
        whole_numbers=columns.whole_numbers,
        counters={name for name in types if counts_rows(head.column(name))},
        growth=growth,
    )
    chosen = dict(columns.explicit)
    unused = {
        one.column: replace(one, reason=_full_reason(one.reason, columns.near_numbers, one.column))
        for one in decisions
        if not one.used and one.column not in chosen
    }
    for found in decided:
        merged = columns.entries[found.column]
        near = columns.near_numbers if found.sequence is None else _NONE
        reason = _full_reason(found.reason, near, found.column)
        spec = found.model_copy(update={"reason": reason})
        combined = _combine(spec, merged, columns.explicit.get(spec.column))
        if combined is None:
            unused[spec.column] = ColumnDecision(
                spec.column, used=False, reason="the config takes away all that would be decided"
            )
            continue
        is_sensitive = spec.column in columns.sensitive
        chosen[spec.column] = combined.model_copy(update={"sensitive": is_sensitive})
    features = tuple(chosen[name] for name in columns.names if name in chosen)
    return features, (*unused.values(), *columns.unfit)


def _full_reason(reason: str, near_numbers: Mapping[str, NearNumber], column: str) -> str:
    near = near_numbers.get(column)
    return reason if near is None else f"{reason} ({near.reason})"


def _combine(
    decided: FeatureSpec, merged: MergedEntry, explicit: FeatureSpec | None
) -> FeatureSpec | None:
    """Merges a decided feature with the config, whose chains win; None if no chain is left."""
    kept = [key for key in ("number", "id") if key not in merged.given]
    if len(kept) == 2:
        return decided
    if decided.vector is not None:
        # A vector has a number chain alone.
        return decided if explicit is None and "number" in kept else explicit
    if decided.sequence is not None:
        # Its one chain reads elements, and one of the config would read whole texts.
        return decided if explicit is None and "id" in kept else explicit
    base = explicit or decided.model_copy(update={"number": None, "id": None})
    spec = base.model_copy(update={key: getattr(decided, key) for key in kept})
    if spec.number is None and spec.id is None:
        return None
    given = " and ".join(sorted(set(merged.given) & {"number", "id"}))
    return spec.model_copy(
        update={"reason": f"{given} as the config says; the rest decided: {decided.reason}"}
    )


def _reason_of_name(column: str) -> str | None:
    """Why a column of this name is no feature unless an entry names it; None if it may be one."""
    if not names_itself(column):
        return "a config that names it would mean other columns; give it another name"
    if _INDEX_OF_PANDAS.fullmatch(column):
        return "it has no name, or is the index of pandas: rows to score need not have it"
    return None


def _unfit_reason(
    config: Config, column: str, merged: MergedEntry, inferred: Mapping[str, ColumnType]
) -> str | None:
    """Why a column that no entry names is no feature; None if it may be one."""
    if merged.is_named:
        return None
    if column not in inferred:
        return UNFIT
    split = config.data.split
    is_time = split.by == "time" and split.column == column
    return PASSING if is_time and inferred[column] is ColumnType.NUMBER else None


def spec_of(column: str, entry: FeatureEntry) -> FeatureSpec:
    """Builds the feature that an entry with chains describes."""
    ids = entry.id
    if entry.sequence is not None and ids is None:
        ids = (Vocabulary(min_count=MIN_COUNT),)
    reads_text = entry.vector is not None or all(
        chain[0].kind.takes_text for chain in (entry.number, ids) if chain is not None
    )
    number = entry.number or () if entry.vector is not None else entry.number
    return FeatureSpec(
        column=column,
        column_type=ColumnType.TEXT if reads_text else ColumnType.NUMBER,
        number=number,
        id=ids,
        sensitive=entry.sensitive,
        reason="as the config says",
        sequence=entry.sequence,
        vector=entry.vector,
        table=_table_of(entry),
    )


def _table_of(entry: FeatureEntry) -> str | None:
    """The name of the table that an entry shares, or None."""
    return None if entry.embedding is None else entry.embedding.share


def _crosses(
    loaded: LoadedConfig,
    names: Sequence[str],
    entries: Mapping[str, MergedEntry],
    types: Mapping[str, ColumnType],
    problems: list[ConfigProblem],
) -> tuple[dict[str, FeatureSpec], set[str]]:
    """Builds the crosses by name; also returns the sensitive crosses with their columns."""
    specs: dict[str, FeatureSpec] = {}
    sensitive: set[str] = set()
    for name, merged in entries.items():
        entry, key = merged.entry, merged.key
        if entry.cross is None:
            continue
        require_columns(loaded, names, f"{key}.cross", entry.cross, problems)
        if name in names:
            message = f"'{name}' is a column of the data; give the cross another name"
            problems.append(loaded.problem_at(f"{key}.name" if entry.name else key, message))
        spec, messages = _cross_of(name, entry, entries, types)
        problems += [loaded.problem_at(f"{key}.cross", message) for message in messages]
        problems += [loaded.problem_at(key, message) for message in check_chain(spec)]
        specs[name] = spec
        if entry.sensitive:
            sensitive.update((name, *entry.cross))
    return specs, sensitive


def _cross_of(
    name: str,
    entry: FeatureEntry,
    entries: Mapping[str, MergedEntry],
    types: Mapping[str, ColumnType],
) -> tuple[FeatureSpec, list[str]]:
    """Builds the feature of a cross; also returns the problems of its columns.

    A column that another feature reads as a number is crossed by its `id` chain, others as text.
    """
    parts, problems = [], []
    for column in entry.cross or ():
        entry_of = entries[column].entry if column in entries else None
        if entry_of is not None and (entry_of.sequence is not None or entry_of.vector is not None):
            kind_of_list = "sequence" if entry_of.sequence is not None else "vector"
            problems.append(
                f"'{column}' is a {kind_of_list}, and a row of it has no one value to cross"
            )
        kind = types.get(column, ColumnType.TEXT)
        chain = entry_of.id if entry_of is not None and kind is ColumnType.NUMBER else None
        if kind is ColumnType.NUMBER and chain is None:
            problems.append(
                f"'{column}' is read as a number and has no id to be crossed by; give its own "
                f"entry an `id` chain such as {{bucketize: {{quantiles: 10}}}}"
            )
        parts.append(FeatureSpec(column=column, column_type=kind, id=chain))
    spec = FeatureSpec(
        column=name,
        column_type=ColumnType.TEXT,
        id=entry.id,
        sensitive=entry.sensitive,
        reason="as the config says",
        cross=tuple(parts),
        table=_table_of(entry),
    )
    return spec, problems


def _read_ids_as_texts(
    judge: Callable[[str], WholeNumbers | None],
    automatic: Sequence[str],
    entries: Mapping[str, MergedEntry],
    types: dict[str, ColumnType],
) -> dict[str, WholeNumbers]:
    """Reads those columns of whole numbers as text that are ids rather than amounts.

    Columns that the config gives a type or a chain stay as they are.

    Args:
        judge: As for `choose_columns`.
        automatic: Columns that may be ids.
        entries: The merged entries of the config, by column.
        types: Type of each column; changed.

    Returns:
        The judgement of each column of whole numbers.
    """
    found = {
        column: judge(column)
        for column in automatic
        if types[column] is ColumnType.NUMBER and _is_open(entries[column].entry)
    }
    whole_numbers = {column: judged for column, judged in found.items() if judged is not None}
    crossed = {part for merged in entries.values() for part in merged.entry.cross or ()}
    for column, judged in whole_numbers.items():
        if judged.are_ids or column in crossed:
            types[column] = ColumnType.TEXT
    return whole_numbers


def _is_open(entry: FeatureEntry) -> bool:
    """Whether the data decides if the entry's columns are numbers or texts."""
    return entry.type == "auto" and entry.number is None and entry.id is None


def _type_of_entry(entry: FeatureEntry, inferred: ColumnType) -> ColumnType:
    if entry.type == "auto":
        return inferred
    return ColumnType.NUMBER if entry.type == "numeric" else ColumnType.TEXT


def no_feature(left_out: Sequence[ColumnDecision]) -> str:
    """The error message for data without features, with the reasons for the first columns."""
    reasons = "; ".join(f"{decision.column}: {decision.reason}" for decision in left_out[:3])
    return f"no column can serve as a feature ({reasons})"


def describe_left_out(left_out: Sequence[ColumnDecision]) -> list[str]:
    """Log lines about the columns without a feature: the first ones, and how many more."""
    lines = [f"Left out: {one.column} ({one.reason})" for one in left_out[:_MOST_LEFT_OUT]]
    if (rest := len(left_out) - _MOST_LEFT_OUT) > 0:
        lines.append(f"Left out: {rest:,} more columns; the report has the reasons")
    return lines
