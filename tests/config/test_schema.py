import json

import pytest
import yaml

from ctr_pipeline.config import config_from_mapping, json_schema
from ctr_pipeline.transforms import TRANSFORMS


def resolve(schema, node):
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node


def accepts(schema, node, value):
    """Whether a JSON Schema accepts a value: the keywords that this schema uses, and no others."""
    node = resolve(schema, node)
    if "anyOf" in node:
        return any(accepts(schema, option, value) for option in node["anyOf"])
    if "enum" in node and value not in node["enum"]:
        return False
    if "const" in node and value != node["const"]:
        return False
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    if "type" in node:
        types = node["type"] if isinstance(node["type"], list) else [node["type"]]
        if not any(isinstance(value, kinds[kind]) for kind in types):
            return False
    if isinstance(value, dict) and "properties" in node:
        properties = node["properties"]
        known = all(
            key in properties and accepts(schema, properties[key], item)
            for key, item in value.items()
        )
        return known and all(key in value for key in node.get("required", ()))
    if isinstance(value, list) and "items" in node:
        return all(accepts(schema, node["items"], item) for item in value)
    return True


@pytest.fixture(scope="module")
def schema():
    return json_schema()


def test_schema_is_json_and_points_nowhere_that_is_not_there(schema):
    text = json.dumps(schema)
    for part in text.split('"#/$defs/')[1:]:
        assert part.split('"')[0] in schema["$defs"]
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_every_property_is_described(schema):
    def walk(node, path):
        for key, value in node.get("properties", {}).items():
            described = "description" in value or "description" in resolve(schema, value)
            assert described, f"{path}.{key}"

    walk(schema, "config")
    for name, definition in schema["$defs"].items():
        walk(definition, name)


@pytest.mark.parametrize(
    "chain",
    [
        "log",
        ["log", "standardize"],
        {"clip": {"minimum": 0}},
        ["log", {"standardize": {"clip": None}}],
        ["vocabulary"],
        {"vocabulary": None},
        {"bucketize": {"quantiles": 30}},
        [{"bucketize": {"boundaries": [1, 2.5]}}],
        {"hash": {"buckets": 9}},
    ],
)
def test_editor_accepts_transforms_as_people_write_them(schema, chain):
    entry = schema["$defs"]["FeatureEntry"]["properties"]["number"]
    assert accepts(schema, entry, chain)


@pytest.mark.parametrize(
    "chain", ["hash", "loog", {"hash": {}}, {"hash": {"bucket": 3}}, {"loog": {}}, [3]]
)
def test_editor_marks_what_the_loader_refuses(schema, chain):
    entry = schema["$defs"]["FeatureEntry"]["properties"]["id"]
    assert not accepts(schema, entry, chain)


def test_every_transform_is_offered_with_its_meaning(schema):
    names, named = schema["$defs"]["Transform"]["anyOf"]
    assert set(named["properties"]) == set(TRANSFORMS)
    assert set(names["enum"]) <= set(TRANSFORMS)
    assert "Fingerprint64" in named["properties"]["hash"]["description"]


def test_resolved_config_fits_the_schema(schema):
    mapping = {
        "data": {"train": "a"},
        "features": [{"columns": "x", "number": "log", "id": {"bucketize": {"quantiles": 9}}}],
    }
    written = yaml.safe_load(config_from_mapping(mapping).resolved_yaml())
    assert accepts(schema, schema, written)
    assert not accepts(schema, schema, {**written, "epochs": 3})
