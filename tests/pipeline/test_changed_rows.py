"""Rows that change between their statistics and their encoding are refused."""

import os
from types import SimpleNamespace

import pyarrow as pa
import pytest
import yaml

from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset.formats.maxcompute import client as client_module
from ctr_pipeline.errors import DataError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.stages import analyze
from ctr_pipeline.pipeline.stages.analyze import RowsOnDemand, check_data
from ctr_pipeline.progress import SilentProgress
from tests.maxcompute.maxcompute_service import service_in_environment
from tests.storage.memory_buckets import MemoryBuckets

TEXT = "click,price\n" + "".join(f"{n % 2},{n}\n" for n in range(100))
TABLE = pa.table({"click": [n % 2 for n in range(100)], "price": list(range(100))})


def context_of(tmp_path, **data):
    config = {
        "data": {"label": "click", **data},
        "features": [{"columns": "price", "number": "standardize"}],
        "output": str(tmp_path / "run"),
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    return RunContext.create(load_config(tmp_path / "c.yaml"), SilentProgress())


def rows_of(context):
    return RowsOnDemand(context, check_data(context, None))


def counted(num_rows: int, num_clicks: int) -> SimpleNamespace:
    return SimpleNamespace(num_rows=num_rows, label_rate=num_clicks / num_rows)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(TEXT)
    return path


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_SECONDS", (0.0,))
    with service_in_environment(monkeypatch) as running:
        running.add_table("clicks", TABLE)
        yield running


def test_a_file_that_changed_is_named_with_its_versions(csv, tmp_path):
    rows = rows_of(context_of(tmp_path, train=str(csv)))
    rows.read()
    os.utime(csv, ns=(0, 1_000_000_005))
    with csv.open("a") as file:
        file.write("1,100\n")
    os.utime(csv, ns=(0, 2_000_000_007))
    with pytest.raises(
        DataError,
        match=rf"rows\.csv: changed after its rows were counted: {len(TEXT)} bytes; last modified "
        rf"20.* then, {len(TEXT) + 6} bytes; last modified 1970-01-01 00:00:02\.000000007 UTC now"
        r"\. Let nothing write into it",
    ):
        rows.require_counted(counted(100, 50))
    csv.unlink()
    with pytest.raises(DataError, match=r"rows\.csv: cannot be found any more"):
        rows.require_unchanged()


def test_an_object_that_changed_is_named_with_its_versions(tmp_path, monkeypatch):
    buckets = MemoryBuckets(monkeypatch)
    buckets.put("s3://bucket/rows.csv", TEXT.encode())
    rows = rows_of(context_of(tmp_path, train="s3://bucket/rows.csv"))
    buckets.put("s3://bucket/rows.csv", TEXT.encode())
    with pytest.raises(DataError, match=r"bucket/rows\.csv: changed .*: version .* then, version "):
        rows.require_counted(counted(100, 50))


def test_a_file_of_a_query_that_changed_is_told(csv, tmp_path):
    rows = rows_of(context_of(tmp_path, query=f"SELECT click, price FROM '{csv}' ORDER BY price"))
    csv.write_text(TEXT + "1,100\n")
    with pytest.raises(DataError, match=rf"changed .*: {len(TEXT)} bytes.* then, {len(TEXT) + 6} "):
        rows.require_counted(counted(100, 50))


@pytest.mark.slow
def test_a_table_that_changed_is_named_with_its_versions(service, tmp_path):
    rows = rows_of(context_of(tmp_path, train="odps://ads/clicks", split={"by": "random"}))
    service.modified["clicks"] += 60
    with pytest.raises(
        DataError,
        match=r"odps://ads/clicks: changed after .*: last modified (\S+ )+\d+ bytes then, last",
    ):
        rows.require_counted(counted(100, 50))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "when"),
    [("run_statistics", "while its rows were counted"), ("run_analysis", "after its rows were")],
)
def test_a_table_that_changes_while_it_is_counted_is_refused(
    service, tmp_path, monkeypatch, stage, when
):
    save_features = analyze.save_features

    def save_and_change(*arguments):
        save_features(*arguments)
        service.modified["clicks"] += 1

    monkeypatch.setattr(analyze, "save_features", save_and_change)
    with pytest.raises(DataError, match=f"odps://ads/clicks: changed {when}"):
        getattr(analyze, stage)(
            context_of(tmp_path, train="odps://ads/clicks", split={"by": "random"})
        )


def test_other_counts_than_were_read_are_refused(csv, tmp_path):
    rows = rows_of(context_of(tmp_path, train=str(csv)))
    train = rows.read().splits["train"]
    rows.require_counted(counted(train.num_rows, train.num_positive))
    with pytest.raises(DataError, match=f"8 training rows with 2 .* but {train.num_rows} with"):
        rows.require_counted(counted(8, 2))
