"""Writes the reference page of transforms and layers from their own descriptions.

A transform in `TRANSFORMS` and a layer of `ctr_pipeline.preprocessing.layers` are on the page by
being there. Of the layers the source is read, so that TensorFlow is not loaded.

    python -m tools.reference            # writes docs/layers-and-transforms.md
    python -m tools.reference --check    # says whether it is current
"""

import argparse
import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ctr_pipeline.config.models import FeatureEntry
from ctr_pipeline.preprocessing import layers
from ctr_pipeline.transforms import TRANSFORMS
from ctr_pipeline.transforms.base import Transform

PAGE = Path(__file__).parent.parent / "docs" / "layers-and-transforms.md"
COMMAND = "python -m tools.reference"

_HEAD = f"""\
# Transforms and layers

<!-- Written by `{COMMAND}` from docstrings and descriptions in the code: change those. -->

A *transform* is one step of a `number:` or `id:` chain in the config. A *layer* computes the same
in Keras, and can be used alone. The kernels of training and the layers of the exported model are
held equal by tests, and again on every export.
"""
_LAYERS_HEAD = """\
Keras 3 layers, from `ctr_pipeline.preprocessing.layers`. Each takes `name`, `dtype` and the other
options of every Keras layer as well, and comes back the same from `get_config`, a `.keras` file and
a SavedModel. All can be called at once, in `tf.function`, in `tf.data` and in functional models.

Layers that work value by value take dense tensors of any rank, `tf.RaggedTensor` and
`tf.SparseTensor` (`keras.Input(..., ragged=True)` and `sparse=True`), and give what they got: the
values of a sparse result are those of the input, so that what is absent stays absent.

A layer with the name of one of ElasticDL's preprocessing layers takes the same arguments and gives
the same results, `missing_id` and `padding_id` on top, but: `ToRagged` cuts text at `sep`;
`IndexLookup` refuses a value that is repeated in a list too, and takes the lines of a file as they
are; `Normalizer` computes in float64; `ToNumber` refuses numbers beyond its type, and
`SparseEmbedding` ids beyond its vectors."""
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$")
_ITEM = re.compile(r"^(\w[\w ,*]*): (.*)$")


@dataclass(frozen=True)
class LayerText:
    """What the page says of a layer.

    Attributes:
        name: Name of the class.
        signature: Arguments of the constructor, as its source writes them.
        docstring: Docstring of the class, dedented.
    """

    name: str
    signature: str
    docstring: str


def render_page() -> str:
    """The whole page, as Markdown."""
    return "\n".join(
        [
            _HEAD,
            "## Transforms",
            "",
            *_transform_table(),
            *(line for transform in TRANSFORMS.values() for line in _transform(transform)),
            "## The keys of a feature",
            "",
            _first_line(inspect.getdoc(FeatureEntry)),
            "",
            *_options(FeatureEntry),
            "",
            "## Layers",
            "",
            _LAYERS_HEAD,
            "",
            *(line for layer in layer_texts() for line in _layer(layer)),
        ]
    )


def layer_texts() -> list[LayerText]:
    """The public layers, in the order of their names."""
    folder = Path(layers.__file__).parent
    classes = {
        node.name: node
        for file in folder.glob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    return [
        LayerText(name, _signature(node, classes), ast.get_docstring(node) or "")
        for name, node in sorted(classes.items())
        if any(_is_registration(one) for one in node.decorator_list)
    ]


def _is_registration(decorator: ast.expr) -> bool:
    """Whether a decorator registers the class with Keras."""
    return ast.unparse(decorator).startswith(("serves(", "keras.saving.register_keras"))


def _signature(found: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> str:
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = node.args
            arguments.args = arguments.args[1:]
            for argument in (*arguments.args, *arguments.kwonlyargs):
                argument.annotation = None
            arguments.kwarg = None
            return ast.unparse(arguments)
    for base in found.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            return _signature(classes[base.id], classes)
    return ""


def _transform_table() -> list[str]:
    rows = [
        f"| [`{name}`](#{name}) | {transform.kind} | {_first_line(inspect.getdoc(transform))} |"
        for name, transform in TRANSFORMS.items()
    ]
    return ["| Name | Takes and gives | Result |", "|---|---|---|", *rows, ""]


def _transform(transform: type[Transform]) -> list[str]:
    options = _options(transform)
    return [
        f"### `{transform.model_fields['name'].default}`",
        "",
        *as_markdown(inspect.getdoc(transform) or ""),
        *(options or ["No options."]),
        "",
        "```yaml",
        "features:",
        *textwrap.indent(f"- {_hanging(transform.example)}", "  ").splitlines(),
        "```",
        "",
    ]


def _hanging(text: str) -> str:
    """A YAML mapping of one or several lines as an item of a list."""
    return textwrap.indent(inspect.cleandoc(text), "  ").strip()


def _options(model: type[BaseModel]) -> list[str]:
    schema = model.model_json_schema()
    rows = []
    for name, field in model.model_fields.items():
        if name == "name" and issubclass(model, Transform):
            continue
        accepted = _accepted(schema["properties"][name], schema.get("$defs", {}))
        default = (
            "required"
            if field.is_required()
            else f"`{json.dumps(field.get_default(call_default_factory=True), default=str)}`"
        )
        rows.append(f"| `{name}` | {accepted} | {default} | {_cell(field.description or '')} |")
    return ["| Option | Accepts | Default | Meaning |", "|---|---|---|---|", *rows] if rows else []


def _accepted(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A JSON Schema in words."""
    if "$ref" in schema:
        return _accepted(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    if "discriminator" in schema:
        return "a transform"
    if "anyOf" in schema:
        words = [_accepted(option, definitions) for option in schema["anyOf"]]
        return " or ".join(dict.fromkeys(words))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        item = _accepted(schema["items"], definitions) if "items" in schema else ""
        return f"a list of {item}" if item else "a list"
    names = {"boolean": "true or false", "string": "text", "object": "a mapping"}
    kind = str(schema.get("type", "anything"))
    bounds = [
        f"{sign} {schema[key]:,}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    return " ".join([names.get(kind, kind), ", ".join(bounds)]).strip()


def _layer(layer: LayerText) -> list[str]:
    return [f"### `{layer.name}({layer.signature})`", "", *as_markdown(layer.docstring)]


def as_markdown(docstring: str) -> list[str]:
    """A docstring in the house's style as Markdown, without the argument `options`."""
    lines: list[str] = []
    section = None
    block: list[str] = []

    def finish() -> None:
        text = textwrap.dedent("\n".join(block)).strip("\n")
        block.clear()
        if not text:
            return
        if section == "Example":
            lines.extend(["```python", *text.splitlines(), "```", ""])
        elif section is not None:
            items = [item for item in _items(text) if not item.startswith("- `options`")]
            lines.extend([f"**{section}**", "", *items, ""] if items else [])
        else:
            lines.extend([text, ""])

    for line in docstring.splitlines():
        matched = _SECTION.match(line)
        if matched:
            finish()
            section = matched.group(1)
        elif section is not None and line and not line.startswith(" "):
            finish()
            section = None
            block.append(line)
        else:
            block.append(line)
    finish()
    return lines


def _items(text: str) -> list[str]:
    items: list[str] = []
    for line in text.splitlines():
        matched = _ITEM.match(line)
        if matched:
            items.append(f"- `{matched.group(1)}`: {matched.group(2)}")
        elif items and line.startswith(" "):
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(line.strip())
    return items


def _first_line(docstring: str | None) -> str:
    return _cell((docstring or "").split("\n\n", 1)[0].replace("\n", " "))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str] | None = None) -> int:
    """Writes the page, or says whether it is current; 1 if it is not."""
    parser = argparse.ArgumentParser(description="The reference page of transforms and layers.")
    parser.add_argument("--check", action="store_true", help="compare only; 1 if it differs")
    check = parser.parse_args(arguments).check
    page = render_page()
    current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page
    if check and not current:
        sys.stderr.write(f"{PAGE.name} is not what the code says. Run: {COMMAND}\n")
        return 1
    if not current:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
