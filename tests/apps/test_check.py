import random
from types import SimpleNamespace

import pyarrow as pa
import pytest
import yaml
from pyarrow import csv, parquet

from ctr_pipeline.apps.check import check_config
from ctr_pipeline.config.loader import config_from_mapping, load_config
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.errors import ConfigError, DataError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.run import analyze
from ctr_pipeline.progress import SilentProgress


def write(path, header="click,price,city,same,row", num_rows=500):
    chance = random.Random(1)
    lines = [
        f"{int(chance.random() < 0.3)},{chance.lognormvariate(1, 1):.2f},"
        f"{chance.choice('abc')},1,r{number}"
        for number in range(num_rows)
    ]
    path.write_text("\n".join([header, *lines]) + "\n")


@pytest.fixture
def settings(tmp_path):
    write(tmp_path / "rows.csv")
    return {
        "data": {"train": str(tmp_path / "rows.csv"), "label": "click", "key_columns": ["row"]},
        "model": {"embedding_dim": 4, "hidden_units": [4]},
        "output": str(tmp_path / "out"),
    }


def check(settings, **sections):
    return check_config(config_from_mapping(settings | sections), progress=SilentProgress())


def test_automatic_plan(settings, tmp_path):
    result = check(settings)
    rows = {row.feature: row for row in result.rows}
    assert list(rows) == ["price", "city"]
    assert rows["price"].column_type == "number"
    assert rows["city"].id.startswith(("vocabulary", "hash"))
    assert "same" in dict(result.left_out)
    assert not result.exact
    assert not (tmp_path / "out").exists()


def test_every_decision_has_its_place(settings, tmp_path):
    path = tmp_path / "c.yaml"
    features = ["- {columns: [price, city]}", "- {columns: city, id: {hash: {buckets: 9}}}"]
    text = yaml.safe_dump(settings) + "features:\n" + "\n".join(features) + "\n"
    path.write_text(text)
    line = text.splitlines().index(features[0]) + 1
    rows = check_config(load_config(path), progress=SilentProgress()).rows
    first, second = f"{path}:{line}, features[0]", f"{path}:{line + 1}, features[1]"
    assert {row.feature: row.place for row in rows} == {"price": first, "city": f"id: {second}"}
    override = ["features[1].columns=price"]
    rows = check_config(load_config(path, override), progress=SilentProgress()).rows
    assert {row.feature: row.place for row in rows}["city"] == first
    path.write_text(yaml.safe_dump(settings | {"features": "auto"}))
    line = path.read_text().splitlines().index("features: auto") + 1
    for row in check_config(load_config(path), progress=SilentProgress()).rows:
        assert row.place == f"{path}:{line}, features: auto"


def test_every_key_has_its_place(settings, tmp_path):
    path = tmp_path / "c.yaml"
    features = [
        "- auto",
        "- {columns: price, number: log}",
        "- {columns: [price], number: standardize}",
    ]
    text = yaml.safe_dump(settings) + "features:\n" + "\n".join(features) + "\n"
    path.write_text(text)
    rows = check_config(load_config(path), progress=SilentProgress()).rows
    line = text.splitlines().index(features[0]) + 1
    auto = f"{path}:{line}, features[0], auto"
    log, scaled = (f"{path}:{line + index}, features[{index}]" for index in (1, 2))
    assert {row.feature: row.place for row in rows} == {
        "price": f"number: {scaled}, over {log}; the rest: {auto}",
        "city": auto,
    }
    price, city = rows
    assert price.number == "standardize"
    assert price.id.startswith("bucketize")
    assert price.reason.startswith("number as the config says; the rest decided: number with")
    assert city.id.startswith("vocabulary")


def test_explicit_plan_and_its_sizes(settings):
    features = [
        {"columns": "price", "number": ["log", "standardize"]},
        {"columns": "city", "id": [{"hash": {"buckets": 9}}]},
    ]
    result = check(settings, features=features)
    price, city = result.rows
    assert (price.number, price.dimension) == ("log → standardize", None)
    assert (city.num_ids, city.dimension) == (10, 4)
    assert (result.num_fields, result.num_numbers) == (1, 1)
    assert result.max_embedding_bytes == city.max_bytes > 0
    assert result.left_out == ()


def test_plan_is_exact_once_the_rows_are_analyzed(settings):
    loaded = config_from_mapping(settings)
    analyze(loaded, progress=SilentProgress())
    from ctr_pipeline.pipeline.run_folder import RunFolder
    from ctr_pipeline.pipeline.stages.analyze import run_analysis
    from ctr_pipeline.pipeline.stages.encode import run_encoding

    context = RunContext(loaded, RunFolder(loaded.config.run_folder), SilentProgress())
    analysis = run_analysis(context)
    run_encoding(context, analysis)
    result = check(settings)
    assert result.exact
    # Three cities, and one id for the unknown or missing at least.
    assert {row.feature: row for row in result.rows}["city"].num_ids in {4, 5}


def test_missing_column_is_refused(settings):
    with pytest.raises(ConfigError, match=r"no column 'citi'.*did you mean 'city'"):
        check(settings, features=[{"columns": "citi", "id": "vocabulary"}])


def test_missing_file_is_refused(settings):
    with pytest.raises(DataError, match=r"absent\.csv"):
        check(settings, data=settings["data"] | {"train": "absent.csv"})


def test_rows_beyond_the_memory_are_warned_of():
    from ctr_pipeline.apps.check import memory_warnings

    assert memory_warnings(5, 5) == ()
    (warning,) = memory_warnings(22_000_000_000, 15_000_000_000)
    assert "22.0 GB" in warning
    assert "15.0 GB" in warning


def test_checkpoints_beyond_the_disk_are_warned_of():
    from ctr_pipeline.apps.check import disk_warnings

    assert disk_warnings(5, 5) == ()
    (warning,) = disk_warnings(22_000_000_000, 15_000_000_000)
    assert "22.0 GB on disk" in warning
    assert "15.0 GB are free" in warning


def test_no_more_ids_occur_than_there_are_values(settings):
    def most_bytes(buckets, **sections):
        features = [{"columns": "city", "id": [{"hash": {"buckets": buckets}}]}]
        result = check(settings, features=features, **sections)
        return result.rows[0].num_ids, result.max_embedding_bytes, result.max_checkpoint_bytes

    large, larger = (most_bytes(buckets) for buckets in (10**6, 2 * 10**9))
    assert large[0] + 2 * 10**9 == larger[0] + 10**6
    assert most_bytes(9)[1] < large[1] == larger[1] < 100_000
    # A refit trains on the validation rows, too.
    more = {"data": settings["data"] | {"valid": settings["data"]["train"]}}
    assert most_bytes(10**6, **more)[1] == large[1]
    assert most_bytes(10**6, **more, train={"refit": True})[1] == 2 * large[1]
    shared = {"runtime": {"mode": "processes"}}
    assert most_bytes(10**6, **shared)[2] == most_bytes(2 * 10**9, **shared)[2]


@pytest.fixture
def _many_rows(monkeypatch):
    monkeypatch.setattr(Source, "estimate_rows", lambda source, split: 10**9)


@pytest.mark.usefixtures("_many_rows")
def test_rows_beyond_the_memory_limit_need_a_place_on_disk(settings, monkeypatch):
    from ctr_pipeline.apps import check as preview

    features = [{"columns": "city", "id": [{"hash": {"buckets": 10**6}}]}]
    monkeypatch.setattr(preview, "free_space", lambda folder: 20_000_000)
    limited = settings | {"train": {"embeddings": {"memory_limit_gb": 0.03}}}
    result = check(limited, features=features)
    spilled = result.max_embedding_bytes - 30_000_000
    (warning,) = result.warnings
    assert f"may take up to {spilled / 1e9:.1f} GB on disk" in warning
    assert "room for 0.0 GB" in warning
    assert "raise the limit" in warning
    monkeypatch.setattr(preview, "free_space", lambda folder: spilled)
    assert check(limited, features=features).warnings == ()
    # Memory is warned of up to the limit alone.
    monkeypatch.setattr(
        preview.psutil, "virtual_memory", lambda: SimpleNamespace(available=3e7, total=8e9)
    )
    assert check(limited, features=features).warnings == ()
    (warning,) = check(settings, features=features).warnings
    assert "train.embeddings.memory_limit_gb" in warning


@pytest.mark.usefixtures("_many_rows")
def test_disk_need_of_checkpoints_is_told_where_there_are_servers(settings, monkeypatch):
    features = [{"columns": "city", "id": [{"hash": {"buckets": 10**6 - 1}}]}]
    assert check(settings, features=features).max_checkpoint_bytes is None
    result = check(
        settings,
        features=features,
        runtime={"mode": "processes", "partitions": 4},
        train={"keep_checkpoints": 3},
    )
    # A weight with one slot, a vector of 4 with two slots each; the header, id and table.
    full_cut = 10**6 * (4 * (1 + 1 + 4 + 8) + 8 + 4 + 8)
    assert 9 * full_cut < result.max_checkpoint_bytes < 1.1 * 9 * full_cut
    monkeypatch.setattr("ctr_pipeline.apps.check.free_space", lambda folder: 10**6)
    poor = check(settings, features=features, runtime={"mode": "processes", "partitions": 4})
    assert "checkpoints may take" in poor.warnings[-1]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(("copies", "has_rate"), [(1, True), (12, False)])
def test_click_rates_are_for_few_rows_of_data_not_for_few_rows_of_a_head(
    tmp_path, settings, ending, copies, has_rate
):
    chance = random.Random(5)
    cities = [chance.randrange(60) for _ in range(9_000)]
    table = pa.table(
        {
            "city": [f"city {city:02} " * 40 for city in cities] * copies,
            "click": [int(chance.random() < 0.1 + 0.7 * (city % 2)) for city in cities] * copies,
        }
    )
    file = tmp_path / f"cities.{ending}"
    (csv.write_csv if ending == "csv" else parquet.write_table)(table, file)
    (row,) = check(settings, data={"train": str(file), "label": "click"}).rows
    assert ("target_encode" in (row.number or "")) is has_rate
