"""Rows of a file, of folders, of objects and of a database end in the same scores."""

import json
import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ctr_pipeline.cli.main import main
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.statistics import load_statistics
from tests.storage.memory_buckets import MemoryBuckets

pytestmark = pytest.mark.slow

DAYS = ("2024-03-01", "2024-03-02", "2024-03-03", "2024-03-04")
NAMES = ["click", "price", "city", "user", "ds"]
FLAT = "rows.parquet"
SOURCES = {
    "folders": "clicks/",
    "query": 'SELECT * FROM "shop.duckdb".clicks ORDER BY rowid',
    "objects": "s3://shop/clicks/",
}


def rows(count=400):
    chance = random.Random(1)
    return pa.table(
        {
            "click": [int(chance.random() < 0.4) for _ in range(count)],
            "price": [chance.choice([None, 7.0, -3.0, 0.5, 120.0]) for _ in range(count)],
            "city": [chance.choice(["Oslo", "Köln", "点击", None]) for _ in range(count)],
            "user": [f"u{n % 30}" for n in range(count)],
            "ds": [DAYS[n * len(DAYS) // count] for n in range(count)],
        }
    )


def write_folders(table, folder):
    for number, day in enumerate(DAYS):
        size = table.num_rows // len(DAYS)
        part = table.slice(number * size, size).drop_columns(["ds"])
        place = folder / "clicks" / f"ds={day}"
        place.mkdir(parents=True)
        pq.write_table(part.slice(0, 30), place / "part-0.parquet")
        pq.write_table(part.slice(30), place / "part-1.parquet")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(rows(), tmp_path / FLAT)
    write_folders(rows(), tmp_path)
    with duckdb.connect("shop.duckdb") as connection:
        connection.sql(f"CREATE TABLE clicks AS FROM '{FLAT}'")
    buckets = MemoryBuckets(monkeypatch)
    for file in Path("clicks").rglob("*.parquet"):
        buckets.put(f"s3://shop/{file}", file.read_bytes())
    return tmp_path


def config(name, train):
    content = {
        "data": {"train": train, "label": "click", "key_columns": ["user"]},
        "features": [
            {"columns": "price", "number": ["log", "standardize"]},
            {"columns": ["city", "ds"], "id": "vocabulary"},
        ],
        "model": {"embedding_dim": 2, "hidden_units": [4]},
        "train": {"epochs": 1, "batch_size": 64, "deterministic": True},
        "output": f"run-{name}",
    }
    path = Path(f"{name}.yaml")
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path.name


def analyzed(name):
    run = RunFolder(Path(f"run-{name}"))
    tables = {
        split: read_columns(part.files, NAMES).to_pydict()
        for split, part in load_ingested(run.ingested).splits.items()
    }
    return tables, load_statistics(run.statistics).model_dump(exclude={"fingerprint"})


def test_the_same_rows_are_the_same_model_and_scores(folder, capsys):
    assert main(["analyze", config("flat", FLAT), "-q"]) == 0
    expected = analyzed("flat")
    assert sum(len(table["click"]) for table in expected[0].values()) == 400
    for name, train in SOURCES.items():
        assert main(["analyze", config(name, train), "-q"]) == 0
        assert analyzed(name) == expected

    name = "query"
    assert main(["train", f"{name}.yaml", "--resume", "-q"]) == 0
    scores, metrics = [], []
    for data in (FLAT, *SOURCES.values()):
        call = ["predict", f"{name}.yaml", "--data", data, "-o", "p.parquet", "--overwrite", "-q"]
        assert main(call) == 0
        scores.append(pq.read_table("p.parquet"))
        capsys.readouterr()
        assert main(["evaluate", f"{name}.yaml", "--data", data, "-q", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        metrics.append({key: found[key] for key in ("auc", "logloss", "num_rows")})
    assert scores[0].num_rows == 400
    assert all(one == scores[0] for one in scores)
    assert metrics[0]["num_rows"] == 400
    assert all(one == metrics[0] for one in metrics)


@pytest.mark.parametrize("name", SOURCES)
def test_init_gives_a_config_that_is_checked(folder, name, capsys):
    call = ["init", SOURCES[name], "--label", "click", "-o", "new.yaml", "-q"]
    assert main(call) == 0
    loaded = yaml.safe_load((folder / "new.yaml").read_text(encoding="utf-8"))
    assert loaded["data"]["train"] == SOURCES[name]
    assert loaded["output"] == "runs/clicks"
    assert "ds" in str(loaded["features"])
    assert main(["check", "new.yaml", "-q", "--json"]) == 0
    assert '"ds"' in capsys.readouterr().out


def fingerprint(name):
    return load_ingested(RunFolder(Path(f"run-{name}")).ingested).fingerprint


def test_one_more_folder_is_noticed(folder):
    call = ["analyze", config("folders", "clicks/"), "-q"]
    assert main(call) == 0
    before = fingerprint("folders")
    assert main(call) == 0
    assert fingerprint("folders") == before
    place = folder / "clicks" / "ds=2024-03-05"
    place.mkdir()
    pq.write_table(rows(50).drop_columns(["ds"]), place / "part-0.parquet")
    assert main(call) == 0
    assert fingerprint("folders") != before
    found = load_ingested(RunFolder(Path("run-folders")).ingested)
    assert sum(split.num_rows for split in found.splits.values()) == 450


def test_a_changed_table_is_read_again(folder):
    call = ["analyze", config("query", SOURCES["query"]), "-q"]
    assert main(call) == 0
    before = fingerprint("query")
    assert main(call) == 0
    assert fingerprint("query") == before
    with duckdb.connect("shop.duckdb") as connection:
        connection.sql("DELETE FROM clicks WHERE ds = '2024-03-01'")
    assert main(call) == 0
    assert fingerprint("query") != before
    found = load_ingested(RunFolder(Path("run-query")).ingested)
    assert sum(split.num_rows for split in found.splits.values()) == 300
