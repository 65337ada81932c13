"""A config written back as YAML, every default spelled out."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ctr_pipeline.config.models import Config, FeatureEntry
from ctr_pipeline.config.yaml_source import dump_yaml

RESOLVED_CONFIG = "config.resolved.yaml"
RUN_LOCK = ".lock"
"""Names of files that every run folder holds."""


def resolved_yaml(config: Config) -> str:
    """The whole config in the order of the models; loading it gives an equal config."""
    values = config.model_dump(mode="python")
    if config.features != "auto":
        values["features"] = _entries(config.features, values["features"])
    options = values["model"]["options"]
    plain = _plain(values)
    plain["model"]["options"] = _plain(options)
    return dump_yaml(plain)


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
    return entry


def _transform(options: dict[str, Any]) -> Any:
    name = options.pop("name")
    return {name: options} if options else name


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
