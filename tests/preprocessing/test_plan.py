"""Fitting plans: parameters, sizes, and what is refused."""

import numpy as np
import pyarrow as pa
import pytest

from ctr_pipeline.errors import PreprocessingError
from ctr_pipeline.features import FeatureSpec, SequenceSpec
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.fit import (
    SAYS_NOTHING,
    plan_preprocessing,
)
from ctr_pipeline.preprocessing.plan import PLAN_FILE, load_plan, raw_signature
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import LabelInformation
from ctr_pipeline.transforms import AnyIdStep, AnyNumberStep, AnyTextStep
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.count_encode import CountEncode
from ctr_pipeline.transforms.datetime import Datetime
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.hash import Hash
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.log_round import LogRound
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.round_identity import RoundIdentity
from ctr_pipeline.transforms.shared.intervals import IntervalsStep
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from ctr_pipeline.transforms.vocabulary import Vocabulary
from tests.preprocessing.preprocessing_cases import (
    example_specs,
    number_spec,
    statistics_for,
    text_spec,
)


def plan_of(folder, *specs):
    return plan_preprocessing(specs, statistics_for(specs, folder), folder)


def test_every_step_is_made_by_an_example(tmp_path):
    plan = plan_of(tmp_path, *example_specs())
    made = {
        *(step.name for number in plan.numbers for step in number.steps),
        *(field.step.name for field in plan.fields),
        *(step.name for _, step in plan.text_steps),
    }
    unions = [kind.__origin__ for kind in (AnyNumberStep, AnyTextStep, AnyIdStep)]
    steps = [step for union in unions for step in union.__args__]
    assert made == {step.model_fields["name"].default for step in steps}


def test_json_round_trip(tmp_path):
    plan = plan_of(tmp_path, *example_specs())
    assert any(
        np.inf in field.step.thresholds
        for field in plan.fields
        if isinstance(field.step, IntervalsStep)
    )
    plan.save(tmp_path / PLAN_FILE)
    assert load_plan(tmp_path / PLAN_FILE) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "damaged"),
        ('{"version": 9, "fields": [], "numbers": []}', "9"),
    ],
)
def test_unusable_plan_files_are_refused(tmp_path, text, message):
    path = tmp_path / PLAN_FILE
    if text is not None:
        path.write_text(text)
    with pytest.raises(PreprocessingError, match=message) as caught:
        load_plan(path)
    assert str(path) in str(caught.value)


def test_sizes_and_missing_ids(tmp_path):
    specs = [
        number_spec("b", id=[Bucketize(boundaries=(0.0, 1.0))]),
        number_spec("q", id=[Log(), Bucketize(quantiles=4)]),
        number_spec("l", id=[LogRound(num_bins=9)]),
        number_spec("r", id=[RoundIdentity(num_buckets=6)]),
        number_spec("ln2", id=[Bucketize(ln2=True)]),
        text_spec("h", Hash(buckets=10)),
        text_spec("v", Vocabulary(oov_buckets=3)),
    ]
    plan = plan_of(tmp_path, *specs)
    sizes = {field.name: field.num_ids for field in plan.fields}
    assert sizes == {"b": 4, "q": 5, "l": 10, "r": 7, "ln2": 1913, "h": 11, "v": 11}
    assert all(field.missing_id == field.num_ids - 1 for field in plan.fields)
    assert plan.fields[-1].step.files == ("vocabularies/v.parquet",)
    assert plan.fields[0].step.files == ()
    assert plan.fields[1].transforms == ("log", "bucketize")


def test_a_column_may_be_counted_and_looked_up(tmp_path):
    spec = FeatureSpec(
        column="c",
        column_type=ColumnType.TEXT,
        number=(TargetEncode(smoothing=3.0), Standardize()),
        id=(CountEncode(min_count=2), Bucketize(boundaries=(1.0, 5.0))),
    )
    plan = plan_of(tmp_path, spec)
    (number,), (field,) = plan.numbers, plan.fields
    assert (number.first.base, number.first.folds) == (0.5, 5)
    assert (number.first.missing_rows, number.first.missing_clicks) == (4, 3)
    assert [step.name for step in number.steps] == ["standardize"]
    assert (field.first.name, field.step.name, field.num_ids) == ("count_encode", "intervals", 4)
    assert field.transforms == ("count_encode", "bucketize")
    assert raw_signature(plan) == {"c": "string"}


def test_a_linear_weight_has_the_prior_by_which_its_column_foretells_best(tmp_path):
    specs = [
        number_spec("n", id=[Log(), Bucketize(quantiles=4)]),
        text_spec("v", Vocabulary()),
        text_spec("h", Hash(buckets=10)),
        text_spec("nothing", Vocabulary()),
        text_spec("unjudged", Vocabulary()),
        # Ids of these are not of the values that the column was judged by.
        text_spec("t", Datetime(parts=("hour",))),
        text_spec("list", Vocabulary()).model_copy(update={"sequence": SequenceSpec()}),
        FeatureSpec(
            column="counted",
            column_type=ColumnType.TEXT,
            id=(CountEncode(), Bucketize(boundaries=(1.0,))),
        ),
    ]
    statistics = statistics_for(specs, tmp_path)
    rows_of = {"nothing": None} | dict.fromkeys(["n", "v", "h", "t", "list", "counted"], 64.0)
    judged = {
        name: column.model_copy(
            update={
                "label_information": LabelInformation(
                    information_value=0.1,
                    mutual_information=0.1,
                    smoothing=rows_of[name],
                    num_groups=3,
                )
            }
        )
        for name, column in statistics.columns.items()
        if name in rows_of
    }
    update = {"columns": statistics.columns | judged, "label_rate": 0.25}
    plan = plan_preprocessing(specs, statistics.model_copy(update=update), tmp_path)
    assert {field.name: field.prior_precision for field in plan.fields} == {
        "n": 64 * 0.25 * 0.75,
        "v": 64 * 0.25 * 0.75,
        "h": 64 * 0.25 * 0.75,
        "nothing": SAYS_NOTHING * 0.25 * 0.75,
        "unjudged": None,
        "t": None,
        "list": None,
        "counted": None,
    }


def test_parts_of_a_time_are_fields_of_their_own(tmp_path):
    spec = text_spec("t", Datetime(parts=("hour", "is_weekend"), utc_offset_minutes=60))
    plan = plan_of(tmp_path, spec)
    assert [(field.name, field.column, field.num_ids) for field in plan.fields] == [
        ("t.hour", "t", 25),
        ("t.is_weekend", "t", 3),
    ]
    assert raw_signature(plan) == {"t": "string"}
    assert plan_of(tmp_path, text_spec("t", Datetime(parts=("day",)))).fields[0].name == "t"
    with pytest.raises(ValueError, match=r"two fields are called 't\.hour'"):
        plan_of(tmp_path, spec, text_spec("t.hour", Hash(buckets=3)))


def test_each_hash_function_has_a_field(tmp_path):
    plan = plan_of(tmp_path, text_spec("c", Hash(buckets=1000, functions=3)))
    assert [(field.name, field.num_ids) for field in plan.fields] == [
        ("c.1", 1001),
        ("c.2", 1001),
        ("c.3", 1001),
    ]
    texts = pa.array([f"value {n}" for n in range(5000)])
    ids = ColumnEncoder(plan, tmp_path).encode(pa.record_batch({"c": texts})).ids
    (alone,) = plan_of(tmp_path, text_spec("c", Hash(buckets=1000))).fields
    assert alone.step == plan.fields[0].step
    # Of values that share a bucket of one function, a thousandth shares that of another.
    for one, other in ((0, 1), (0, 2), (1, 2)):
        pairs = ids[:, one].astype(np.int64) * 1001 + ids[:, other]
        assert 4970 < len(np.unique(pairs)) < 5000
        assert len(np.unique(ids[:, one])) > 950


def test_filled_values_are_not_missing(tmp_path):
    chain = [Fill(value=0.5), Bucketize(boundaries=(0.0, 1.0))]
    (field,) = plan_of(tmp_path, number_spec("x", id=chain)).fields
    assert (field.missing_id, field.num_ids) == (1, 4)


def test_raw_signature(tmp_path):
    specs = [number_spec("x", number=[Log()], id=[RoundIdentity(num_buckets=3)])]
    plan = plan_of(tmp_path, *specs, text_spec("t", Hash(buckets=3)))
    assert raw_signature(plan) == {"x": "double", "t": "string"}


def change_column(statistics, **changes):
    column = statistics.columns["x"].model_copy(update=changes)
    return statistics.model_copy(update={"columns": {"x": column}})


def change_moments(statistics, **changes):
    moments = statistics.columns["x"].moments.model_copy(update=changes)
    return change_column(statistics, moments=moments)


def test_constant_and_empty_columns(tmp_path):
    spec = number_spec("x", number=[Standardize(), Normalize()])
    statistics = statistics_for([spec], tmp_path)
    constant = change_moments(
        statistics, mean=5.0, standard_deviation=0.0, minimum=5.0, maximum=5.0
    )
    (number,) = plan_preprocessing([spec], constant, tmp_path).numbers
    assert (number.steps[0].mean, number.steps[0].standard_deviation) == (5.0, 1.0)
    nothing = dict.fromkeys(["mean", "standard_deviation", "minimum", "maximum"])
    empty = change_moments(statistics, count=0, **nothing)
    (number,) = plan_preprocessing([spec], empty, tmp_path).numbers
    assert (number.steps[0].mean, number.steps[0].standard_deviation) == (0.0, 1.0)
    only_normalize = number_spec("x", number=[Normalize()])
    (number,) = plan_preprocessing([only_normalize], constant, tmp_path).numbers
    assert (number.steps[0].subtractor, number.steps[0].divisor) == (5.0, 1.0)


@pytest.mark.parametrize(
    ("minimum", "maximum", "cuts"),
    [
        (-1.0, 3.0, (0.0, 1.0, 2.0)),
        (5.0, 5.0, ()),
        (None, None, ()),
        (-1.6e308, 1.6e308, (-0.8e308, 0.0, 0.8e308)),
        (1.0, np.nextafter(1.0, 2.0), (np.nextafter(1.0, 2.0),)),
    ],
)
def test_intervals_of_one_width(tmp_path, minimum, maximum, cuts):
    spec = number_spec("x", id=[Bucketize(equal_width=4)])
    statistics = change_moments(statistics_for([spec], tmp_path), minimum=minimum, maximum=maximum)
    (field,) = plan_preprocessing([spec], statistics, tmp_path).fields
    np.testing.assert_allclose(field.step.thresholds, cuts, rtol=1e-15, atol=1e-15)
    assert field.num_ids == len(cuts) + 2


def test_no_quantiles_of_a_column_without_values(tmp_path):
    spec = number_spec("x", id=[Bucketize(quantiles=4)])
    statistics = statistics_for([spec], tmp_path).model_copy(
        update={"boundaries": {"x": {"4": ()}}}
    )
    (field,) = plan_preprocessing([spec], statistics, tmp_path).fields
    assert field.num_ids == 2


@pytest.mark.parametrize(
    ("spec", "change", "message"),
    [
        (
            number_spec("x", number=[Standardize()]),
            lambda s: change_column(s, moments=None),
            "no moments after no transform",
        ),
        (
            number_spec("x", number=[Log(), Standardize()]),
            lambda s: s.model_copy(update={"derived_moments": {}}),
            "no moments after log",
        ),
        (
            number_spec("x", id=[Log(), Bucketize(quantiles=4)]),
            lambda s: s.model_copy(update={"boundaries": {}}),
            "no 4-quantiles after log",
        ),
        (
            text_spec("x", Vocabulary()),
            lambda s: s.model_copy(update={"vocabularies": {}}),
            "no vocabulary in the statistics",
        ),
        (
            number_spec("x", number=[Log()]),
            lambda s: change_column(s, column_type=ColumnType.TEXT),
            "another type in the statistics",
        ),
    ],
)
def test_statistics_of_other_features_are_a_mistake_of_the_program(tmp_path, spec, change, message):
    statistics = change(statistics_for([spec], tmp_path))
    with pytest.raises(ValueError, match=rf"feature 'x'.*{message}"):
        plan_preprocessing([spec], statistics, tmp_path)


@pytest.mark.parametrize(
    ("spec", "change", "message"),
    [
        (
            number_spec("x", number=[Standardize()]),
            lambda s: change_moments(s, standard_deviation=np.inf),
            "moments overflow",
        ),
        (
            number_spec("x", number=[Normalize()]),
            lambda s: change_moments(s, minimum=-1e308, maximum=1e308),
            "moments overflow",
        ),
        (
            number_spec("x", id=[LogRound(num_bins=10**9, base=1.0000001)]),
            lambda s: s,
            "cut points",
        ),
    ],
)
def test_feature_is_an_error_when_numbers_and_ids_cannot_hold_it(tmp_path, spec, change, message):
    statistics = change(statistics_for([spec], tmp_path))
    with pytest.raises(PreprocessingError, match=message) as caught:
        plan_preprocessing([spec], statistics, tmp_path)
    assert "feature 'x'" in str(caught.value)
    assert caught.value.remedy


def test_a_column_without_statistics_is_an_error(tmp_path):
    statistics = statistics_for([number_spec("x", number=[Log()])], tmp_path)
    with pytest.raises(ValueError, match="no statistics for column 'y'"):
        plan_preprocessing([number_spec("y", number=[Log()])], statistics, tmp_path)


def test_a_stale_vocabulary_is_an_error(tmp_path):
    statistics = statistics_for([text_spec("x", Vocabulary())], tmp_path)
    with pytest.raises(ValueError, match="another min_count"):
        plan_preprocessing([text_spec("x", Vocabulary(min_count=9))], statistics, tmp_path)
    (tmp_path / "vocabularies/x.parquet").unlink()
    with pytest.raises(ValueError, match="no vocabulary file"):
        plan_preprocessing([text_spec("x", Vocabulary())], statistics, tmp_path)


def test_wrong_chains_and_repeated_columns_are_refused_together(tmp_path):
    specs = [number_spec("x", id=[Log()]), number_spec("x", number=[Log()])]
    with pytest.raises(ValueError, match=r"ends in 'log'[^\n]*\nfeature 'x': named more"):
        plan_of(tmp_path, *specs)
