import random
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.apps.check import check_config, preview_features
from ctr_pipeline.apps.init import init_config
from ctr_pipeline.config import config_from_mapping, load_config
from ctr_pipeline.errors import DataError, RunFolderError
from ctr_pipeline.progress import SilentProgress

NUM_ROWS = 400


def rows(names=("click", "price", "city", "same")):
    chance = random.Random(1)
    lines = [",".join(f'"{name}"' for name in names)]
    for _ in range(NUM_ROWS):
        price = round(chance.lognormvariate(1, 1.5), 2)
        city = chance.choice(["Wien", "Köln", "Bern"])
        lines.append(f"{int(chance.random() < 0.3)},{price},{city},1")
    return "\n".join(lines) + "\n"


@pytest.fixture
def init(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def init(text, **options):
        (tmp_path / "clicks.csv").write_text(text)
        options = {"label": "click", "output": tmp_path / "c.yaml", **options}
        return init_config("clicks.csv", progress=SilentProgress(), **options)

    return init


def test_written_config_loads_and_gives_the_same_plan(init):
    result = init(rows())
    loaded = load_config(result.output)
    plan = check_config(loaded, progress=SilentProgress())
    assert [row.feature for row in plan.rows] == ["price", "city"]
    assert [row.column_type for row in plan.rows] == ["number", "text"]
    assert loaded.config.output == "runs/clicks"
    assert loaded.config.data.label == "click"


def test_tells_what_it_saw(init):
    result = init(rows())
    assert (result.num_columns, result.num_features) == (4, 2)
    assert result.num_rows_seen == NUM_ROWS
    assert 0.2 < result.label_rate < 0.4
    assert [column for column, _ in result.left_out] == ["same"]


def test_every_decision_has_its_reason_beside_it(init):
    lines = init(rows()).output.read_text().splitlines()
    for position, line in enumerate(lines):
        if line.startswith("  - {columns:"):
            assert lines[position - 1].startswith("  # ")
    assert any("left out: same, because" in line for line in lines)


@pytest.mark.parametrize(
    "name", ["select", "Preis (€)", "a: b", "x#y", "- z", "'quoted'", "yes", "null", "0123", "{a}"]
)
def test_any_column_name_survives(init, name):
    result = init(rows(("click", name, "city", "same")))
    config = load_config(result.output).config
    assert config.features[0].columns == name


def test_config_holds_what_is_said_of_the_file(init):
    said = ["data.delimiter=,", "data.quote=null", "data.missing_values=[NA]", "data.bad_rows=skip"]
    result = init(rows().replace('"', "").replace("Köln", '"Köln'), settings=said)
    data = load_config(result.output).config.data
    assert (data.delimiter, data.quote, data.bad_rows) == (",", None, "skip")
    assert data.missing_values == ("NA",)


def test_file_without_a_header_keeps_its_ranges(init):
    body = rows().split("\n", 1)[1]
    result = init(body, columns=["click", "I1..I3"])
    assert "columns: [click, I1..I3]" in result.output.read_text()
    assert load_config(result.output).config.data.columns == ("click", "I1", "I2", "I3")


def test_parquet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pa.table(
        {"label": [0, 1, 0, 1] * 50, "x": [float(n % 7) for n in range(200)], "u": ["a", "b"] * 100}
    )
    pq.write_table(table, "rows.parquet")
    result = init_config("rows.parquet", output=tmp_path / "c.yaml", progress=SilentProgress())
    assert "format" not in result.output.read_text().partition("features:")[0]
    assert result.label_rate == 0.5


def test_existing_config_is_kept_unless_told(init, tmp_path):
    output = tmp_path / "c.yaml"
    output.write_text("mine")
    with pytest.raises(RunFolderError, match="exists already"):
        init(rows())
    assert output.read_text() == "mine"
    init(rows(), overwrite=True)
    assert output.read_text() != "mine"


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        (rows(), {"label": "clicks"}, DataError, "click"),
        (rows(), {"label": "city"}, DataError, "holds 'Wien|holds 'Köln|holds 'Bern"),
        (rows(), {"label": "price"}, DataError, "a label is 0 or 1"),
        ("click,x\n,1\n,2\n", {}, DataError, "no label"),
        ("", {}, DataError, "empty"),
        (rows(), {"columns": ["click", "I3..I1"]}, DataError, "--columns: .*runs backwards"),
        (rows(), {"label": "zzz"}, DataError, "which --label names.*list all.*in --columns"),
        ("1,1,a\n1,0,b\n", {"label": None}, DataError, "two columns are named '1'.*in --columns"),
        (
            "bought,city\nbuy,a\nview,b\n",
            {"label": "bought"},
            DataError,
            "Say which of 'buy' and 'view' is label 1 in --positive$",
        ),
        (
            "n,a,b\n5,0,1\n3,1,0\n",
            {"label": None},
            DataError,
            "several columns hold 0 and 1: 'a', 'b'. Name the column to predict with --label",
        ),
        (
            "n,city\n5,x\n3,y\n",
            {"label": None},
            DataError,
            "no column holds 0 and 1; there are 'n', 'city'.*--label",
        ),
        ("n,x\n0,2\n2,3\n1,4\n", {"label": "n"}, DataError, "holds '2'; a label is 0 or 1"),
    ],
)
def test_refusal_writes_nothing(init, tmp_path, text, options, error, message):
    with pytest.raises(error, match=message):
        init(text, **options)
    assert not (tmp_path / "c.yaml").exists()


@pytest.mark.parametrize(
    ("clicked", "other", "options", "positive"),
    [
        ("True", "False", {}, "True"),
        ("yes", "no", {"label": "click"}, "yes"),
        ("1", "-1", {}, "1"),
        ("buy", "view", {"label": "click", "positive": "buy"}, "buy"),
    ],
)
def test_labels_written_otherwise_are_proposed(init, clicked, other, options, positive):
    header, *lines = rows().splitlines()
    written = {"1": clicked, "0": other}
    body = [f"{written[line[0]]}{line[1:]}" for line in lines]
    result = init("\n".join([header, *body]) + "\n", **{"label": None, **options})
    config = load_config(result.output)
    assert (config.config.data.label, config.config.data.positive) == ("click", positive)
    assert result.label_rate == sum(line[0] == "1" for line in lines) / len(lines)
    assert preview_features(config).features


def test_the_only_column_of_0_and_1_is_the_label(init):
    assert init(rows(), label=None).label == "click"


def test_times_and_lists_of_parquet_become_features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance = random.Random(2)
    seconds = [1_709_251_200 + chance.randrange(10 * 86_400) for _ in range(NUM_ROWS)]
    table = pa.table(
        {
            "click": [int(chance.random() < 0.3) for _ in range(NUM_ROWS)],
            "price": [chance.random() for _ in range(NUM_ROWS)],
            "clicked_at": seconds,
            "stamp": pa.array(seconds, pa.timestamp("s", "UTC")),
            "tags": [[chance.choice("abc"), chance.choice("abc")] for _ in range(NUM_ROWS)],
            "taste": [[chance.random(), chance.random()] for _ in range(NUM_ROWS)],
            "deep": [[[1]]] * NUM_ROWS,
        }
    )
    pq.write_table(table, "clicks.parquet")
    progress = SilentProgress()
    result = init_config(
        "clicks.parquet", label="click", output=tmp_path / "c.yaml", progress=progress
    )
    assert [column for column, _ in result.left_out] == ["deep"]
    loaded = load_config(result.output)
    rows = {row.feature: row for row in check_config(loaded, progress=progress).rows}
    assert rows["clicked_at"].id == "datetime(parts ('hour', 'weekday'), format epoch_seconds)"
    assert rows["stamp"].id == "datetime(parts ('hour', 'weekday'))"
    assert rows["tags"].id.startswith("sequence('|'")
    assert rows["taste"].number == "vector(2) → standardize"
    # The config that was written decides as the one without entries does.
    automatic = config_from_mapping(
        {"data": {"train": "clicks.parquet", "label": "click", "split": {"by": "random"}}}
    )
    decided = check_config(automatic, progress=progress).rows
    assert {row.feature: (row.number, row.id, row.num_ids) for row in decided} == {
        row.feature: (row.number, row.id, row.num_ids) for row in rows.values()
    }


def test_words_among_numbers_are_listed_as_missing(init):
    header, *body = rows().splitlines()
    for number in range(0, NUM_ROWS, 20):
        click, _, city, same = body[number].split(",")
        body[number] = f"{click},\\N,{city},{same}"
    body[3] = body[3].replace(body[3].split(",")[2], "\\N")
    result = init("\n".join([header, *body]) + "\n")
    assert result.notes == (
        r"'price' holds numbers but for '\N' in 5.0% of its values: data.missing_values lists that "
        "now",
        r"'\N' means missing in 'city' as well",
    )
    loaded = load_config(result.output)
    assert loaded.config.data.missing_values == ("\\N",)
    plan = check_config(loaded, progress=SilentProgress())
    assert [row.column_type for row in plan.rows] == ["number", "text"]
    assert plan.warnings == ()
    # Without the key the column is a text, and that is said.
    plain = config_from_mapping({"data": {"train": "clicks.csv", "label": "click"}})
    plan = check_config(plain, progress=SilentProgress())
    assert [row.column_type for row in plan.rows] == ["text", "text"]
    assert plan.rows[0].reason.endswith(r"(numbers but for '\N' in 5.0% of its values)")
    assert r"list '\N' in data.missing_values" in plan.warnings[0]


def test_numbers_with_a_sign_are_texts_for_a_reason(init):
    header, *body = rows().splitlines()
    body = [line.replace(",", ",$", 1) for line in body]
    result = init("\n".join([header, *body]) + "\n")
    (note,) = result.notes
    assert note.startswith("'price' holds numbers with a currency sign in 100.0% of its values ('$")
    assert "(numbers with a currency sign in 100.0% of its values)" in result.output.read_text()


def table_of_times(times, name="x1"):
    chance = random.Random(2)
    lines = [f"click,{name},user"]
    for time in times:
        lines.append(f"{int(chance.random() < 0.3)},{time},u{chance.randrange(30)}")
    return "\n".join(lines) + "\n"


def shuffled_seconds(num_rows=400):
    return random.Random(3).sample(range(1_709_251_200, 1_709_251_200 + 20 * 86_400), num_rows)


def as_iso(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def as_spreadsheet(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%m/%d/%Y %I:%M:%S %p")


@pytest.mark.parametrize("name", ["x1", "shown_at", "user_id", "b"])
@pytest.mark.parametrize(
    ("write", "format"),
    [(str, None), (as_iso, None), (as_spreadsheet, "%m/%d/%Y %I:%M:%S %p")],
)
def test_rows_that_are_not_in_the_order_of_their_time_are_divided_by_it(init, name, write, format):
    result = init(table_of_times(map(write, shuffled_seconds()), name))
    split = load_config(result.output).config.data.split
    assert (split.by, split.column, split.time_format) == ("time", name, format)
    assert any(f"not in the order of '{name}'" in note for note in result.notes)
    assert "# order | random | time or hash of a column" in result.output.read_text()


@pytest.mark.parametrize("write", [str, as_iso, as_spreadsheet])
def test_rows_in_the_order_of_their_time_are_divided_by_their_order(init, write):
    result = init(table_of_times(map(write, sorted(shuffled_seconds()))))
    assert load_config(result.output).config.data.split.by == "order"
    assert not result.notes


def test_a_date_whose_day_no_value_tells_stays_a_text_and_that_is_said(init):
    dates = [f"{one % 12 + 1:02d}/{one % 11 + 1:02d}/2024" for one in range(400)]
    result = init(table_of_times(dates))
    said = "its dates are %d/%m/%Y or %m/%d/%Y, and no value tells which"
    assert said in result.output.read_text()
    (feature, _) = load_config(result.output).config.features
    assert feature.id is not None
    assert feature.id[0].name == "vocabulary"


def test_rows_are_divided_by_the_time_that_differs_most(init):
    seconds = shuffled_seconds()
    pairs = [f"{as_iso(one // 86_400 * 86_400)[:10]},{as_iso(one)}" for one in seconds]
    split = load_config(init(table_of_times(pairs, "day,second")).output).config.data.split
    assert split.column == "second"


def test_rows_in_the_order_of_one_of_their_times_keep_it(init):
    """What was shown is in order; what was published is not, and divides nothing."""
    seconds = shuffled_seconds()
    times = zip(map(as_iso, seconds), map(as_iso, sorted(seconds)), strict=True)
    result = init(table_of_times(map(",".join, times), "published,shown"))
    assert load_config(result.output).config.data.split.by == "order"


def test_times_that_some_rows_lack_divide_no_rows(init):
    times = [as_iso(one) for one in shuffled_seconds()]
    times[7] = ""
    result = init(table_of_times(times))
    assert load_config(result.output).config.data.split.by == "order"


KINDS_OF_TEXT = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.large_string())]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32(), *KINDS_OF_TEXT]
)
def test_times_of_parquet(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    seconds = shuffled_seconds()
    if kind in KINDS_OF_TEXT:
        times = pa.array([as_spreadsheet(one) for one in seconds]).cast(kind)
    else:
        times = pa.array([datetime.fromtimestamp(one, UTC) for one in seconds]).cast(kind)
    rows = pa.table({"label": [one % 3 % 2 for one in seconds], "x": times})
    pq.write_table(rows, "rows.parquet")
    result = init_config("rows.parquet", output=tmp_path / "c.yaml", progress=SilentProgress())
    split = load_config(result.output).config.data.split
    assert (split.by, split.column) == ("time", "x")


@pytest.mark.parametrize("name", ["x1", "row", "price", "user_id"])
@pytest.mark.parametrize(
    "counted", [lambda n: n, lambda n: 10**6 + 3 * n, lambda n: f"{n:06d}", lambda n: -900 + n]
)
def test_a_counter_of_rows_is_left_out_whatever_its_name(init, name, counted):
    result = init(table_of_times(map(counted, range(300)), name))
    ((column, reason),) = result.left_out
    assert column == name
    assert "counts the rows" in reason or "occurs once" in reason


@pytest.mark.parametrize(
    "values",
    [
        random.Random(4).sample(range(300), 300),
        [*range(299), 298],
        [n + 0.5 for n in range(300)],
        [*range(299), ""],
    ],
    ids=["shuffled", "twice", "fractions", "missing"],
)
def test_numbers_that_count_no_rows_are_features(init, values):
    assert init(table_of_times(values)).left_out == ()


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_counters_and_fractions_of_narrow_floats_are_told_apart(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    numbers = np.arange(300, dtype=kind)
    columns = {"label": numbers.astype(int) % 3 % 2, "counter": numbers, "fraction": numbers / 10}
    pq.write_table(pa.table(columns), "rows.parquet")
    result = init_config("rows.parquet", output=tmp_path / "c.yaml", progress=SilentProgress())
    assert [name for name, _ in result.left_out] == ["counter"]
