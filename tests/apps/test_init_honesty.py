"""Whatever the table: `init` ends with a clear error, or its config runs as it is."""

import random
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.cli.main import main
from ctr_pipeline.config import load_config

NUM_ROWS = 300
CHANCE = random.Random(5)
LABELS = [int(CHANCE.random() < 0.3) for _ in range(NUM_ROWS)]
AGES = [CHANCE.randrange(18, 80) for _ in range(NUM_ROWS)]
CITIES = [CHANCE.choice(["Wien", "Köln", "Bern"]) for _ in range(NUM_ROWS)]
PRICES = [round(CHANCE.lognormvariate(0, 1), 2) for _ in range(NUM_ROWS)]


def write(path="rows.csv", encoding="utf-8", **columns):
    named = {"label": LABELS, "age": AGES, "city": CITIES, **columns}
    kept = {name: values for name, values in named.items() if values is not None}
    pd.DataFrame(kept).to_csv(path, index=False, encoding=encoding)
    return path


def with_value(values, place, value):
    return [value if row == place else one for row, one in enumerate(values)]


def write_parquet(**columns):
    pq.write_table(pa.table({"label": LABELS, "age": AGES, **columns}), "rows.parquet")
    return "rows.parquet"


def write_text(text):
    Path("rows.csv").write_text(text, encoding="utf-8")
    return "rows.csv"


def write_head(num_rows):
    lines = Path(write()).read_text(encoding="utf-8").splitlines()[: num_rows + 1]
    return write_text("\n".join(lines) + "\n")


REFUSED = {
    "a label is missing": (
        lambda: write(label=with_value(LABELS, 7, "")),
        r"rows\.csv, row 9, column 'label': label missing",
    ),
    "a label of Parquet is missing": (
        lambda: write_parquet(label=with_value(LABELS, 7, None)),
        r"column 'label': label missing",
    ),
    "latin-1": (
        lambda: write(encoding="latin-1"),
        rf"rows\.csv, row {CITIES.index('Köln') + 2}, column 'city': not UTF-8",
    ),
    "a row is longer": (
        lambda: write_text("label,a,b\n" + "1,2,3\n0,3,4\n" * 20 + "1,2,3,4\n"),
        r"rows\.csv, row 42: wrong number of columns",
    ),
    "no clicks": (lambda: write(label=[0] * NUM_ROWS), r"all 300 labels are 0; rows of both"),
    "clicks alone": (lambda: write(label=[1] * NUM_ROWS), r"all 300 labels are 1; rows of both"),
    "nothing but constants and ids": (
        lambda: write(age=["x"] * NUM_ROWS, city=[f"id {row}" for row in range(NUM_ROWS)]),
        r"no column can serve as a feature \(age: it has the same value in all 300 rows; city: ",
    ),
    "empty columns": (
        lambda: write(age=[""] * NUM_ROWS, city=[None] * NUM_ROWS),
        r"no column can serve as a feature \(age: all its 300 rows are missing; ",
    ),
    "one row": (lambda: write_head(1), r"no column can serve as a feature|all 1 labels are"),
    "twelve rows": (lambda: write_head(12), r"12 rows, \d of them with label 1, are too few"),
}

ACCEPTED = {
    "an ordinary table": write,
    "some empty columns": lambda: write(empty=[""] * NUM_ROWS, void=[None] * NUM_ROWS),
    "sorted by the label": lambda: write(label=sorted(LABELS)),
    "sorted by the label, with times": lambda: write(
        label=sorted(LABELS),
        time=[f"2024-03-{1 + row // 20:02d} 10:00:00" for row in range(NUM_ROWS)],
    ),
    "times in no order": lambda: write(
        time=[f"2024-03-{1 + row * 7 % 28:02d} {row % 24:02d}:00:00" for row in range(NUM_ROWS)]
    ),
    "NULL among numbers": lambda: write(price=with_value(PRICES, 3, "NULL")),
    "euros": lambda: write(price=[f"{price} €" for price in PRICES]),
    "labels in words": lambda: write(label=[["no", "yes"][one] for one in LABELS]),
    "large ids": lambda: write(id=[10**17 + age for age in AGES]),
    "one column": lambda: write(age=None),
    "blanks in names": lambda: write(**{"the 'best' price: €": PRICES}),
    "times, lists and texts of Parquet": lambda: write_parquet(
        time=pa.array([1_709_251_200 + 997 * row for row in range(NUM_ROWS)], pa.timestamp("s")),
        tags=[["a", "b", "c"][: 1 + row % 3] for row in range(NUM_ROWS)],
        code=[b"%d" % (row % 5) for row in range(NUM_ROWS)],
        digest=[bytes([200, row % 9]) for row in range(NUM_ROWS)],
    ),
    "times of a spreadsheet": lambda: write(
        time=[f"3/{1 + row * 7 % 28}/2024 {row % 12 + 1}:05 PM" for row in range(NUM_ROWS)]
    ),
    "times in texts of Parquet": lambda: write_parquet(
        time=[f"{1 + row * 7 % 28:02d}.03.2024 {row % 24:02d}:05" for row in range(NUM_ROWS)]
    ),
}


@pytest.fixture
def error_of(tmp_path, monkeypatch, capsys):
    """What a command says when it fails; None if it does not."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main([*arguments, "-q"])
        said = " ".join(capsys.readouterr().err.split())
        assert code in {0, 1}, said
        return said if code else None

    return call


@pytest.mark.parametrize("kind", REFUSED)
def test_init_refuses_rows_that_cannot_run(error_of, tmp_path, kind):
    make, message = REFUSED[kind]
    said = error_of("init", make())
    assert said is not None
    assert re.search(message, said), said
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ACCEPTED)
def test_config_that_init_writes_is_checked_and_read_as_it_is(error_of, kind):
    assert error_of("init", ACCEPTED[kind]()) is None
    assert error_of("check", "config.yaml") is None
    assert error_of("analyze", "config.yaml") is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ACCEPTED)
def test_config_that_init_writes_runs_as_it_is(error_of, kind):
    assert error_of("init", ACCEPTED[kind]()) is None
    assert error_of("run", "config.yaml", "--set", "train.epochs=1") is None


@pytest.mark.parametrize("kind", ["no clicks", "a label is missing", "latin-1"])
def test_check_refuses_what_run_would(error_of, kind):
    path = REFUSED[kind][0]()
    text = f"name: x\ndata: {{train: {path}}}\nfeatures: auto\noutput: run\n"
    Path("config.yaml").write_text(text, encoding="utf-8")
    said = error_of("check", "config.yaml")
    assert said is not None
    assert said == error_of("analyze", "config.yaml")


@pytest.mark.parametrize("kind", ["sorted by the label", "sorted by the label, with times"])
def test_rows_that_are_sorted_by_the_label_are_divided_at_random(error_of, kind):
    assert error_of("init", ACCEPTED[kind]()) is None
    assert load_config(Path("config.yaml")).config.data.split.by == "random"


def test_columns_left_out_stand_on_the_terminal_in_a_few_lines(error_of, capsys):
    write(**{f"same{place}": ["x"] * NUM_ROWS for place in range(7)})
    reason = "it has the same value in all"
    assert main(["init", "rows.csv"]) == 0
    said = capsys.readouterr().out
    assert f"left out: same0 ({reason} 300 rows)" in said
    assert said.count(reason) == 5
    assert "2 more columns" in said
    text = "name: x\ndata: {train: rows.csv}\nfeatures: auto\noutput: run\n"
    Path("config.yaml").write_text(text, encoding="utf-8")
    assert main(["analyze", "config.yaml"]) == 0
    said = capsys.readouterr().err
    assert f"Left out: same0 ({reason} 240 rows)" in said
    assert said.count(reason) == 5
    assert "2 more columns" in said
