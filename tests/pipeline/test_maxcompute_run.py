"""`ctrpipe analyze` on a table: what it finds is what a file of the same rows gives."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ctr_pipeline.analysis import maxcompute_engine
from ctr_pipeline.cli.main import main
from ctr_pipeline.dataset.formats.maxcompute import client as client_module
from tests.analysis.engine_rows import assert_close
from tests.maxcompute.maxcompute_service import service_in_environment

pytestmark = pytest.mark.slow


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_SECONDS", (0.0,))
    with service_in_environment(monkeypatch) as running:
        yield running


def rows(num_rows: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + num_rows)
    return pa.table(
        {
            "click": [n * 7919 % 100 < 30 for n in numbers],
            "price": [None if n % 9 == 0 else (n * 31 % 500) / 8 for n in numbers],
            "clicks_before": pa.array([n * n % 23 for n in numbers], pa.int64()),
            "city": [f"c{n * 13 % 40}" for n in numbers],
            "user_id": pa.array([n % 200 for n in numbers], pa.int64()),
        }
    )


def scans_of(service) -> list[str]:
    return [query for query in service.queries if "`clicks`" in query]


def analyze(config: dict, folder) -> dict:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump({**config, "output": str(folder / "run")}))
    assert main(["analyze", str(path), "-q"]) == 0
    found = json.loads((folder / "run" / "statistics.json").read_text())
    # The checksum is of the whole, fingerprint included.
    del found["fingerprint"], found["crc32"]
    return found


def test_the_same_statistics_as_of_files(service, tmp_path):
    splits = {"train": rows(1200), "valid": rows(200, 1200), "test": rows(200, 1400)}
    service.add_partitions("clicks", "ds", splits)
    files = {name: str(tmp_path / f"{name}.parquet") for name in splits}
    for name, table in splits.items():
        pq.write_table(table, files[name])
    found = []
    for side, paths in (
        ("there", {name: f"odps://ads/clicks/ds={name}" for name in splits}),
        ("here", files),
    ):
        (tmp_path / side).mkdir()
        data = {"label": "click", "missing_values": ["5", "7.50"], **paths}
        found.append(analyze({"data": data, "features": "auto"}, tmp_path / side))
    assert_close(*found)
    assert set(found[0]["drift"]) == {"valid", "test"}
    # What decides the features and what they need are counted together, in one reading of the rows.
    assert len(scans_of(service)) == 1
    assert not list((tmp_path / "there").rglob("ingested.json"))
    assert service.left_tables() == []


def test_rows_of_selects_have_the_statistics_of_the_same_rows_in_files(service, tmp_path):
    splits = {"train": rows(1200), "valid": rows(200, 1200), "test": rows(200, 1400)}
    service.add_partitions("clicks", "ds", splits)
    columns = ", ".join(splits["train"].column_names)
    selects = {name: f"SELECT {columns} FROM clicks WHERE ds = '{name}'" for name in splits}
    there = {"query": selects.pop("train"), "connection": {"driver": "maxcompute"}, **selects}
    here = {name: str(tmp_path / f"{name}.parquet") for name in splits}
    found = []
    for side, data in {"there": there, "here": here}.items():
        (tmp_path / side).mkdir()
        for name, table in splits.items():
            pq.write_table(table, tmp_path / f"{name}.parquet")
        config = {"data": {"label": "click", **data}, "features": "auto"}
        found.append(analyze(config, tmp_path / side))
    assert_close(*found)
    made = [query for query in service.queries if "LIFECYCLE 7 AS" in query]
    assert len(made) == 3
    assert not list((tmp_path / "there").rglob("ingested.json"))


@pytest.mark.parametrize("bad_rows", ["fail", "skip"])
def test_weighted_rows_are_weighed_there_as_here(service, tmp_path, bad_rows):
    table = rows(1500)
    weights = [n * 37 % 11 / 3 for n in range(1500)]
    if bad_rows == "skip":
        # None of these rows may count: no weight, less than 0, and no number.
        weights[5], weights[600], weights[1200] = None, -1.0, math.nan
    table = table.append_column("times", pa.array(weights, pa.float64(), from_pandas=False))
    parts = {"train": (0, 1300), "valid": (1300, 100), "test": (1400, 100)}
    splits = {name: table.slice(*part) for name, part in parts.items()}
    service.add_partitions("clicks", "ds", splits)
    features = [
        {"columns": "price", "number": ["log", "standardize"]},
        {"columns": "city", "number": ["target_encode", "standardize"]},
    ]
    found = []
    for side in ("there", "here"):
        (tmp_path / side).mkdir()
        paths = {name: f"odps://ads/clicks/ds={name}" for name in splits}
        if side == "here":
            paths = {name: str(tmp_path / f"{name}.parquet") for name in splits}
            for name, part in splits.items():
                pq.write_table(part, paths[name])
        data = {"label": "click", "weight": "times", "bad_rows": bad_rows, **paths}
        found.append(analyze({"data": data, "features": features}, tmp_path / side))
        assert any("CREATE TABLE" in query for query in service.queries)
    assert_close(*found)
    assert found[0]["num_rows"] == 1300 - 3 * (bad_rows == "skip")
    assert found[0]["columns"]["price"]["moments"]["weight"] > 0
    assert found[0]["value_weights"]["city"]["column"] == "times"
    assert service.left_tables() == []


def writing(number: int) -> str | None:
    """A text that is another writing of a value, or none of any."""
    value = number % 40
    texts = [None, "", " ", "NA", f"{value}", f"{value}.0", f" {value}\t", f"0{value}", f"é{value}"]
    texts += ["True", "FALSE", "1", "-0.0"]
    return texts[number % len(texts)]


USERS = {
    "texts": [f"u{n % 50}" for n in range(1500)],
    "writings": [writing(n) for n in range(1500)],
    "integers": [n % 50 for n in range(1500)],
}


@pytest.mark.parametrize("users", [None, *USERS])
def test_a_divided_table_is_counted_and_read_alike(service, tmp_path, users):
    """By the hash of each kind of text, or at random."""
    table = rows(1500)
    split = {"by": "random", "valid": 0.2, "test": 0.2}
    if users is not None:
        table = table.set_column(4, "user_id", pa.array(USERS[users]))
        split |= {"by": "hash", "column": "user_id"}
    service.add_table("clicks", table)
    data = {"train": "odps://ads/clicks", "label": "click", "split": split}
    data["missing_values"] = ["NA"]
    features = [
        {"columns": "price", "number": ["log", "standardize"]},
        {"columns": "user_id", "id": "vocabulary"},
    ]
    found = []
    for engine in ("maxcompute", "duckdb"):
        (tmp_path / engine).mkdir()
        config = {"data": data, "features": features, "analysis": {"engine": engine}}
        found.append(analyze(config, tmp_path / engine))
    assert_close(*found)
    assert found[0]["drift"]["test"]["num_rows"] > 200
    assert sum("INSERT OVERWRITE" in query for query in service.queries) == 1


def test_profile_drift_and_convert_of_tables(service, tmp_path, capsys):
    service.add_partitions("clicks", "ds", {"old": rows(400), "new": rows(400, 400)})
    pq.write_table(rows(400), tmp_path / "old.parquet")
    old, new = ("odps://ads/clicks/ds=old", "odps://ads/clicks/ds=new")

    def call(*arguments):
        assert main([*arguments, "-q", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    there, here = (
        call("profile", data, "--label", "click") for data in (old, str(tmp_path / "old.parquet"))
    )
    assert_close(there["columns"]["price"], here["columns"]["price"])
    assert set(there["columns"]) == set(here["columns"])
    drift = call("drift", old, new)
    assert {one["column"] for one in drift["columns"]} >= {"price", "city"}
    output = tmp_path / "copy.parquet"
    assert call("convert", old, "--output", str(output))["num_rows"] == 400
    copied = pq.read_table(output)
    for name in ("price", "clicks_before", "city", "user_id", "click"):
        assert copied.column(name).to_pylist() == rows(400).column(name).to_pylist(), name


def test_init_of_a_table_gives_a_config_that_checks(service, tmp_path):
    service.add_table("clicks", rows(400))
    path = tmp_path / "c.yaml"
    call = ["init", "odps://ads/clicks", "--label", "click", "--output", str(path), "-q"]
    assert main(call) == 0
    data = yaml.safe_load(path.read_text())["data"]
    assert data["train"] == "odps://ads/clicks"
    assert data["split"]["by"] == "random"
    assert main(["check", str(path), "-q"]) == 0


@pytest.mark.parametrize("by", ["random", "hash", "time"])
def test_column_is_counted_here_with_a_notice_when_sql_reads_it_otherwise(
    service, tmp_path, capfd, by
):
    table = rows(300)
    split = {"by": by}
    if by == "random":
        texts = pa.array([str(value) for value in table.column("price").fill_null(1).to_pylist()])
        table = table.set_column(1, "price", texts)
    else:
        split["column"] = {"hash": "price", "time": "user_id"}[by]
    service.add_table("clicks", table)
    data = {"train": "odps://ads/clicks", "label": "click", "split": split}
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(
            {
                "data": data,
                "features": [{"columns": "price", "number": "standardize"}],
                "output": str(tmp_path / "run"),
            }
        )
    )
    assert main(["analyze", str(tmp_path / "c.yaml")]) == 0
    assert "Statistics are not computed by MaxCompute: " in capfd.readouterr().err
    assert not any("CREATE TABLE" in query for query in service.queries)


def test_several_partitions_are_counted_as_one_file_of_their_rows(service, tmp_path):
    parts = {str(n): rows(150, 150 * n) for n in range(6)}
    service.add_partitions("clicks", "ds", parts)
    address = "odps://ads/clicks/ds="
    train = [f"{address}{n}" for n in range(4)]
    paths = {"valid": f"{address}4", "test": f"{address}5"}
    data = {"label": "click", "train": train, **paths}
    # The heads are not the same, and one does not tell of ids.
    features = ["auto", {"columns": "user_id", "type": "categorical"}]
    (tmp_path / "there").mkdir()
    there = analyze({"data": data, "features": features}, tmp_path / "there")
    (made,) = scans_of(service)
    assert "IN ('0', '1', '2', '3')" in made
    (tmp_path / "here").mkdir()
    files = {name: str(tmp_path / f"{name}.parquet") for name in ("train", "valid", "test")}
    for name, start, count in (("train", 0, 600), ("valid", 600, 150), ("test", 750, 150)):
        pq.write_table(rows(count, start), files[name])
    here = analyze({"data": {"label": "click", **files}, "features": features}, tmp_path / "here")
    assert_close(there, here)


def test_points_in_time_are_counted_by_the_service(service, tmp_path):
    table = rows(1200)
    seen = [
        "soon" if n % 50 == 0 else f"2026-10-{n % 28 + 1:02d} {n % 24:02d}:{n % 60:02d}:00"
        for n in range(1200)
    ]
    table = table.append_column("seen", pa.array(seen))
    parts = {"train": (0, 800), "valid": (800, 200), "test": (1000, 200)}
    splits = {name: table.slice(*part) for name, part in parts.items()}
    service.add_partitions("clicks", "ds", splits)
    features = [
        {"columns": "seen", "id": {"datetime": {"parts": ["hour"]}}},
        {"columns": "seen", "number": [{"age": {}}, "standardize"]},
    ]
    found = []
    for engine in ("maxcompute", "duckdb"):
        (tmp_path / engine).mkdir()
        paths = {name: f"odps://ads/clicks/ds={name}" for name in splits}
        config = {
            "data": {"label": "click", **paths},
            "features": features,
            "analysis": {"engine": engine},
        }
        found.append(analyze(config, tmp_path / engine))
    assert_close(*found)
    assert found[0]["derived_moments"]
    assert not list((tmp_path / "maxcompute").rglob("ingested.json"))


@pytest.mark.parametrize("most", [0.001, 0.5])
def test_bad_rows_are_counted_before_any_is_read(service, tmp_path, capsys, most):
    table = rows(600)
    labels = [None if n % 100 == 0 else n % 2 for n in range(600)]
    service.add_table("clicks", table.set_column(0, "click", pa.array(labels, pa.int64())))
    data = {"train": "odps://ads/clicks", "label": "click", "split": {"by": "random"}}
    config = {
        "data": {**data, "bad_rows": "skip", "max_bad_fraction": most},
        "features": [{"columns": "price", "number": "standardize"}],
        "output": str(tmp_path / "run"),
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    status = main(["analyze", str(tmp_path / "c.yaml"), "-q"])
    if most == 0.5:
        assert status == 0
        return
    assert status == 1
    error = capsys.readouterr().err
    assert "odps://ads/clicks: 6 of 600 rows are bad" in error
    assert "or raise data.max_bad_fraction" in error
    assert not list(tmp_path.rglob("ingested.json"))


def test_check_says_what_the_statistics_read_and_cost(service, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(maxcompute_engine, "COLUMNS_A_SCAN", 16)
    columns = {f"n{n}": [n % 7 + m for m in range(60)] for n in range(20)}
    service.add_table("wide", pa.table({"click": [n % 2 for n in range(60)], **columns}))
    config = {
        "data": {"train": "odps://ads/wide", "label": "click", "split": {"by": "random"}},
        "features": [{"columns": list(columns), "number": "standardize"}],
        "output": str(tmp_path / "run"),
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    assert main(["check", str(tmp_path / "c.yaml"), "-q", "--json"]) == 0
    scans = json.loads(capsys.readouterr().out)["scans"]
    assert (scans["engine"], scans["num_scans"], len(scans["queries"])) == ("MaxCompute", 2, 2)
    # The stand-in counts eight bytes a value.
    assert scans["costs"] == [f"{60 * 21 * 8 / 1e9:,.2f} GB, complexity 1.5"] * 2
    assert [query.count("NAMED_STRUCT") for query in scans["queries"]] == [17, 4]
    assert not any("INSERT" in query for query in service.queries)


def test_a_model_is_trained_on_tables_and_scores_one(service, tmp_path):
    splits = {"train": rows(1500), "valid": rows(300, 1500), "test": rows(300, 1800)}
    service.add_partitions("clicks", "ds", splits)
    service.add_table("new", rows(250, 5000).drop_columns(["click"]))
    config = {
        "data": {
            "label": "click",
            "key_columns": ["user_id"],
            **{name: f"odps://ads/clicks/ds={name}" for name in splits},
        },
        "features": "auto",
        "model": {"embedding_dim": 2, "hidden_units": [4]},
        "train": {"epochs": 1, "batch_size": 256},
        "output": str(tmp_path / "run"),
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(config))
    assert main(["run", str(path), "-q"]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]["num_rows"] == 300
    scores = tmp_path / "scores.parquet"
    call = ["predict", str(path), "--data", "odps://ads/new", "--output", str(scores), "-q"]
    assert main(call) == 0
    found = pq.read_table(scores)
    assert found.column("user_id").to_pylist() == [str(n % 200) for n in range(5000, 5250)]
