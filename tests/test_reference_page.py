"""The reference page says what the code says, and every transform has an example that is valid."""

import subprocess
import sys

import pytest
import yaml

from ctr_pipeline.config import config_from_mapping
from ctr_pipeline.transforms import TRANSFORMS
from tools import reference


def test_the_page_is_current():
    assert reference.PAGE.read_text(encoding="utf-8") == reference.render_page(), (
        f"{reference.PAGE.name} is not what the code says. Run: {reference.COMMAND}"
    )


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transform_has_an_example_that_uses_it(name):
    transform = TRANSFORMS[name]
    assert "example" in vars(transform), (
        f"{transform.__name__} in ctr_pipeline/features.py needs "
        f"example: ClassVar[str], an entry of `features:` that uses it"
    )
    entry = yaml.safe_load(transform.example)
    loaded = config_from_mapping({"data": {"train": "a"}, "features": [entry]})
    (feature,) = loaded.config.features
    assert name in {step.name for step in (*(feature.number or ()), *(feature.id or ()))}


@pytest.mark.parametrize("layer", reference.layer_texts(), ids=lambda layer: layer.name)
def test_every_layer_is_described(layer):
    assert layer.docstring.splitlines()[0].endswith((".", ":"))
    if layer.signature:
        for argument in layer.signature.replace("*, ", "").split(", "):
            assert f"{argument.split('=')[0]}: " in layer.docstring


def test_sections_of_a_docstring_become_markdown():
    lines = reference.as_markdown(
        "Says it.\n\nMore.\n\nArgs:\n    size: Of it,\n        in bytes.\n"
        "    options: Of Keras.\n\nRaises:\n    ValueError: It is 0.\n\n"
        "Example:\n    >>> 1 + 1\n    2\n"
    )
    assert "\n".join(lines) == (
        "Says it.\n\nMore.\n\n**Args**\n\n- `size`: Of it, in bytes.\n\n**Raises**\n\n"
        "- `ValueError`: It is 0.\n\n```python\n>>> 1 + 1\n2\n```\n"
    )


def test_a_stale_page_is_told_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "PAGE", tmp_path / "page.md")
    assert reference.main(["--check"]) == 1
    assert reference.COMMAND in capsys.readouterr().err
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0


def test_tensorflow_is_not_needed():
    program = (
        "import sys; from tools import reference; import ctr_pipeline.preprocessing.layers; "
        "reference.render_page(); print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=reference.PAGE.parent.parent,
    )
    assert done.stdout.strip() == "False"
