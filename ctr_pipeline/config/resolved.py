"""A config written back as YAML, every default spelled out."""

from typing import Any

from ctr_pipeline.config.models import Config
from ctr_pipeline.config.yaml_source import dump_yaml


def resolved_yaml(config: Config) -> str:
    """The whole config in the order of the models; loading it gives an equal config."""
    values = config.model_dump(mode="python")
    if isinstance(values["features"], tuple | list):
        values["features"] = [_entry(entry) for entry in values["features"]]
    options = values["model"]["options"]
    plain = _plain(values)
    plain["model"]["options"] = _plain(options)
    return dump_yaml(plain)


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with its transforms as `{bucketize: {quantiles: 30}}`, absent keys left out."""
    written = {key: value for key, value in entry.items() if value is not None}
    if not written["columns"]:
        del written["columns"]
    for key in ("number", "id"):
        if key in written:
            written[key] = [_transform(dict(transform)) for transform in written[key]]
    return written


def _transform(options: dict[str, Any]) -> Any:
    name = options.pop("name")
    return {name: options} if options else name


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
