"""Checks what a config says about columns and their embeddings, each with the place of its key."""

from collections.abc import Collection, Mapping, Sequence

from ctr_pipeline.config.explanations import lacks_column, nearest
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.merging import MergedEntry, merge_entries
from ctr_pipeline.config.models import Config, FeatureEntry
from ctr_pipeline.errors import ConfigProblem
from ctr_pipeline.features import FeatureSpec, features_by_table
from ctr_pipeline.pipeline.model.embedding_overrides import override_values
from ctr_pipeline.preprocessing.sharing import share_problems

GROUP_BY = "evaluation.group_by"


def group_problems(loaded: LoadedConfig) -> list[ConfigProblem]:
    """Finds columns of `evaluation.group_by` that no data can be grouped by."""
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


def require_named(
    loaded: LoadedConfig, names: Sequence[str], problems: list[ConfigProblem]
) -> None:
    """Adds a problem for each column that a key outside `features` names and the data lacks."""
    config = loaded.config
    require_columns(loaded, names, "data.key_columns", config.data.key_columns, problems)
    require_columns(loaded, names, GROUP_BY, config.evaluation.group_by, problems)
    for key, column in (
        ("data.weight", config.data.weight),
        ("evaluation.gauc_column", config.evaluation.gauc_column),
        ("data.split.column", config.data.split.column),
    ):
        require_columns(loaded, names, key, [column] if column is not None else [], problems)


def _wrong_dimension(config: Config, dimension: int | str | None) -> str | None:
    """Why vectors cannot have this length; None if they can."""
    most = config.model.embedding_dim
    comparing = [one.name for one in config.member_models if one.compared_feature is not None]
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


def sharing_problems(
    loaded: LoadedConfig,
    entries: Mapping[str, MergedEntry],
    explicit: Mapping[str, FeatureSpec],
    automatic: Collection[str],
) -> list[ConfigProblem]:
    """Finds features that cannot share the table they name.

    Args:
        loaded: The config.
        entries: The merged entries of the config, by column.
        explicit: Features whose chains the config gives.
        automatic: Columns whose chains the data decides.
    """

    def problem_of(feature: str, message: str, near: str | None = None) -> ConfigProblem:
        key = f"{entries[feature].key_of('embedding')}.share"
        return loaded.problem_at(key, message, near)

    specs = {name: spec for name, spec in explicit.items() if spec.id is not None}
    problems = [
        problem_of(name, "a table is shared by ids that the config decides; give an `id`")
        for name, merged in entries.items()
        if name not in specs and _shares_table(merged.entry)
    ]
    undecided = [name for name in automatic if name not in specs]
    for found in share_problems(tuple(explicit.values()), undecided):
        near = None
        if found.is_unknown:
            table = explicit[found.feature].table or ""
            known = {*features_by_table(tuple(specs.values()))} - {table, found.feature}
            near = nearest(table, sorted(known))
        problems.append(problem_of(found.feature, found.message, near))
    return problems


def override_problems(
    loaded: LoadedConfig,
    entries: Mapping[str, MergedEntry],
    explicit: Mapping[str, FeatureSpec],
    automatic: Collection[str],
) -> list[ConfigProblem]:
    """Finds `embedding` keys without ids, with a bad dimension, or with two values for one table.

    Args:
        loaded: The config.
        entries: The merged entries of the config, by column.
        explicit: Features whose chains the config gives.
        automatic: Columns whose chains the data decides.
    """
    if loaded.config.features == "auto":
        return []
    problems = []
    first_values: dict[tuple[str, str], tuple[str, object]] = {}
    for name, merged in entries.items():
        values = override_values(merged.entry.embedding)
        if not values:
            continue
        key = merged.key_of("embedding")
        spec = explicit.get(name)
        has_ids = name in automatic or (spec is not None and spec.id is not None)
        # An entry for all columns applies to those that have ids.
        is_of_all = loaded.config.features[merged.given["embedding"]].names_all
        if not has_ids and not is_of_all:
            message = f"'{name}' has no `id`, and so no embedding"
            problems.append(loaded.problem_at(key, message))
        wrong = _wrong_dimension(loaded.config, values.get("dimension"))
        if wrong is not None:
            problems.append(loaded.problem_at(f"{key}.dimension", wrong))
        table = spec.table if spec is not None and spec.table is not None else name
        for option, value in values.items():
            first, other = first_values.setdefault((table, option), (name, value))
            if other != value:
                message = (
                    f"is not what '{first}' says, and both are of the table '{table}'; say it once"
                )
                problems.append(loaded.problem_at(f"{key}.{option}", message))
    return problems


def require_columns(
    loaded: LoadedConfig,
    names: Sequence[str],
    key: str,
    columns: Sequence[str],
    problems: list[ConfigProblem],
) -> None:
    """Adds a problem for each of a key's columns that the data lacks.

    Args:
        loaded: The config.
        names: Columns of the data.
        key: The key that names the columns.
        columns: The columns it names.
        problems: Extended.
    """
    for column in columns:
        if column not in names:
            message = lacks_column("the data has", column)
            problems.append(loaded.problem_at(key, message, nearest(column, names)))


def _shares_table(entry: FeatureEntry) -> bool:
    return entry.embedding is not None and entry.embedding.share is not None
