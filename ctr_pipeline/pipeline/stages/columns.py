"""From the config and the head of the data to the columns that are read, and as what."""

import difflib
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
from ctr_pipeline.dataset.inference import counts_rows, infer_sequence
from ctr_pipeline.dataset.near_numbers import NearNumber
from ctr_pipeline.errors import ConfigError, ConfigProblem
from ctr_pipeline.features import FeatureSpec, ListSpec, SequenceSpec, features_by_table
from ctr_pipeline.pipeline.model.embedding_overrides import override_values
from ctr_pipeline.preprocessing.chains import check_chain
from ctr_pipeline.preprocessing.sharing import share_problems
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.specs.model_kinds import MODELS
from ctr_pipeline.statistics import Statistics
from ctr_pipeline.transforms.vocabulary import Vocabulary

TAKEN_OUT = "the config gives it neither number nor id"
UNFIT = "its type fits no feature (a list of lists, …): convert it to a number or a text"
NO_FEATURE = "no column can serve as a feature: there is none, or no type fits"
PASSING = "rows are divided by it, so no later value occurs in training"

GROUP_BY = "evaluation.group_by"

_ROWS_OF_SEQUENCES = 2000
_MOST_LEFT_OUT = 5
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class FeatureColumns:
    """Which columns are read, and what is already decided about them.

    Attributes:
        names: The features, in their order.
        types: How each column that a feature reads is read.
        entries: What the config says about each feature.
        explicit: Features whose chains the config gives; of those that are automatic as well, one.
        automatic: Columns whose transforms the statistics decide, as far as `explicit` has none.
        sensitive: Columns whose values are never shown.
        unfit: Columns that would be automatic, but whose type fits no feature, whose numbers are
            the time that rows are divided by, or that the config takes out.
        times: Automatic columns of points in time that are no texts, and their format.
        found_lists: Automatic columns of lists, and how they are cut.
        near_numbers: Automatic columns of texts that would be numbers but for a few of these.
        whole_numbers: Automatic columns of whole numbers, and what these say about the click.
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
        """What a person may want to know about columns, a sentence each."""
        return tuple(
            near.tell(name, is_sensitive=name in self.sensitive)
            for name, near in self.near_numbers.items()
        )

    @property
    def lists(self) -> dict[str, ListSpec]:
        """Columns whose texts are lists, and how they are cut."""
        cuts = {name: spec.sequence or spec.vector for name, spec in self.explicit.items()}
        return {**self.found_lists, **{name: cut for name, cut in cuts.items() if cut is not None}}


def sequences_in(
    loaded: LoadedConfig, head: pa.Table, names: Collection[str]
) -> dict[str, SequenceSpec]:
    """Columns, of those that are decided automatically, whose texts are lists by the data's head.

    A column that the config calls categorical is none.
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
    """Decides what is read.

    Args:
        loaded: The config.
        names: Columns of the data, in order.
        inferred: What the head of the data says about each.
        times: Columns of points in time that are no texts there, and their `datetime` format.
        lists: Columns of lists there, and how they are cut.
        near_numbers: Columns of texts there that would be numbers but for a few.
        judge: Says of a column of numbers there what its whole numbers say about the click; None
            if they are not whole.

    Raises:
        ConfigError: With every column that does not exist or whose chains do not fit.
    """
    config, problems = loaded.config, list[ConfigProblem]()
    _require_named(loaded, names, problems)
    types: dict[str, ColumnType] = {}
    explicit: dict[str, FeatureSpec] = {}
    automatic: list[str] = []
    unfit: dict[str, str] = {}
    sensitive: set[str] = set()
    kept_out = {config.data.label, config.data.weight, *config.data.key_columns}
    entries = merge_entries(config.features, [name for name in names if name not in kept_out])
    for column, merged in entries.items():
        entry = merged.entry
        if entry.cross is not None:
            continue
        _require(loaded, names, f"{merged.key}.columns", [column], problems)
        if entry.sensitive:
            sensitive.add(column)
        chains = {key for key in ("number", "id") if key in merged.given}
        has_chain = entry.number is not None or entry.id is not None
        is_list = entry.vector is not None or entry.sequence is not None
        if not has_chain and not is_list:
            if merged.decided and chains == {"number", "id"}:
                unfit[column] = TAKEN_OUT
            elif entry.type == "auto" and (column in times or column in lists):
                automatic.append(column)
                types[column] = ColumnType.TEXT
            elif reason := _unfit_reason(config, column, merged, inferred):
                unfit[column] = reason
            else:
                automatic.append(column)
                types[column] = _type_of_entry(entry, inferred.get(column, ColumnType.TEXT))
            continue
        spec = spec_of(column, entry)
        types[column] = spec.column_type
        explicit[column] = spec
        if merged.decided and not is_list and chains != {"number", "id"}:
            automatic.append(column)
        problems += [loaded.problem_at(merged.key, message) for message in check_chain(spec)]
    whole_numbers = _read_ids_as_texts(judge, automatic, entries, types)
    specs, crossed_sensitive = _crosses(loaded, names, entries, types, problems)
    explicit |= specs
    sensitive |= crossed_sensitive
    for part in (part for spec in specs.values() for part in spec.parts):
        types.setdefault(part.column, part.column_type)
    problems += [
        *group_problems(loaded),
        *_shares(loaded, entries, explicit, automatic),
        *_override_problems(loaded, entries, explicit, automatic),
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
    """All features, and the columns without one.

    Args:
        loaded: The config.
        columns: What it says.
        profile: Profile of the automatic columns; None if there are none.
        growth: As `decide_features` takes it.
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
    """A feature of what was decided and what the config says, which wins key by key."""
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


def group_problems(loaded: LoadedConfig) -> list[ConfigProblem]:
    """What is wrong with the columns that metrics are measured by, whatever the data has."""
    config, problems = loaded.config, list[ConfigProblem]()
    entries = merge_entries(config.features, config.evaluation.group_by)
    sensitive = {
        column
        for name, merged in entries.items()
        if merged.entry.sensitive
        for column in merged.entry.cross or (name,)
    }
    for name in config.evaluation.group_by:
        if name == config.data.label:
            message = f"'{name}' is the label, and rows of one label have no AUC"
        elif name in sensitive:
            message = f"'{name}' is sensitive, and groups would show its values"
        else:
            continue
        problems.append(loaded.problem_at(GROUP_BY, message))
    return problems


def _require_named(
    loaded: LoadedConfig, names: Sequence[str], problems: list[ConfigProblem]
) -> None:
    """Adds a problem for each column that a key other than `features` names and the data lacks."""
    config = loaded.config
    _require(loaded, names, "data.key_columns", config.data.key_columns, problems)
    _require(loaded, names, GROUP_BY, config.evaluation.group_by, problems)
    for key, column in (
        ("data.weight", config.data.weight),
        ("evaluation.gauc_column", config.evaluation.gauc_column),
        ("data.split.column", config.data.split.column),
    ):
        _require(loaded, names, key, [column] if column is not None else [], problems)


def _unfit_reason(
    config: Config, column: str, merged: MergedEntry, inferred: Mapping[str, ColumnType]
) -> str | None:
    """Why a column that no entry names is no automatic feature."""
    if merged.is_named:
        return None
    if column not in inferred:
        return UNFIT
    split = config.data.split
    is_time = split.by == "time" and split.column == column
    return PASSING if is_time and inferred[column] is ColumnType.NUMBER else None


def spec_of(column: str, entry: FeatureEntry) -> FeatureSpec:
    """The feature that an entry with chains describes."""
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
    """The table that an entry says it shares."""
    return None if entry.embedding is None else entry.embedding.share


def _wrong_dimension(config: Config, dimension: int | str | None) -> str | None:
    """Why vectors cannot have this length."""
    most = config.model.embedding_dim
    names = {config.model.name, *(config.train.ensemble_models or ())}
    comparing = [name for name in names if name in MODELS and MODELS[name].looks_into_sequences]
    if dimension is not None and comparing:
        return (
            f"the model {min(comparing)} compares elements with a target, so that all vectors have "
            "model.embedding_dim numbers; leave this out"
        )
    if isinstance(dimension, int) and dimension > most:
        return (
            f"{dimension} is more than model.embedding_dim, {most}, to which vectors are "
            "projected; raise that, or lower this"
        )
    return None


def _shares(
    loaded: LoadedConfig,
    entries: Mapping[str, MergedEntry],
    explicit: Mapping[str, FeatureSpec],
    automatic: Collection[str],
) -> list[ConfigProblem]:
    """What is wrong with tables that features share."""

    def problem_of(feature: str, message: str, near: Sequence[str] = ()) -> ConfigProblem:
        key = f"{entries[feature].key_of('embedding')}.share"
        return loaded.problem_at(key, message, near[0] if near else None)

    specs = {name: spec for name, spec in explicit.items() if spec.id is not None}
    problems = [
        problem_of(name, "a table is shared by ids that the config decides; give an `id`")
        for name, merged in entries.items()
        if name not in specs and _table_of(merged.entry) is not None
    ]
    undecided = [name for name in automatic if name not in specs]
    for found in share_problems(tuple(explicit.values()), undecided):
        near: list[str] = []
        if found.is_unknown:
            table = explicit[found.feature].table or ""
            known = {*features_by_table(tuple(specs.values()))} - {table, found.feature}
            near = difflib.get_close_matches(table, sorted(known), n=1)
        problems.append(problem_of(found.feature, found.message, near))
    return problems


def _override_problems(
    loaded: LoadedConfig,
    entries: Mapping[str, MergedEntry],
    explicit: Mapping[str, FeatureSpec],
    automatic: Collection[str],
) -> list[ConfigProblem]:
    """Problems of the entries' `embedding` keys: no ids, a bad dimension, two values of a table."""
    if loaded.config.features == "auto":
        return []
    problems = []
    said: dict[tuple[str, str], tuple[str, object]] = {}
    for name, merged in entries.items():
        values = override_values(merged.entry.embedding)
        if not values:
            continue
        key = merged.key_of("embedding")
        spec = explicit.get(name)
        has_ids = name in automatic or (spec is not None and spec.id is not None)
        # What is said of all columns is for those that have ids.
        is_of_all = loaded.config.features[merged.given["embedding"]].names_all
        if not has_ids and not is_of_all:
            message = f"'{name}' has no `id`, and so no embedding"
            problems.append(loaded.problem_at(key, message))
        wrong = _wrong_dimension(loaded.config, values.get("dimension"))
        if wrong is not None:
            problems.append(loaded.problem_at(f"{key}.dimension", wrong))
        table = spec.table if spec is not None and spec.table is not None else name
        for option, value in values.items():
            first, other = said.setdefault((table, option), (name, value))
            if other != value:
                message = (
                    f"is not what '{first}' says, and both are of the table '{table}'; say it once"
                )
                problems.append(loaded.problem_at(f"{key}.{option}", message))
    return problems


def _crosses(
    loaded: LoadedConfig,
    names: Sequence[str],
    entries: Mapping[str, MergedEntry],
    types: Mapping[str, ColumnType],
    problems: list[ConfigProblem],
) -> tuple[dict[str, FeatureSpec], set[str]]:
    """Crosses by name, and the columns of those whose values are never shown."""
    specs: dict[str, FeatureSpec] = {}
    sensitive: set[str] = set()
    for name, merged in entries.items():
        entry, key = merged.entry, merged.key
        if entry.cross is None:
            continue
        _require(loaded, names, f"{key}.cross", entry.cross, problems)
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
    """The feature that a cross describes, and what is wrong with its columns.

    A column that is a number elsewhere is crossed by its own id, any other as text.
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
    """Finds ids among the columns of numbers of which the config says nothing.

    What a cross reads is an id as well.

    Args:
        judge: As `choose_columns` has it.
        automatic: Columns.
        entries: What the config says about each.
        types: How each is read; ids become texts.

    Returns:
        What was found about columns of whole numbers.
    """
    found = {
        column: judge(column)
        for column in automatic
        if types[column] is ColumnType.NUMBER and _is_open(entries[column].entry)
    }
    whole_numbers = {column: judged for column, judged in found.items() if judged is not None}
    crossed = {part for merged in entries.values() for part in merged.entry.cross or ()}
    for column, judged in whole_numbers.items():
        if judged.are_texts or (judged.have_texts and column in crossed):
            types[column] = ColumnType.TEXT
    return whole_numbers


def _is_open(entry: FeatureEntry) -> bool:
    """Whether an entry leaves it to the data whether its columns are numbers or texts."""
    return entry.type == "auto" and entry.number is None and entry.id is None


def _type_of_entry(entry: FeatureEntry, inferred: ColumnType) -> ColumnType:
    if entry.type == "auto":
        return inferred
    return ColumnType.NUMBER if entry.type == "numeric" else ColumnType.TEXT


def _require(
    loaded: LoadedConfig,
    names: Sequence[str],
    key: str,
    columns: Sequence[str],
    problems: list[ConfigProblem],
) -> None:
    for column in columns:
        if column not in names:
            near = difflib.get_close_matches(column, names, n=1)
            problems.append(
                loaded.problem_at(
                    key, f"the data has no column '{column}'", near[0] if near else None
                )
            )


def no_feature(left_out: Sequence[ColumnDecision]) -> str:
    """What is said where no column is a feature, with the reasons of the first ones."""
    reasons = "; ".join(f"{decision.column}: {decision.reason}" for decision in left_out[:3])
    return f"no column can serve as a feature ({reasons})"


def describe_left_out(left_out: Sequence[ColumnDecision]) -> list[str]:
    """A sentence for each of the first columns that became no features, and one about the rest."""
    told = [f"Left out: {one.column} ({one.reason})" for one in left_out[:_MOST_LEFT_OUT]]
    if (rest := len(left_out) - _MOST_LEFT_OUT) > 0:
        told.append(f"Left out: {rest:,} more columns; the report has the reasons")
    return told
