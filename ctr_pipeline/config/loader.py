"""A YAML file and `--set` overrides as a `Config`, or everything wrong with them at once."""

import json
import string
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ctr_pipeline.config.consistency import check_consistency, check_header, check_sections
from ctr_pipeline.config.explanations import describe, explain_errors
from ctr_pipeline.config.key_paths import KeyPath, KeyPathError, parse_key_path, put_at, value_at
from ctr_pipeline.config.kubernetes import KubernetesConfig
from ctr_pipeline.config.merging import merge_problems
from ctr_pipeline.config.models import Config, working_copy
from ctr_pipeline.config.ranges import RangeError, expand_range
from ctr_pipeline.config.resolved import (
    GIVEN_FEATURES,
    RESOLVED_CONFIG,
    RUN_LOCK,
    resolved_yaml,
)
from ctr_pipeline.config.search_space import check_search_space
from ctr_pipeline.config.short_form import expand_short_form
from ctr_pipeline.config.yaml_source import Place, Source, parse_yaml
from ctr_pipeline.config.yaml_syntax import read_yaml_text, syntax_problem
from ctr_pipeline.errors import ConfigError, ConfigProblem
from ctr_pipeline.storage.folder_commits import stored_address

HeaderSearch = Callable[[Mapping[str, Any]], Sequence[str]]
"""The columns of the data that a `data:` section names; none where they cannot be told."""


@dataclass(frozen=True)
class LoadedConfig:
    """A config and where each of its keys was given.

    Attributes:
        config: The typed config.
        text: The YAML as it was read; empty for a mapping.
        path: The file; None for a mapping.
        overrides: The `--set` arguments, as given.
    """

    config: Config
    text: str = ""
    path: Path | None = None
    overrides: tuple[str, ...] = ()
    _source: Source = field(default_factory=lambda: Source("config", {}), repr=False)

    def place_of(self, key: str) -> str:
        """Where a key such as `train.epochs` was given, or its nearest parent that was."""
        return self._source.place_of(parse_key_path(key)).text

    def problem_at(self, key: str, message: str, suggestion: str | None = None) -> ConfigProblem:
        """A problem of `key` that was found later, with the place of the key."""
        return ConfigProblem(self.place_of(key), key, message, suggestion)

    def with_option(self, option: str, key: str, value: Any) -> "LoadedConfig":
        """The config with a key of a section as an option of the command line gives it.

        Problems of the key that are found later name the option.
        """
        section, name = key.split(".")
        changed = getattr(self.config, section).model_copy(update={name: value})
        config = self.config.model_copy(update={section: changed})
        places = self._source.places | {(section, name): Place(option, 10**9)}
        return replace(self, config=config, _source=replace(self._source, places=places))

    def missing_columns(self, header: Sequence[str]) -> list[ConfigProblem]:
        """A problem for each column that the config names and a header lacks."""
        values = self._source.values
        source = Source(self._source.name, values, self._source.places)
        check_header(values, header, source)
        return [problem for _, problem in source.problems]

    def resolved_yaml(self) -> str:
        """The config with every default written out; loading it gives an equal config."""
        return resolved_yaml(self.config)


def load_config(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    find_header: HeaderSearch | None = None,
) -> LoadedConfig:
    """Reads a config file, or the one that a run folder holds.

    The config inside a run folder means that folder, wherever it was copied or moved to. With
    another `output` it is the config of another run, with the features that were decided.

    Args:
        path: The YAML file, or a run folder.
        overrides: Texts such as `train.epochs=2`; the value is YAML, later ones win.
        find_header: Asked where something is wrong, so that columns the data lacks are told of in
            the same round; where nothing is, whoever reads the data tells.

    Raises:
        ConfigError: With every problem found.
    """
    if (path / RESOLVED_CONFIG).is_file():
        path /= RESOLVED_CONFIG
    text = read_yaml_text(path)
    is_own = path.name == RESOLVED_CONFIG and (path.parent / RUN_LOCK).exists()
    values, source = _parse(text, path, is_written=is_own)
    if values is None:
        message = "the file is empty; 'ctrpipe init DATA' writes a config to start from"
        raise ConfigError([ConfigProblem(str(path), "", message)])
    if not isinstance(values, dict):
        message = f"expected keys such as data: and output:, found {describe(values)}"
        raise ConfigError([ConfigProblem(str(path), "", message)])
    source.values = values
    if is_own:
        _place_own(values, path.parent)
        given = values.pop(GIVEN_FEATURES, None)
        if given is not None and not any(_sets_output(override) for override in overrides):
            values["features"] = given
    return _finish(source, overrides, find_header, text=text, path=path)


def load_kubernetes(path: Path, overrides: Sequence[str] = ()) -> KubernetesConfig:
    """Reads the section `kubernetes:` of a file, such as a config, and nothing else of it.

    Raises:
        ConfigError: With every problem of that section.
    """
    values, source = _parse(read_yaml_text(path), path)
    given = values.get("kubernetes") if isinstance(values, dict) else None
    source.values = {"kubernetes": given or {}}
    for override in overrides:
        _apply_override(override, source)
    section: KubernetesConfig | None = None
    try:
        section = KubernetesConfig.model_validate(_as_tuples(source.values["kubernetes"] or {}))
    except ValidationError as error:
        errors = [
            one | {"loc": ("kubernetes", *one["loc"])} for one in error.errors(include_url=False)
        ]
        explain_errors(errors, source.values, source)
    if source.problems or section is None:
        raise _all_problems(source)
    return section


def _parse(text: str, path: Path, *, is_written: bool = False) -> tuple[Any, Source]:
    try:
        return parse_yaml(text, str(path), is_written=is_written)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError([syntax_problem(error, str(path))]) from error


def _all_problems(source: Source) -> ConfigError:
    """The problems of a source, each once, in the order of their places."""
    ordered = sorted(source.problems, key=lambda found: found[0].line)
    return ConfigError(list(dict.fromkeys(problem for _, problem in ordered)))


def _place_own(values: dict[str, Any], folder: Path) -> None:
    """The config inside a run folder means that folder; in a working copy, the address."""
    values["output"] = str(folder)
    address, parent = stored_address(folder), str(folder.parent)
    if address is not None and working_copy(address, parent) == folder:
        values["output"] = address
        values["runtime"] = {**(values.get("runtime") or {}), "scratch": parent}


def config_from_mapping(
    mapping: Mapping[str, Any],
    overrides: Sequence[str] = (),
) -> LoadedConfig:
    """A config from nested dictionaries and lists, for notebooks.

    Raises:
        ConfigError: With every problem found.
    """
    source = Source("config", deepcopy(dict(mapping)))
    return _finish(source, overrides, None, text="", path=None)


def _finish(
    source: Source,
    overrides: Sequence[str],
    find_header: HeaderSearch | None,
    *,
    text: str,
    path: Path | None,
) -> LoadedConfig:
    # Where anchors of one's own stand; what is meant by them stands where their aliases do.
    source.values = {key: one for key, one in source.values.items() if not key.startswith("x-")}
    expand_short_form(source)
    for override in overrides:
        _apply_override(override, source)
    _expand_ranges(source)
    values = _as_tuples(source.values)
    config: Config | None = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        explain_errors(error.errors(include_url=False), values, source)
    if config is not None and config.features != "auto":
        for index, message in merge_problems(config.features):
            source.add(("features", index), message)
    if config is not None:
        check_sections(config, source)
    check_consistency(values, source)
    check_search_space(values, source, _messages)
    data = value_at(source.values, ("data",))
    if source.problems and find_header is not None and isinstance(data, dict):
        header = find_header(data)
        if header:
            check_header(values, header, source)
    if source.problems or config is None:
        raise _all_problems(source)
    return LoadedConfig(config, text, path, tuple(overrides), source)


def _messages(values: dict[str, Any]) -> list[str]:
    """What is wrong with plain values, each problem as its key and message."""
    source = Source("", values)
    try:
        Config.model_validate(values)
    except ValidationError as error:
        explain_errors(error.errors(include_url=False), values, source)
    check_consistency(values, source)
    return [f"{problem.key}: {problem.message}" for _, problem in source.problems]


def _sets_output(override: str) -> bool:
    return override.partition("=")[0].strip() == "output"


_MARKS = set(string.punctuation) - {"~"}
"""Characters that are marks of YAML, or means to write text, but a value where they stand alone."""


def _apply_override(override: str, source: Source) -> None:
    place = Place(f"--set {override}", 10**9)
    key, separator, value_text = override.partition("=")
    if not separator or not key.strip():
        message = "expected KEY=VALUE, for example --set train.epochs=2"
        source.problems.append((place, ConfigProblem(place.text, key.strip(), message)))
        return
    if len(value_text) == 1 and value_text in _MARKS:
        value_text = json.dumps(value_text)
    try:
        value, value_source = parse_yaml(value_text, place.text)
        path = parse_key_path(key.strip())
        made = [path[:depth] for depth in range(1, len(path))]
        made = [parent for parent in made if value_at(source.values, parent) is None]
        put_at(source.values, path, value)
    except yaml.YAMLError as error:
        problem = syntax_problem(error, place.text)
        message = f"the value is not YAML: {problem.message}"
        source.problems.append((place, ConfigProblem(place.text, key.strip(), message)))
        return
    except KeyPathError as error:
        source.problems.append((place, ConfigProblem(place.text, key.strip(), str(error))))
        return
    for _, problem in value_source.problems:
        source.problems.append((place, ConfigProblem(place.text, key.strip(), problem.message)))
    for old in [old for old in source.places if old[: len(path)] == path]:
        del source.places[old]
    source.places.update(dict.fromkeys([*made, path], place))


def _expand_ranges(source: Source) -> None:
    """Puts names in place of ranges, in `data.columns` and in the columns of every feature."""
    paths: list[KeyPath] = [("data", "columns"), ("data", "key_value", "keys")]
    features = value_at(source.values, ("features",))
    count = len(features) if isinstance(features, list | tuple) else 0
    for index in range(count):
        paths += [("features", index, "columns"), ("features", index, "cross")]
    for path in paths:
        given = value_at(source.values, path)
        if isinstance(given, str) and (".." in given or path == ("data", "columns")):
            items: list[Any] = [given]
        elif isinstance(given, list | tuple):
            items = list(given)
        else:
            continue
        names: list[Any] = []
        for item in items:
            try:
                names += expand_range(item) if isinstance(item, str) else [item]
            except RangeError as error:
                names.append(item)
                source.add(path, str(error))
        put_at(source.values, path, names)


def _as_tuples(value: Any) -> Any:
    """Lists as the tuples that the frozen models hold."""
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_as_tuples(item) for item in value)
    return value
