"""From the config and the head of the data to the columns that are read, and as what."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ctr_pipeline.analysis import ColumnDecision
from ctr_pipeline.config.loader import LoadedConfig, entries_by_column
from ctr_pipeline.config.models import FeatureEntry
from ctr_pipeline.errors import ConfigError, ConfigProblem
from ctr_pipeline.features import ColumnType, FeatureSpec, TransformKind
from ctr_pipeline.preprocessing.chains import check_chain

_UNFIT = "its type fits no feature (a date, a list, …): convert it to a number or a text"


@dataclass(frozen=True)
class FeatureColumns:
    """Which columns are read, and what is already decided about them.

    Attributes:
        types: How each feature's column is read, in the order of the features.
        explicit: Features whose chains the config gives.
        automatic: Columns whose transforms the statistics decide.
        sensitive: Columns whose values are never shown.
        carried: Key columns and the column of GAUC; read as text, not features.
        unfit: Columns that would be automatic, but whose type fits no feature.
    """

    types: dict[str, ColumnType]
    explicit: dict[str, FeatureSpec]
    automatic: tuple[str, ...]
    sensitive: frozenset[str]
    carried: tuple[str, ...]
    unfit: tuple[ColumnDecision, ...] = ()


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
        ("evaluation.gauc_column", config.evaluation.gauc_column),
        ("data.split.column", config.data.split.column),
    ):
        _require(loaded, names, key, [column] if column is not None else [], problems)

    types: dict[str, ColumnType] = {}
    explicit: dict[str, FeatureSpec] = {}
    automatic: list[str] = []
    unfit: list[str] = []
    sensitive: set[str] = set()
    if config.features == "auto":
        kept_out = {config.data.label, *config.data.key_columns}
        wanted = [name for name in names if name not in kept_out]
        automatic = [name for name in wanted if name in inferred]
        unfit = [name for name in wanted if name not in inferred]
        types = {name: inferred[name] for name in automatic}
        if not automatic:
            message = "no column can serve as a feature: there is none, or no type fits"
            problems.append(loaded.problem_at("features", message))
    else:
        for column, entry in entries_by_column(config.features).items():
            key = f"features[{config.features.index(entry)}]"
            _require(loaded, names, f"{key}.columns", [column], problems)
            if entry.sensitive:
                sensitive.add(column)
            if entry.number is None and entry.id is None:
                automatic.append(column)
                types[column] = _type_of_entry(entry, inferred.get(column, ColumnType.TEXT))
                continue
            spec = spec_of(column, entry)
            types[column] = spec.column_type
            explicit[column] = spec
            problems += [loaded.problem_at(key, message) for message in check_chain(spec)]
    if problems:
        raise ConfigError(problems)
    return FeatureColumns(
        types,
        explicit,
        tuple(automatic),
        frozenset(sensitive),
        tuple(carried),
        tuple(ColumnDecision(name, used=False, reason=_UNFIT) for name in unfit),
    )


def spec_of(column: str, entry: FeatureEntry) -> FeatureSpec:
    """The feature that an entry with chains describes."""
    reads_text = (
        entry.number is None
        and entry.id is not None
        and entry.id[0].kind is TransformKind.TEXT_TO_ID
    )
    return FeatureSpec(
        column=column,
        column_type=ColumnType.TEXT if reads_text else ColumnType.NUMBER,
        number=entry.number,
        id=entry.id,
        sensitive=entry.sensitive,
        reason="as the config says",
    )


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
