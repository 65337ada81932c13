"""What the papers name has to exist, and what they show has to be valid."""

import ast
import functools
import importlib
import re
import subprocess
import tomllib
import typing

import pytest
import typer
import yaml
from typer.exceptions import TyperException

from ctr_pipeline.cli.main import app
from ctr_pipeline.cli.session import CommandSession
from ctr_pipeline.config.key_facts import field_at
from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.config.models import Config
from ctr_pipeline.specs.model_kinds import MODELS
from ctr_pipeline.specs.optimizer import OptimizerName
from tests.paper_snippets import ROOT, blocks, commands, inline_code, papers, text_of

PAPERS = papers()
PROGRAM = typer.main.get_command(app)
LONGEST = {"README.md": 150, "ARCHITECTURE.md": 150, "CHANGELOG.md": 40}
LONGEST |= {paper: 60 for paper in PAPERS if "decisions/" in paper}

# Paths of the repository as the papers write them; run folders and the user's own files are not.
PATH = re.compile(r"\b(?:ctr_pipeline|configs|benchmarks|tests|tools|docs|\.ci)/[\w./-]*\w")
MODULE = re.compile(r"(?:\w+/)*\w+\.py")
SECTIONS = "data|features|model|train|evaluation|export|report|runtime|analysis|tune"
KEY = re.compile(rf"((?:{SECTIONS})(?:\.[a-z_0-9]+)+)(?:: (.+))?")
ENDINGS = (".csv", ".txt", ".tsv", ".parquet", ".html", ".py", ".yaml", ".json", ".j2")
OPTION = re.compile(r"--[a-z][a-z-]+")
# The files that the worked addition of CONTRIBUTING makes.
TO_ADD = {"ctr_pipeline/transforms/max_abs.py", "ctr_pipeline/preprocessing/layers/max_abs.py"}
ROWS = {"data": {"train": "rows.csv"}}


def anchors(text):
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


def options_of(command):
    return {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def all_commands(command=PROGRAM):
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from all_commands(inner)


def options_of_benchmarks():
    scripts = (path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    return set(re.findall(r'"(--[a-z-]+)"', "".join(scripts)))


OPTIONS = set().union(*map(options_of, all_commands())) | {"--help"}


def parse(arguments):
    """Parses a command line as the program does, and performs nothing."""
    command, context, rest = PROGRAM, None, list(arguments)
    while hasattr(command, "commands"):
        # The options of a group stand before the name of its command.
        named = next((at for at, one in enumerate(rest) if one in command.commands), len(rest))
        context = command.make_context(
            command.name or "ctrpipe", rest[: named + 1], parent=context, obj=CommandSession()
        )
        _, command, rest = command.resolve_command(context, rest[named:] or rest)
    command.make_context(command.name, rest, parent=context, obj=CommandSession())


@functools.cache
def schema_of_config():
    return Config.model_json_schema()


def schema_of(key):
    """The JSON Schemas of a key such as `train.epochs`; empty if there is no such key."""
    schema = schema_of_config()

    def alternatives(one):
        if "$ref" in one:
            yield from alternatives(schema["$defs"][one["$ref"].rsplit("/", 1)[1]])
        for inner in (*one.get("anyOf", ()), *one.get("oneOf", ()), *one.get("allOf", ())):
            yield from alternatives(inner)
        yield one

    found = [schema]
    for name in key.split("."):
        nested = [inner for one in found for inner in alternatives(one)]
        found = [one["properties"][name] for one in nested if name in one.get("properties", {})]
        found += [
            inner for one in nested if isinstance(inner := one.get("additionalProperties"), dict)
        ]
    return found


@pytest.mark.parametrize("paper", sorted(LONGEST))
def test_papers_are_short(paper):
    assert len(text_of(paper).splitlines()) <= LONGEST[paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_named_paths_exist(paper):
    named = set(PATH.findall(text_of(paper))) - TO_ADD
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("paper", "places"),
    [
        ("ARCHITECTURE.md", (".", "ctr_pipeline", "ctr_pipeline/distributed")),
        ("README.md", ("benchmarks",)),
        ("benchmarks/README.md", (".", "benchmarks", "configs")),
        *[
            (paper, (".", "ctr_pipeline", "benchmarks"))
            for paper in PAPERS
            if "decisions/" in paper
        ],
    ],
)
def test_named_modules_exist(paper, places):
    named = {code.split()[0] for code in inline_code(paper)}
    modules = {name for name in named if MODULE.fullmatch(name) and name != "my_model.py"}
    modules = {name for name in modules if not name.endswith("/NAME.py")}
    missing = [name for name in modules if not any((ROOT / at / name).exists() for at in places)]
    assert missing == []


@pytest.mark.parametrize("paper", PAPERS)
def test_linked_files_and_headings_exist(paper):
    for target in re.findall(r"\]\(([^)\s:]+)\)", text_of(paper)):
        path, _, anchor = target.partition("#")
        linked = (ROOT / paper).parent / path if path else ROOT / paper
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text(encoding="utf-8")), target


def test_the_picture_shows_the_layers_that_imports_are_held_to():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract, *_) = project["tool"]["importlinter"]["contracts"]
    picture = blocks("ARCHITECTURE.md", "")[0].text
    lines = [re.split(r"  +(?!\|)", line)[0] for line in picture.splitlines()]
    layers = [sorted(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    assert [sorted(re.findall(r"\w+", line)) for line in lines] == layers[1:]


def test_every_page_is_linked_from_the_readme():
    pages = {page for page in PAPERS if re.fullmatch(r"docs/[\w-]+\.md", page)}
    assert pages - set(re.findall(r"\]\(([^)#]+)", text_of("README.md"))) == set()


@pytest.mark.parametrize("paper", PAPERS)
def test_make_targets_exist(paper):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):.*##", makefile, re.MULTILINE))
    # In code only: "make" is a word of English, too.
    named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", text_of(paper), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("paper", PAPERS)
def test_commands_in_blocks_are_parsed_by_the_program(paper):
    for block in blocks(paper, "", "bash"):
        for arguments in commands(block):
            try:
                parse(arguments)
            except TyperException as error:
                pytest.fail(f"{block.place}: ctrpipe {' '.join(arguments)}: {error.message}")


@pytest.mark.parametrize("paper", PAPERS)
def test_commands_and_options_in_the_text_exist(paper):
    for code in inline_code(paper):
        command = PROGRAM
        if code.startswith("ctrpipe "):
            for word in code.split()[1:]:
                if word not in getattr(command, "commands", {}):
                    break
                command = command.commands[word]
            assert command is not PROGRAM or code.split()[1].startswith("--"), code
        known = OPTIONS if command is PROGRAM else options_of(command) | {"--help"}
        if "benchmarks/" in paper + code:
            known = OPTIONS | options_of_benchmarks()
        assert set(OPTION.findall(code)) <= known, code


@pytest.mark.parametrize("paper", PAPERS)
def test_config_keys_in_the_text_exist(paper):
    for code in inline_code(paper):
        found = KEY.fullmatch(code)
        if found is None or found[1].endswith(ENDINGS) or set(found[2] or "") & set("…|"):
            continue
        assert schema_of(found[1]), code
        if found[2]:
            config_from_mapping(ROWS, [f"{found[1]}={found[2]}"])


def test_remedies_name_config_keys_that_exist():
    dotted = re.compile(rf"\b(?:{'|'.join(Config.model_fields)})(?:\.[a-z_0-9]+)+")
    named = {
        key
        for path in (ROOT / "ctr_pipeline").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "remedy"
        for part in ast.walk(node.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for key in dotted.findall(part.value)
    }
    assert len(named) > 20
    assert [key for key in sorted(named) if field_at(Config, tuple(key.split("."))) is None] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_metrics_of_prometheus_exist(paper):
    named = set(re.findall(r"`(ctrpipe_\w+)`", text_of(paper)))
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "ctr_pipeline").rglob("*.py"))
    declared = set(re.findall(r'"(ctrpipe_\w+)"', "".join(sources))) if named else set()
    # The client adds the ending of counters.
    assert {name.removesuffix("_total") for name in named} <= declared


@pytest.mark.parametrize(
    "block", [block for paper in PAPERS for block in blocks(paper, "yaml")], ids=lambda b: b.place
)
def test_yaml_is_a_valid_config_or_part_of_one(block):
    content = yaml.safe_load(block.text)
    if "table" not in content:
        content = ({} if "query" in content.get("data", {}) else ROWS) | content
    loaded = config_from_mapping(content)
    assert loaded.config.data.training_rows


@pytest.mark.parametrize("paper", PAPERS)
def test_yaml_in_the_text_is_a_valid_part_of_a_config(paper):
    for code in inline_code(paper):
        if not re.match(rf"(?:{SECTIONS}): \{{", code) or "…" in code:
            continue
        content = yaml.safe_load(code)
        if "data" in content:
            content["data"].setdefault("train", "rows.csv")
        loaded = config_from_mapping({**ROWS, **content})
        assert set(content) <= loaded.config.model_fields_set, code


def test_the_page_of_models_has_all_models_and_their_keys():
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.*)\|$", text_of("docs/models.md"), re.MULTILINE)
    common = {"name", "embedding_dim", "hidden_units", "dropout"}
    written = {name: set(re.findall(r"`(\w+)`", keys)) - common for name, keys in rows}
    assert written == {name: set(kind.model_fields) - common for name, kind in MODELS.items()}


def test_the_page_of_training_has_all_optimizers():
    names = typing.get_args(OptimizerName)
    (listed,) = re.findall(
        r"^Optimizers, [^:]+: (.+?)\.$", text_of("docs/training.md"), re.M | re.S
    )
    assert re.findall(r"`(\w+)`", listed) == list(names)


def test_every_benchmark_is_in_the_benchmarks_readme():
    documented = text_of("benchmarks/README.md")
    for script in (ROOT / "benchmarks").glob("*.py"):
        if "__main__" in script.read_text(encoding="utf-8"):
            assert script.name in documented, script.name


def test_tracked_files_name_nothing_of_this_machine():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".txt", ""} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not re.search(r"/(?:root|work|farm)/\w|files\.pythonhosted", text), name


@pytest.mark.parametrize(
    "program", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.stem
)
def test_benchmarks_take_from_the_package_what_it_has(program):
    """Few of them run in tests, and none when something that they use is moved."""
    for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("ctr_"):
            continue
        module = importlib.import_module(node.module)
        for name in node.names:
            if not hasattr(module, name.name):
                importlib.import_module(f"{node.module}.{name.name}")
