"""`ctrpipe profile` and `ctrpipe drift`, as they are called."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.cli.main import main
from ctr_pipeline.config import load_config
from ctr_pipeline.pipeline.run import analyze
from ctr_pipeline.progress import SilentProgress

HEADER = "click,Preis €,city,user_id,always\n"


def rows(count=600, seed=0, *, shift=0.0, cities="abcdef", header=HEADER):
    chance = random.Random(seed)
    lines = []
    for number in range(count):
        city = chance.choice(cities)
        click = int(chance.random() < (0.6 if city in "ab" else 0.1))
        price = "" if chance.random() < 0.1 else f"{chance.gauss(10 + shift, 2):.2f}"
        lines.append(f"{click},{price},{city},u{seed}-{number},1")
    return header + "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.csv").write_text(rows())
    (tmp_path / "same.csv").write_text(rows(seed=1))
    (tmp_path / "new.csv").write_text(rows(seed=2, shift=5.0, cities="abxyz"))
    return tmp_path


def call(capsys, *arguments):
    code = main([*arguments, "-q"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_profile_tells_every_column_and_what_it_knows(folder, capsys):
    code, out, _ = call(capsys, "profile", "old.csv", "--label", "click", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["num_rows"], found["format"], found["label"]) == (600, "csv", "click")
    assert set(found["columns"]) == {"Preis €", "city", "user_id", "always"}
    known = {
        name: column["label_information"]["mutual_information"]
        for name, column in found["columns"].items()
    }
    assert known["city"] > 0.1
    assert known["user_id"] == known["always"] == 0
    assert {one["column"] for one in found["left_out"]} == {"user_id", "always"}


def test_profile_as_a_table_begins_with_what_matters(folder, capsys):
    code, out, _ = call(capsys, "profile", "old.csv", "--label", "click")
    assert code == 0
    assert "600 rows" in out
    lines = [line for line in out.splitlines() if line.startswith("│")]
    assert "city" in lines[0]
    assert "no feature: always" in out


def test_profile_without_a_label_says_nothing_of_clicks(folder, capsys):
    code, out, _ = call(capsys, "profile", "old.csv", "--json")
    assert code == 0
    assert "click" in json.loads(out)["columns"]
    assert "label_rate" not in out
    assert "label_information" not in out


def test_profile_page(folder, capsys):
    call(capsys, "profile", "old.csv", "--label", "click", "--output", "p.html")
    html = (folder / "p.html").read_text()
    assert "Before training" in html
    assert "Preis €" in html
    assert sorted(path.name for path in folder.iterdir()) == [
        "new.csv",
        "old.csv",
        "p.html",
        "same.csv",
    ]


def test_profile_of_parquet_files_by_a_glob(folder, capsys):
    for number in range(2):
        table = pa.table({"x": [1.5, None, float("nan")], "t": ["a", "", None], "l": [[1]] * 3})
        pq.write_table(table, folder / f"day-{number}.parquet")
    code, out, _ = call(capsys, "profile", "day-*.parquet", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["num_rows"] == 6
    assert [one["num_missing"] for one in found["columns"].values()] == [4, 4, 0]


def test_profile_counts_bad_rows_and_goes_on(folder, capsys):
    text = rows()
    (folder / "bad.csv").write_text(text + "1,2\n,1.0,a,u,1\n")
    code, out, _ = call(capsys, "profile", "bad.csv", "--label", "click", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["num_rows"] == 600
    assert found["bad_rows"] == {"wrong number of columns": 1, "label missing": 1}


def test_profile_of_a_file_without_a_header(folder, capsys):
    (folder / "plain.tsv").write_text("1\ta\t2\n0\tb\t3\n")
    code, out, _ = call(capsys, "profile", "plain.tsv", "--columns", "y,c1..c2", "--json")
    assert code == 0
    assert list(json.loads(out)["columns"]) == ["y", "c1", "c2"]


def test_drift_between_two_files(folder, capsys):
    code, out, _ = call(
        capsys, "drift", "old.csv", "new.csv", "--json", "--html", "d.html", "--overwrite"
    )
    assert code == 0
    found = json.loads(out)
    levels = {one["column"]: one["level"] for one in found["columns"]}
    assert levels == {
        "Preis €": "large",
        "city": "large",
        "click": "stable",
        "user_id": "stable",
        "always": "stable",
    }
    indexes = [one["psi"] for one in found["columns"]]
    assert indexes == sorted(indexes, reverse=True)
    city = next(one for one in found["columns"] if one["column"] == "city")
    assert city["unseen_rate"] == pytest.approx(0.6, abs=0.06)
    assert city["expected_unseen_rate"] == 0
    assert found["num_drifted"] == 2
    assert "u2-" not in out
    assert "2 columns are far from training" in (folder / "d.html").read_text()


@pytest.mark.parametrize(("new", "expected"), [("same.csv", 0), ("new.csv", 1)])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_fail_above_is_for_other_programs(folder, capsys, new, expected, options):
    code, out, err = call(capsys, "drift", "old.csv", new, "--fail-above", "0.25", *options)
    assert code == expected
    assert ("drift above 0.25: " in err and "'Preis €'" in err) == bool(expected)
    if options:
        failed = json.loads(out)["failed"]
        assert set(failed) == ({"Preis €", "city"} if expected else set())
    else:
        assert "city" in out


def test_drift_of_equal_rows_is_zero(folder, capsys):
    code, out, _ = call(capsys, "drift", "old.csv", "old.csv", "--fail-above", "0", "--json")
    assert code == 0
    assert {one["psi"] for one in json.loads(out)["columns"]} == {0.0}


def test_drift_says_which_columns_came_and_went(folder, capsys):
    (folder / "other.csv").write_text(rows(seed=3, header="click,price,city,user_id,always\n"))
    code, out, _ = call(capsys, "drift", "old.csv", "other.csv")
    assert code == 0
    assert "Only the old rows have 'Preis €'." in out
    assert "Only the new rows have 'price'." in out


def test_drift_from_a_run(folder, capsys):
    (folder / "c.yaml").write_text(
        "data: {train: old.csv, label: click}\n"
        "features:\n"
        "  - {columns: city, id: vocabulary, sensitive: true}\n"
        "  - {columns: 'Preis €', number: standardize}\n"
        "output: run\n"
    )
    analyze(load_config(folder / "c.yaml"), progress=SilentProgress())
    (folder / "run" / "config.resolved.yaml").write_text((folder / "c.yaml").read_text())
    (folder / "unlabelled.csv").write_text("city,Preis €\n" + "x,30\n" * 200)
    for old in ("run", "c.yaml"):
        page = f"{old}.html"
        code, out, _ = call(capsys, "drift", old, "unlabelled.csv", "--json", "--html", page)
        assert code == 0, old
        found = json.loads(out)
        assert {one["column"]: one["level"] for one in found["columns"]} == {
            "city": "large",
            "Preis €": "large",
        }
        assert found["num_old_rows"] == 480
        assert "values of this column are sensitive" in (folder / page).read_text()


def test_hostile_names_and_values_are_only_shown(folder, capsys):
    table = pa.table(
        {
            "'; DROP TABLE value_counts; --": ["'; DROP TABLE value_counts; --", "nul\0"] * 30,
            'quo"te\nline': [1.0, 2.0] * 30,
            "[red]markup[/]": ["x" * 1_000_000, "[bold]"] * 30,
        }
    )
    pq.write_table(table, folder / "h.parquet")
    code, out, _ = call(capsys, "drift", "h.parquet", "h.parquet", "--html", "d.html")
    assert code == 0
    assert "[red]markup[/]" in out
    code, out, _ = call(capsys, "profile", "h.parquet", "--output", "p.html")
    assert code == 0
    assert (folder / "p.html").stat().st_size < 200_000
    assert (folder / "d.html").stat().st_size < 200_000
