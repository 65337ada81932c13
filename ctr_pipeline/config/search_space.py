"""Which keys a search may vary, whether their values are valid, and a config with values put in."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args

from pydantic import BaseModel

from ctr_pipeline.config.explanations import describe, nearest
from ctr_pipeline.config.key_facts import field_at, keys_with, models_in
from ctr_pipeline.config.key_paths import (
    KeyPath,
    KeyPathError,
    parse_key_path,
    put_at,
    render_key_path,
    value_at,
)
from ctr_pipeline.config.models import Config, SearchValues, TrainConfig
from ctr_pipeline.config.yaml_source import Source, dump_yaml, flow_yaml, parse_yaml
from ctr_pipeline.specs.section import NotSearched

Messages = Callable[[dict[str, Any]], list[str]]
"""Says what is wrong with the values of a config, a text a problem."""

_REFUSED = keys_with(Config, NotSearched)
_MAX_PAIRS = 2000
"""Pairs of values that are checked together; each takes some tenth of a millisecond."""

_Kind = Literal["whole", "number", "other"]


@dataclass(frozen=True)
class _Known:
    """A key of the space that may be searched.

    Attributes:
        path: Path of the key that is varied.
        here: The place of its entry in the space.
        values: Ends of the range, or the choices, each with its place in the entry.
    """

    path: KeyPath
    here: KeyPath
    values: tuple[tuple[KeyPath, Any], ...]

    @property
    def name(self) -> str:
        return render_key_path(self.path)


def is_whole(key: str) -> bool:
    """Whether a key of a valid space takes whole numbers alone."""
    return _find(parse_key_path(key)) == "whole"


def check_search_space(values: dict[str, Any], source: Source, messages: Messages) -> None:
    """Adds to the problems of `source` what is wrong with `tune.space`.

    Every end of a range and every choice is put into the config, alone and with those of each other
    key, and what is then wrong that was not before is a problem of the space.

    Args:
        values: The config's plain values, as the models take them.
        source: Where they were given.
        messages: Checks the values of a whole config.
    """
    space = value_at(values, ("tune", "space"))
    if not isinstance(space, dict):
        return
    known = [found for key, entry in space.items() if (found := _read(key, entry, source))]
    known = _without_nested(known, source)
    # What a search cannot change need not be looked at again for each of its values.
    rest = {key: value for key, value in values.items() if key not in {"tune", "features"}}
    # A part of what is a default as a whole can be searched: the rate of the optimizer.
    rest["train"] = _filled(rest.get("train", {}), TrainConfig().model_dump())
    before = set(messages(rest))
    fit = [one for one in known if _check_alone(one, rest, before, messages, source)]
    _check_pairs(fit, rest, before, messages, source)


def _filled(given: Any, default: Any) -> Any:
    """What is given, with defaults for the keys that are not."""
    if not isinstance(given, dict) or not isinstance(default, dict):
        return given
    return {
        **default,
        **{key: _filled(value, default.get(key)) for key, value in given.items()},
    }


def _read(key: str, entry: Any, source: Source) -> _Known | None:
    here: KeyPath = ("tune", "space", key)
    try:
        path = parse_key_path(key)
    except KeyPathError as error:
        source.add(here, str(error))
        return None
    if any(isinstance(step, int) for step in path):
        source.add(here, "an entry of a list cannot be searched; give whole lists as choices")
        return None
    for depth in range(1, len(path) + 1):
        if refused := _REFUSED.get(render_key_path(path[:depth])):
            source.add(here, f"cannot be searched: {refused.reason}")
            return None
    kind = _find(path)
    if kind is None:
        source.add(here, "unknown key; keys are those of model and train", _nearest_key(key))
        return None
    if not isinstance(entry, dict):
        return None
    choices = entry.get("choices")
    if isinstance(choices, list | tuple):
        each = tuple(((*here, "choices", index), choice) for index, choice in enumerate(choices))
        return _Known(path, here, each)
    ends: dict[str, Any] = {
        name: entry[name] for name in ("low", "high") if _is_number(entry.get(name))
    }
    if kind == "other" and ends:
        source.add(here, "takes no number, so it has no range; give its values as choices")
        return None
    read: list[tuple[KeyPath, Any]] = []
    for name, end in ends.items():
        if kind == "whole" and end != int(end):
            source.add((*here, name), f"expected a whole number, found {describe(end)}")
            return None
        read.append(((*here, name), int(end) if kind == "whole" else float(end)))
    return _Known(path, here, tuple(read))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _find(path: KeyPath) -> _Kind | None:
    """What a key takes; None if there is no such key."""
    if path[:2] == ("model", "options"):
        return "other"
    info = field_at(Config, path)
    if info is None:
        return None
    kinds = set(get_args(info.annotation) or (info.annotation,)) - {NoneType}
    if kinds == {int}:
        return "whole"
    return "number" if kinds == {float} else "other"


def _nearest_key(key: str) -> str | None:
    return nearest(key, _searchable("model") + _searchable("train"), likeness=0.5)


def _searchable(key: str) -> list[str]:
    """Dotted keys below `key` that hold values."""
    sections: list[type[BaseModel]] = [Config]
    for step in key.split("."):
        fields = [one.model_fields[step] for one in sections if step in one.model_fields]
        sections = [section for info in fields for section in models_in(info.annotation)]
    if not sections:
        return [] if key in _REFUSED else [key]
    names = dict.fromkeys(name for section in sections for name in section.model_fields)
    return [leaf for name in names for leaf in _searchable(f"{key}.{name}")]


def _without_nested(known: list[_Known], source: Source) -> list[_Known]:
    """Without keys that lie inside others of the space, each a problem."""
    kept = []
    for one in known:
        outer = [two for two in known if two.path == one.path[: len(two.path)] and two is not one]
        if outer:
            source.add(one.here, f"lies inside {outer[0].name}, which is searched too; keep one")
        else:
            kept.append(one)
    return kept


def _check_alone(
    one: _Known, rest: dict[str, Any], before: set[str], messages: Messages, source: Source
) -> bool:
    """Whether each value of the key is valid in this config."""
    is_valid = True
    for place, value in one.values:
        found = _new_message({one.path: value}, rest, before, messages)
        if found is not None:
            source.add(place, _without_key(found, one.name))
            is_valid = False
    return is_valid


def _without_key(message: str, key: str) -> str:
    """The message of the key itself, or of another key with that key's name before it."""
    return message.removeprefix(f"{key}: ")


def _check_pairs(
    known: list[_Known],
    rest: dict[str, Any],
    before: set[str],
    messages: Messages,
    source: Source,
) -> None:
    """Adds one problem for each two keys of which some values do not go together."""
    num_checked = 0
    for index, one in enumerate(known):
        for two in known[:index]:
            pairs = [(this, other) for this in one.values for other in two.values]
            num_checked += len(pairs)
            if num_checked > _MAX_PAIRS:
                return
            for (place, value), (_, other) in pairs:
                found = _new_message({one.path: value, two.path: other}, rest, before, messages)
                if found is not None:
                    shown = f"with {two.name}: {flow_yaml(_as_lists(other))}"
                    source.add(place, f"{shown}, {found}")
                    break


def _new_message(
    assigned: Mapping[KeyPath, Any], rest: dict[str, Any], before: set[str], messages: Messages
) -> str | None:
    """The first thing that is wrong only with these values; None if they are valid."""
    changed = dict(rest)
    for section in {path[0] for path in assigned}:
        changed[str(section)] = deepcopy(rest.get(str(section)))
    try:
        for path, value in assigned.items():
            put_at(changed, path, value)
    except KeyPathError as error:
        return str(error)
    return next((found for found in messages(changed) if found not in before), None)


def _as_lists(value: Any) -> Any:
    """Tuples as the lists that YAML and JSON know."""
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_lists(item) for item in value]
    return value


def choices_of(entry: SearchValues) -> list[Any]:
    """The choices of an entry as plain values."""
    return [_as_lists(choice) for choice in entry.choices or ()]


def values_with(resolved: str, assigned: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a resolved config with some keys set, and without its search.

    Args:
        resolved: As `LoadedConfig.resolved_yaml` gives it.
        assigned: Values by dotted key.

    Raises:
        KeyPathError: A key leads nowhere.
    """
    values, _ = parse_yaml(resolved, "config", is_written=True)
    plain: dict[str, Any] = values
    plain.pop("tune", None)
    for key, value in assigned.items():
        put_at(plain, parse_key_path(key), _as_lists(value))
    return plain


def yaml_with(resolved: str, assigned: Mapping[str, Any]) -> str:
    """`values_with` as YAML."""
    return dump_yaml(values_with(resolved, assigned))


def current_values(resolved: str, keys: list[str]) -> dict[str, Any]:
    """What a resolved config gives for some keys; None for those it has no value for."""
    values, _ = parse_yaml(resolved, "config", is_written=True)
    return {key: value_at(values, parse_key_path(key)) for key in keys}
