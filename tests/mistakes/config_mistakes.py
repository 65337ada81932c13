"""Mistakes in configs that are rarer than those of the main table."""

import errno
import os
from collections.abc import Callable

from tests.mistakes.spoiled_world import (
    HEADER,
    RUN,
    Case,
    World,
    entry,
    lines,
    nothing,
    setting,
    text,
)


def _bfloat16_on_an_old_processor(world: World) -> None:
    """The config wants what this processor is said not to have."""
    world.config(train__precision="bfloat16")
    world.monkeypatch.setattr("ctr_pipeline.pipeline.model.precision.processor_flags", frozenset)


def _huge_config(world: World) -> None:
    world.write("c.yaml", "name: " + "x" * 10_000_000)


def _many_aliases(world: World) -> None:
    """Few bytes that stand for more values than fit anywhere."""
    deeper = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    world.write("c.yaml", "a0: &a0 [1]\n" + deeper)


def _quota(world: World) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    world.monkeypatch.setattr(os, "fsync", refuse)


def _no_blocks(world: World) -> None:
    """Rows need more than their memory limit, and the disk has no room for them."""

    def refuse(descriptor: int, first: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    world.config(train__embeddings={"memory_limit_gb": 1e-6})
    world.monkeypatch.setattr(os, "posix_fallocate", refuse)


def _no_files(world: World) -> None:
    """Rows need more than their memory limit, and the folder takes no file for them."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    world.config(train__embeddings={"memory_limit_gb": 1e-6})
    world.monkeypatch.setattr("ctr_pipeline.embeddings.spilling.tempfile.mkstemp", refuse)


def _weights(weigh: Callable[[int], object]) -> Callable[[World], None]:
    """Rows have these weights, by number from 0."""

    def spoil(world: World) -> None:
        rows = [f"{row},{weigh(number)}" for number, row in enumerate(lines())]
        world.rows(rows, header=HEADER.strip() + ",weight\n")
        world.config(data__weight="weight")

    return spoil


CONFIG_MISTAKES = (
    Case(
        "key_value_separators_alike",
        setting(data__key_value={"column": "city", "pairs": ":", "value": "::"}),
        ("data.key_value", "pairs ':' and value '::' cannot be told apart"),
    ),
    Case(
        "key_value_key_holds_a_separator",
        setting(data__key_value={"column": "city", "keys": ["age", "a:b"]}),
        ("data.key_value", "'a:b' can be no key"),
    ),
    Case(
        "key_value_keys_twice",
        setting(data__key_value={"column": "city", "keys": ["age", "age"]}),
        ("data.key_value", "named twice"),
    ),
    Case(
        "key_value_without_column",
        setting(data__key_value={"pairs": ";"}),
        ("data.key_value.column", "is required"),
    ),
    Case(
        "key_value_column_not_among_columns",
        setting(
            data__columns=["click", "price", "city", "user"], data__key_value={"column": "cities"}
        ),
        ("data.key_value.column", "no column 'cities'", "city"),
    ),
    Case("config_is_huge", _huge_config, ("c.yaml", "too large", "data.train")),
    Case("config_too_deep", text("a: " + "[" * 1500), ("c.yaml", "nested too deep")),
    Case("alias_of_itself", text("a: &a [*a]"), ("c.yaml:1", "contains itself")),
    Case("tag_without_meaning", text("name: !mine x"), ("c.yaml:1", "!mine", "no meaning")),
    Case("tag_that_lies", text("name: !!int x"), ("c.yaml:1", "'x' is not what its YAML tag says")),
    Case("key_is_a_list", text("? [a, b]\n: 1"), ("c.yaml:1", "a key must be a plain text")),
    Case(
        "memory_limit_with_a_unit",
        setting(train__embeddings={"memory_limit_gb": "4GB"}),
        ("train.embeddings.memory_limit_gb", "number", "4GB"),
    ),
    Case(
        "memory_limit_of_nothing",
        setting(train__embeddings={"memory_limit_gb": 0}),
        ("train.embeddings.memory_limit_gb", "more than 0"),
    ),
    Case(
        "rows_evicted_at_once",
        setting(train__embeddings={"evict_after": 0}),
        ("train.embeddings.evict_after", "1"),
    ),
    Case(
        "rows_evicted_by_days",
        setting(train__embeddings={"evict_after": "7 days"}),
        ("train.embeddings.evict_after", "whole number", "7 days"),
    ),
    Case(
        "label_not_among_columns",
        lambda w: w.config(data={"train": "rows.csv", "columns": ["click", "price", "city"]}),
        ("data.columns", "'label'", "data.label"),
    ),
    Case("features_of_text", setting(features="all"), ("features", "auto or a list of entries")),
    Case(
        "weight_is_a_feature",
        setting(data__weight="price"),
        ("features[", "'price' is data.weight", "cannot be a feature"),
    ),
    Case(
        "weight_is_the_label",
        setting(data__weight="click"),
        ("data.weight", "'click' is the label"),
    ),
    Case(
        "no_negatives",
        setting(data__sample={"negatives": 0}),
        ("data.sample.negatives", "more than 0"),
    ),
    Case(
        "sample_of_all_and_more",
        setting(data__sample={"negatives": 10}),
        ("data.sample.negatives", "at most 1"),
    ),
    Case(
        "sample_is_a_number",
        setting(data__sample=0.1),
        ("data.sample", "expected a mapping"),
    ),
    Case("feature_of_text", setting(features=["price"]), ("features[0]", "columns: I1..I13")),
    Case("train_is_a_number", setting(data__train=3), ("data.train", "text or a list of texts")),
    Case("data_null", setting(data__train=None), ("data", "`train` or `query` is missing")),
    Case(
        "boolean_as_number", setting(train__epochs=True), ("train.epochs", "whole number", "true")
    ),
    Case("mapping_as_number", setting(train__epochs={"a": 1}), ("train.epochs", "a mapping")),
    Case("key_nearly_elsewhere", setting(data__epoch=3), ("data.epoch", "unknown key")),
    Case("key_like_nothing", setting(data__xyzzy=3), ("data.xyzzy", "known here: train")),
    Case(
        "two_transforms_in_one",
        entry(columns="price", number={"log": {}, "clip": {}}),
        ("features[0].number", "2 names (log, clip) in one entry"),
    ),
    Case("transform_is_a_number", entry(columns="price", number=[3]), ("a name such as log",)),
    Case("set_a_lie", nothing, ("--set", "'x' is not what"), (*RUN, "--set", "name=!!int x")),
    Case("config_of_aliases", _many_aliases, ("c.yaml:", "values, counting aliases")),
    Case("set_into_a_mapping", nothing, ("data is not a list",), (*RUN, "--set", "data[0]=1")),
    Case(
        "set_past_the_end",
        nothing,
        ("features has 2 entries",),
        (*RUN, "--set", "features[9].id=hash"),
    ),
    Case(
        "set_into_a_text",
        nothing,
        ("data.label is not a mapping", "'x'"),
        (*RUN, "--set", "data.label.x=1"),
    ),
    Case("range_of_two_numbers", entry(columns="A1B1..A2B2"), ("more than one number",)),
    Case("range_of_two_widths", entry(columns="A01..A100"), ("A01..A100", "different widths")),
    Case(
        "cross_of_one_column",
        entry(cross=["city"], id={"hash": {"buckets": 9}}),
        ("features[0]", "two or more different columns"),
    ),
    Case(
        "cross_of_the_label",
        entry(cross=["city", "click"], id={"hash": {"buckets": 9}}),
        ("features[0].cross", "'click' is the label"),
    ),
    Case(
        "cross_without_buckets",
        entry(cross=["city", "user"], id="vocabulary"),
        ("features[0]", "id: {hash: {buckets: N}}"),
    ),
    Case(
        "cross_and_columns",
        entry(cross=["city", "user"], columns="city", id={"hash": {"buckets": 9}}),
        ("features[0]", "columns and cross in one entry"),
    ),
    Case(
        "name_of_a_column",
        entry(columns="city", name="town", id="vocabulary"),
        ("features[0]", "`name` belongs to a cross"),
    ),
    Case(
        "sequence_of_numbers",
        entry(columns="price", sequence={}, id={"bucketize": {"quantiles": 3}}),
        ("features[0]", "vocabulary or hash"),
    ),
    Case(
        "sequence_with_a_number",
        entry(columns="city", sequence={}, number="log", id="vocabulary"),
        ("features[0]", "a sequence has columns and an id alone"),
    ),
    Case(
        "sequence_of_one_delimiter",
        entry(columns="city", sequence={"delimiter": ":", "weights": True}, id="vocabulary"),
        ("features[0].sequence", "must differ"),
    ),
    Case(
        "sequence_of_no_length",
        entry(columns="city", sequence={"max_length": 0}, id="vocabulary"),
        ("features[0].sequence.max_length", "at least 1"),
    ),
    Case(
        "sequence_pooled_otherwise",
        entry(columns="city", sequence={"pooling": "avg"}, id="vocabulary"),
        ("features[0].sequence.pooling", "mean | sum | sqrtn | max"),
    ),
    Case(
        "weight_delimiter_not_ascii",
        entry(columns="city", sequence={"weight_delimiter": "："}, id="vocabulary"),
        ("features[0].sequence.weight_delimiter",),
    ),
    Case(
        "vector_of_no_length",
        entry(columns="city", vector={"delimiter": ";"}),
        ("features[0].vector.length", "required"),
    ),
    Case(
        "vector_of_length_0",
        entry(columns="city", vector={"length": 0}),
        ("features[0].vector.length", "at least 1"),
    ),
    Case(
        "vector_cut_inside_numbers",
        entry(columns="city", vector={"length": 2, "delimiter": "."}),
        ("features[0].vector", "what a number is written with"),
    ),
    Case(
        "vector_with_an_id",
        entry(columns="city", vector={"length": 2}, id="vocabulary"),
        ("features[0]", "a vector has columns and a number alone"),
    ),
    Case(
        "vector_bucketized",
        entry(columns="city", vector={"length": 2}, number={"bucketize": {"quantiles": 3}}),
        ("features[0]", "'bucketize' does not make a number of a number"),
    ),
    Case("clip_nothing", entry(columns="price", number={"clip": {}}), ("a minimum, a maximum",)),
    Case(
        "no_boundaries",
        entry(columns="price", id={"bucketize": {"boundaries": []}}),
        ("boundaries is empty",),
    ),
    Case("ensemble_of_none", setting(train={"ensemble": 0}), ("train.ensemble", "at least 1")),
    Case(
        "kinds_without_an_ensemble",
        setting(train={"ensemble_models": ["dcn"]}),
        ("train.ensemble_models", "belongs to an ensemble", "train.ensemble: 4"),
    ),
    Case(
        "more_kinds_than_models",
        setting(train={"ensemble": 2, "ensemble_models": ["dcn", "dcnv2", "deepfm"]}),
        ("train.ensemble_models", "3 kinds for 2 models"),
    ),
    Case(
        "ensemble_of_an_unknown_kind",
        setting(train={"ensemble": 2, "ensemble_models": ["dcn", "deepmf"]}),
        ("train.ensemble_models", "did you mean 'deepfm'"),
    ),
    Case(
        "ensemble_of_a_custom_kind_without_file",
        setting(train={"ensemble": 2, "ensemble_models": ["custom", "dcn"]}),
        ("train.ensemble_models[0].file", "required", "build_model"),
    ),
    Case(
        "ensemble_in_processes",
        setting(train={"ensemble": 2}, runtime={"mode": "processes"}),
        ("train.ensemble", "one process", "runtime.mode: local"),
    ),
    Case(
        "refit_in_processes",
        setting(train={"refit": True}, runtime={"mode": "processes"}),
        ("train.refit", "one process", "runtime.mode: local"),
    ),
    Case(
        "refit_without_test_rows",
        setting(train={"refit": True}, data={"split": {"test": 0}}),
        ("train.refit", "data.split.test leaves none"),
    ),
    Case(
        "refit_of_thinned_rows",
        setting(train={"refit": True}, data={"sample": {"negatives": 0.5}}),
        ("train.refit", "data.sample.negatives", "leave out one of the two"),
    ),
    Case(
        "din_without_target",
        setting(model={"name": "din"}),
        ("model.target", "is required", "sequences"),
    ),
    Case(
        "din_without_a_sequence",
        setting(model={"name": "din", "target": "city"}),
        ("model.name", "no feature is one", "sequence"),
    ),
    Case(
        "din_with_an_unknown_target",
        setting(model={"name": "din", "target": "citty"}),
        ("model.target", "no feature 'citty'", "did you mean 'city'"),
    ),
    Case(
        "target_of_another_model",
        setting(model={"target": "city"}),
        ("model.target", "belongs to din"),
    ),
)

ROW_MISTAKES = (
    Case(
        "weight_not_in_the_data",
        setting(data__weight="wieght"),
        ("data.weight", "wieght"),
        tried=("data.weight=price", "features=[{columns: city, id: {hash: {buckets: 9}}}]"),
    ),
    Case(
        "weight_is_text",
        setting(data__weight="user"),
        ("rows.csv, row 2, column 'user'", "not a number: 'u0'", "data.bad_rows: skip"),
        unset="all rows are bad",
    ),
    Case(
        "weight_negative",
        _weights(lambda number: -5 if number == 7 else 1),
        ("rows.csv, row 9, column 'weight'", "negative or not finite: '-5'", "from 0 to 1e30"),
    ),
    Case(
        "weight_infinite",
        _weights(lambda number: "inf" if number == 7 else 1),
        ("rows.csv, row 9, column 'weight'", "negative or not finite: 'inf'"),
    ),
    Case(
        "weight_missing",
        _weights(lambda number: "" if number == 7 else 1),
        ("rows.csv, row 9, column 'weight'", "weight missing"),
    ),
    Case(
        "weights_all_zero",
        _weights(lambda _: 0),
        ("train rows", "all weights", "are 0", "data.weight"),
        tried=("data.weight=null",),
    ),
    Case(
        "cross_of_a_missing_column",
        entry(cross=["city", "usr"], id={"hash": {"buckets": 9}}),
        ("features[0].cross", "no column 'usr'", "did you mean 'user'?"),
    ),
    Case(
        "cross_of_a_number_without_id",
        lambda w: w.config(
            features=[
                {"columns": "price", "number": "log"},
                {"cross": ["city", "price"], "id": {"hash": {"buckets": 9}}},
            ]
        ),
        ("features[1].cross", "'price' is read as a number", "bucketize"),
    ),
    Case(
        "cross_named_like_a_column",
        entry(cross=["city", "user"], name="price", id={"hash": {"buckets": 9}}),
        ("features[0].name", "'price' is a column of the data"),
    ),
    Case(
        "cross_of_a_sequence",
        lambda w: w.config(
            features=[
                {"columns": "city", "sequence": {}, "id": "vocabulary"},
                {"cross": ["city", "user"], "id": {"hash": {"buckets": 9}}},
            ]
        ),
        ("features[1].cross", "'city' is a sequence"),
    ),
    Case(
        "vector_of_a_missing_column",
        entry(columns="ctiy", vector={"length": 2}),
        ("features[0].columns", "no column 'ctiy'", "city"),
    ),
    Case(
        "cross_of_a_vector",
        lambda w: w.config(
            features=[
                {"columns": "city", "vector": {"length": 2}},
                {"cross": ["city", "user"], "id": {"hash": {"buckets": 9}}},
            ]
        ),
        ("features[1].cross", "'city' is a vector"),
    ),
)

COMMAND_MISTAKES = (
    # Root reads every file whatever its permissions, but nobody the first bytes of this one.
    Case(
        "config_unreadable",
        nothing,
        ("/proc/self/mem", "cannot be read", "permissions"),
        ("run", "/proc/self/mem"),
    ),
    Case("no_disk_beyond_the_memory_limit", _no_blocks, ("run", "disk is full", "Free space")),
    Case(
        "beyond_the_memory_limit_nothing_can_be_written",
        _no_files,
        ("run", "cannot be written", "output"),
    ),
    Case("quota_used_up", _quota, ("run", "quota", "Free space")),
    Case(
        "sample_draws_nothing",
        setting(data__sample={"negatives": 1e-12}),
        ("data.sample.negatives", "draws none of the training rows of label 0"),
    ),
    Case(
        "bfloat16_on_a_processor_without",
        _bfloat16_on_an_old_processor,
        ("c.yaml", "train.precision", "AMX or AVX512-BF16", "auto"),
    ),
)
