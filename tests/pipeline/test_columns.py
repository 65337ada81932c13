import pyarrow as pa
import pytest

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.pipeline.stages.columns import TAKEN_OUT, choose_columns, complete_features
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnStatistics, Moments, Statistics
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.vocabulary import Vocabulary

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


def test_auto_leaves_out_numbers_that_rows_are_divided_by():
    split = {"by": "time", "column": "price"}
    columns = choose("auto", data={"split": split})
    assert "price" not in columns.types
    assert [(one.column, one.reason) for one in columns.unfit] == [
        ("price", "rows are divided by it, so no later value occurs in training")
    ]
    # A text may tell a part of a time that comes again; and who names a column gets it.
    assert "city" in choose("auto", data={"split": {**split, "column": "city"}}).types
    named = [{"columns": ["price", "city"]}]
    assert choose(named, data={"split": split}).automatic == ("price", "city")


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


def test_evaluation_column_stays_a_feature():
    columns = choose(
        "auto",
        data={"key_columns": ["zip"]},
        evaluation={"gauc_column": "user", "group_by": ["city"]},
    )
    assert "zip" not in columns.names
    assert {"user", "city"} <= set(columns.automatic)


@pytest.mark.parametrize(
    ("features", "group_by", "message"),
    [
        ("auto", ["cty"], "the data has no column 'cty'"),
        ("auto", ["click"], "'click' is the label, and rows of one label have no AUC"),
        (
            ["auto", {"columns": "city", "sensitive": True}],
            ["city"],
            "'city' is sensitive, and groups would show its values",
        ),
        (
            [
                "auto",
                {"cross": ["city", "user"], "id": {"hash": {"buckets": 9}}, "sensitive": True},
            ],
            ["user"],
            "'user' is sensitive, and groups would show its values",
        ),
    ],
)
def test_group_by_column_is_refused_when_it_cannot_be_measured_by(features, group_by, message):
    with pytest.raises(ConfigError) as error:
        choose(features, evaluation={"group_by": group_by})
    (problem,) = error.value.problems
    assert (problem.key, problem.message) == ("evaluation.group_by", message)


def test_entries_of_a_feature_are_merged_and_later_keys_win():
    columns = choose(
        [
            {"columns": ["price", "zip"], "number": ["log"], "sensitive": True},
            {"columns": "zip", "id": [{"bucketize": {"quantiles": 4}}]},
            {"columns": "zip", "number": "standardize"},
        ]
    )
    price, zip_code = columns.explicit["price"], columns.explicit["zip"]
    assert (price.number, price.id) == ((Log(),), None)
    assert zip_code.number == (Standardize(),)
    assert zip_code.id == (Bucketize(quantiles=4),)
    assert zip_code.sensitive
    assert columns.entries["zip"].given == {"number": 2, "sensitive": 0, "id": 1}
    assert columns.entries["zip"].overruled == {"number": (0,)}


def test_null_takes_the_key_of_an_earlier_entry_away():
    both = {"columns": "zip", "number": ["log"], "id": [{"bucketize": {"quantiles": 4}}]}
    spec = choose([both, {"columns": "zip", "number": None}]).explicit["zip"]
    assert (spec.number, spec.id) == (None, (Bucketize(quantiles=4),))
    # Without any chain the statistics decide.
    bare = choose([both, {"columns": "zip", "number": None, "id": None}])
    assert (bare.automatic, bare.explicit) == (("zip",), {})


def test_auto_among_entries_decides_what_they_leave_open():
    columns = choose(
        [
            "auto",
            {"columns": "price", "number": "log"},
            {"columns": "zip", "id": "vocabulary"},
            {"columns": "city", "number": None, "id": None},
            {"cross": ["city", "user"], "id": {"hash": {"buckets": 9}}},
        ],
    )
    assert columns.names == ("price", "user", "zip", "city × user")
    assert columns.automatic == ("price", "user", "zip")
    # zip looks like numbers; the chain that is given reads texts, so all of the column is text.
    assert columns.types == {"price": NUMBER, "zip": TEXT, "user": TEXT, "city": TEXT}
    assert set(columns.explicit) == {"price", "zip", "city × user"}
    assert [(one.column, one.reason) for one in columns.unfit] == [("city", TAKEN_OUT)]


def test_auto_leaves_open_keys_and_weights_as_it_does_alone():
    data = {"key_columns": ["user"], "weight": "zip"}
    assert choose(["auto"], data=data).names == choose("auto", data=data).names == ("price", "city")
    named = choose(["auto", {"columns": "user", "id": "vocabulary"}], data=data)
    assert named.names == ("price", "city", "user")


def test_a_key_of_all_columns_is_a_key_of_each():
    columns = choose([{"columns": "*", "sensitive": True}, {"columns": "zip", "sensitive": False}])
    assert columns.sensitive == {"price", "city", "user"}


def profile_of(columns):
    """Statistics in which every automatic column is worth having."""
    known = {}
    for name in columns.automatic:
        kind = columns.types[name]
        moments = Moments(count=9, mean=1.0, standard_deviation=1.0, minimum=0.0, maximum=2.0)
        known[name] = ColumnStatistics(
            column=name,
            column_type=kind,
            count=9,
            num_missing=0,
            num_distinct=5,
            moments=moments if kind is NUMBER else None,
            quantiles={"0.5": 1.0, "0.95": 2.0},
        )
    return Statistics(fingerprint="", num_rows=9, label_rate=0.5, columns=known)


def complete(features):
    loaded = config_from_mapping(
        {"data": {"train": "rows.csv", "label": "click"}, "features": features}
    )
    columns = choose_columns(loaded, NAMES, INFERRED)
    head = pa.table(
        {name: pa.array(["a", "b"] if INFERRED[name] is TEXT else [1.0, 2.0]) for name in NAMES}
    )
    return complete_features(loaded, columns, head, profile_of(columns))


def test_given_keys_win_over_decided_ones():
    features, left_out = complete(
        [
            "auto",
            {"columns": "price", "number": "log"},
            {"columns": "zip", "id": None, "sensitive": True},
            {"columns": "user", "id": None},
        ]
    )
    price, city, zip_code = features
    assert price.number == (Log(),)
    assert price.id == (Bucketize(quantiles=30),)
    assert city.id == (Vocabulary(min_count=2),)
    assert (zip_code.number, zip_code.id, zip_code.sensitive) == ((Standardize(),), None, True)
    (unused,) = left_out
    assert unused.column == "user"
    assert "takes away" in unused.reason


def test_every_missing_column_is_named_at_once_with_the_nearest():
    problems = problems_of(
        [
            {"columns": ["prise", "city"], "number": ["log"]},
            {"columns": "zzz", "id": "vocabulary"},
            {"columns": "z*", "id": "vocabulary"},
        ],
        data={"key_columns": ["usr"], "split": {"by": "hash", "column": "userr"}},
        evaluation={"gauc_column": "cty"},
    )
    found = {problem.key: (problem.message, problem.suggestion) for problem in problems}
    assert found["features[0].columns"] == ("the data has no column 'prise'", "price")
    assert found["features[1].columns"] == ("the data has no column 'zzz'", None)
    hint = "the data has no column 'z*'; a range of columns is written I1..I13"
    assert found["features[2].columns"] == (hint, None)
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
