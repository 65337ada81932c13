"""Features whose ids are of one embedding table: what may share, and what the plan makes of it."""

import pyarrow as pa
import pytest

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.features import FeatureSpec, SequenceSpec
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.preprocessing.plan import PLAN_FILE, load_plan
from ctr_pipeline.preprocessing.sharing import share_problems
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.age import Age
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.datetime import Datetime
from ctr_pipeline.transforms.hash import Hash
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.round_identity import RoundIdentity
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.vocabulary import Vocabulary
from tests.preprocessing.preprocessing_cases import number_spec, statistics_for, text_spec

HASH = Hash(buckets=10)


def of_table(table, spec):
    return spec.model_copy(update={"table": table})


def sequence_spec(column, transform, max_length=3):
    spec = text_spec(column, transform)
    return spec.model_copy(update={"sequence": SequenceSpec(max_length=max_length)})


def cross_spec(name, *parts, buckets=10):
    return FeatureSpec(
        column=name, column_type=ColumnType.TEXT, id=(Hash(buckets=buckets),), cross=parts
    )


def bare(column, id=None, column_type=ColumnType.TEXT):
    return FeatureSpec(column=column, column_type=column_type, id=id)


def aged(column, at=None):
    """Days before the newest time of the column itself, unless a time is given."""
    return bare(column, (Age(at=at), Bucketize(boundaries=(1.0,))))


BUCKETS = (Bucketize(boundaries=(1.0,)),)
CROSS = cross_spec("c × d", bare("c"), bare("d"))


@pytest.mark.parametrize(
    "features",
    [
        [text_spec("a", HASH), of_table("a", sequence_spec("b", HASH))],
        [of_table("a", text_spec("a", HASH)), of_table("a", text_spec("b", HASH))],
        [of_table("t", text_spec("a", Vocabulary())), of_table("t", text_spec("b", Vocabulary()))],
        [
            number_spec("a", id=[Log(), *BUCKETS]),
            of_table("a", number_spec("b", id=[Log(), *BUCKETS])),
        ],
        [
            number_spec("a", id=[RoundIdentity(num_buckets=9)]),
            of_table("a", number_spec("b", id=[RoundIdentity(num_buckets=9)])),
        ],
        [CROSS, of_table("c × d", cross_spec("e × f", bare("e"), bare("f")))],
        [aged("a", "2024-01-01"), of_table("a", aged("b", "2024-01-01"))],
    ],
)
def test_equal_ids_may_share(features):
    assert share_problems(features) == []


@pytest.mark.parametrize(
    ("features", "automatic", "feature", "message"),
    [
        ([text_spec("a", HASH), of_table("t", text_spec("b", HASH))], (), "b", "no other feature"),
        ([of_table("a", text_spec("a", HASH))], (), "a", "no other feature has a table 'a'"),
        (
            [text_spec("a", HASH), of_table("a", text_spec("b", Hash(buckets=11)))],
            (),
            "b",
            "its `id` is not that of 'a'",
        ),
        (
            [text_spec("a", Vocabulary()), of_table("a", text_spec("b", Vocabulary(min_count=1)))],
            (),
            "b",
            "its `id` is not that of 'a'",
        ),
        (
            [text_spec("a", Vocabulary()), of_table("a", text_spec("b", HASH))],
            (),
            "b",
            "its `id` is not that of 'a'",
        ),
        (
            [
                of_table("t", number_spec("a", id=[Bucketize(quantiles=4)])),
                of_table("t", number_spec("b", id=[Bucketize(quantiles=4)])),
            ],
            (),
            "a",
            "'bucketize' is fitted to each column",
        ),
        (
            [
                number_spec("a", id=[Standardize(), *BUCKETS]),
                of_table("a", number_spec("b", id=[Standardize(), *BUCKETS])),
            ],
            (),
            "b",
            "'standardize' is fitted to each column",
        ),
        (
            [aged("a"), of_table("a", aged("b"))],
            (),
            "b",
            "'age' is fitted to each column",
        ),
        ([CROSS, of_table("c × d", text_spec("b", HASH))], (), "b", "'c × d' is a cross and 'b'"),
        (
            [
                CROSS,
                of_table(
                    "c × d",
                    cross_spec("e × f", bare("e"), bare("f", BUCKETS, ColumnType.NUMBER)),
                ),
            ],
            (),
            "e × f",
            "not of the same number and types",
        ),
        (
            [CROSS, of_table("c × d", cross_spec("e", bare("e"), bare("f"), bare("g")))],
            (),
            "e",
            "not of the same number and types",
        ),
        (
            [number_spec("a", number=[Log()]), of_table("a", text_spec("b", HASH))],
            (),
            "b",
            "'a' has no `id`",
        ),
        ([of_table("a", text_spec("b", HASH))], ("a",), "b", "are chosen by the statistics"),
        (
            [
                text_spec("a", HASH),
                of_table("a", text_spec("b", HASH)),
                of_table("b", text_spec("c", HASH)),
            ],
            (),
            "c",
            "'b' has the table 'a' itself",
        ),
    ],
)
def test_sharing_problem_is_told_when_features_may_not_share(features, automatic, feature, message):
    problem = share_problems(features, automatic)[0]
    assert problem.feature == feature
    assert message in problem.message
    assert problem.is_unknown == ("no other" in message)


def plan_of(folder, *specs):
    return plan_preprocessing(specs, statistics_for(specs, folder), folder)


def test_fields_of_one_table(tmp_path):
    plan = plan_of(
        tmp_path,
        text_spec("x", Hash(buckets=4)),
        of_table("item", sequence_spec("past", HASH)),
        text_spec("item", HASH),
        of_table("item", text_spec("last", HASH)),
    )
    assert [field.name for field in plan.fields] == ["x", "item", "last", "past"]
    assert [field.num_ids for field in plan.fields] == [5, 11, 11, 12]
    # The padding id of the sequence is one that the others never have.
    assert [(table.name, table.num_ids) for table in plan.tables] == [("x", 5), ("item", 12)]
    assert plan.position_tables == (0, 1, 1, 1, 1, 1)
    assert not plan.has_table_a_position
    plan.save(tmp_path / PLAN_FILE)
    assert load_plan(tmp_path / PLAN_FILE) == plan


def test_a_value_has_one_id_in_all_features_of_a_table(tmp_path):
    plan = plan_of(
        tmp_path,
        text_spec("item", HASH),
        of_table("item", sequence_spec("past", HASH)),
        of_table("item", text_spec("last", HASH)),
    )
    values = [f"v{number}" for number in range(40)]
    rows = pa.record_batch({"item": values, "last": values, "past": [f"{v}|{v}" for v in values]})
    ids = ColumnEncoder(plan, tmp_path).encode(rows).ids
    assert (ids[:, 1] == ids[:, 0]).all()
    assert (ids[:, 2] == ids[:, 0]).all()
    assert (ids[:, 3] == ids[:, 0]).all()
    assert (ids[:, 4] == plan.fields[-1].padding_id).all()
    assert len(set(ids[:, 0].tolist())) > 1


def test_each_field_of_a_feature_has_a_table_of_its_own(tmp_path):
    hashed = Hash(buckets=10, functions=2)
    dates = Datetime(parts=("hour", "weekday"))
    plan = plan_of(
        tmp_path,
        text_spec("a", hashed),
        of_table("a", text_spec("b", hashed)),
        of_table("t", text_spec("from", dates)),
        of_table("t", text_spec("to", dates)),
    )
    assert [table.name for table in plan.tables] == ["a.1", "a.2", "t.hour", "t.weekday"]
    assert plan.position_tables == (0, 1, 0, 1, 2, 3, 2, 3)


def test_fields_have_a_table_each_without_sharing(tmp_path):
    plan = plan_of(tmp_path, text_spec("a", HASH), text_spec("b", HASH))
    assert plan.position_tables == (0, 1)
    assert plan.has_table_a_position


def test_names_of_tables_that_meet_by_chance_are_refused(tmp_path):
    specs = [
        text_spec("t", Datetime(parts=("hour", "weekday"))),
        of_table("t.hour", text_spec("a", HASH)),
        of_table("t.hour", text_spec("b", HASH)),
    ]
    with pytest.raises(PreprocessingError, match=r"'t\.hour' would also be that of another"):
        plan_of(tmp_path, *specs)


def test_the_plan_refuses_what_may_not_share(tmp_path):
    specs = [text_spec("a", HASH), of_table("a", text_spec("b", Hash(buckets=7)))]
    with pytest.raises(ValueError, match="feature 'b': its `id` is not that of 'a'"):
        plan_of(tmp_path, *specs)
