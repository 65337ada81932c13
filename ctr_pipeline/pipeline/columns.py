"""From the config and the head of the data to the columns that are read, and as what."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ctr_pipeline.analysis import ColumnDecision
from ctr_pipeline.config.loader import LoadedConfig, entries_by_feature
from ctr_pipeline.config.models import FeatureEntry
from ctr_pipeline.dataset.inference import infer_sequence
from ctr_pipeline.errors import ConfigError, ConfigProblem
from ctr_pipeline.features import ColumnType, FeatureSpec, ListSpec, SequenceSpec
from ctr_pipeline.preprocessing.chains import check_chain

UNFIT = "its type fits no feature (a date, a list, …): convert it to a number or a text"

_ROWS_OF_SEQUENCES = 2000


@dataclass(frozen=True)
class FeatureColumns:
    """Which columns are read, and what is already decided about them.

    Attributes:
        names: The features, in their order.
        types: How each column that a feature reads is read.
        explicit: Features whose chains the config gives.
        automatic: Columns whose transforms the statistics decide.
        sensitive: Columns whose values are never shown.
        carried: Key columns and the column of GAUC; read as text, not features.
        unfit: Columns that would be automatic, but whose type fits no feature.
    """

    names: tuple[str, ...]
    types: dict[str, ColumnType]
    explicit: dict[str, FeatureSpec]
    automatic: tuple[str, ...]
    sensitive: frozenset[str]
    carried: tuple[str, ...]
    unfit: tuple[ColumnDecision, ...] = ()

    @property
    def lists(self) -> dict[str, ListSpec]:
        """Columns whose texts are lists, and how they are cut."""
        cuts = {name: spec.sequence or spec.vector for name, spec in self.explicit.items()}
        return {name: cut for name, cut in cuts.items() if cut is not None}


def sequences_in(
    loaded: LoadedConfig, head: pa.Table, names: Collection[str]
) -> dict[str, SequenceSpec]:
    """Columns, of those that are decided automatically, whose texts are lists by the data's head.

    A column that the config calls categorical is none.
    """
    features = loaded.config.features
    entries = {} if features == "auto" else entries_by_feature(features)
    found = {}
    for name in names:
        values = head.column(name)
        is_asked = name in entries and entries[name].type != "auto"
        if pa.types.is_string(values.type) and not is_asked:
            sequence = infer_sequence(values.slice(0, _ROWS_OF_SEQUENCES))
            if sequence is not None:
                found[name] = sequence
    return found


def choose_columns(
    loaded: LoadedConfig, names: Sequence[str], inferred: Mapping[str, ColumnType]
) -> FeatureColumns:
    """Decides what is read.

    Args:
        loaded: The config.
        names: Columns of the data, in order.
        inferred: What the head of the data says about each.

    Raises:
        ConfigError: With every column that does not exist or whose chains do not fit.
    """
    config, problems = loaded.config, list[ConfigProblem]()
    carried = dict.fromkeys(config.data.key_columns)
    if config.evaluation.gauc_column is not None:
        carried[config.evaluation.gauc_column] = None
    _require(loaded, names, "data.key_columns", config.data.key_columns, problems)
    for key, column in (
        ("data.weight", config.data.weight),
        ("evaluation.gauc_column", config.evaluation.gauc_column),
        ("data.split.column", config.data.split.column),
    ):
        _require(loaded, names, key, [column] if column is not None else [], problems)

    order: list[str] = []
    types: dict[str, ColumnType] = {}
    explicit: dict[str, FeatureSpec] = {}
    automatic: list[str] = []
    unfit: list[str] = []
    sensitive: set[str] = set()
    if config.features == "auto":
        kept_out = {config.data.label, config.data.weight, *config.data.key_columns}
        wanted = [name for name in names if name not in kept_out]
        automatic = [name for name in wanted if name in inferred]
        unfit = [name for name in wanted if name not in inferred]
        types = {name: inferred[name] for name in automatic}
        order = automatic
        if not automatic:
            message = "no column can serve as a feature: there is none, or no type fits"
            problems.append(loaded.problem_at("features", message))
    else:
        entries = entries_by_feature(config.features)
        order = list(entries)
        for column, entry in entries.items():
            key = f"features[{config.features.index(entry)}]"
            if entry.cross is not None:
                continue
            _require(loaded, names, f"{key}.columns", [column], problems)
            if entry.sensitive:
                sensitive.add(column)
            if entry.number is None and entry.id is None and entry.vector is None:
                automatic.append(column)
                types[column] = _type_of_entry(entry, inferred.get(column, ColumnType.TEXT))
                continue
            spec = spec_of(column, entry)
            types[column] = spec.column_type
            explicit[column] = spec
            problems += [loaded.problem_at(key, message) for message in check_chain(spec)]
        specs, crossed_sensitive = _crosses(loaded, names, entries, types, problems)
        explicit |= specs
        sensitive |= crossed_sensitive
        for part in (part for spec in specs.values() for part in spec.parts):
            types.setdefault(part.column, part.column_type)
    if problems:
        raise ConfigError(problems)
    return FeatureColumns(
        tuple(order),
        types,
        explicit,
        tuple(automatic),
        frozenset(sensitive),
        tuple(carried),
        tuple(ColumnDecision(name, used=False, reason=UNFIT) for name in unfit),
    )


def spec_of(column: str, entry: FeatureEntry) -> FeatureSpec:
    """The feature that an entry with chains describes."""
    reads_text = entry.vector is not None or all(
        chain[0].kind.takes_text for chain in (entry.number, entry.id) if chain is not None
    )
    number = entry.number or () if entry.vector is not None else entry.number
    return FeatureSpec(
        column=column,
        column_type=ColumnType.TEXT if reads_text else ColumnType.NUMBER,
        number=number,
        id=entry.id,
        sensitive=entry.sensitive,
        reason="as the config says",
        sequence=entry.sequence,
        vector=entry.vector,
    )


def _crosses(
    loaded: LoadedConfig,
    names: Sequence[str],
    entries: Mapping[str, FeatureEntry],
    types: Mapping[str, ColumnType],
    problems: list[ConfigProblem],
) -> tuple[dict[str, FeatureSpec], set[str]]:
    """Crosses by name, and the columns of those whose values are never shown."""
    specs: dict[str, FeatureSpec] = {}
    sensitive: set[str] = set()
    for name, entry in entries.items():
        if entry.cross is None or loaded.config.features == "auto":
            continue
        key = f"features[{loaded.config.features.index(entry)}]"
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
    entries: Mapping[str, FeatureEntry],
    types: Mapping[str, ColumnType],
) -> tuple[FeatureSpec, list[str]]:
    """The feature that a cross describes, and what is wrong with its columns.

    A column that is a number elsewhere is crossed by its own id, any other as text.
    """
    parts, problems = [], []
    for column in entry.cross or ():
        entry_of = entries.get(column)
        if entry_of is not None and (entry_of.sequence is not None or entry_of.vector is not None):
            kind_of_list = "sequence" if entry_of.sequence is not None else "vector"
            problems.append(
                f"'{column}' is a {kind_of_list}, and a row of it has no one value to cross"
            )
        kind = types.get(column, ColumnType.TEXT)
        chain = entries[column].id if kind is ColumnType.NUMBER else None
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
    )
    return spec, problems


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
