"""The short form of a config: actions name their columns, and nothing else need be said.

    table: clicks.csv
    label: click
    standardize: [age, price]
    bucketize: [age, price]
    hash: [user, item]
    model: deepfm
    resources: {parameter_servers: 2, workers: 4}

A file is in short form if an action stands at its top level. It becomes the values of the full
form, each with the place where it was given, so that errors name the user's own lines. Every
section of the full form may stand beside the actions; `features` only as `auto`, which decides
what the actions leave open.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctr_pipeline.config.key_paths import KeyPath, value_at
from ctr_pipeline.config.ranges import ALL_COLUMNS, RangeError, expand_range
from ctr_pipeline.config.yaml_source import Place, Source
from ctr_pipeline.specs.launchers import DEFAULT_MODE
from ctr_pipeline.transforms import TRANSFORMS

NUMBER_ACTIONS: dict[str, dict[str, Any]] = {
    name: transform.short_form
    for name, transform in sorted(
        TRANSFORMS.items(), key=lambda item: (not item[1].kind.takes_text, item[1].rank)
    )
    if not transform.kind.gives_id
}
"""Actions that make a dense input, in the order of a chain, with their default options."""

ID_ACTIONS: dict[str, dict[str, Any]] = {
    name: transform.short_form for name, transform in TRANSFORMS.items() if transform.kind.gives_id
}
"""Actions that make an embedded field; a column can have one of them."""

_DATA_KEYS = {"table": "train", "label": "label", "columns": "columns", "format": "format"}
_RESOURCES = ("parameter_servers", "workers")
_CROSS_BUCKETS = 1_000_000
_SEQUENCE = "sequence"
_ORDER = (*NUMBER_ACTIONS, *ID_ACTIONS, _SEQUENCE)
_RANKS = {name: (TRANSFORMS[name].kind, TRANSFORMS[name].rank) for name in NUMBER_ACTIONS}
_EXCLUSIVE = (
    *(tuple(name for name in _RANKS if _RANKS[name] == rank) for rank in set(_RANKS.values())),
    tuple(ID_ACTIONS),
)


@dataclass(frozen=True)
class _Action:
    """What is done to some columns.

    Attributes:
        columns: In the order given.
        transform: As the full form has it.
        path: Where it was given.
    """

    name: str
    columns: tuple[str, ...]
    transform: Any
    path: KeyPath


def is_short_form(values: Mapping[str, Any]) -> bool:
    """Whether an action stands at the top level."""
    return any(name in values for name in (*_ORDER, "cross"))


def expand_short_form(source: Source) -> None:
    """Puts the full form in the place of the short one; does nothing to any other config."""
    values = source.values
    if not is_short_form(values):
        return
    if values.get("features", "auto") != "auto":
        source.add(
            ("features",),
            "the short form names columns by action, so its 'features' can only be auto, for all "
            "other columns; keep one of the two",
        )
        return
    entries, places = _entries_of(_take_actions(source), source)
    for entry, place in _take_crosses(source):
        entries.append(entry)
        places.append(place)
    _take_data(source)
    _take_model(source)
    _take_resources(source)
    if "features" in values:
        entries.insert(0, {"columns": ALL_COLUMNS})
        places.insert(0, source.place_of(("features",)))
    values["features"] = entries
    for index, place in enumerate(places):
        source.places["features", index] = place
    source.places.setdefault(("features",), places[0] if places else source.place_of(()))


def _take_actions(source: Source) -> list[_Action]:
    actions = []
    for name in [name for name in source.values if name in _ORDER]:
        given = source.values.pop(name)
        # Several with options of their own may stand in a list.
        parts = given if isinstance(given, list) and _are_mappings(given) else [given]
        for index, part in enumerate(parts):
            path: KeyPath = (name, index) if parts is given else (name,)
            action = _read_action(name, part, path, source)
            if action is not None:
                actions.append(action)
    return actions


def _take_crosses(source: Source) -> list[tuple[dict[str, Any], Place]]:
    """Crosses, hashed: `cross: [[city, device], [user, hour]]`."""
    given = source.values.pop("cross", [])
    crosses = []
    for index, columns in enumerate(given if isinstance(given, list) else [given]):
        path: KeyPath = ("cross", index)
        if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
            source.add(path, "expected lists of columns, such as cross: [[city, device]]")
            continue
        entry = {"cross": columns, "id": [{"hash": {"buckets": _CROSS_BUCKETS}}]}
        crosses.append((entry, source.place_of(path)))
    return crosses


def _are_mappings(given: list[Any]) -> bool:
    return bool(given) and all(isinstance(item, dict) for item in given)


def _read_action(name: str, given: Any, path: KeyPath, source: Source) -> _Action | None:
    options = {**NUMBER_ACTIONS, **ID_ACTIONS, _SEQUENCE: {}}[name]
    columns = given
    if isinstance(given, dict):
        columns = given.get("columns")
        told = {key: value for key, value in given.items() if key != "columns"}
        # What is told takes the place of the defaults: quantiles and boundaries exclude each other.
        options = told or options
    names = [columns] if isinstance(columns, str) else columns
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        source.add(
            path,
            f"expected columns, such as {name}: [a, b] or {name}: {{columns: [a, b], …}}",
        )
        return None
    found: list[str] = []
    for one in names:
        try:
            found += expand_range(one)
        except RangeError as error:
            source.add(path, str(error))
    return _Action(name, tuple(found), {name: dict(options)} if options else name, path)


def _entries_of(actions: list[_Action], source: Source) -> tuple[list[dict[str, Any]], list[Place]]:
    """Entries of the full form: neighbouring columns of equal chains together."""
    by_column: dict[str, list[_Action]] = {}
    for action in actions:
        for column in action.columns:
            by_column.setdefault(column, []).append(action)
    entries: list[dict[str, Any]] = []
    places: list[Place] = []
    last: list[_Action] | None = None
    for column, found in by_column.items():
        chosen = sorted(found, key=lambda action: _ORDER.index(action.name))
        _check_column(column, chosen, source)
        if chosen == last:
            entries[-1]["columns"].append(column)
            continue
        last = chosen
        number = [action.transform for action in chosen if action.name in NUMBER_ACTIONS]
        ids = [action.transform for action in chosen if action.name in ID_ACTIONS][:1]
        entry: dict[str, Any] = {"columns": [column]}
        if number:
            entry["number"] = number
        sequences = [action.transform for action in chosen if action.name == _SEQUENCE]
        if sequences:
            # Without options it is the name alone.
            entry["sequence"] = {} if sequences[0] == _SEQUENCE else sequences[0][_SEQUENCE]
            ids = ids or [{"vocabulary": dict(ID_ACTIONS["vocabulary"])}]
        if ids:
            entry["id"] = ids
        entries.append(entry)
        places.append(source.place_of(chosen[-1].path))
    return entries, places


def _check_column(column: str, chosen: list[_Action], source: Source) -> None:
    names = [action.name for action in chosen]
    for name in sorted({name for name in names if names.count(name) > 1}):
        source.add((name,), f"names column '{column}' twice")
    for exclusive in _EXCLUSIVE:
        both = [name for name in dict.fromkeys(names) if name in exclusive]
        if len(both) > 1:
            source.add(
                (both[1],), f"column '{column}' is named by {' and '.join(both)}; keep one of them"
            )


def _move(source: Source, old: KeyPath, new: KeyPath) -> None:
    """Takes the places of `old`, and of all in it, to `new`."""
    for path in [path for path in source.places if path[: len(old)] == old]:
        source.places[(*new, *path[len(old) :])] = source.places.pop(path)


def _take_data(source: Source) -> None:
    given = [key for key in _DATA_KEYS if key in source.values]
    data = source.values.get("data", {})
    if not given or not isinstance(data, dict):
        return
    source.values["data"] = data
    source.places.setdefault(("data",), source.place_of((given[0],)))
    for key in given:
        name = _DATA_KEYS[key]
        value = source.values.pop(key)
        if name in data:
            source.add((key,), f"is given here and as data.{name}; keep one of the two")
            continue
        data[name] = value
        _move(source, (key,), ("data", name))


def _take_model(source: Source) -> None:
    if isinstance(source.values.get("model"), str):
        source.values["model"] = {"name": source.values["model"]}
        source.places["model", "name"] = source.place_of(("model",))


def _take_resources(source: Source) -> None:
    if "resources" not in source.values:
        return
    resources = source.values.pop("resources")
    if not isinstance(resources, dict) or not set(resources) <= set(_RESOURCES):
        source.add(
            ("resources",),
            "expected {parameter_servers: 2, workers: 4}, or workers: auto; the section runtime: "
            "takes everything else",
        )
        return
    runtime = source.values.setdefault("runtime", {})
    if not isinstance(runtime, dict):
        return
    source.places.setdefault(("runtime",), source.place_of(("resources",)))
    for key, value in {"mode": DEFAULT_MODE, **resources}.items():
        if key in runtime:
            if key != "mode":
                source.add(("resources", key), f"is given here and as runtime.{key}; keep one")
            continue
        is_number = key == "workers" and isinstance(value, int) and not isinstance(value, bool)
        runtime[key] = {"min": 1, "max": value} if is_number else value
        place = source.place_of(("resources", key))
        source.places["runtime", key] = place
    if value_at(runtime, ("mode",)) == "local":
        source.add(
            ("runtime", "mode"), "resources are those of several processes; leave the mode out"
        )
