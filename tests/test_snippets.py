"""The commands of the README and all Python in the papers, run as they stand."""

import io
import json
import random
import re
from contextlib import redirect_stdout

import keras
import pytest
import tensorflow as tf

from ctr_pipeline.cli.main import main
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.specs.model_kinds import CustomModelConfig
from tests.paper_snippets import Block, blocks, commands, papers, text_of

MODEL_FILE = "def build_model("
PYTHON = [block for paper in papers() for block in blocks(paper, "python")]
# Examples of docstrings are run by tests/preprocessing/test_layer_examples.py.
# The worked addition of CONTRIBUTING is made by tests/preprocessing/test_worked_addition.py.
PROGRAMS = [
    block
    for block in PYTHON
    if block.paper != "CONTRIBUTING.md" and ">>>" not in block.text and MODEL_FILE not in block.text
]


def write_clicks(path):
    chance = random.Random(1)
    lines = ["country,device,age,clicked"]
    for _ in range(600):
        country, device = chance.choice(["NZ", "DE", "BR"]), chance.choice(["phone", "tablet"])
        age = chance.choice(["", str(chance.randrange(18, 80))])
        clicked = int(chance.random() < (0.5 if country == "NZ" else 0.2))
        lines.append(f"{country},{device},{age},{clicked}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands of the README's own file have been run."""
    folder = tmp_path_factory.mktemp("readme")
    write_clicks(folder / "clicks.csv")
    text = text_of("README.md")
    section = re.search(r"^## Your own file.*?(?=^## )", text, re.MULTILINE | re.DOTALL)[0]
    written = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    lines = [line for block in written for line in commands(Block("README.md", 0, "", block))]
    assert [line[0] for line in lines] == ["init", "check", "run", "predict"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for arguments in lines:
            with redirect_stdout(io.StringIO()):
                assert main(arguments) == 0, arguments
    return folder


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_a_run_holds_what_the_readme_names(folder):
    for name in ("report.html", "metrics.json", "predictions.parquet", "export/1"):
        assert (folder / "runs/clicks" / name).exists()


@pytest.mark.parametrize("paper", ["README.md", "docs/serving.md"])
def test_the_request_to_a_server_is_one_that_the_model_takes(paper):
    request = json.loads(re.search(r"curl -d '(.*?)'", text_of(paper), re.DOTALL)[1])
    model = tf.saved_model.load("runs/clicks/export/1")
    signature = model.signatures[request["signature_name"]]
    (instance,) = request["instances"]
    result = signature(**{name: tf.constant([value]) for name, value in instance.items()})
    assert set(result) == {"probability", "logit"}
    assert 0 < float(result["probability"][0]) < 1


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda block: block.place)
def test_python_runs(program, capsys):
    # An earlier test of the process may have asked for determinism, which needs a seed.
    tf.random.set_seed(1)
    exec(compile(program.text, program.place, "exec"), {"__name__": "__main__"})  # noqa: S102
    if "tags.keras" in program.text:
        assert "loss" in capsys.readouterr().out
        loaded = keras.models.load_model("tags.keras")
        assert loaded([tf.constant([["red"]]), tf.constant([[20.0]])]).shape == (1, 1)


def test_the_model_of_the_users_own_is_built(tmp_path):
    (block,) = [block for block in PYTHON if MODEL_FILE in block.text]
    file = tmp_path / "my_model.py"
    file.write_text(block.text, encoding="utf-8")
    config = CustomModelConfig(file=str(file), options={"units": 4})
    signature = ModelSignature(num_fields=2, embedding_dim=8, num_numbers=1, base_rate=0.25)
    model = build_model(config, signature, seed=0)
    shapes = {"embeddings": (3, 2, 8), "linear": (3, 2), "numbers": (3, 1)}
    assert model({name: tf.zeros(shape) for name, shape in shapes.items()}).shape == (3,)
