"""A config written back as YAML, every default spelled out."""

import glob
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from ctr_pipeline.config.merging import MergedEntry, merge_entries
from ctr_pipeline.config.models import Config, FeatureEntry
from ctr_pipeline.config.yaml_source import dump_yaml
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.specs.section import IS_PATH, Section
from ctr_pipeline.specs.source_formats import is_query
from ctr_pipeline.transforms.base import Transform

RESOLVED_CONFIG = "config.resolved.yaml"
RUN_LOCK = ".lock"
"""Names of files that every run folder holds."""
GIVEN_FEATURES = "x-given-features"
"""Key in the config of a run folder: `features` before it was decided, for the run itself."""

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_TITLE = """\
# Written by ctrpipe: every default, features as they were decided, paths from the root.
# The same decisions for another run: ctrpipe run THIS_FILE --set output=FOLDER
"""


def resolved_yaml(config: Config) -> str:
    """The whole config in the order of the models; loading it gives an equal config."""
    return dump_yaml(_values_of(config))


def pinned_yaml(config: Config, features: Sequence[FeatureSpec]) -> str:
    """The config of a run folder: features as they were decided, paths from the root.

    Args:
        config: As it was given, relative to the folder that the command runs in.
        features: The run's features; empty where unknown, and then nothing is pinned.
    """
    values = _values_of(with_paths(config, absolute_path))
    if features and (config.features == "auto" or any(one.names_all for one in config.features)):
        columns = [spec.column for spec in features if spec.cross is None]
        merged = merge_entries(config.features, columns)
        values[GIVEN_FEATURES] = values["features"]
        values["features"] = [_pinned(spec, merged[spec.column]) for spec in features]
    return _TITLE + dump_yaml(values)


def with_paths(config: Config, change: Callable[[str], str]) -> Config:
    """The config with each path to files that training depends on, and its output, changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {key: change(path) for key, path in value.items()}
        return tuple(map(change, value)) if isinstance(value, tuple) else value

    def inside(section: Section) -> Section:
        update: dict[str, Any] = {}
        for name, info in type(section).model_fields.items():
            value = getattr(section, name)
            if isinstance(value, Section):
                update[name] = inside(value)
            elif name == "ensemble_models" and value is not None:
                update[name] = tuple(inside(one) for one in value)
            elif IS_PATH in info.metadata:
                update[name] = changed(value)
        return section.model_copy(update=update)

    return cast("Config", inside(config))


def absolute_path(path: str) -> str:
    """A path, or that of a file in an address, from the root; other addresses and SELECTs as given.

    A glob stays one, whatever the folder that the command runs in is called.
    """
    if is_query(path):
        return path
    address = _ADDRESS.fullmatch(path)
    if address is not None and address["scheme"] != "file":
        return path
    prefix, rest = (f"{address['scheme']}://", address["rest"]) if address else ("", path)
    here = str(Path.cwd())
    expanded = Path(rest).expanduser()
    if glob.has_magic(rest) and not expanded.exists():
        here = glob.escape(here)
    return f"{prefix}{Path(here) / expanded}"


def same_paths(earlier: Any, later: Any) -> bool:
    """Whether paths name the same: written from the root, or as the end of what is.

    A run folder has them from the root. A project that was moved as a whole keeps its configs, in
    which they are relative.
    """
    if isinstance(earlier, list) and isinstance(later, list):
        return len(earlier) == len(later) and all(map(same_paths, earlier, later))
    if not (isinstance(earlier, str) and isinstance(later, str)):
        return False
    return absolute_path(later) == absolute_path(earlier) or (
        not Path(later).is_absolute() and earlier.endswith(f"/{later.removeprefix('./')}")
    )


def _pinned(spec: FeatureSpec, merged: MergedEntry) -> dict[str, Any]:
    """An entry that gives this feature whatever the data says."""
    entry = merged.entry
    plain: dict[str, Any] = {"columns": spec.column}
    if entry.cross is not None:
        plain = {"cross": list(entry.cross), "name": spec.column}
    for key, cut in (("sequence", spec.sequence), ("vector", spec.vector)):
        if cut is not None:
            plain[key] = cut.model_dump(mode="python")
    for key, decided in (("number", spec.number), ("id", spec.id)):
        # What the config says stays as it says it: an age may be open.
        chain: Sequence[Transform] | None = getattr(entry, key) or decided
        if chain:
            plain[key] = [_transform(step.model_dump(mode="python")) for step in chain]
    if entry.embedding is not None:
        plain["embedding"] = entry.embedding.model_dump(mode="python", exclude_none=True)
    plain |= {"type": "auto", "sensitive": spec.sensitive}
    return {key: _plain(plain[key]) for key in FeatureEntry.model_fields if key in plain}


def _values_of(config: Config) -> dict[str, Any]:
    values = config.model_dump(mode="python")
    if config.features != "auto":
        values["features"] = _entries(config.features, values["features"])
    if config.tune is not None:
        values["tune"]["space"] = _without_nulls(values["tune"]["space"])
    plain: dict[str, Any] = _plain(values)
    return plain


def _entries(entries: Sequence[FeatureEntry], values: Sequence[dict[str, Any]]) -> list[Any]:
    """Every key but null ones; of entries that are merged with others, the keys that they give.

    Spelled out there, a default would win over what an earlier entry says.
    """
    times = Counter(feature for entry in entries for feature in entry.features)
    is_merged = any(entry.names_all for entry in entries)
    written: list[Any] = []
    for entry, plain in zip(entries, values, strict=True):
        if is_merged or any(times[feature] > 1 for feature in entry.features):
            keys = [key for key in FeatureEntry.model_fields if key in entry.model_fields_set]
        else:
            keys = [key for key, value in plain.items() if value is not None and value != ()]
        is_auto = entry.names_all and keys == ["columns"]
        written.append("auto" if is_auto else _entry({key: plain.get(key) for key in keys}))
    return written


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with its transforms as `{bucketize: {quantiles: 30}}`."""
    for key in ("number", "id"):
        if entry.get(key) is not None:
            entry[key] = [_transform(dict(transform)) for transform in entry[key]]
    if entry.get("embedding") is not None:
        entry["embedding"] = _without_nulls(entry["embedding"])
    return entry


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    """What is given, without the keys that leave the rest as it is."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _transform(options: dict[str, Any]) -> Any:
    name = options.pop("name")
    return {name: options} if options else name


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
