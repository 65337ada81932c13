"""JSON Schema of the config, from which editors complete and explain."""

from typing import Any

from pydantic import BaseModel

from ctr_pipeline.config.models import Config
from ctr_pipeline.specs.learning_rate import LearningRateSchedule
from ctr_pipeline.specs.model_kinds import MODELS, ModelConfig
from ctr_pipeline.specs.section import kinds_of
from ctr_pipeline.transforms import TRANSFORMS


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of a config file, as YAML authors write it."""
    schema = Config.model_json_schema()
    definitions = schema["$defs"]
    for transform in TRANSFORMS.values():
        definitions.pop(transform.__name__, None)
    definitions["Transform"] = _transform_schema()
    item = {"$ref": "#/$defs/Transform"}
    for key in ("number", "id"):
        entry = definitions["FeatureEntry"]["properties"]
        entry[key] = {
            "description": entry[key]["description"],
            "anyOf": [item, {"type": "array", "items": item, "minItems": 1}, {"type": "null"}],
            "default": None,
        }
    for family in (ModelConfig, LearningRateSchedule):
        for kind in kinds_of(family).values():
            name = definitions[kind.__name__]["properties"]["name"]
            name["description"] = f"Kind of the {family.noun}."
    members = definitions["TrainConfig"]["properties"]["ensemble_models"]["anyOf"][0]
    for place, key, names in (
        (schema["properties"], "model", []),
        (definitions["TrainConfig"]["properties"], "learning_rate_schedule", []),
        (members, "items", [{"enum": list(MODELS)}]),
    ):
        place[key] = _any_kind(place[key], names)
    for shape in schema["properties"]["features"]["anyOf"]:
        if shape["type"] == "array":
            shape["items"] = {"anyOf": [shape["items"], {"const": "auto"}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ctrpipe config",
        **{key: value for key, value in schema.items() if key not in {"title", "$defs"}},
        "patternProperties": {"^x-": {"description": "Of your own: a place for YAML anchors."}},
        "$defs": definitions,
    }


def _any_kind(union: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """A section of one of several kinds: without its name it is of the default one."""
    left = {key: value for key, value in union.items() if key not in {"discriminator", "oneOf"}}
    return {**left, "anyOf": [*others, *union["oneOf"]]}


def _transform_schema() -> dict[str, Any]:
    """A transform as `log` or as `{bucketize: {quantiles: 30}}`."""
    plain = [name for name, transform in TRANSFORMS.items() if _needs_no_options(transform)]
    named = {
        "type": "object",
        "description": "One transform with its options.",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {name: _options_schema(transform) for name, transform in TRANSFORMS.items()},
    }
    names = {"description": "A transform with its default options.", "enum": plain}
    return {"description": "log, or {bucketize: {quantiles: 30}}.", "anyOf": [names, named]}


def _needs_no_options(transform: type[BaseModel]) -> bool:
    return not any(field.is_required() for field in transform.model_fields.values())


def _options_schema(transform: type[BaseModel]) -> dict[str, Any]:
    schema = transform.model_json_schema()
    properties = {key: value for key, value in schema["properties"].items() if key != "name"}
    required = [key for key in schema.get("required", ()) if key != "name"]
    options: dict[str, Any] = {
        "type": ["object", "null"] if not required else "object",
        "description": " ".join(str(schema["description"]).split()),
        "properties": properties,
        "additionalProperties": False,
    }
    return {**options, "required": required} if required else options
