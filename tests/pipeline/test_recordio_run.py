"""The same rows from RecordIO and from TSV end in the same model and the same scores."""

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from ctr_pipeline.cli.main import main
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.statistics import load_statistics

pytestmark = pytest.mark.slow

COLUMNS = ["click", "price", "city", "user"]
FORMS = {
    "lines": ["--compression", "snappy"],
    "examples": ["--record", "example"],
}


def rows(count=400):
    chance = random.Random(1)
    return [
        [
            str(int(chance.random() < 0.4)),
            chance.choice(["", "7", "-3", "0.5", "120"]),
            chance.choice(["Oslo", "Köln", "点击", ""]),
            f"u{n % 30}",
        ]
        for n in range(count)
    ]


def config(folder, train, **data):
    content = {
        "data": {"train": train, "label": "click", "key_columns": ["user"], **data},
        "features": [
            {"columns": "price", "number": ["log", "standardize"]},
            {"columns": "city", "id": "vocabulary"},
        ],
        "model": {"embedding_dim": 2, "hidden_units": [4]},
        "train": {"epochs": 1, "batch_size": 64, "deterministic": True},
        "output": f"run-{train}",
    }
    path = folder / f"{train}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path.name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\n".join("\t".join(row) for row in [COLUMNS, *rows()])
    (tmp_path / "rows.tsv").write_text(text + "\n", encoding="utf-8")
    for name, options in FORMS.items():
        call = ["convert", "rows.tsv", "-o", f"{name}.recordio", *options, "-q"]
        assert main(call) == 0
    return tmp_path


def analyzed(name):
    run = RunFolder(Path(f"run-{name}"))
    ingested = load_ingested(run.ingested)
    tables = {
        split: read_columns(part.files, ["click", "price", "city", "user"]).to_pydict()
        for split, part in ingested.splits.items()
    }
    statistics = load_statistics(run.statistics)
    return tables, statistics.model_dump(exclude={"fingerprint"})


def test_the_same_rows_are_the_same_model(folder):
    names = {
        "rows.tsv": {},
        "lines.recordio": {"format": "recordio", "record": "line"},
        "examples.recordio": {"format": "recordio", "record": "example"},
    }
    for name, data in names.items():
        assert main(["analyze", config(folder, name, **data), "-q"]) == 0
    expected = analyzed("rows.tsv")
    assert sum(len(table["click"]) for table in expected[0].values()) == 400
    assert analyzed("lines.recordio") == expected
    assert analyzed("examples.recordio") == expected

    histories, plans = [], []
    for name in ("rows.tsv", "examples.recordio"):
        assert main(["train", f"{name}.yaml", "--resume", "-q"]) == 0
        text = (folder / f"run-{name}" / "history.csv").read_text(encoding="utf-8")
        header, *lines = [line.split(",") for line in text.splitlines()]
        kept = [i for i, key in enumerate(header) if "second" not in key and "per" not in key]
        plans.append((folder / f"run-{name}" / "preprocessing.json").read_bytes())
        histories.append([[line[i] for i in kept] for line in lines])
    assert plans[0] == plans[1]
    assert histories[0] == histories[1]
    assert len(histories[0]) == 1

    scores = []
    for name in names:
        call = ["predict", "rows.tsv.yaml", "--data", name, "-o", f"{name}.parquet", "-q"]
        assert main(call) == 0
        scores.append(pq.read_table(f"{name}.parquet"))
    assert scores[0].num_rows == 400
    assert scores[0] == scores[1] == scores[2]


@pytest.mark.parametrize("name", FORMS)
def test_init_gives_a_config_that_is_checked(folder, name, capsys):
    call = ["init", f"{name}.recordio", "--label", "click", "-o", "new.yaml", "-q"]
    assert main(call) == 0
    data = yaml.safe_load((folder / "new.yaml").read_text(encoding="utf-8"))["data"]
    # They are found again.
    assert not {"format", "record", "delimiter"} & {*data}
    assert main(["check", "new.yaml", "-q", "--json"]) == 0
    assert '"city"' in capsys.readouterr().out
