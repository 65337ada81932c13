"""What Spark is asked, without Spark: the SQL, which rows, and what is refused."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp, parse_one

from ctr_pipeline.analysis import plan_statistics
from ctr_pipeline.analysis.comparison import other_intervals_query, other_values_query
from ctr_pipeline.analysis.engine_protocol import LabelCounts
from ctr_pipeline.analysis.groups import bins_query, group_sizes_query
from ctr_pipeline.analysis.moments import central_query, mean_query
from ctr_pipeline.analysis.quantiles import largest_counts_query, quantile_query
from ctr_pipeline.analysis.ranges import counts_query, range_query
from ctr_pipeline.analysis.spark_connection import FIXED_SETTINGS, render, settings_of
from ctr_pipeline.analysis.spark_engine import SparkEngine
from ctr_pipeline.analysis.spark_rows import (
    FileView,
    LineRows,
    ParquetRows,
    find_views,
    plan_tables,
    require_readable,
)
from ctr_pipeline.analysis.spark_text import field_patterns, number_of_text
from ctr_pipeline.analysis.sql import OTHER_COUNTS, TABLE
from ctr_pipeline.analysis.table_sql import CountedRows, label_counts, value_counts
from ctr_pipeline.analysis.top_values import frequent_values_query
from ctr_pipeline.analysis.value_counts import weights_query
from ctr_pipeline.config.models import SPARK_FIXED, AnalysisConfig, DataConfig, SplitConfig
from ctr_pipeline.dataset.formats.text.records import Dialect
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.splits import SPLITS
from ctr_pipeline.dataset.weights import WeightSums
from ctr_pipeline.errors import DataError, StatisticsError
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.count_encode import CountEncode
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from tests.storage.memory_buckets import MemoryBuckets

CHAIN = (Fill(value=1.0), Clip(minimum=0.0), Log(), Normalize(), Standardize())
ENCODED = ((CountEncode(),), (CountEncode(), Log()))
QUERIES = [
    *(counts_query(kind) for kind in ColumnType),
    *(frequent_values_query(kind, 2, size) for kind in ColumnType for size in (None, 5)),
    *(bins_query(*edges) for edges in ((0, 0), (20, 19))),
    other_intervals_query(3),
    other_values_query(),
    group_sizes_query(),
    *(
        build(chains)
        for build in (range_query, mean_query, central_query)
        for chains in (((),), ((), CHAIN), ENCODED, ((TargetEncode(), Standardize()),))
    ),
    *(
        build(chains, weighted=True)
        for build in (range_query, mean_query, central_query)
        for chains in (((), CHAIN), ((TargetEncode(), Standardize()),))
    ),
    frequent_values_query(ColumnType.TEXT, 1, None, weighted=True),
    weights_query(),
    *(
        counts_query(ColumnType.NUMBER, ((), CHAIN), weighted=weighted)
        for weighted in (False, True)
    ),
    *(quantile_query(chain, 2) for chain in ((), CHAIN, *ENCODED)),
    *(largest_counts_query(chain, 30) for chain in ((), CHAIN, *ENCODED)),
]
TABLES = {TABLE: exp.to_table("counts_7"), OTHER_COUNTS: exp.to_table("others_7")}


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_the_plan_is_spark_sql(query):
    names = {node.name for node in query.tree.find_all(exp.Placeholder)}
    text = render(query.bind({**dict.fromkeys(names, 1.5), "last_value": "a"}, TABLES))
    assert render(parse_one(text, read="spark")) == text
    assert ":" not in text
    assert "value_counts" not in text
    assert "other_counts" not in text


def test_a_query_keeps_the_names_of_its_tables_and_takes_texts():
    limits = {"least_rows": 3, "last_value": "d'or\\"}
    text = render(other_values_query().bind(limits, TABLES))
    assert "LEFT JOIN `counts_7` AS `known`" in text
    assert "`cleaned`.`value` <= 'd\\'or\\\\'" in text


def lines(quote: str | None, headers: tuple[str, ...] = ()) -> LineRows:
    return LineRows(
        FileView("v", ()), ("click", "pri`ce", "city"), Dialect(",", quote), headers, ("", "NA")
    )


def test_lines_without_quotes_are_cut_at_their_delimiters():
    rows = lines(None, ("click,pri`ce,city",))
    query = rows.select([exp.column("fields")])
    assert render(query) == (
        "SELECT `fields` "
        "FROM (SELECT CASE WHEN SIZE(`fields`) = 3 THEN `fields` ELSE NULL END AS `fields` "
        "FROM (SELECT SPLIT(`line`, CONCAT('\\\\Q', ',', '\\\\E')) AS `fields` FROM `v` "
        "WHERE `line` <> '' AND NOT `line` IN ('click,pri`ce,city')) AS `cut_lines`) "
        "AS `whole_lines`"
    )


def test_a_part_of_parquet_rows_with_the_values_of_their_folders():
    schema = pa.schema([("click", pa.int8()), ("a`b", pa.float32()), ("ds", pa.string())])
    view = FileView("v", (), row_number="row")
    rows = ParquetRows(view, schema, (("ds", "o'clock"), ("x", None)), ("",), rows=(5, 90))
    query = rows.select([exp.alias_(rows.value("a`b", ColumnType.NUMBER), "value")])
    assert render(query) == (
        "SELECT CAST(CAST(`a``b` AS STRING) AS DOUBLE) + CAST('0.0' AS DOUBLE) AS `value` "
        "FROM (SELECT *, "
        "CAST('o\\'clock' AS STRING) AS `ds`, CAST(NULL AS STRING) AS `x` FROM `v`) "
        "AS `with_folders` WHERE `row` >= 5 AND `row` < 90"
    )


def test_types_that_spark_reads_otherwise_have_no_value():
    schema = pa.schema(
        [
            ("exact", pa.decimal128(15, 2)),
            ("long", pa.decimal128(16, 2)),
            ("half", pa.float16()),
            ("time", pa.timestamp("us")),
            ("bytes", pa.binary()),
        ]
    )
    rows = ParquetRows(FileView("v", ()), schema, (), ("",))
    found = {name: rows.value(name, ColumnType.NUMBER) is not None for name in schema.names}
    assert found == {"exact": True, "long": False, "half": False, "time": False, "bytes": False}
    assert rows.value("time", ColumnType.TEXT) is None
    assert rows.value("exact", ColumnType.TEXT) is None


PRICE = FeatureSpec(column="price", column_type=ColumnType.NUMBER)


def weighed(kind: pa.DataType, name: str = "train", weight: str | None = "times") -> CountedRows:
    """A table whose weights are of a type."""
    schema = pa.schema([("click", pa.int8()), ("price", pa.int64()), ("times", kind)])
    view = FileView(name, (Path("rows.parquet"),))
    rows = (ParquetRows(view, schema, (), ("",)),)
    return CountedRows("click", {"price": ColumnType.NUMBER}, rows, weight=weight)


def test_weights_that_spark_reads_otherwise_are_refused():
    plan = plan_statistics([PRICE], "click", weight="times")
    for kind in (pa.float32(), pa.uint8(), pa.decimal128(15, 2), pa.bool_(), pa.string()):
        weighed(kind).check_types()
    with pytest.raises(StatisticsError, match=r"column 'times': has the type timestamp"):
        weighed(pa.timestamp("us")).check_types()
    with pytest.raises(ValueError, match="rows are weighed by 'times', not 'None'"):
        weighed(pa.float64(), weight=None).check(plan)


class Asked:
    """Notes what is asked of a connection; all rows have one label each."""

    def __init__(self) -> None:
        self.views: dict[str, str] = {}

    def offer_files(self, view: FileView) -> None:
        self.views[view.name] = ""

    def offer(self, name: str, tree: exp.Expr, *, keep: bool = False) -> None:
        self.views[name] = render(tree)

    def rows(self, tree: exp.Expr) -> list[tuple[int, ...]]:
        return [(9, 4, 1, 20.0, 5.0)]


def test_training_rows_are_weighed_and_those_compared_with_them_are_not():
    asked = Asked()
    rows = {name: weighed(pa.float32(), name) for name in SPLITS}
    accepted = []
    engine = SparkEngine(asked, rows.pop("train"), rows, accepted.append)
    labels = engine.count_labels(plan_statistics([PRICE], "click", weight="times"))
    assert labels == LabelCounts(8, 4, 0, WeightSums(total=20.0, positive=5.0))
    assert accepted == [dict.fromkeys(SPLITS, replace(labels, num_rows=9, num_wrong=1))]
    weight = "CAST(CAST(`times` AS STRING) AS DOUBLE) + CAST('0.0' AS DOUBLE)"
    assert asked.views["ctrpipe_rows_of_train"] == (
        "SELECT * FROM (SELECT 0 AS `sample`, CASE WHEN CAST(`click` AS DOUBLE) IN (0, 1) "
        f"AND {weight} >= 0 AND {weight} <= CAST('1e+30' AS DOUBLE) "
        "THEN CAST(`click` AS DOUBLE) ELSE NULL END AS `clicked`, "
        f"{weight} AS `weight`, CAST(`price` AS DOUBLE) AS `column0` FROM `train`) AS `all_rows`"
    )
    counts = render(engine.value_counts_of("price"))
    assert counts.endswith(
        "SUM(CASE WHEN `clicked` IS NULL THEN CAST('0.0' AS DOUBLE) ELSE `weight` END) AS "
        "`weight`, SUM(CASE WHEN `clicked` = 1 THEN `weight` "
        "ELSE CAST('0.0' AS DOUBLE) END) AS `click_weight` FROM (SELECT `column0` AS `value`, "
        "`clicked`, `weight` FROM `ctrpipe_rows_of_train` WHERE NOT `clicked` IS NULL) "
        "AS `column_rows` GROUP BY `value`"
    )
    assert "weight" not in render(engine.value_counts_of("price", "valid"))


def test_counts_are_those_of_the_label():
    rows = exp.to_table("r")
    assert render(label_counts(rows)).startswith("SELECT COUNT(*) AS `num_rows`")
    assert render(value_counts(rows)).endswith("FROM `r` GROUP BY `value`")


def test_blanks_of_all_kinds_come_back_from_their_literal():
    text = render(exp.select(number_of_text(exp.column("x"), ("", "-1"))))
    (trim,) = {node.expression.this for node in parse_one(text, read="spark").find_all(exp.Trim)}
    assert trim == "".join(chr(code) for code in range(0x3001) if chr(code).isspace())


def fields_by_patterns(line: str, dialect: Dialect) -> list[str] | None:
    """What the SQL does, step by step, with Python's regular expressions."""
    patterns = field_patterns(dialect)
    quote = dialect.quote
    fields = []
    for field in re.findall(patterns.field, dialect.delimiter + line):
        quoted = re.match(patterns.quoted, field)
        if field.startswith(quote) and quoted is None:
            return None
        inner = quoted[1].replace(quote * 2, quote) if quoted else ""
        fields.append(inner + field[quoted.end() :] if quoted else field)
    return fields


@given(st.text(alphabet="ab,\"' |\t", min_size=1, max_size=25), st.sampled_from([",", "|", "\t"]))
def test_fields_are_those_of_arrow(line, delimiter):
    dialect = Dialect(delimiter, '"')
    found = fields_by_patterns(line, dialect)
    if found is None:
        # An open quote: Arrow reads on, over the line's end.
        assert line.count('"') % 2 or '"' in line
        return
    names = [str(number) for number in range(len(found))]
    table = pa_csv.read_csv(
        pa.BufferReader(line.encode() + b"\n"),
        read_options=pa_csv.ReadOptions(column_names=names),
        parse_options=pa_csv.ParseOptions(
            delimiter=delimiter, quote_char='"', ignore_empty_lines=False
        ),
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    assert [list(row.values()) for row in table.to_pylist()] == [found]


def test_a_long_quoted_line_costs_no_more_than_its_length():
    field = '"' + 'x""' * 100_000 + 'x"'
    line = ",".join([field, "b", '"' + "y" * 300_000])
    assert fields_by_patterns(line, Dialect(",", '"')) is None
    found = fields_by_patterns(field + ",b", Dialect(",", '"'))
    assert [len(one) for one in found] == [200_001, 1]


# ---------------------------------------------------------------------------- which rows


def data(train, **values) -> DataConfig:
    return DataConfig(train=str(train), label="click", **values)


def write_csv(folder, name: str, header: str = "click,price,city") -> str:
    path = folder / name
    content = header + "\n" + "".join(f"{n % 2},{n},c{n % 3}\n" for n in range(40))
    raw = content.encode()
    if name.endswith(".gz"):
        raw = gzip.compress(raw)
    if name.endswith(".zst"):
        raw = zstandard.compress(raw)
    path.write_bytes(raw)
    return str(path)


def write_parquet(folder, name: str, num_rows: int = 40) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {"click": [n % 2 for n in range(num_rows)], "price": list(range(num_rows))}
    pq.write_table(pa.table(rows), path)
    return str(path)


def own_splits(folder, ending: str = ".csv", **headers: str) -> dict[str, str]:
    return {
        name: write_csv(folder, name + ending, headers.get(name, "click,price,city"))
        for name in ("train", "valid", "test")
    }


def plan(config: DataConfig):
    source = inspect_source(config)
    require_readable(config, source)
    return plan_tables(config, source, {"price": ColumnType.NUMBER})


def test_text_files_of_their_own_splits(tmp_path):
    files = own_splits(tmp_path)
    (tmp_path / "valid.csv").write_text("city,click,price\n" + "a,0,1\nb,1,2\n" * 20)
    config = DataConfig(label="click", **files)
    tables = plan(config)
    assert list(tables) == ["train", "valid", "test"]
    (valid,) = tables["valid"].sources
    assert valid.column_names == ("city", "click", "price")
    assert valid.headers == ("city,click,price",)
    assert [view.name for view in find_views(tables["train"])] == ["ctrpipe_train_lines_0"]
    assert [table.weight for table in tables.values()] == [None] * 3
    tables = plan(config.model_copy(update={"weight": "price"}))
    assert [table.weight for table in tables.values()] == ["price"] * 3
    assert "AS DOUBLE) + CAST('0.0' AS DOUBLE) END AS `weight`" in render(
        exp.select(exp.Star()).from_(tables["train"].rows({}))
    )


def test_keys_of_pairs_are_cut_where_they_are_counted(tmp_path):
    for name in SPLITS:
        pairs = ("0,price:1;age:2\n" + "1,price:2\n") * 20
        (tmp_path / f"{name}.csv").write_text(f"click,profile\n{pairs}")
    files = {name: str(tmp_path / f"{name}.csv") for name in SPLITS}
    cut = {"column": "profile", "pairs": ";"}
    train = plan(DataConfig(label="click", key_value=cut, **files))["train"]
    (rows,) = train.sources
    assert rows.keys == ("price",)
    assert rows.schema.names == ["click", "profile", "price"]
    assert [view.name for view in find_views(train)] == ["ctrpipe_train_lines_0"]
    (price, click) = (rows.is_readable(name, ColumnType.NUMBER) for name in ("price", "click"))
    assert render(price).startswith("`ctrpipe_is_cut` AND (")
    assert "`fields`[0]" in render(click)
    assert rows.is_readable("price", ColumnType.TEXT) == exp.column("ctrpipe_is_cut")
    query = render(rows.select([exp.alias_(rows.value("price", ColumnType.TEXT), "value")]))
    assert parse_one(query, read="spark").named_selects == ["value"]


def test_parquet_rows_by_order_lie_in_the_first_files(tmp_path):
    for number in range(3):
        write_parquet(tmp_path, f"part-{number}.parquet")
    config = data(tmp_path / "*.parquet", split=SplitConfig(valid=0.25, test=0.25))
    tables = plan(config)
    found = {
        split: [([file.name for file in one.view.files], one.rows) for one in table.sources]
        for split, table in tables.items()
    }
    assert found == {
        "train": [(["part-0.parquet"], None), (["part-1.parquet"], (0, 20))],
        "valid": [(["part-1.parquet"], (20, 40)), (["part-2.parquet"], (0, 10))],
        "test": [(["part-2.parquet"], (10, 40))],
    }


def test_files_of_one_folder_are_one_view(tmp_path):
    for name in ("ds=1/a.parquet", "ds=1/b.parquet", "ds=2/a.parquet"):
        write_parquet(tmp_path / "train", name)
    files = {name: write_parquet(tmp_path / name, "ds=9/a.parquet") for name in ("valid", "test")}
    config = DataConfig(train=str(tmp_path / "train"), label="click", **files)
    train = plan(config)["train"]
    assert [(one.partition, len(one.view.files)) for one in train.sources] == [
        ((("ds", "1"),), 2),
        ((("ds", "2"),), 1),
    ]


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ({}, "cannot divide these rows by order: lines of text have no numbers"),
        ({"by": "random"}, "by random"),
        ({"by": "time", "column": "price", "time_format": "epoch_seconds"}, "by time"),
    ],
)
def test_rows_that_spark_would_divide_otherwise_are_refused(tmp_path, split, says):
    config = data(write_csv(tmp_path, "a.csv"), split=SplitConfig(**split))
    with pytest.raises(DataError, match=says) as caught:
        require_readable(config, inspect_source(config))
    assert "data.valid and data.test" in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "says"),
    [(".csv.zst", "zstd"), (".csv.bz2", "goes by the ending '.bz2'")],
)
def test_compression_that_spark_does_not_find_is_refused(tmp_path, ending, says):
    config = DataConfig(label="click", **own_splits(tmp_path, ending))
    with pytest.raises(DataError, match=says):
        require_readable(config, inspect_source(config))


def test_compression_is_told_by_the_ending(tmp_path):
    config = DataConfig(label="click", **own_splits(tmp_path, ".csv.gz"))
    require_readable(config, inspect_source(config))
    (tmp_path / "train.csv").write_bytes((tmp_path / "train.csv.gz").read_bytes())
    config = config.model_copy(update={"train": str(tmp_path / "train.csv")})
    with pytest.raises(DataError, match=r"is compressed with gzip, and Spark goes by"):
        require_readable(config, inspect_source(config))


def test_objects_in_stores_are_refused(monkeypatch):
    buckets = MemoryBuckets(monkeypatch)
    files = {split: f"s3://bucket/{name}.csv" for split, name in zip(SPLITS, "abc", strict=True)}
    for address in files.values():
        buckets.put(address, b"click,price,city\n" + b"0,1,a\n1,2,b\n" * 20)
    config = DataConfig(label="click", **files)
    with pytest.raises(DataError, match=r"a.csv: is an object in a store.*leave analysis out"):
        require_readable(config, inspect_source(config))


def test_hidden_files_and_names_with_line_ends_are_refused(tmp_path):
    files = own_splits(tmp_path)
    config = DataConfig(label="click", **{**files, "test": write_csv(tmp_path, "_test.csv")})
    with pytest.raises(DataError, match=r"_test.csv: Spark passes over"):
        require_readable(config, inspect_source(config))
    config = DataConfig(label="click", **{**files, "test": write_csv(tmp_path, "a:b.csv")})
    with pytest.raises(DataError, match=r"a:b.csv: has a colon in its path"):
        require_readable(config, inspect_source(config))
    header = 'click,"pri\nce",city'
    files = own_splits(tmp_path, train=header, valid=header, test=header)
    config = DataConfig(label="click", **files)
    with pytest.raises(DataError, match="a column's name holds a line end"):
        require_readable(config, inspect_source(config))


# ---------------------------------------------------------------------------- which Spark


def test_spark_on_this_machine_is_reached_from_it_alone(tmp_path):
    settings = settings_of(AnalysisConfig(engine="spark"), tmp_path)
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.local.dir"] == str(tmp_path)


def test_settings_of_the_user_win_but_where_results_depend_on_them(tmp_path):
    conf = {"spark.driver.memory": "3g", "spark.x": False}
    config = AnalysisConfig(engine="spark", master="spark://host:7077", conf=conf)
    settings = settings_of(config, tmp_path)
    assert settings["spark.driver.memory"] == "3g"
    assert settings["spark.x"] == "false"
    assert settings["spark.master"] == "spark://host:7077"
    assert "spark.driver.bindAddress" not in settings
    assert FIXED_SETTINGS.items() <= settings.items()
    assert {*FIXED_SETTINGS, "spark.master"} == set(SPARK_FIXED)


@pytest.mark.parametrize("master", ["local", "local[8]", "local[*]", "yarn", "k8s://https://h:443"])
def test_masters(master):
    assert AnalysisConfig(engine="spark", master=master).master == master


def test_lists_are_counted_here_alone(tmp_path):
    from ctr_pipeline.analysis import plan_statistics
    from ctr_pipeline.features import FeatureSpec, SequenceSpec
    from ctr_pipeline.transforms.vocabulary import Vocabulary

    spec = FeatureSpec(
        column="city", column_type=ColumnType.TEXT, id=(Vocabulary(),), sequence=SequenceSpec()
    )
    config = DataConfig(label="click", **own_splits(tmp_path))
    table = plan(config)["train"]
    with pytest.raises(StatisticsError, match="column 'city': holds lists"):
        table.check(plan_statistics([spec], "click"))
