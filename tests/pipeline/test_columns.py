import pytest

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.config.models import FeatureEntry
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.features import ColumnType
from ctr_pipeline.pipeline.columns import choose_columns

NUMBER, TEXT = ColumnType.NUMBER, ColumnType.TEXT
NAMES = ["click", "price", "city", "user", "zip"]
INFERRED = {"click": NUMBER, "price": NUMBER, "city": TEXT, "user": TEXT, "zip": NUMBER}


def choose(features, *, data=None, evaluation=None):
    settings = {
        "data": {"train": "rows.csv", "label": "click", **(data or {})},
        "features": features,
        "evaluation": evaluation or {},
    }
    return choose_columns(config_from_mapping(settings), NAMES, INFERRED)


def problems_of(features, **options):
    with pytest.raises(ConfigError) as error:
        choose(features, **options)
    return error.value.problems


def test_auto_takes_all_but_label_and_keys():
    columns = choose("auto", data={"key_columns": ["user"]})
    assert columns.types == {"price": NUMBER, "city": TEXT, "zip": NUMBER}
    assert columns.automatic == ("price", "city", "zip")
    assert columns.explicit == {}
    assert columns.carried == ("user",)


def test_chains_decide_how_a_column_is_read():
    columns = choose(
        [
            {"columns": "price", "number": ["log"], "id": [{"bucketize": {"quantiles": 4}}]},
            {"columns": ["city", "zip"], "id": "vocabulary"},
        ]
    )
    assert columns.types == {"price": NUMBER, "city": TEXT, "zip": TEXT}
    assert list(columns.explicit) == ["price", "city", "zip"]
    assert columns.automatic == ()


@pytest.mark.parametrize(
    ("asked", "expected"), [("auto", NUMBER), ("numeric", NUMBER), ("categorical", TEXT)]
)
def test_entry_without_chains_is_automatic_and_of_the_type_asked_for(asked, expected):
    columns = choose([{"columns": "zip", "type": asked}])
    assert columns.types == {"zip": expected}
    assert columns.automatic == ("zip",)


def test_sensitive_columns_are_remembered():
    columns = choose([{"columns": "city", "id": "vocabulary", "sensitive": True}])
    assert columns.sensitive == {"city"}
    assert columns.explicit["city"].sensitive


def test_carried_columns_are_named_once():
    columns = choose(
        "auto", data={"key_columns": ["user", "zip"]}, evaluation={"gauc_column": "user"}
    )
    assert columns.carried == ("user", "zip")


def test_last_entry_wins():
    columns = choose([{"columns": ["price", "zip"], "number": ["log"]}, {"columns": "zip"}])
    assert list(columns.explicit) == ["price"]
    assert columns.automatic == ("zip",)


def test_every_missing_column_is_named_at_once_with_the_nearest():
    problems = problems_of(
        [
            {"columns": ["prise", "city"], "number": ["log"]},
            {"columns": "zzz", "id": "vocabulary"},
        ],
        data={"key_columns": ["usr"], "split": {"by": "hash", "column": "userr"}},
        evaluation={"gauc_column": "cty"},
    )
    found = {problem.key: (problem.message, problem.suggestion) for problem in problems}
    assert found["features[0].columns"] == ("the data has no column 'prise'", "price")
    assert found["features[1].columns"] == ("the data has no column 'zzz'", None)
    assert found["data.key_columns"] == ("the data has no column 'usr'", "user")
    assert found["evaluation.gauc_column"] == ("the data has no column 'cty'", "city")
    assert found["data.split.column"] == ("the data has no column 'userr'", "user")


@pytest.mark.parametrize(
    "entry",
    [
        {"columns": "city", "id": [{"hash": {"buckets": 2**31}}]},
        {"columns": "price", "id": [{"round_identity": {"num_buckets": 5, "default_value": 5}}]},
    ],
)
def test_chains_that_do_not_fit_are_refused_beside_missing_columns(entry):
    problems = problems_of([entry, {"columns": "zzz", "id": "vocabulary"}])
    keys = [problem.key for problem in problems]
    assert any(key.startswith("features[0]") for key in keys)
    assert "features[1].columns" in keys


def test_a_cross_reads_texts_and_numbers_by_their_ids():
    chain = [{"bucketize": {"boundaries": [1.0]}}]
    columns = choose(
        [
            {"cross": ["user", "price", "zip"], "id": {"hash": {"buckets": 9}}, "name": "upz"},
            {"columns": "price", "number": ["log"], "id": chain},
        ]
    )
    assert columns.names == ("upz", "price")
    # A column without a feature of its own is read as text, whatever it looks like.
    assert columns.types == {"price": NUMBER, "user": TEXT, "zip": TEXT}
    user, price, zip_code = columns.explicit["upz"].parts
    assert (user.column, user.column_type, user.id) == ("user", TEXT, None)
    assert (price.column, price.column_type) == ("price", NUMBER)
    assert price.id == columns.explicit["price"].id
    assert price.number is None
    assert zip_code.column_type is TEXT


def test_a_cross_has_a_name_of_its_own():
    cross = {"cross": ["user", "city"], "id": {"hash": {"buckets": 9}}}
    assert choose([cross]).names == ("user × city",)
    # The later of two of one name wins, as for columns.
    wider = {**cross, "id": {"hash": {"buckets": 99}}}
    assert choose([cross, wider]).explicit["user × city"].id[0].buckets == 99
    (problem,) = problems_of([{**cross, "name": "city"}])
    assert problem.key == "features[0].name"
    assert "is a column of the data" in problem.message


def test_a_sensitive_cross_hides_its_columns():
    cross = {"cross": ["user", "city"], "id": {"hash": {"buckets": 9}}, "sensitive": True}
    assert choose([cross]).sensitive == {"user", "city", "user × city"}


@pytest.mark.parametrize(
    "entries",
    [
        [{"columns": "price", "number": ["log"]}],
        [{"columns": "price"}],
        [{"columns": "price", "type": "numeric"}],
    ],
)
def test_a_number_without_an_id_is_not_crossed(entries):
    cross = {"cross": ["user", "price"], "id": {"hash": {"buckets": 9}}}
    (problem,) = problems_of([cross, *entries])
    assert problem.key == "features[0].cross"
    assert "'price' is read as a number" in problem.message


def test_a_cross_names_columns_that_exist():
    (problem,) = problems_of([{"cross": ["usr", "city"], "id": {"hash": {"buckets": 9}}}])
    assert (problem.key, problem.suggestion) == ("features[0].cross", "user")


def test_what_has_no_cross_is_written_as_before_there_were_any():
    """Fingerprints of configs and plans rest on it."""
    columns = choose([{"columns": "city", "id": "vocabulary"}])
    assert list(columns.explicit["city"].model_dump()) == [
        *("column", "column_type", "number", "id", "sensitive", "reason")
    ]
    entry = FeatureEntry(columns="city")
    assert list(entry.model_dump()) == ["columns", "number", "id", "type", "sensitive"]
