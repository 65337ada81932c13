"""What users get wrong: how the world is spoiled, what is called, what the message must say."""

import errno
import fcntl
import gzip
import os
from collections.abc import Callable

import pytest

from tests.mistakes.spoiled_world import (
    CHECK,
    HEADER,
    PREDICT,
    PREDICT_AGAIN,
    RUN,
    Case,
    World,
    entry,
    file,
    lines,
    model,
    nothing,
    returning,
    row,
    setting,
    text,
)


def _remove_config(world: World) -> None:
    (world.folder / "c.yaml").unlink()


def _config_folder(world: World) -> None:
    _remove_config(world)
    (world.folder / "c.yaml").mkdir()


def _truncated_gz(world: World) -> None:
    data = gzip.compress((HEADER + "\n".join(lines(3000))).encode())
    world.write("rows.csv.gz", data[: len(data) // 2])
    world.config(data__train="rows.csv.gz")


def _truncated_zst(world: World) -> None:
    import zstandard

    data = zstandard.compress((HEADER + "\n".join(lines(3000))).encode())
    world.write("rows.csv.zst", data[: len(data) // 2])
    world.config(data__train="rows.csv.zst")


def _truncated_parquet(world: World) -> None:
    world.parquet()
    path = world.folder / "rows.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    world.config(data__train="rows.parquet")


def _parquet(**columns: object) -> Callable[[World], None]:
    def spoil(world: World) -> None:
        world.parquet(**columns)
        world.config(data__train="rows.parquet")

    return spoil


def _two_files(second: list[str], header: str = HEADER) -> Callable[[World], None]:
    def spoil(world: World) -> None:
        world.rows(lines(), "part-1.csv")
        world.rows(second, "part-2.csv", header)
        world.config(data__train="part-*.csv")

    return spoil


def _labels(label: str) -> Callable[[World], None]:
    return lambda world: world.rows([f"{label}{line[1:]}" for line in lines()])


def _numbered_lines() -> list[tuple[int, str]]:
    """Good rows without their last column, with their numbers."""
    return [(number, line.rsplit(",", 1)[0]) for number, line in enumerate(lines())]


def _one_class_at_the_end(world: World) -> None:
    rows = lines()
    world.rows([*rows[:240], *(f"0{line[1:]}" for line in rows[240:])])


def _skip(world: World) -> None:
    rows = lines()
    world.rows([*rows[:250], *["broken"] * 50])
    world.config(data__bad_rows="skip")


def _unreadable(world: World) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    (world.folder / "rows.csv").chmod(0)


def _output_is_a_file(world: World) -> None:
    world.write("run", "mine")


def _foreign_files(world: World) -> None:
    world.write("run/thesis.tex", "mine")


def _locked(world: World) -> None:
    (world.folder / "run").mkdir(exist_ok=True)
    descriptor = os.open(world.folder / "run" / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    world.cleanups.append(lambda: os.close(descriptor))


def _disk_full(world: World) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    world.monkeypatch.setattr("os.fsync", refuse)


def _read_only(world: World) -> None:
    world.config(output="/sys/ctrpipe-run")


def _damage(pattern: str) -> Callable[[World], None]:
    def spoil(world: World) -> None:
        found = [path for path in (world.folder / "run").glob(pattern) if path.is_file()]
        assert found, pattern
        for path in found:
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2] + b"\0" + data[len(data) // 2 + 1 :][:-3])

    return spoil


def _remove(pattern: str) -> Callable[[World], None]:
    def spoil(world: World) -> None:
        for path in (world.folder / "run").glob(pattern):
            path.unlink()

    return spoil


CONFIG_MISTAKES = (
    Case("config_no_mapping", text("- a\n"), ("c.yaml", "expected keys such as data")),
    Case("config_tab", text("data:\n\ttrain: x"), ("c.yaml:2:1", "a tab", "spaces")),
    Case("config_indentation", text("a:\n   b: 1\n  c: 2"), ("c.yaml:3", "indentation")),
    Case("config_two_documents", text("a: 1\n---\nb: 1"), ("second document",)),
    Case("config_alias", text("a: *b"), ("c.yaml:1", "an anchor (&name) that does not exist")),
    Case("config_tag", text("data: !!python/object:os.system {}"), ("c.yaml:1", "data")),
    Case("key_elsewhere", setting(epochs=3), ("epochs", "did you mean 'train.epochs'?")),
    Case("key_of_another_model", setting(model__cross_layers=5), ("model.cross_layers", "dcn")),
    Case("unknown_transform", entry(columns="price", number="lg"), ("unknown transform", "log")),
    Case(
        "unknown_optimizer",
        setting(train__optimizer={"name": "adm", "learning_rate": 0.1}),
        ("train.optimizer.name", "did you mean 'adam'?"),
    ),
    Case("not_boolean", setting(train__shuffle="yes"), ("train.shuffle", "true or false")),
    Case("not_text", setting(name=3), ("name", "expected text", "quotes")),
    Case("not_a_list", setting(data__missing_values="NA"), ("data.missing_values", "a list")),
    Case("not_a_mapping", setting(evaluation=3), ("evaluation", "expected a mapping")),
    Case("too_large", setting(model__dropout=1), ("model.dropout", "less than 1")),
    Case("not_finite", setting(train__gradient_clip_norm=float("inf")), ("a finite number",)),
    Case("quote_too_long", setting(data__quote='""'), ("data.quote", "at most 1 character")),
    Case(
        "max_size_0",
        entry(columns="city", id={"vocabulary": {"max_size": 0}}),
        ("features[0].id.vocabulary.max_size", "at least 1"),
    ),
    Case("range_backwards", entry(columns="I9..I1"), ("features[0].columns", "write I1..I9")),
    Case("range_of_two_names", entry(columns="A1..B3"), ("A1..B3", "alike but for one number")),
    Case("range_endless", entry(columns="A1..A9999999"), ("more than 100,000 columns",)),
    Case(
        "feature_not_among_columns",
        setting(data__columns=["click", "price", "town", "user"]),
        ("features[1].columns", "no column 'city'"),
    ),
    Case("columns_twice", setting(data__columns=["click", "a", "a"]), ("named twice: a",)),
    Case(
        "id_as_number",
        entry(columns="city", number={"hash": {"buckets": 3}}),
        ("features[0].number", "belongs under id"),
    ),
    Case("number_as_id", entry(columns="price", id="log"), ("must end in a transform",)),
    Case(
        "step_after_id",
        entry(columns="city", id=["vocabulary", "log"]),
        ("nothing can follow it",),
    ),
    Case(
        "hash_of_a_number",
        entry(columns="price", id=["log", {"hash": {"buckets": 3}}]),
        ("hash takes the text",),
    ),
    Case("options_missing", entry(columns="city", id="hash"), ("id.buckets", "required")),
    Case("options_no_mapping", entry(columns="city", id={"hash": 3}), ("must be a mapping",)),
    Case("empty_chain", entry(columns="city", id=[]), ("an empty chain",)),
    Case(
        "boundaries_unsorted",
        entry(columns="price", id={"bucketize": {"boundaries": [2, 1]}}),
        ("strictly increasing",),
    ),
    Case(
        "bucketize_two_ways",
        entry(columns="price", id={"bucketize": {"quantiles": 3, "ln2": True}}),
        ("exactly one of",),
    ),
    Case(
        "clip_upside_down",
        entry(columns="price", number={"clip": {"minimum": 2, "maximum": 1}}),
        ("minimum 2.0 is above maximum 1.0",),
    ),
    Case(
        "split_too_much", setting(data__split={"valid": 0.6, "test": 0.6}), ("nothing to train on",)
    ),
    Case("split_by_nothing", setting(data__split={"by": "hash"}), ("by: hash needs it",)),
    Case("split_by_no_time", setting(data__split={"by": "time"}), ("by: time needs it",)),
    Case(
        "split_time_format_unknown",
        setting(data__split={"by": "time", "column": "user", "time_format": "%D"}),
        ("data.split.time_format", "%D", "epoch_seconds"),
    ),
    Case(
        "split_time_is_label",
        setting(data__split={"by": "time", "column": "click"}),
        ("data.split.column", "'click' is the label"),
    ),
    Case(
        "rows_from_two_places",
        setting(data__valid="v.csv", data__split={"valid": 0.2}),
        ("data.split.valid", "leave out one of the two"),
    ),
    Case("delimiter_is_quote", setting(data__delimiter='"'), ("the same character",)),
    Case(
        "custom_without_file",
        setting(model__name="custom"),
        ("model.file", "required", "build_model"),
    ),
    Case(
        "schedule_without_steps",
        setting(train__learning_rate_schedule={"name": "cosine"}),
        (
            "learning_rate_schedule.decay_steps",
            "is required",
        ),
    ),
    Case("set_nowhere", nothing, ("not a list",), (*RUN, "--set", "name[0]=1")),
    Case("set_no_path", nothing, ("not a key path",), (*RUN, "--set", "a..b=1")),
    Case("config_is_a_folder", _config_folder, ("c.yaml", "is a folder")),
    Case("config_binary", text(b"\x89PNG\x00\x00"), ("c.yaml:1", "not UTF-8 text")),
    Case("config_empty", text(""), ("c.yaml", "empty", "ctrpipe init")),
    Case("key_twice", text("name: a\nname: b"), ("c.yaml:2", "name", "given twice", "c.yaml:1")),
    Case("unknown_key", setting(data__labl="x"), ("data.labl", "did you mean 'label'?")),
    Case("unknown_model", setting(model__name="deepfmm"), ("model.name", "'deepfm'")),
    Case("not_whole", setting(train__epochs=1.5), ("train.epochs", "whole number", "1.5")),
    Case("label_as_feature", entry(columns="click"), ("'click' is the label",)),
    Case("set_no_yaml", nothing, ("the value is not YAML",), (*RUN, "--set", "name=[1")),
)

ROW_MISTAKES = (
    Case(
        "split_time_is_none",
        setting(data__split={"by": "time", "column": "user"}),
        ("rows.csv, row 2", "'user'", "not a point in time", "time_format"),
        unset="all rows are bad",
    ),
    Case(
        "split_time_absent",
        lambda w: (
            w.rows([f"{line},{9 + n}" if n != 17 else f"{line}," for n, line in _numbered_lines()]),
            w.config(data__split={"by": "time", "column": "user"}),
        ),
        ("rows.csv, row 19", "'user'", "time missing"),
    ),
    Case(
        "split_times_too_few",
        lambda w: (
            w.rows([line.rsplit(",", 1)[0] + ",2024-03-01" for line in lines()]),
            w.config(data__split={"by": "time", "column": "user"}),
        ),
        ("data.split.column", "1 different times", "data.valid"),
    ),
    Case(
        "data_only_header",
        file("rows.csv", HEADER),
        ("rows.csv",),
        unset="there is no row",
    ),
    Case("data_binary", file("rows.csv", bytes(range(256)) * 50), ("rows.csv",)),
    Case("zst_truncated", _truncated_zst, ("rows.csv.zst",)),
    Case(
        "gz_garbage",
        lambda w: (w.write("r.csv.gz", b"\x1f\x8b garbage"), w.config(data__train="r.csv.gz")),
        ("r.csv.gz",),
    ),
    Case(
        "csv_called_parquet",
        setting(data__format="parquet"),
        ("rows.csv",),
        tried=("data.format=auto",),
    ),
    Case(
        "wrong_delimiter",
        setting(data__delimiter=";"),
        ("rows.csv", "delimiter"),
        tried=("data.delimiter=,",),
    ),
    Case(
        "header_twice",
        lambda w: w.rows(lines(), header="click,price,city,city\n"),
        ("city",),
        unset="the file has a header",
    ),
    Case("key_column_missing", setting(data__key_columns=["usr"]), ("'usr'", "user")),
    Case("gauc_column_missing", setting(evaluation__gauc_column="usr"), ("'usr'", "user")),
    Case("group_by_missing", setting(evaluation__group_by=["usr"]), ("'usr'", "user")),
    Case(
        "split_column_missing",
        setting(data__split={"by": "hash", "column": "usr"}),
        ("'usr'", "user"),
    ),
    Case(
        "names_do_not_fit",
        setting(data__columns=["click", "price", "city", "x", "y"]),
        ("rows.csv",),
        tried=("data.columns=[click, price, city, user]",),
    ),
    Case("label_constant", _labels("0"), ("labels", "are 0"), unset="no row is of the other class"),
    Case("label_is_text", _labels("y"), ("click",), unset="all rows are bad"),
    Case("label_absent", row(17, ",5,a,u1"), ("rows.csv", "click")),
    Case("row_too_long", row(17, "1,5,a,u,x,y"), ("rows.csv", "19")),
    Case("no_number", row(17, "1,five,a,u"), ("rows.csv", "'price'", "five")),
    Case("quote_open", row(17, '1,5,"a,u'), ("rows.csv", "quote")),
    Case(
        "files_differ_in_columns",
        _two_files(lines(), "click,price,town,user\n"),
        ("part-1.csv", "part-2.csv"),
    ),
    Case(
        "files_differ_in_types",
        _two_files([line.replace(",", ",x", 1) for line in lines()]),
        ("part-1.csv", "part-2.csv", "price"),
    ),
    Case(
        "too_few_rows",
        lambda w: w.rows(lines(3)),
        ("rows",),
        unset="there are three rows",
    ),
    Case("parquet_list", _parquet(city=[["a"]] * 300), ("city",)),
    Case(
        "parquet_text_as_number", _parquet(price=["a"] * 300), ("price",), unset="all rows are bad"
    ),
    Case(
        "parquet_without_label",
        lambda w: (w.parquet(), w.config(data__train="rows.parquet", data__label="y")),
        ("'y'",),
    ),
    Case(
        "number_of_text", entry(columns="city", number="log"), ("city",), unset="all rows are bad"
    ),
    Case("glob_without_match", setting(data__train="day-*.csv"), ("day-*.csv",)),
    Case("data_is_a_folder", setting(data__train="."), ("folder",)),
    Case("data_empty", file("rows.csv", ""), ("rows.csv", "empty")),
    Case("data_unreadable", _unreadable, ("rows.csv",)),
    Case("gz_truncated", _truncated_gz, ("rows.csv.gz",)),
    Case("parquet_truncated", _truncated_parquet, ("rows.parquet",)),
    Case("label_missing", setting(data__label="klick"), ("klick", "click")),
    Case("feature_missing", entry(columns="cty", id="vocabulary"), ("'cty'", "city")),
    Case("row_too_short", row(17, "1,5"), ("rows.csv", "19")),
    Case(
        "auto_finds_nothing",
        lambda w: (w.rows([f"{line[0]},1,a,u" for line in lines()]), w.config(features="auto")),
        ("features", "no column can serve"),
    ),
    Case(
        "check_of_a_text_label",
        _labels("y"),
        ("click",),
        CHECK,
        unset="all labels are y",
    ),
)

APP_MISTAKES = (
    Case(
        "plan_damaged",
        _damage("preprocessing.json"),
        ("preprocessing.json",),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "predict_into_nowhere",
        nothing,
        ("nowhere", "folder does not exist"),
        ("predict", "c.yaml", "--data", "rows.csv", "-o", "nowhere/p.csv"),
        trained=True,
    ),
    Case(
        "predict_keeps_nothing",
        nothing,
        ("--keep", "an empty name"),
        (*PREDICT_AGAIN, "--keep", "user,"),
        trained=True,
    ),
    Case(
        "predict_keeps_its_own_column",
        nothing,
        ("--keep", "'probability'"),
        (*PREDICT_AGAIN, "--keep", "probability"),
        trained=True,
    ),
    Case(
        "predict_nothing",
        file("new.csv", HEADER),
        ("new.csv",),
        PREDICT,
        trained=True,
        unset="there is no row",
    ),
    Case("predict_no_file", nothing, ("new.csv",), PREDICT, trained=True),
    Case(
        "predict_without_a_column",
        file("new.csv", "click,price\n1,2\n"),
        ("new.csv", "city"),
        PREDICT,
        trained=True,
        unset="the file has a header",
    ),
    Case(
        "evaluate_without_label",
        file("new.csv", "price,city,user\n1,a,u\n"),
        ("new.csv", "click"),
        ("evaluate", "c.yaml", "--data", "new.csv"),
        trained=True,
        unset="the file has a header",
    ),
)

COMMAND_MISTAKES = (
    Case("split_without_validation", setting(data__split={"valid": 0}), ("validation rows",)),
    Case("config_missing", _remove_config, ("c.yaml", "there is no such file")),
    Case("config_syntax", text("data: [a\nb: 1"), ("c.yaml:2", "not closed")),
    Case("required_missing", text("name: a"), ("c.yaml", "data: is required")),
    Case("set_without_value", nothing, ("KEY=VALUE",), (*RUN, "--set", "train.epochs")),
    Case("no_such_command", nothing, ("did you mean 'run'?", "--help"), ("runn",)),
    Case("no_config_named", nothing, ("CONFIG", "--help"), ("run",)),
    Case("no_such_option", nothing, ("--bogus", "--help"), (*RUN, "--bogus")),
    Case("predict_without_data", nothing, ("--data",), ("predict", "c.yaml", "-o", "p.csv")),
    Case("sample_too_small", nothing, ("--rows",), ("sample", "criteo", "--rows", "3")),
    Case(
        "sample_below_a_file",
        file("a", "x"),
        ("a",),
        ("sample", "criteo", "--rows", "100", "-o", "a/rows.tsv"),
    ),
    Case(
        "init_over_a_config",
        nothing,
        ("c.yaml", "exists already", "--overwrite"),
        ("init", "rows.csv", "--label", "click", "-o", "c.yaml"),
        followed=True,
    ),
    Case(
        "init_with_a_text_label",
        nothing,
        ("rows.csv", "'city'", "a label is 0 or 1", "label column"),
        ("init", "rows.csv", "--label", "city", "-o", "new.yaml"),
    ),
    Case(
        "init_without_labels",
        lambda world: world.rows([f",{line[2:]}" for line in lines()]),
        ("rows.csv", "'click'", "no label"),
        ("init", "rows.csv", "--label", "click", "-o", "new.yaml"),
    ),
    Case("data_missing", setting(data__train="nowhere.csv"), ("nowhere.csv",)),
    Case("label_is_2", row(17, "2,5,a,u1"), ("rows.csv", "'click'", "2")),
    Case(
        "bad_utf8",
        lambda w: w.write(
            "rows.csv", (HEADER + "\n".join(lines())).encode() + b"\n1,2,\xff\xfe,u\n"
        ),
        ("rows.csv", "UTF-8"),
    ),
    Case(
        "too_many_bad_rows",
        _skip,
        ("rows.csv", "max_bad_fraction"),
        tried=("data.max_bad_fraction=0.5",),
    ),
    Case("test_of_one_class", _one_class_at_the_end, ("0",)),
    Case("check_sees_it_too", setting(data__label="klick"), ("klick",), CHECK),
    Case("output_is_a_file", _output_is_a_file, ("run", "is a file")),
    Case("output_of_others", _foreign_files, ("run", "other files")),
    Case("output_locked", _locked, ("run", "another run")),
    Case("output_read_only", _read_only, ("/sys/ctrpipe-run",)),
    Case("disk_full", _disk_full, ("disk is full", "Free space")),
    Case(
        "evaluate_before_training",
        nothing,
        ("ctrpipe train",),
        ("evaluate", "c.yaml"),
        followed=True,
    ),
    Case(
        "predict_before_training",
        file("new.csv", HEADER + "0,1,a,u\n"),
        ("ctrpipe train",),
        PREDICT,
        followed=True,
    ),
    Case(
        "export_before_training", nothing, ("ctrpipe train",), ("export", "c.yaml"), followed=True
    ),
    Case(
        "output_of_another_config",
        setting(model__embedding_dim=3),
        ("run", "model.embedding_dim", "another 'output'"),
        trained=True,
        followed=True,
    ),
    Case(
        "resume_of_another_config",
        setting(train__batch_size=32),
        ("train.batch_size", "cannot be resumed"),
        (*RUN, "--resume"),
        trained=True,
        followed=True,
    ),
    Case(
        "checkpoints_damaged",
        _damage("checkpoints/*/*"),
        ("checkpoints", "damaged"),
        ("train", "c.yaml", "--resume"),
        trained=True,
        followed=True,
    ),
    Case(
        "resolved_config_damaged",
        _damage("config.resolved.yaml"),
        ("config.resolved.yaml", "cannot be read"),
        trained=True,
        followed=True,
    ),
    Case(
        "features_damaged",
        _damage("features.json"),
        ("features.json",),
        CHECK,
        trained=True,
        followed=True,
    ),
    Case(
        "vocabulary_gone",
        _remove("vocabularies/*"),
        ("vocabular",),
        PREDICT_AGAIN,
        trained=True,
        followed=True,
    ),
    Case(
        "predict_unknown_format",
        nothing,
        ("p.xls", ".parquet or .csv"),
        ("predict", "c.yaml", "--data", "rows.csv", "-o", "p.xls"),
        trained=True,
    ),
    Case(
        "predict_keeps_no_column",
        nothing,
        ("rows.csv", "'usr'", "--keep", "'user'"),
        (*PREDICT_AGAIN, "--keep", "city,usr"),
        trained=True,
    ),
    Case(
        "evaluate_one_class",
        file("new.csv", HEADER + "0,1,a,u\n0,2,b,u\n"),
        ("new.csv", "0"),
        ("evaluate", "c.yaml", "--data", "new.csv"),
        trained=True,
    ),
    Case(
        "loss_not_finite",
        setting(train__optimizer={"name": "sgd", "learning_rate": 1e38}, train__epochs=3),
        ("step", "learning"),
        unfollowed="a lower rate is told with it; test_changed_course.py gives one",
    ),
    Case("custom_syntax", model("def build_model(:\n"), ("model.py:2",)),
    Case("custom_raises", returning("1 / 0"), ("model.py:3",)),
)
