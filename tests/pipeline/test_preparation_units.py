"""Rows and statistics that are made in units, by whatever process, are those of one process."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ctr_pipeline import durable
from ctr_pipeline.config.loader import load_config
from ctr_pipeline.config.resolved import pinned_yaml
from ctr_pipeline.dataset.ingested import load_ingested
from ctr_pipeline.dataset.parts import column_names, read_columns
from ctr_pipeline.errors import DataError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.analyzing import analyze_by_workers, ingest_by_workers, is_shared
from ctr_pipeline.pipeline.run import prepare_rows
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import RowsOnDemand, check_data
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.units_here import Sharing

NUM_ROWS = 1200
UNIT_BYTES = 4000
SPLITS = (
    {"by": "order"},
    {"by": "random"},
    {"by": "hash", "column": "city"},
    {"by": "hash", "column": "place"},
    {"by": "time", "column": "when", "time_format": "epoch_seconds"},
)


@pytest.fixture(autouse=True)
def _relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def row_of(n: int) -> dict[str, str]:
    return {
        "click": str(int(n * 7919 % 100 < 30)),
        "price": "" if n % 11 == 0 else f"{n * 31 % 997 / 8}",
        "city": f"c{n * n % 37}",
        "place": f"p{n * 13 % 101}",
        "when": str(1_700_000_000 + n * 7919 % 331),
    }


def write_tsv(file: Path, rows: list[dict[str, str]]) -> None:
    lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
    file.write_text("\n".join(lines) + "\n")


def write_parquet(file: Path, rows: list[dict[str, str]]) -> None:
    columns = {
        "click": pa.array([int(row["click"]) for row in rows], pa.int8()),
        "price": pa.array([float(row["price"]) if row["price"] else None for row in rows]),
        "city": pa.array([row["city"] for row in rows]),
        "place": pa.array([row["place"] for row in rows]),
        "when": pa.array([float(row["when"]) for row in rows]),
    }
    pq.write_table(pa.table(columns), file, row_group_size=150)


def opened(folder: Path, data: dict, **more) -> tuple[RunContext, Sharing]:
    """A run in a new folder, and what does its units here."""
    folder.mkdir()
    config = {
        "data": {"label": "click", "quote": None, **data},
        "features": [
            {"columns": "price", "number": "standardize"},
            {"columns": "city", "id": "vocabulary"},
        ],
        "evaluation": {"group_by": ["place"]},
        "train": {"seed": 5},
        "runtime": {"bytes_per_reading_task": UNIT_BYTES},
        "output": str(folder / "run"),
        **more,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    loaded = load_config(folder / "config.yaml")
    # As workers get it, with absolute paths.
    pinned = folder / "pinned.yaml"
    pinned.write_text(pinned_yaml(loaded.config, ()))
    return RunContext.create(loaded, SilentProgress()), Sharing(load_config(pinned))


def read(folder: Path, data: dict, *, apart: bool) -> tuple[RunFolder, int]:
    """Reads the rows; returns the run folder, and how many units there were."""
    context, sharing = opened(folder, data)
    checked = check_data(context, None)
    ingest_apart = None
    if apart and is_shared(context, checked):
        ingest_apart = partial(ingest_by_workers, context, sharing)
    RowsOnDemand(context, checked, ingest_apart=ingest_apart).read()
    assert not any(folder.exists() for folder in context.run.shared_work)
    assert sharing.said == []
    return context.run, sharing.num_units.get("read", 0)


def found_in(run: RunFolder) -> tuple:
    """All that is known of rows but how they are cut into parts."""
    rows = load_ingested(run.ingested)
    tables = {
        split: read_columns(one.files, column_names(one.files))
        for split, one in rows.splits.items()
    }
    facts = {
        split: (one.num_rows, one.num_positive, one.times, one.weights)
        for split, one in rows.splits.items()
    }
    return rows.fingerprint, rows.bad_rows, facts, tables


def assert_read_alike(tmp_path: Path, data: dict) -> None:
    alone, _ = read(tmp_path / "alone", data, apart=False)
    shared, num_units = read(tmp_path / "shared", data, apart=True)
    assert num_units > 3
    assert found_in(shared) == found_in(alone)


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: "-".join(split.values()))
@pytest.mark.parametrize("write", [write_tsv, write_parquet])
def test_units_of_one_file_are_read_as_the_whole(tmp_path, write, split):
    file = tmp_path / f"rows.{write.__name__.partition('_')[2]}"
    write(file, [row_of(n) for n in range(NUM_ROWS)])
    assert_read_alike(tmp_path, {"train": file.name, "split": split})


def test_units_of_many_files_with_splits_of_their_own_are_read_in_order(tmp_path):
    for place, name in enumerate(("train-0", "train-1", "train-2", "valid", "test")):
        write_tsv(tmp_path / f"{name}.tsv", [row_of(n + 999 * place) for n in range(300)])
    files = {name: str(tmp_path / f"{name}.tsv") for name in ("valid", "test")}
    assert_read_alike(tmp_path, {"train": str(tmp_path / "train-*.tsv"), **files})


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: "-".join(split.values()))
def test_weights_are_summed(tmp_path, split):
    rows = [{**row_of(n), "weight": str(n % 5 / 4)} for n in range(NUM_ROWS)]
    write_tsv(tmp_path / "rows.tsv", rows)
    data = {"train": str(tmp_path / "rows.tsv"), "weight": "weight", "split": split}
    assert_read_alike(tmp_path, data)


def with_bad_rows(folder: Path) -> str:
    """Two files; returns their pattern."""
    for name in ("a", "b"):
        rows = [row_of(n) for n in range(NUM_ROWS)]
        for n in range(100, NUM_ROWS, 97):
            rows[n]["price"] = "much"
        for n in (7, 450, 1100):
            rows[n]["click"] = "2"
        write_tsv(folder / f"{name}.tsv", rows)
    return "*.tsv"


@pytest.mark.parametrize("split", SPLITS[:3], ids=lambda split: split["by"])
def test_bad_rows_are_left_out_and_told_of_as_in_one_reading(tmp_path, split):
    data = {"train": with_bad_rows(tmp_path), "bad_rows": "skip", "max_bad_fraction": 0.1}
    assert_read_alike(tmp_path, {**data, "split": split})
    bad = load_ingested(RunFolder(tmp_path / "shared" / "run").ingested).bad_rows
    assert bad.total == 30
    assert [(row.file, row.row) for row in bad.examples[:4]] == [
        ("a.tsv", 9),
        ("a.tsv", 452),
        ("a.tsv", 1102),
        ("b.tsv", 9),
    ]


@pytest.mark.parametrize(
    "policy", [{"bad_rows": "fail"}, {"bad_rows": "skip", "max_bad_fraction": 0.001}]
)
def test_the_same_error_is_raised(tmp_path, policy):
    data = {"train": with_bad_rows(tmp_path), **policy}
    errors = []
    for apart in (False, True):
        with pytest.raises(DataError) as caught:
            read(tmp_path / f"apart-{apart}", data, apart=apart)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert "row 9" in errors[0]


def test_little_data_is_read_here(tmp_path):
    write_tsv(tmp_path / "rows.tsv", [row_of(n) for n in range(60)])
    _, num_units = read(tmp_path / "few", {"train": str(tmp_path / "rows.tsv")}, apart=True)
    assert num_units == 0


def analyzed(folder: Path, data: dict, *, apart: bool, **more) -> tuple[RunFolder, Sharing]:
    """Analyzes the rows of a run; those that are done apart are not analyzed again."""
    context, sharing = opened(folder, data, **more)
    if not apart:
        prepare_rows(context)
        return context.run, sharing
    found = analyze_by_workers(context, None, None, sharing)
    assert analyze_by_workers(context, None, None, lambda *_: pytest.fail("done before")) == found
    return context.run, sharing


@pytest.mark.parametrize(
    "by",
    ["hash", "time", *(pytest.param(by, marks=pytest.mark.slow) for by in ("order", "random"))],
)
def test_statistics_and_transforms_of_a_worker_are_those_of_one_process(tmp_path, by):
    write_tsv(tmp_path / "rows.tsv", [row_of(n) for n in range(NUM_ROWS)])
    split = next(one for one in SPLITS if one["by"] == by)
    data = {"train": str(tmp_path / "rows.tsv"), "split": split}
    alone, _ = analyzed(tmp_path / "alone", data, apart=False, features="auto")
    shared, sharing = analyzed(tmp_path / "shared", data, apart=True, features="auto")
    assert found_in(shared) == found_in(alone)
    for name in ("statistics.json", "features.json", "preprocessing.json"):
        assert (shared.path / name).read_bytes() == (alone.path / name).read_bytes()
    files = sorted(file.name for file in (alone.path / "vocabularies").iterdir())
    assert sorted(file.name for file in (shared.path / "vocabularies").iterdir()) == files
    for name in files:
        ours, theirs = (pq.read_table(run.path / "vocabularies" / name) for run in (shared, alone))
        assert ours.equals(theirs)
    # All rows are known to whoever divides them at random or by time.
    divisions = {"divide": 1} if by in {"random", "time"} else {}
    assert sharing.num_units == {"read": sharing.num_units["read"], **divisions, "analyze": 1}
    assert sum(line.startswith("Decided by the data") for line in sharing.said) == 1
    assert any(text.startswith("Statistics: 1 of ") for text in sharing.noted), sharing.noted


def test_analysis_repeats_what_a_kill_left_of_moved_results(tmp_path, monkeypatch):
    write_tsv(tmp_path / "rows.tsv", [row_of(n) for n in range(NUM_ROWS)])
    data = {"train": str(tmp_path / "rows.tsv")}
    alone, _ = analyzed(tmp_path / "alone", data, apart=False)
    context, sharing = opened(tmp_path / "shared", data)
    write = durable.write_text

    def killed(path, text):
        if path == context.run.analysis:
            raise KeyboardInterrupt
        write(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            analyze_by_workers(context, None, None, sharing)
    analyze_by_workers(context, None, None, sharing)
    assert (context.run.statistics.read_bytes(), context.run.preprocessing.read_bytes()) == (
        alone.statistics.read_bytes(),
        alone.preprocessing.read_bytes(),
    )
    assert found_in(context.run) == found_in(alone)


def test_an_analysis_of_rows_that_changed_is_refused(tmp_path):
    file = tmp_path / "rows.tsv"
    write_tsv(file, [row_of(n) for n in range(NUM_ROWS)])
    context, sharing = opened(tmp_path / "shared", {"train": str(file)})

    def share(work, units):
        if work.phase == "analyze":
            write_tsv(file, [row_of(n) for n in range(NUM_ROWS + 1)])
        return sharing(work, units)

    with pytest.raises(DataError, match=r"rows\.tsv: changed since the job was started.*--resume"):
        analyze_by_workers(context, None, None, share)
    assert not context.run.statistics.exists()
