"""The numbered examples of `configs/examples` work."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ctr_pipeline.apps.check import check_config
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.run import run_pipeline
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import run_analysis
from ctr_pipeline.pipeline.stages.encode import run_encoding
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.transforms import TRANSFORMS
from tests.maxcompute.maxcompute_service import service_in_environment
from tests.pipeline.impressions import write_impressions
from tests.pipeline.offers import write_offers

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "configs" / "examples").glob("*.yaml"))


def load(path, output, *overrides):
    return load_config(path, [f"output={output}", *overrides])


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def tables_of_clicks(request, monkeypatch):
    """What the example of MaxCompute reads, in a stand-in for the service."""
    if "maxcompute" not in request.node.name:
        yield
        return
    with service_in_environment(monkeypatch) as service:
        days = {f"2024010{day}": clicks(200, 200 * day) for day in range(1, 5)}
        service.add_partitions("clicks", "ds", days)
        yield


def clicks(num_rows, start):
    numbers = range(start, start + num_rows)
    return pa.table(
        {
            "click": pa.array([int(n * 7919 % 100 < 30) for n in numbers], pa.int64()),
            "price": [n * 31 % 500 / 8 for n in numbers],
            "shown": pa.array([n * n % 23 for n in numbers], pa.int64()),
            "shop": [f"s{n * 13 % 17}" for n in numbers],
            "city": [f"c{n * 7 % 40}" for n in numbers],
        }
    )


def test_examples_have_numbers_of_their_own():
    numbers = [path.stem.partition("_")[0] for path in EXAMPLES]
    assert len(set(numbers)) == len(numbers)


def test_the_rows_of_the_examples_are_those_of_the_generator(tmp_path):
    write_offers(tmp_path / "offers.csv")
    committed = ROOT / "configs" / "examples" / "offers.csv"
    assert committed.read_bytes() == (tmp_path / "offers.csv").read_bytes()
    write_impressions(tmp_path / "impressions.csv")
    committed = ROOT / "configs" / "examples" / "impressions.csv"
    assert committed.read_bytes() == (tmp_path / "impressions.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_be_checked_and_its_rows_encoded(path, tmp_path, tables_of_clicks):
    loaded = load(path, tmp_path / "run")
    plan = check_config(loaded, progress=SilentProgress())
    name = path.stem.partition("_")[2]
    if name in TRANSFORMS:
        assert name in f"{plan.rows[0].number} {plan.rows[0].id}"
    context = RunContext(loaded, RunFolder(loaded.config.run_folder), SilentProgress())
    analysis = run_analysis(context)
    encoding = run_encoding(context, analysis)
    with EncodedReader(encoding.folders["train"]) as reader:
        rows = reader.read_range(0, reader.meta.num_rows)
    assert np.isfinite(rows.numbers_BN).all()
    # No input is the same for all rows.
    for column in (*rows.numbers_BN.T, *rows.ids_BF.T):
        assert len(np.unique(column)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["08_vocabulary", "12_target_encode", "35_key_values"])
def test_an_example_runs_to_its_report(name, tmp_path):
    loaded = load(ROOT / "configs" / "examples" / f"{name}.yaml", tmp_path / "run")
    run_pipeline(loaded, progress=SilentProgress())
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "export" / "1" / "parity.json").exists()
