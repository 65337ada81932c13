"""A value of a sensitive column is found nowhere but in the files that hold rows by need."""

import random
import tempfile

import pytest
import yaml

from ctr_pipeline.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

SECRET = "PLANTED" + "VALUE"
# As SECURITY.md names them: raw rows, what features are decided by, and vocabularies, without which
# a model can neither be trained nor served.
HOLDS_VALUES = ("cache/", "vocabularies/", "preprocessing.json")


def write_rows(path, num_rows=1500):
    chance = random.Random(3)
    lines = ["click,price,city,email,income"]
    for number in range(num_rows):
        email = f"{SECRET}_alice@x" if number % 3 == 0 else f"{SECRET}_{number % 40}@x"
        income = f"{SECRET}_income" if number == 70 else str(chance.randrange(10, 90))
        price, city = chance.uniform(1, 9), chance.choice("abc")
        lines.append(f"{int(chance.random() < 0.3)},{price:.2f},{city},{email},{income}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sensitive")
    write_rows(folder / "rows.csv")
    write_rows(folder / "new.csv", 300)
    (folder / "tmp").mkdir()
    config = {
        "name": "kept",
        "data": {
            "train": "rows.csv",
            "label": "click",
            "bad_rows": "skip",
            "max_bad_fraction": 0.2,
        },
        "features": [
            "auto",
            {"columns": "email", "sensitive": True, "id": {"vocabulary": {"min_count": 1}}},
            {"columns": "income", "sensitive": True, "number": ["standardize"]},
        ],
        "model": {"embedding_dim": 4, "hidden_units": [4]},
        "train": {"batch_size": 128, "epochs": 1},
        "tune": {
            "trials": 2,
            "startup_trials": 1,
            "space": {"train.optimizer.learning_rate": {"choices": [0.001, 0.01]}},
        },
        "output": "runs/kept",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    processes = {"mode": "processes", "parameter_servers": 1}
    elastic = config | {"runtime": processes, "output": "runs/elastic"}
    (folder / "elastic.yaml").write_text(yaml.safe_dump(elastic))
    failing = config | {"output": "runs/failing"}
    failing["data"] = config["data"] | {"bad_rows": "fail"}
    (folder / "failing.yaml").write_text(yaml.safe_dump(failing))
    return folder


@pytest.fixture
def call(world, monkeypatch, capfd):
    """Runs a command in the folder; returns its exit code and all that it said."""
    monkeypatch.chdir(world)
    # Of the processes that it starts, and of this one.
    monkeypatch.setenv("TMPDIR", str(world / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def call(*arguments):
        capfd.readouterr()
        code = main(arguments)
        return code, "".join(capfd.readouterr())

    return call


def holders(folder):
    """Files that hold the secret, relative to the folder."""
    return {
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and any(SECRET.encode(code) in path.read_bytes() for code in ("utf-8", "utf-16-le"))
    }


COMMANDS = (
    ("check", "config.yaml", "-vv"),
    ("check", "config.yaml", "--json"),
    ("analyze", "config.yaml", "-vv"),
    ("analyze", "config.yaml", "--json"),
    ("run", "config.yaml", "-vv", "--overwrite"),
    ("evaluate", "config.yaml", "--data", "new.csv", "--json"),
    ("predict", "config.yaml", "--data", "new.csv", "--output", "scores.csv"),
    ("export", "config.yaml", "-vv"),
    ("run", "elastic.yaml", "-vv"),
    ("status", "runs/elastic"),
    ("status", "runs/elastic", "--json"),
    ("logs", "runs/elastic", "master-0"),
    ("logs", "runs/elastic", "worker-0"),
    ("logs", "runs/elastic", "ps-0"),
    ("compare", "runs/kept", "runs/elastic", "--html", "compare.html"),
    ("drift", "runs/kept", "new.csv", "--html", "drift.html", "--json"),
    ("tune", "config.yaml", "--set", "output=runs/tuned", "-v"),
    ("report", "runs/kept"),
    ("runs", "runs", "--json"),
)


def test_no_command_tells_a_value(world, call):
    for command in COMMANDS:
        code, said = call(*command)
        assert code == 0, (command, said[-2000:])
        assert SECRET not in said, command
    assert holders(world / "tmp") == set()
    assert not holders(world) & {"scores.csv", "compare.html", "drift.html"}
    runs = world / "runs"
    for name in holders(runs):
        inside = name.split("/", 1)[1].removeprefix("trials/").lstrip("0123456789/")
        exported = "/assets/" in name
        assert inside.startswith(HOLDS_VALUES) or exported, name


@pytest.mark.parametrize("command", ["check", "analyze", "run"])
def test_a_bad_value_ends_a_command_without_being_told(world, call, command):
    code, said = call(command, "failing.yaml", "--json")
    assert code == 1, said
    assert "not a number (value not shown: sensitive)" in said
    assert SECRET not in said
    assert holders(world / "tmp") == set()
