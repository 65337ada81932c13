"""Names and values that look like code, or that a terminal would obey."""

from collections.abc import Callable

from tests.mistakes.spoiled_world import (
    CHECK,
    HEADER,
    RUN,
    Case,
    World,
    entry,
    file,
    lines,
    nothing,
    setting,
)

SQL = "'; DROP TABLE value_counts; --"


def _rows(header: str, third: str) -> Callable[[World], None]:
    """Rows with another header and another third row."""

    def spoil(world: World) -> None:
        rows = lines()
        rows[2] = third
        world.rows(rows, header=header)

    return spoil


ROW_MISTAKES = (
    Case(
        "label_like_sql",
        setting(data__label=SQL),
        (f"no column '{SQL}'", "data.label"),
        tried=("data.label=click",),
    ),
    Case(
        "feature_of_two_lines",
        entry(columns="pri\nce", number="log"),
        ("features[0].columns", "no column 'pri\\nce'", "did you mean 'price'?"),
    ),
    Case(
        "feature_that_clears_the_terminal",
        entry(columns="\x1b[2J", number="log"),
        ("features[0].columns", "no column '\\x1b[2J'"),
    ),
    Case(
        "feature_with_nul",
        entry(columns="pri\0ce", number="log"),
        ("features[0].columns", "no column 'pri\\x00ce'"),
    ),
    Case(
        "feature_of_a_million_letters",
        entry(columns="x" * 1_000_000, number="log"),
        ("features[0].columns", "no column 'xxx", "…"),
    ),
    Case(
        "header_of_two_lines",
        _rows('click,"pri\nce",city,user\n', lines()[2]),
        ("features[0].columns", "no column 'price'"),
    ),
    Case(
        "header_with_sql_twice",
        _rows(f"click,price,{SQL},{SQL}\n", lines()[2]),
        ("rows.csv", f"two columns are named '{SQL}'"),
        unset="the file has a header",
    ),
    Case(
        "number_that_is_sql",
        _rows(HEADER, f"1,{SQL},a,u1"),
        ("rows.csv", "row 4", "column 'price'", SQL),
    ),
    Case("number_with_nul", _rows(HEADER, "1,4\x002,a,u1"), ("rows.csv", "is not text", "binary")),
    Case(
        "number_of_a_million_letters",
        _rows(HEADER, f"1,{'9x' * 500_000},a,u1"),
        ("rows.csv", "row 4", "column 'price'", "9x9x", "…"),
    ),
    Case("label_of_two_lines", _rows(HEADER, '"1\n0",4,a,u1'), ("rows.csv", "'click'")),
    Case(
        "cross_of_hostile_names",
        entry(cross=[SQL, "city"], id={"hash": {"buckets": 9}}),
        ("features[0].cross", f"no column '{SQL}'"),
    ),
    Case("dimension_0", setting(model__embedding_dim=0), ("model.embedding_dim", "at least 1")),
    Case(
        "target_encode_on_the_test_rows",
        entry(columns="city", number={"target_encode": {"split": "test"}}),
        ("features[0].number", "unknown key"),
    ),
    Case(
        "sequence_cut_at_nothing",
        entry(columns="city", sequence={"delimiter": ""}, id="vocabulary"),
        ("features[0].sequence.delimiter", "at least 1"),
    ),
    Case(
        "auto_and_a_column_misspelt",
        setting(features=["auto", {"columns": "cty", "id": "vocabulary"}]),
        ("features[1].columns", "no column 'cty'", "did you mean 'city'?"),
    ),
    Case(
        "sequence_with_a_number_beside_auto",
        setting(features=["auto", {"columns": "city", "sequence": {}, "number": "count_encode"}]),
        ("features[1]", "a sequence has columns and an id alone"),
    ),
    Case(
        "keys_of_other_tools",
        setting(
            train__lr=0.1,
            model__layers=[8],
            data__sep=",",
            data__negative_sampling=0.1,
            batch_size=9,
            features=[
                {"columns": "city", "id": {"vocabulary": {"min_freq": 3}}},
                {"columns": "price", "id": {"bucketize": {"bins": 3}}},
                {"columns": "user", "id": "vocabulary", "min_freq": 3},
            ],
        ),
        (
            "train.lr: unknown key (did you mean 'train.optimizer.learning_rate'?)",
            "model.layers: unknown key (did you mean 'model.hidden_units'?)",
            "data.sep: unknown key (did you mean 'data.delimiter'?)",
            "data.negative_sampling: unknown key (did you mean 'data.sample.negatives'?)",
            "batch_size: unknown key here (did you mean 'train.batch_size'?)",
            "vocabulary.min_freq: unknown key (did you mean 'min_count'?)",
            "bucketize.bins: unknown key (did you mean 'quantiles'?)",
            "features[2].min_freq: unknown key (did you mean 'vocabulary: {min_count: …} of a",
        ),
    ),
    Case(
        "key_column_called_as_a_prediction",
        setting(data__key_columns=["probability", "label"]),
        ("data.key_columns", "'probability' is what predictions call", "'label' is what"),
    ),
    Case(
        "json_lines",
        file("rows.csv", '{"click": 1, "city": "a"}\n' * 9),
        ("rows.csv", "holds JSON", "read_json"),
    ),
    Case(
        "json_array",
        file("rows.csv", '[\n  {"click": 1, "city": "a"}\n]\n'),
        ("rows.csv", "holds JSON", "read_json"),
    ),
)

COMMAND_MISTAKES = (
    Case(
        "predictions_over_the_training_rows",
        lambda world: world.rows(lines(), "other.csv"),
        ("rows.csv", "is a file that the model was trained with"),
        ("predict", "c.yaml", "--data", "other.csv", "--output", "rows.csv", "--overwrite"),
        trained=True,
    ),
    Case(
        "init_from_a_stream",
        nothing,
        ("'/dev/stdin' is a pipe, a socket or a device",),
        ("init", "/dev/stdin", "-o", "new.yaml"),
    ),
    Case(
        "init_to_an_object_store",
        nothing,
        ("s3://bucket/new.yaml", "is an address"),
        ("init", "rows.csv", "-o", "s3://bucket/new.yaml"),
    ),
    Case(
        "init_with_too_few_columns",
        nothing,
        ("--columns names 2", "List all columns of the file in --columns"),
        ("init", "rows.csv", "--columns", "click,town"),
        unset="--columns says the wrong names",
    ),
    Case(
        "init_with_a_key_of_training",
        nothing,
        ("--set: 'train.epochs' is no key that this command takes", "data.delimiter"),
        ("init", "rows.csv", "--set", "train.epochs=2"),
        unset="it lists all keys",
    ),
    *(
        Case(
            f"layers_beyond_the_memory_{call[0]}",
            setting(model__hidden_units=[1_000_000, 1_000_000]),
            ("c.yaml:", "model.hidden_units", "at least 8,000.0 GB of memory; this machine has"),
            call,
        )
        for call in (RUN, CHECK)
    ),
    Case(
        "sample_over_ones_rows",
        nothing,
        ("rows.csv", "exists already", "--overwrite"),
        ("sample", "criteo", "--rows", "100", "-o", "rows.csv"),
        followed=True,
    ),
    Case(
        "sample_over_what_a_run_made",
        nothing,
        ("run/features.json", "belongs to the run"),
        ("sample", "criteo", "--rows", "100", "-o", "run/features.json", "--overwrite"),
        trained=True,
    ),
)
