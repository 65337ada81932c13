"""Names and values that look like code: nothing of them is executed, and nothing is lost."""

import csv
import io
import json
from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ctr_pipeline.cli.main import main
from ctr_pipeline.statistics import load_statistics

NAMES = (
    "'; DROP TABLE value_counts; --",
    'quo"te',
    "new\nline",
    "tab\there",
    "naïve 列",
    "a,b|c;d",
    "{{ 7*7 }} {% for %}",
    "<script>alert(1)</script>",
    "$edge0",
    "..",
    "a ..",
    "value",
    "num_rows",
    "x" * 300,
)
VALUES = (
    "'; DROP TABLE value_counts; --",
    'he said "no"',
    "line\nbreak",
    "carriage\rreturn",
    "\\",
    "nul\0inside",
    "\u202eright to left",
    "🙂",
    "NULL",
    "null",
    "nan",
    "-inf",
    "{{ config }}",
    "<b>bold</b>",
    "two  blanks",
    "=1+1",
    "__HIVE_DEFAULT_PARTITION__",
    "é",
    "e\u0301",
    "a" * 1_000_000,
)
NUM_ROWS = 600


def texts(offset):
    return [VALUES[(number * 7 + offset) % len(VALUES)] for number in range(NUM_ROWS)]


LABELS = [int(number % 3 == 0) for number in range(NUM_ROWS)]
# One column has the megabyte, the others the rest: the rows stay small.
COLUMNS = {
    name: [value if place == 0 or len(value) < 1000 else "short" for value in texts(place)]
    for place, name in enumerate(NAMES)
}


def write_parquet(folder):
    pq.write_table(pa.table({"click": LABELS, **COLUMNS}), folder / "rows.parquet")
    return "rows.parquet"


def write_duckdb(folder):
    rows = pa.table({"click": LABELS, **COLUMNS})
    with duckdb.connect(str(folder / "rows.duckdb")) as database:
        database.register("rows_in_memory", rows)
        database.execute("CREATE TABLE clicks AS SELECT * FROM rows_in_memory")
    return "SELECT * FROM 'rows.duckdb' ORDER BY rowid"


def without_nul(value):
    """Text files with NUL are refused: they are taken for binary ones."""
    return value.replace("\0", "")


def write_csv(folder):
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["click", *COLUMNS])
    columns = [map(without_nul, values) for values in COLUMNS.values()]
    writer.writerows(zip(LABELS, *columns, strict=True))
    (folder / "rows.csv").write_bytes(stream.getvalue().encode())
    return "rows.csv"


@pytest.mark.parametrize(
    "write",
    [
        write_parquet,
        pytest.param(write_duckdb, marks=pytest.mark.slow),
        pytest.param(write_csv, marks=pytest.mark.slow),
    ],
)
def test_statistics_hold_every_value_of_every_column(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    chains = {"id": {"vocabulary": {"min_count": 1}}, "number": ["target_encode", "standardize"]}
    config = {
        "data": {"train": write(tmp_path), "label": "click", "split": {"by": "order"}},
        "features": [{"columns": [name], **chains} for name in NAMES]
        + [{"cross": list(NAMES[:2]), "id": {"hash": {"buckets": 50}}}],
        "output": "run",
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    before = {path.name for path in tmp_path.iterdir()}
    assert main(["analyze", "c.yaml", "-q"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == before | {"run"}
    statistics = load_statistics(tmp_path / "run" / "statistics.json")
    num_rows = statistics.num_rows
    assert num_rows == NUM_ROWS * 8 // 10
    for name, written in COLUMNS.items():
        values = [without_nul(one) for one in written] if write is write_csv else written
        expected = Counter(values[:num_rows])
        clicks = Counter(
            value for value, label in zip(values[:num_rows], LABELS, strict=False) if label
        )
        known = statistics.column(name)
        assert (known.num_missing, known.num_distinct) == (0, len(expected)), name
        for file in (statistics.vocabularies[name].file, statistics.value_tables[name].file):
            table = pq.read_table(tmp_path / "run" / file).to_pylist()
            assert {row["value"]: row["count"] for row in table} == expected, name
            assert {row["value"]: row["label_sum"] for row in table} == {
                value: clicks[value] for value in expected
            }


@pytest.mark.parametrize("write", [write_parquet, pytest.param(write_csv, marks=pytest.mark.slow)])
def test_init_check_and_profile_take_them(tmp_path, monkeypatch, capsys, write):
    monkeypatch.chdir(tmp_path)
    data = write(tmp_path)
    assert main(["init", data, "--label", "click", "--output", "c.yaml", "-q"]) == 0
    assert main(["check", "c.yaml", "-q"]) == 0
    features = yaml.safe_load((tmp_path / "c.yaml").read_text(encoding="utf-8"))["features"]
    assert [entry["columns"] for entry in features] == list(NAMES)
    capsys.readouterr()
    assert main(["profile", data, "--label", "click", "--output", "p.html", "-q", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["columns"]) == {"click", *NAMES} - {"click"}
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<script>alert(1)</script>" not in page
    assert "<b>bold</b>" not in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
