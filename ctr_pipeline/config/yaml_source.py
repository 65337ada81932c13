"""YAML text as plain values, with the place of every key.

The dialect is YAML 1.1 as PyYAML's safe loader reads it, less its traps: only `true` and `false`
are booleans, `1e-3` is a number, `007`, `2024-01-01` and `12:30` are texts, and a key given twice
is an error.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ctr_pipeline.config.key_paths import KeyPath, render_key_path
from ctr_pipeline.errors import ConfigProblem

MAX_VALUES = 200_000
"""Bound on values that aliases make of a small file, so that it cannot fill the memory."""

_MERGE = "tag:yaml.org,2002:merge"
_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (
        "tag:yaml.org,2002:int",
        r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+",
        "-+0123456789",
    ),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:[0-9][0-9_]*)?(?:(?<=[0-9_])\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN"),
    (_MERGE, r"<<", "<"),
)


class ConfigLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of this dialect."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  PyYAML's own attribute, filled below


for _tag, _pattern, _first in _SCALARS:
    _characters: list[str] = [*_first, ""] if _tag.endswith("null") else [*_first]
    ConfigLoader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _characters)


class WrittenConfigLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same for what `dump_yaml` wrote: libyaml reads it in a fraction of the time.

    Configs of people are read in Python, which explains what is wrong and takes any nesting.
    """

    yaml_implicit_resolvers = ConfigLoader.yaml_implicit_resolvers


class ConfigDumper(yaml.SafeDumper):
    """Writes texts so that this dialect and plain YAML 1.1 both read them back as texts."""

    yaml_implicit_resolvers = {  # noqa: RUF012  PyYAML's own attribute
        first: list(resolvers)
        for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        """Writes equal values out each time: aliases are hard to read."""
        return True


for _tag, _pattern, _first in _SCALARS:
    ConfigDumper.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), [*_first])


@dataclass(frozen=True)
class Place:
    """Where a value was given.

    Attributes:
        text: As a person reads it: `config.yaml:12`, or `--set train.epochs=2`.
        line: For sorting; values of `--set` come last.
    """

    text: str
    line: int


@dataclass
class Source:
    """Plain values of a config and where each was given.

    Attributes:
        name: Name of the file, as the user wrote it.
        values: Nested dictionaries, lists and scalars.
        places: By key path; a path that is absent stands where its parent does.
        problems: What is wrong with the YAML itself.
    """

    name: str
    values: dict[str, Any]
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[tuple[Place, ConfigProblem]] = field(default_factory=list)

    def place_of(self, path: KeyPath) -> Place:
        """Where `path`, or its nearest ancestor that was given, stands."""
        for length in range(len(path), 0, -1):
            if place := self.places.get(path[:length]):
                return place
        return Place(self.name, 0)

    def add(self, path: KeyPath, message: str, suggestion: str | None = None) -> None:
        """Notes a problem at `path`."""
        place = self.place_of(path)
        self.problems.append(
            (place, ConfigProblem(place.text, render_key_path(path), message, suggestion))
        )


def parse_yaml(text: str, name: str, *, is_written: bool = False) -> tuple[Any, Source]:
    """The value of a YAML text and a `Source` that holds its places and its problems.

    Args:
        text: The text.
        name: Name of its file, for places.
        is_written: By `dump_yaml`, and not by a person.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    source = Source(name, {})
    loader = WrittenConfigLoader(text) if is_written else ConfigLoader(text)
    try:
        node = loader.get_single_node()
        value = (
            None
            if node is None
            else _Builder(loader, source, MAX_VALUES + len(text)).build(node, ())
        )
    finally:
        loader.dispose()
    return value, source


@dataclass
class _Builder:
    """Walks YAML nodes into plain values, noting places and problems."""

    loader: ConfigLoader | WrittenConfigLoader
    source: Source
    most_values: int
    num_values: int = 0
    open_nodes: set[int] = field(default_factory=set)

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.num_values += 1
        if self.num_values > self.most_values:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"more than {self.most_values:,} values, counting aliases",
                node.start_mark,
            )
        self.source.places.setdefault(path, self._place(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self.open_nodes:
            self.source.add(path, "an alias (*name) that contains itself")
            return None
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)  # noqa: S101  PyYAML has three kinds of nodes
            return self._mapping(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def _place(self, node: yaml.Node) -> Place:
        line = node.start_mark.line + 1
        return Place(f"{self.source.name}:{line}", line)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        known = {tag for tag, _, _ in _SCALARS} | {"tag:yaml.org,2002:str"}
        if node.tag not in known:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self.source.add(path, f"the YAML tag {tag} has no meaning here")
            return None
        try:
            return self.loader.construct_object(node)
        except ValueError:
            self.source.add(path, f"'{node.value}' is not what its YAML tag says")
            return None

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        first_places: dict[str, Place] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = str(key_node.value)
            place = self._place(key_node)
            if key in first_places:
                self.source.places[(*path, key)] = place
                self.source.add(
                    (*path, key), f"given twice: here and at {first_places[key].text}; keep one"
                )
            first_places.setdefault(key, place)
        # `<<: *defaults` puts the keys it brings before the mapping's own, which then win.
        self.loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.source.places[(*path, "?")] = self._place(key_node)
                self.source.add((*path, "?"), "a key must be a plain text")
                continue
            key = str(key_node.value)
            self.source.places[(*path, key)] = self._place(key_node)
            values[key] = self.build(value_node, (*path, key))
        return values


def dump_yaml(values: Mapping[str, Any]) -> str:
    """YAML text of plain values, in their order; lists of scalars on one line where they fit."""
    return yaml.dump(
        dict(values),
        Dumper=ConfigDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )


def flow_yaml(value: Any) -> str:
    """A value on one line, as it can stand behind a key: `{columns: I1, id: [vocabulary]}`."""
    text: str = yaml.dump(
        value,
        Dumper=ConfigDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=float("inf"),
    )
    return text.removesuffix("\n").removesuffix("\n...")
