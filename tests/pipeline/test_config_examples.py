"""The numbered examples of `configs/examples` work."""

from pathlib import Path

import numpy as np
import pytest
from offers import write_offers

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

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "configs" / "examples").glob("*.yaml"))


def load(path, output, *overrides):
    return load_config(path, [f"output={output}", *overrides])


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_examples_have_numbers_of_their_own():
    numbers = [path.stem.partition("_")[0] for path in EXAMPLES]
    assert len(set(numbers)) == len(numbers)


def test_the_rows_of_the_examples_are_those_of_the_generator(tmp_path):
    write_offers(tmp_path / "offers.csv")
    committed = ROOT / "configs" / "examples" / "offers.csv"
    assert committed.read_bytes() == (tmp_path / "offers.csv").read_bytes()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_be_checked_and_its_rows_encoded(path, tmp_path):
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
@pytest.mark.parametrize("name", ["08_vocabulary", "12_target_encode"])
def test_an_example_runs_to_its_report(name, tmp_path):
    loaded = load(ROOT / "configs" / "examples" / f"{name}.yaml", tmp_path / "run")
    run_pipeline(loaded, progress=SilentProgress())
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "export" / "1" / "parity.json").exists()
