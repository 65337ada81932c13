"""Mistakes in data files, and what can happen to files and disks while rows are read."""

import gzip
import os
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_pipeline.cli.main import main
from ctr_pipeline.dataset import encoded, ingest
from ctr_pipeline.dataset.formats.text import blocks, compression
from tests.mistakes.spoiled_world import CHECK, HEADER, Case, World, file, lines, setting

NOT_TEXT_OR_PARQUET = (
    ("zip", b"PK\x03\x04", "a ZIP archive or an Excel workbook"),
    ("utf16", "click,price\n1,2\n".encode("utf-16"), "UTF-16 text"),
)


def _pairs(first: str, **cut: str) -> Callable[[World], None]:
    """The rows hold pairs, of which the first is this one."""

    def spoil(world: World) -> None:
        parts = [row.split(",") for row in lines()]
        texts = [f"price:{part[1]};city:{part[2]}" for part in parts]
        texts[0] = first
        rows = [f"{part[0]},{text}" for part, text in zip(parts, texts, strict=True)]
        world.rows(rows, header="click,pairs\n")
        world.config(data__key_value={"column": "pairs", "pairs": ";", **cut})

    return spoil


def _rows_and_parquet(world: World) -> None:
    world.parquet()
    world.config(data__train=["rows.csv", "rows.parquet"])


def _parquet(**values: object) -> Callable[[World], None]:
    """The rows are Parquet and the config has these values."""

    def spoil(world: World) -> None:
        world.parquet()
        world.config(**{"data__train": "rows.parquet", **values})

    return spoil


def _two_parquets(world: World) -> None:
    world.parquet("part-1.parquet")
    world.parquet("part-2.parquet", price=["a"] * 300)
    world.config(data__train="part-*.parquet")


def _float_ids(world: World) -> None:
    world.parquet(city=[1.5] * 300)
    world.config(data__train="rows.parquet")


def _no_parquet_rows(world: World) -> None:
    table = pa.table({"click": pa.array([], pa.int64()), "price": pa.array([], pa.float64())})
    pq.write_table(table, world.folder / "rows.parquet")
    world.config(data__train="rows.parquet")


def _damage_pages(path: Path) -> None:
    """The footer of a Parquet file stays whole, the rows do not."""
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 400 + data[404:])


def _damaged_pages(world: World) -> None:
    world.parquet()
    _damage_pages(world.folder / "rows.parquet")
    world.config(data__train="rows.parquet")


def _damaged_pages_later(world: World) -> None:
    world.parquet("part-1.parquet")
    world.parquet("part-2.parquet")
    _damage_pages(world.folder / "part-2.parquet")
    world.config(data__train="part-*.parquet")


def _damaged_gz_later(world: World) -> None:
    # The first 4 MiB, which are all that a check looks at, are whole.
    data = gzip.compress((HEADER + "\n".join(lines() * 1500)).encode(), compresslevel=1)
    world.write("rows.csv.gz", data[:-2000])
    world.config(data__train="rows.csv.gz")


def _endless_row(row: str) -> Callable[[World], None]:
    """A row over the limit, which is lowered for the test's sake."""

    def spoil(world: World) -> None:
        world.monkeypatch.setattr(blocks, "LONGEST_VALUE_BYTES", 1 << 20)
        world.rows([*lines() * 1500, row + "x" * (9 << 20), *lines()])

    return spoil


def _endless_first_row(world: World) -> None:
    limit = "ctr_pipeline.dataset.formats.text.head.LONGEST_FIRST_RECORD_BYTES"
    world.monkeypatch.setattr(limit, 4 << 20)
    world.write("rows.csv", HEADER + "1,2," + "x" * (4 << 20))


def _meanwhile(module: object, name: str, event: Callable[[], object]) -> Callable[[World], None]:
    """Something happens to a file right before the program calls this function."""

    def spoil(world: World) -> None:
        function = getattr(module, name)

        def after_the_event(*args: object, **options: object) -> object:
            event()
            return function(*args, **options)

        world.monkeypatch.setattr(module, name, after_the_event)

    return spoil


def _refused(path: str, mode: str) -> None:
    raise PermissionError(13, "Permission denied", path)


def _unopenable(world: World) -> None:
    # Readable when it was looked at first.
    world.monkeypatch.setattr(compression.pa, "OSFile", _refused)


def _gone_meanwhile(world: World) -> None:
    # Below a folder that is named cache files may come and go.
    world.rows(lines(), "cache/rows.csv")
    world.config(data__train="cache/rows.csv")
    _meanwhile(ingest.BadRowLedger, "close", Path("cache/rows.csv").unlink)(world)


def _limit_file_size(num_bytes: int) -> Callable[[World], None]:
    """As on a full disk, writing stops in the middle of a file."""

    def spoil(world: World) -> None:
        world.rows(lines(6000))
        _limit(world, num_bytes)

    return spoil


def _limit(world: World, num_bytes: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    world.cleanups.append(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))


def _full_for_encoded_rows(world: World) -> None:
    """The disk is full once all rows are parsed."""
    from ctr_pipeline.pipeline.stages import encode as encoding_stage

    world.rows(lines(6000))
    _meanwhile(encoding_stage, "EncodedWriter", lambda: _limit(world, 24_000))(world)


def _folder_for_rows(world: World) -> None:
    (world.folder / "run/cache/encoded/train/rows.bin").mkdir(parents=True)


def _truncate(name: str) -> Callable[[], None]:
    return lambda: os.truncate(f"run/cache/encoded/{name}/rows.bin", 4)


def _link_to_nowhere(world: World) -> None:
    link = world.folder / "run/cache/ingested"
    link.parent.mkdir(parents=True)
    link.symlink_to("nowhere")


def _locked_folder(world: World) -> None:
    """An empty run folder of ours."""
    world.write("run/.lock", "")


def _cache_is_a_file(world: World) -> None:
    _locked_folder(world)
    world.write("run/cache", "")


def _big_endian(world: World) -> None:
    world.monkeypatch.setattr(encoded, "sys", SimpleNamespace(byteorder="big"))


def _damaged_before_reading(world: World) -> None:
    from ctr_pipeline.pipeline.stages import train as training_stage

    _meanwhile(training_stage, "EncodedReader", _truncate("valid"))(world)


def _analyzed(*damages: Callable[[Path], None]) -> Callable[[World], None]:
    """Rows are read already, and then this happens to the run folder."""

    def spoil(world: World) -> None:
        assert main(["analyze", "c.yaml", "-q"]) == 0
        for damage in damages:
            damage(world.folder / "run")

    return spoil


def _damage_part(run: Path) -> None:
    _damage_pages(run / "cache/ingested/train/part-00000.arrow")


def _remove_statistics(run: Path) -> None:
    (run / "statistics.json").unlink()


def _part_damaged_late(world: World) -> None:
    """While the model was opened, which is after the rows were encoded."""
    from ctr_pipeline.pipeline.stages import evaluate as evaluation_stage

    world.config(data__key_columns=["user"])
    part = world.folder / "run/cache/ingested/valid/part-00000.arrow"
    # The end of an Arrow file says where everything is.
    _meanwhile(evaluation_stage, "read_columns", lambda: os.truncate(part, 400))(world)


CUBES = """
def build_model(inputs, options):
    logit = keras.ops.squeeze(keras.layers.Dense(1)(inputs.flat_BK), axis=-1)
    return logit + keras.ops.sum(inputs.numbers_BN, axis=-1) ** 3
"""


def _logit_overflows(world: World) -> None:
    # The last row, which tests, has a number that no row of training has.
    world.write("model.py", "import keras\n" + CUBES)
    world.config(
        features=[
            {"columns": "price", "number": {"standardize": {"clip": None}}},
            {"columns": "city", "id": "vocabulary"},
        ],
        model={"name": "custom", "embedding_dim": 2, "file": "model.py"},
    )
    world.spoil_row(299, "1,1e300,a,u1")


def _weighted(text: str) -> Callable[[World], None]:
    """The city of one row is a list of weighted elements."""

    def spoil(world: World) -> None:
        world.spoil_row(7, f"1,5,{text},u")
        sequence = {"weights": True}
        world.config(features=[{"columns": "city", "sequence": sequence, "id": "vocabulary"}])

    return spoil


def _lists(elements: pa.Array) -> Callable[[World], None]:
    """The cities are lists of a Parquet file."""

    def spoil(world: World) -> None:
        world.parquet(city=elements)
        features = [{"columns": "city", "sequence": {}, "id": "vocabulary"}]
        world.config(data__train="rows.parquet", features=features)

    return spoil


def _vector(text: str) -> Callable[[World], None]:
    """The city of one row is a vector; those of the others are missing."""

    def spoil(world: World) -> None:
        lines = (world.folder / "rows.csv").read_text().splitlines()
        rows = [line.split(",") for line in lines]
        for row in rows[1:]:
            row[2] = ""
        rows[8][2] = text
        (world.folder / "rows.csv").write_text("".join(",".join(row) + "\n" for row in rows))
        world.config(features=[{"columns": "city", "vector": {"length": 2}}])

    return spoil


def _vectors(elements: pa.Array) -> Callable[[World], None]:
    """The cities are vectors of a Parquet file."""

    def spoil(world: World) -> None:
        world.parquet(city=elements)
        features = [{"columns": "city", "vector": {"length": 2}}]
        world.config(data__train="rows.parquet", features=features)

    return spoil


ROW_MISTAKES = (
    Case(
        "key_value_column_missing",
        _pairs("price:1;city:a", column="pair"),
        ("rows.csv", "no column 'pair'", "data.key_value.column", "'pairs'"),
        CHECK,
    ),
    Case(
        "key_value_text_is_no_pair",
        _pairs("price:1;Paris"),
        ("rows.csv, row 2, column 'pairs'", "not a pair of key and value: 'Paris'", "bad_rows"),
        CHECK,
    ),
    Case(
        "key_value_key_repeated",
        _pairs("price:1;city:a;price:2"),
        ("rows.csv, row 2, column 'pairs'", "key repeated: 'price:2'", "Write each key once"),
    ),
    Case(
        "key_value_value_is_no_number",
        _pairs("price:1O;city:a"),
        ("rows.csv, row 2, column 'price'", "not a number: '1O'"),
    ),
    Case(
        "key_value_without_pairs",
        _pairs("price:1", pairs="|", value="="),
        ("column 'pairs'", "no key with a '=' behind it", "data.key_value.value"),
        CHECK,
        tried=("data.key_value.pairs=;", "data.key_value.value=':'"),
    ),
    Case(
        "key_value_key_is_a_column",
        _pairs("click:1;price:1;city:a"),
        ("column 'pairs'", "'click' has the name of another column", "Rename"),
        CHECK,
        tried=("data.key_value.keys=[price, city]",),
    ),
    Case(
        "key_value_of_numbers",
        setting(data__key_value={"column": "price"}),
        ("column 'price'", "has the type double", "data.key_value.column"),
        CHECK,
        unset="no column holds pairs",
    ),
    # Root reads every file whatever its permissions, but nobody the first bytes of this one.
    Case(
        "data_cannot_be_read", setting(data__train="/proc/self/mem"), ("/proc/self/mem", "cannot")
    ),
    Case("data_names_nothing", setting(data__train=[]), ("data.train", "names no files", "glob")),
    Case(
        "data_named_twice",
        setting(data__train=["rows.csv", "rows.csv"]),
        ("data.train", "'rows.csv' is named twice", "once"),
    ),
    *(
        Case(f"data_is_{name}", file("rows.csv", content), ("rows.csv", what, "Convert"))
        for name, content, what in NOT_TEXT_OR_PARQUET
    ),
    Case("data_only_line_ends", file("rows.csv", "\n\n\n"), ("rows.csv", "is empty")),
    Case(
        "column_without_a_name",
        lambda w: w.rows(lines(), header="click,,city,user\n"),
        ("rows.csv", "column 2 has no name", "header"),
        unset="the file has a header",
    ),
    Case(
        "header_not_utf8",
        file("rows.csv", b"click,pr\xffce,city,user\n" + "\n".join(lines()).encode()),
        ("rows.csv, row 1", "not UTF-8", "Convert"),
    ),
    Case(
        "delimiter_not_ascii",
        setting(data__delimiter="é"),
        ("data.delimiter", "'é'", "ASCII"),
    ),
    Case("two_formats", _rows_and_parquet, ("rows.parquet", "rows.csv", "one format")),
    Case(
        "parquet_called_csv",
        _parquet(data__format="csv"),
        ("rows.parquet", "is Parquet", "data.format: auto"),
    ),
    Case(
        "parquet_with_names",
        _parquet(data__columns=["click", "price", "city"]),
        ("rows.parquet", "data.columns"),
    ),
    Case("parquet_types_differ", _two_parquets, ("part-2.parquet", "'price'", "part-1.parquet")),
    Case("parquet_without_rows", _no_parquet_rows, ("rows.parquet", "has no rows")),
    Case(
        "parquet_floats_as_ids",
        _float_ids,
        ("rows.parquet", "'city'", "round_identity"),
        unset="all rows are bad",
    ),
    Case("parquet_pages_damaged", _damaged_pages, ("rows.parquet", "damaged", "again"), CHECK),
    Case("parquet_damaged_later", _damaged_pages_later, ("part-2.parquet", "damaged", "again")),
    Case("gz_damaged_later", _damaged_gz_later, ("rows.csv.gz", "damaged", "again")),
    Case("row_endless", _endless_row(""), ("rows.csv, row 450002", "longer than 1 MiB")),
    Case(
        "quote_endless",
        _endless_row('1,2,"'),
        ("rows.csv, row 450002", "never closed", "quote"),
        unset="the row does not end without quotes either",
    ),
    Case(
        "first_row_endless",
        _endless_first_row,
        ("rows.csv, row 1", "do not end", "one row"),
        unset="the row does not end without quotes either",
    ),
    Case("data_cannot_be_opened", _unopenable, ("rows.csv", "Permission denied", "permissions")),
    Case(
        "data_changed_while_read",
        _meanwhile(ingest, "_check_splits", lambda: os.utime("rows.csv", (1, 1))),
        ("rows.csv", "changed while it was read", "last modified 1970-", "run again"),
    ),
    Case("data_gone_while_read", _gone_meanwhile, ("cache/rows.csv", "any more", "run again")),
    Case(
        "cache_is_a_file", _cache_is_a_file, ("run/cache/ingested", "cannot be written", "remove")
    ),
    Case(
        "cache_is_a_link",
        lambda w: (_locked_folder(w), _link_to_nowhere(w)),
        ("run/cache/ingested", "cannot be written", "remove"),
    ),
    Case(
        "part_damaged_for_statistics",
        _analyzed(_damage_part, _remove_statistics),
        ("run/cache/ingested/train/part-00000.arrow", "damaged", "Delete the folder 'cache'"),
        ("analyze", "c.yaml"),
    ),
    Case(
        "vector_too_long",
        _vector("1|2|3"),
        ("rows.csv, row 9, column 'city'", "another length", "length 3 instead of 2", "1|2|3"),
    ),
    Case("vector_too_short", _vector("1"), ("row 9", "length 1 instead of 2", "vector.length")),
    Case(
        "vector_not_of_numbers",
        _vector("1|x"),
        (
            "row 9",
            "not a finite number: 'x'",
        ),
    ),
    Case("vector_with_nan", _vector("nan|1"), ("row 9", "not a finite number: 'nan'")),
    Case("vector_with_a_gap", _vector("1|"), ("row 9", "'city'", "not a finite number")),
    Case("vector_too_large", _vector("1|1e999"), ("row 9", "1e999")),
    Case(
        "list_of_another_length",
        _vectors(pa.array([[1.5, 2.0]] * 6 + [[1.5]] + [[1.5, 2.0]] * 293)),
        ("rows.parquet, row 7, column 'city'", "length 1 instead of 2"),
    ),
    Case(
        "list_with_null",
        _vectors(pa.array([[1.5, None]] * 300, pa.list_(pa.float32(), 2))),
        ("rows.parquet, row 1, column 'city'", "not a finite number: 'null'"),
        unset="all rows are bad",
    ),
    Case(
        "list_with_infinity",
        _vectors(pa.array([[1.5, float("inf")]] * 300)),
        ("rows.parquet, row 1", "not a finite number: 'inf'"),
        unset="all rows are bad",
    ),
    Case(
        "list_of_texts_as_vector", _vectors(pa.array([["1", "2"]] * 300)), ("floats or integers",)
    ),
    Case(
        "weight_no_number",
        _weighted("a:1|b:x"),
        ("rows.csv, row 9, column 'city'", "weight of an element", "b:x", "weight_delimiter"),
    ),
    Case("weight_below_0", _weighted("a:-1"), ("row 9", "at least 0", "a:-1")),
    Case("element_weight_infinite", _weighted("a:1e999|b:2"), ("row 9", "a:1e999")),
    Case("weight_not_a_number", _weighted("a:nan"), ("row 9", "a:nan")),
    Case("weight_empty", _weighted("a:2|b:|c"), ("row 9", "b:")),
    Case(
        "delimiter_inside_an_element",
        _lists(pa.array([["a", "b|c"]] * 300)),
        ("rows.parquet, row 1, column 'city'", "delimiter inside", "b|c", "sequence.delimiter"),
        unset="all rows are bad",
    ),
    Case(
        "list_of_floats_as_sequence",
        _lists(pa.array([[1.5]] * 300)),
        ("rows.parquet, row 1, column 'city'", "float without one text", "1.5"),
        unset="all rows are bad",
    ),
)

COMMAND_MISTAKES = (
    Case("disk_full_for_parts", _limit_file_size(4096), ("part-00000.arrow", "larger", "ulimit")),
    Case("disk_full_for_rows", _full_for_encoded_rows, ("rows.bin", "larger", "ulimit")),
    Case(
        "encoded_is_a_folder",
        lambda w: (_locked_folder(w), _folder_for_rows(w)),
        ("run/cache/encoded/train", "cannot be written", "remove"),
    ),
    Case("big_endian", _big_endian, ("run/cache/encoded", "little-endian", "x86-64")),
    Case(
        "encoded_damaged",
        _damaged_before_reading,
        ("run/cache/encoded/valid", "missing or damaged", "Delete"),
    ),
    Case(
        "encoded_cut_while_read",
        _meanwhile(os, "preadv", _truncate("train")),
        ("run/cache/encoded/train/rows.bin", "cut short", "run again"),
    ),
    Case(
        "part_damaged",
        _analyzed(_damage_part),
        ("run/cache/ingested/train/part-00000.arrow", "damaged", "Delete the folder 'cache'"),
    ),
    Case(
        "part_damaged_late",
        _part_damaged_late,
        ("run/cache/ingested/valid/part-00000.arrow", "damaged", "Delete the folder 'cache'"),
    ),
    Case(
        "logit_not_finite",
        _logit_overflows,
        ("test rows", "1 of 30 scores", "learning rate"),
        tried=("features=[{columns: price, number: [{clip: {maximum: 100}}, standardize]}]",),
    ),
)
