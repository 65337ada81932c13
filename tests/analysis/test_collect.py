"""Collection as a whole: names, files, cache, vocabularies, refusals."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_pipeline.analysis import collect_statistics, plan_statistics
from ctr_pipeline.dataset.parts import write_part
from ctr_pipeline.errors import DataError, RunFolderError, StatisticsError
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import load_statistics
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.vocabulary import Vocabulary


def text(column: str, **options: object) -> FeatureSpec:
    return FeatureSpec(column=column, column_type=ColumnType.TEXT, id=(Vocabulary(**options),))


def number(column: str) -> FeatureSpec:
    return FeatureSpec(column=column, column_type=ColumnType.NUMBER)


def run(plan, files, folder, **options):
    settings_ = {"data_fingerprint": "d", "threads": 2, "memory_limit_gb": 0.5}
    return collect_statistics(
        plan, files, folder, progress=SilentProgress(), **(settings_ | options)
    )


def vocabulary_rows(folder: Path, statistics, column: str) -> list[tuple[str, int, int]]:
    table = pq.read_table(folder / statistics.vocabularies[column].file)
    assert table.schema.names == ["value", "count", "label_sum"]
    assert [str(kind) for kind in table.schema.types] == ["string", "int64", "int64"]
    return [tuple(row.values()) for row in table.to_pylist()]


HOSTILE_NAMES = [
    "select",
    "from",
    'quo"te',
    "apo'strophe",
    "semi;colon -- drop",
    "Größe",
    "日本語",
    "with space",
    "a.b",
    "$1",
    "%s",
    "value",
    "num_rows",
    "source",
    "value_counts",
    "Case",
    "case",
    "CASE",
    "case_1",
    "filename",
    "😀",
    "new\nline",
]


def test_hostile_names(collect):
    columns = {name: [float(index), 1.5, None] for index, name in enumerate(HOSTILE_NAMES)}
    statistics = collect(columns, [0, 1, 1], label='the "label"')
    assert list(statistics.columns) == HOSTILE_NAMES
    for index, name in enumerate(HOSTILE_NAMES):
        assert statistics.columns[name].moments.mean == (index + 1.5) / 2
        assert statistics.columns[name].missing_label_rate == 1.0


def test_names_that_differ_from_the_label_by_case_only(collect):
    statistics = collect({"LABEL": [5.0, 6.0], "Label": ["x", "y"]}, [1, 0], label="label")
    assert statistics.label_rate == 0.5
    assert statistics.columns["LABEL"].moments.maximum == 6.0
    assert statistics.columns["Label"].num_distinct == 2


@settings(max_examples=12)
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=1,
        max_size=5,
        unique=True,
    ).filter(lambda names: "label" not in names)
)
def test_any_names(collect, names):
    columns = {name: [float(index)] for index, name in enumerate(names)}
    statistics = collect(columns)
    assert [column.moments.mean for column in statistics.columns.values()] == list(
        range(len(names))
    )


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_two_thousand_columns(collect, step):
    columns = {f"column {index}": [float(index), None, 3.0, 3.0] for index in range(2000)}
    statistics = collect(columns, specs=[number(name) for name in list(columns)[::step]])
    assert list(statistics.columns) == list(columns)[::step]
    for index, column in enumerate(statistics.columns.values()):
        assert (column.num_missing, column.num_distinct) == (1, 1 if index * step == 3 else 2)
        assert column.moments.mean == pytest.approx((index * step + 6) / 3)


def test_several_files_are_one_table_whatever_their_paths(tmp_path):
    folder = tmp_path / "p=1" / "[a] *?"
    folder.mkdir(parents=True)
    files = []
    for index in range(3):
        files.append(folder / f"part {index} [{index}]*.arrow")
        table = pa.table({"label": pa.array([0, 1], pa.int8()), "x": [float(index), 10.0]})
        write_part(table, files[-1], "label")
    statistics = run(plan_statistics([number("x")], "label"), files[:2], tmp_path)
    assert statistics.num_rows == 4
    assert statistics.columns["x"].moments.mean == 21 / 4


def test_values_of_sensitive_columns_are_counted_but_not_kept(tmp_path):
    columns = {
        "label": pa.array([0, 1, 0, 1], pa.int8()),
        "mail": ["secret@x", "secret@x", "other@x", None],
        "income": [70_123.0, 70_123.0, 5.0, None],
        "city": ["a", "b", "b", "b"],
    }
    file = tmp_path / "part.arrow"
    write_part(pa.table(columns), file, "label")
    features = [
        FeatureSpec(column="mail", column_type=ColumnType.TEXT, sensitive=True),
        FeatureSpec(column="income", column_type=ColumnType.NUMBER, sensitive=True),
        FeatureSpec(
            column="city × mail",
            column_type=ColumnType.TEXT,
            cross=(text("city"), text("mail")),
        ),
        text("city"),
    ]
    plan = plan_statistics(features, "label")
    statistics = run(plan, [file], tmp_path, others={"valid": [file]})
    assert statistics.sensitive == ("income", "mail")
    assert statistics == load_statistics(tmp_path / "statistics.json")
    assert "@x" not in (tmp_path / "statistics.json").read_text()
    tops = statistics.columns["mail"].top_values
    assert [(top.value, top.count, top.label_rate) for top in tops] == [
        ("(concealed)", 2, 0.5),
        ("(concealed)", 1, 0.0),
    ]
    assert [top.value for top in statistics.columns["income"].top_values] == ["(concealed)"] * 2
    assert [top.value for top in statistics.columns["city"].top_values] == ["b", "a"]
    drift = statistics.drift["valid"].columns
    assert drift["mail"].psi == 0.0
    assert not drift["mail"].cells
    assert drift["city"].cells
    # What transforms rest on stays; people and programs are not shown it.
    assert statistics.columns["income"].moments.maximum == 70_123.0
    shown = statistics.shown().model_dump_json()
    assert "70123" not in shown
    assert statistics.shown().columns["mail"] == statistics.columns["mail"]
    # It was asked for, so that what was kept before is not taken for it.
    open_features = [spec.model_copy(update={"sensitive": False}) for spec in features]
    again = run(plan_statistics(open_features, "label"), [file], tmp_path, others={"valid": [file]})
    assert [top.value for top in again.columns["mail"].top_values] == ["secret@x", "other@x"]


def test_vocabulary_order_bounds_and_counts(collect, tmp_path):
    values = [
        "b",
        "b",
        "a",
        "a",
        "é",
        "é",
        "Z",
        "Z",
        "\U0001f600",
        "\U0001f600",
        "\uffff",
        "\uffff",
    ]
    values += ["c", "c", "c", "once", "", None, "two\nlines", "two\nlines"]
    labels = [index % 2 for index in range(len(values))]
    statistics = collect(
        {"c": values, "d": values}, labels, [text("c"), text("d", max_size=2)], folder=tmp_path
    )
    rows = vocabulary_rows(tmp_path, statistics, "c")
    ties = sorted(["b", "a", "é", "Z", "\U0001f600", "\uffff", "two\nlines"], key=str.encode)
    assert [row[0] for row in rows] == ["c", *ties]
    assert [row[1] for row in rows] == [3] + [2] * 7
    assert [row[2] for row in rows] == [1] + [1] * 7
    kept = statistics.vocabularies["c"]
    assert (kept.size, kept.num_excluded_values, kept.num_excluded_rows) == (8, 1, 1)
    bounded = statistics.vocabularies["d"]
    assert vocabulary_rows(tmp_path, statistics, "d") == rows[:2]
    assert (bounded.size, bounded.num_excluded_values, bounded.num_excluded_rows) == (2, 7, 13)
    assert kept.file != bounded.file
    assert load_statistics(tmp_path / "statistics.json") == statistics


def test_long_vocabulary_spans_batches_in_order(collect, tmp_path):
    values = [f"{(index * 7919) % 200_000:06d}" for index in range(200_000)]
    statistics = collect({"c": values}, specs=[text("c", min_count=1)], folder=tmp_path)
    column = pq.read_table(tmp_path / statistics.vocabularies["c"].file).column("value")
    assert column.to_pylist() == sorted(values)


def test_column_without_values(collect, tmp_path):
    specs = [
        text("c"),
        FeatureSpec(
            column="x",
            column_type=ColumnType.NUMBER,
            number=(Log(), Standardize()),
            id=(Bucketize(quantiles=3),),
        ),
    ]
    columns = {"c": ["", "", ""], "x": [None, math.nan, None]}
    statistics = collect(columns, [1, 0, 0], specs, folder=tmp_path)
    assert vocabulary_rows(tmp_path, statistics, "c") == []
    assert statistics.boundaries["x"]["3"] == ()
    for column in statistics.columns.values():
        assert (column.num_missing, column.num_distinct) == (3, 0)
        assert column.missing_label_rate == 1 / 3
    moments = statistics.columns["x"].moments
    assert (moments.count, moments.mean) == (0, None)


def test_result_is_reused_only_for_the_same_rows_and_plan(tmp_path):
    rows = tmp_path / "rows.arrow"
    table = pa.table({"label": pa.array([0, 1], pa.int8()), "c": ["a", "a"], "x": [1.0, 2.0]})
    write_part(table, rows, "label")
    out = tmp_path / "out"
    plan = plan_statistics([text("c")], "label")
    first = run(plan, [rows], out)
    rows.rename(tmp_path / "gone.arrow")
    # Without its rows it can only come from the folder.
    assert run(plan, [rows], out) == first
    assert run(plan, [rows], out, threads=1, memory_limit_gb=0.2) == first
    for changed in (
        {"plan": plan_statistics([text("c", min_count=1)], "label")},
        {"plan": plan_statistics([text("c")], "label", profile=False)},
        {"data_fingerprint": "other"},
    ):
        with pytest.raises(DataError, match="cannot be read"):
            run(**({"plan": plan, "files": [rows], "folder": out} | changed))
    # A failure leaves the last result as it was.
    assert run(plan, [rows], out) == first
    assert sorted(path.name for path in out.iterdir()) == ["statistics.json", "vocabularies"]
    (out / first.vocabularies["c"].file).unlink()
    with pytest.raises(DataError, match="cannot be read"):
        run(plan, [rows], out)


@pytest.mark.parametrize("damage", ["", "{}", "not json", '{"version": 0}'])
def test_damaged_result_is_replaced(tmp_path, damage):
    rows = tmp_path / "rows.arrow"
    write_part(pa.table({"label": pa.array([0, 1], pa.int8()), "x": [1.0, 2.0]}), rows, "label")
    (tmp_path / "statistics.json").write_text(damage)
    statistics = run(plan_statistics([number("x")], "label"), [rows], tmp_path)
    assert load_statistics(tmp_path / "statistics.json") == statistics


def test_edited_statistics_are_refused(tmp_path):
    rows = tmp_path / "rows.arrow"
    write_part(pa.table({"label": pa.array([0, 1], pa.int8()), "x": [1.0, 2.0]}), rows, "label")
    run(plan_statistics([number("x")], "label"), [rows], tmp_path)
    path = tmp_path / "statistics.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content))
    load_statistics(path)  # its layout does not matter
    path.write_text(json.dumps(content | {"label_rate": 0.25}))
    with pytest.raises(StatisticsError, match="not as it was written"):
        load_statistics(path)


def test_vocabularies_of_an_earlier_plan_go_away(tmp_path):
    rows = tmp_path / "rows.arrow"
    table = pa.table({"label": pa.array([0, 1], pa.int8()), "c": ["a", "a"], "d": ["b", "b"]})
    write_part(table, rows, "label")
    run(plan_statistics([text("c"), text("d")], "label"), [rows], tmp_path)
    run(plan_statistics([text("d")], "label"), [rows], tmp_path)
    files = [path.name for path in (tmp_path / "vocabularies").iterdir()]
    assert files == ["0000.parquet"]


def test_statistics_file_is_readable_and_strict_json(collect, tmp_path):
    collect({"x": [1.0, math.inf, None]}, folder=tmp_path)
    content = (tmp_path / "statistics.json").read_text(encoding="utf-8")
    assert content.count("\n") > 20
    json.loads(content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_progress_tells_of_every_column(tmp_path):
    rows = tmp_path / "rows.arrow"
    table = pa.table({"label": pa.array([0, 1], pa.int8()), "x": [1.0, 2.0], "y": [1.0, 2.0]})
    write_part(table, rows, "label")
    told = []

    class Task:
        def advance(self, amount):
            told.append(amount)

        def note(self, text):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            told.append("end")

    class Progress:
        def task(self, name, *, total, unit="rows"):
            told.append((total, unit))
            return Task()

        def log(self, text):
            told.append(text)

    plan = plan_statistics([number("x"), number("y")], "label")
    arguments = {"data_fingerprint": "d", "threads": 1, "memory_limit_gb": 0.5}
    collect_statistics(plan, [rows], tmp_path, progress=Progress(), **arguments)
    assert told == [(2, "columns"), 1, 1, "end"]


@pytest.mark.slow
def test_spills_what_does_not_fit(tmp_path):
    x = np.random.default_rng(0).permutation(2_500_000).astype(np.float64)
    rows = tmp_path / "rows.arrow"
    write_part(pa.table({"label": pa.array(np.zeros(len(x), np.int8)), "x": x}), rows, "label")
    # The counts alone are 24 bytes a value, 60 MB.
    plan = plan_statistics([number("x")], "label")
    column = run(plan, [rows], tmp_path, memory_limit_gb=0.05).columns["x"]
    assert column.num_distinct == len(x)
    assert column.quantiles["0.25"] == len(x) / 4 - 1


def test_no_rows(tmp_path):
    rows = tmp_path / "rows.arrow"
    write_part(pa.table({"label": pa.array([], pa.int8()), "x": pa.array([], "f8")}), rows, "label")
    plan = plan_statistics([number("x")], "label")
    with pytest.raises(ValueError, match="no training rows"):
        run(plan, [rows], tmp_path)
    with pytest.raises(ValueError, match="no training rows"):
        run(plan, [], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.arrow"]


@pytest.mark.parametrize("labels", [[0, 2], [0, -1], [0, None]])
def test_labels_other_than_0_and_1(tmp_path, labels):
    rows = tmp_path / "rows.arrow"
    write_part(pa.table({"y": pa.array(labels, pa.int8()), "x": [1.0, 2.0]}), rows, "y")
    with pytest.raises(ValueError, match="column 'y': 1 of 2 rows have a label other than"):
        run(plan_statistics([number("x")], "y"), [rows], tmp_path)


def test_missing_columns(tmp_path):
    rows = tmp_path / "rows.arrow"
    write_part(pa.table({"label": pa.array([1], pa.int8()), "x": [1.0]}), rows, "label")
    with pytest.raises(ValueError, match="column 'X' is missing"):
        run(plan_statistics([number("X")], "label"), [rows], tmp_path)
    with pytest.raises(ValueError, match="column 'y' is missing"):
        run(plan_statistics([number("x")], "y"), [rows], tmp_path)


def test_unreadable_rows(tmp_path):
    plan = plan_statistics([number("x")], "label")
    damaged = tmp_path / "damaged.arrow"
    damaged.write_bytes(b"ARROW1 and nothing else, long enough to look like a file ARROW1")
    for file in (damaged, tmp_path / "absent.arrow"):
        with pytest.raises(DataError, match="cannot be read") as caught:
            run(plan, [file], tmp_path)
        assert "\n" not in str(caught.value)


def test_statistics_error_names_memory_limit_gb_with_too_little_memory(tmp_path):
    rows = tmp_path / "rows.arrow"
    values = np.random.default_rng(0).random(400_000)
    table = pa.table({"label": pa.array(np.zeros(len(values), np.int8())), "x": values})
    write_part(table, rows, "label")
    with pytest.raises(StatisticsError, match="memory_limit_gb"):
        run(plan_statistics([number("x")], "label"), [rows], tmp_path, memory_limit_gb=0.001)


def test_folder_that_is_a_file(tmp_path):
    rows = tmp_path / "rows.arrow"
    write_part(pa.table({"label": pa.array([1], pa.int8()), "x": [1.0]}), rows, "label")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError):
        run(plan_statistics([number("x")], "label"), [rows], tmp_path / "file")


def test_top_values_keep_a_thousand_characters_of_a_long_value(collect, tmp_path):
    long = "x" * 100_000
    found = collect({"c": [long, long, long + "y", "z"]}, [0, 1, 0, 1], folder=tmp_path)
    column = found.columns["c"]
    assert column.num_distinct == 3
    assert [len(top.value) for top in column.top_values] == [1001, 1001, 1]
    assert [top.count for top in column.top_values] == [2, 1, 1]
    assert (tmp_path / "statistics.json").stat().st_size < 20_000
