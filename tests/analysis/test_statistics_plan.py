import pytest

from ctr_pipeline.analysis.statistics_plan import BoundaryPlan, StatisticsPlan, plan_statistics
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.base import VocabularyNeed
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.hash import Hash
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.round_identity import RoundIdentity
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.vocabulary import Vocabulary


def number(**chains: object) -> FeatureSpec:
    return FeatureSpec(column="x", column_type=ColumnType.NUMBER, **chains)


def text(**chains: object) -> FeatureSpec:
    return FeatureSpec(column="c", column_type=ColumnType.TEXT, **chains)


def test_plans_what_each_chain_needs():
    plan = plan_statistics(
        [
            number(number=(Log(), Standardize()), id=(Clip(maximum=9.0), Bucketize(quantiles=4))),
            text(id=(Vocabulary(min_count=3),)),
        ],
        "label",
        profile=False,
    )
    x, c = plan.columns
    assert x.moments == ((Log(),),)
    assert x.boundaries == (BoundaryPlan(chain=(Clip(maximum=9.0),), num_quantiles=4),)
    assert c.vocabulary == VocabularyNeed(min_count=3, max_size=None)
    assert plan.label == "label"


def test_profile_adds_the_moments_of_number_columns():
    plan = plan_statistics([number(), text()], "label")
    assert [column.moments for column in plan.columns] == [((),), ()]


def test_intervals_of_one_width_need_the_range_after_the_chain():
    spec = number(id=(Log(), Bucketize(equal_width=4)))
    assert plan_statistics([spec], "label", profile=False).columns[0].moments == ((Log(),),)


def test_moments_of_shorter_chains_come_first():
    plan = plan_statistics(
        [number(number=(Fill(value=1.0), Log(), Normalize(), Standardize()))], "label"
    )
    assert [len(chain) for chain in plan.columns[0].moments] == [0, 2, 3]


def test_features_of_one_column_share_an_entry_and_nothing_is_planned_twice():
    spec = number(number=(Log(), Standardize()), id=(Bucketize(quantiles=4),))
    assert plan_statistics([spec, spec], "label") == plan_statistics([spec], "label")


def test_transforms_without_statistics_need_none():
    plan = plan_statistics(
        [
            number(number=(Log(),), id=(RoundIdentity(num_buckets=3),)),
            text(id=(Hash(buckets=7),)),
        ],
        "label",
        profile=False,
    )
    for column in plan.columns:
        assert (column.moments, column.boundaries, column.vocabulary) == ((), (), None)
    explicit = number(id=(Bucketize(boundaries=(1.0, 2.0)),))
    assert plan_statistics([explicit], "label").columns[0].boundaries == ()


def test_oov_buckets_do_not_change_the_plan():
    few, many = (
        plan_statistics([text(id=(Vocabulary(oov_buckets=buckets),))], "label")
        for buckets in (1, 5)
    )
    assert few == many


def test_plan_survives_json():
    plan = plan_statistics(
        [number(number=(Clip(minimum=-1.0), Standardize(clip=None))), text(id=(Vocabulary(),))],
        'ünï "label"',
    )
    assert StatisticsPlan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([text(number=(Standardize(),))], "does not fit a text column"),
        ([text(id=(Bucketize(quantiles=3),))], "does not fit a text column"),
        ([number(id=(Vocabulary(),))], "does not fit a number column"),
        ([number(id=(Log(), Vocabulary()))], "takes the column itself"),
        ([number(id=(RoundIdentity(num_buckets=3), Standardize()))], "ends a chain"),
        (
            [text(id=(Vocabulary(min_count=1),)), text(id=(Vocabulary(min_count=2),))],
            "two different vocabularies",
        ),
        (
            [number(), FeatureSpec(column="x", column_type=ColumnType.TEXT)],
            "by one feature, as text by another",
        ),
    ],
)
def test_refuses(specs: list[FeatureSpec], message: str):
    with pytest.raises(ValueError, match=message):
        plan_statistics(specs, "label")
