"""`ctrpipe analyze` with Spark on a cluster, named by its address."""

import json
import time

import pytest
import yaml

from ctr_pipeline.cli.main import main
from tests.spark.spark_cluster import running_cluster
from tests.spark.spark_here import SPARK, skip_without_spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def _spark():
    skip_without_spark()


@pytest.fixture
def config(tmp_path):
    """Two columns in a file a split."""
    rows = [f"{n * 7919 % 100 // 70},{n % 7},c{n % 5}" for n in range(200)]
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.csv").write_text("\n".join(["click,price,city", *rows]) + "\n")
    files = {name: str(tmp_path / f"{name}.csv") for name in ("train", "valid", "test")}
    features = [
        {"columns": "price", "number": "standardize"},
        {"columns": "city", "id": "vocabulary"},
    ]
    return {"data": {"label": "click", **files}, "features": features}


def analyze(folder, config, name: str, **analysis: object) -> int:
    if analysis:
        config = {**config, "analysis": {"engine": "spark", **analysis}}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**config, "output": str(folder / name)}))
    return main(["analyze", str(path), "-q"])


def statistics(folder, name: str) -> dict:
    found = json.loads((folder / name / "statistics.json").read_text())
    # The fingerprint is of what was read; the checksum is of the whole.
    del found["crc32"], found["fingerprint"]
    return found


def test_executors_of_a_cluster_count(config, tmp_path):
    conf = {
        **SPARK.conf,
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    with running_cluster(tmp_path, has_worker=True) as master:
        assert analyze(tmp_path, config, "there", master=master, conf=conf) == 0
        assert "CoarseGrainedExecutorBackend" in (tmp_path / "Worker.log").read_text()
    assert analyze(tmp_path, config, "here") == 0
    assert statistics(tmp_path, "there") == statistics(tmp_path, "here")


def test_a_cluster_without_workers_is_told_and_not_waited_for(config, tmp_path, capfd):
    conf = {**SPARK.conf, "spark.driver.host": "127.0.0.1"}
    began = time.monotonic()
    with running_cluster(tmp_path, has_worker=False) as master:
        # Enough for the driver to start, on a machine that took so long to start the master.
        seconds = 10 + 3 * round(time.monotonic() - began)
        code = analyze(tmp_path, config, "there", master=master, conf=conf, start_seconds=seconds)
    assert code == 1
    err = capfd.readouterr().err
    assert f"the cluster gave no executor in {seconds} s" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "there" / "statistics.json").exists()
