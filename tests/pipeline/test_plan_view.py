import pytest

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.config.models import FeatureEntry
from ctr_pipeline.features import FeatureSpec, SequenceSpec
from ctr_pipeline.pipeline.stages.columns import spec_of
from ctr_pipeline.pipeline.stages.plan_view import (
    chain_text,
    describe_decisions,
    describe_plan,
    ids_before_fit,
    statistics_used,
)
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.datetime import Datetime
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from ctr_pipeline.transforms.vocabulary import Vocabulary

LOADED = config_from_mapping(
    {"data": {"train": "rows.csv"}, "model": {"embedding_dim": 4, "hidden_units": [4]}}
)


def feature(**chains):
    return spec_of("price", FeatureEntry(columns="price", **chains))


def test_chain_reads_as_one_would_write_it():
    spec = feature(number=["log", "standardize"], id=[{"bucketize": {"quantiles": 30}}])
    assert chain_text(spec.number) == "log → standardize"
    assert chain_text(spec.id) == "bucketize(quantiles 30)"
    assert chain_text(None) == ""


def test_chain_text_holds_only_what_differs_from_the_default():
    spec = feature(id=[{"vocabulary": {"min_count": 7, "oov_buckets": 3}}])
    assert "min_count 7" in chain_text(spec.id)
    assert "max_size" not in chain_text(spec.id)


@pytest.mark.parametrize(
    ("chains", "expected"),
    [
        ({"number": ["log"]}, []),
        ({"number": ["standardize"]}, ["mean", "standard deviation"]),
        ({"number": ["normalize"]}, ["minimum", "maximum"]),
        ({"id": [{"bucketize": {"quantiles": 7}}]}, ["7 quantiles"]),
        ({"id": [{"bucketize": {"boundaries": (1.0, 2.0)}}]}, []),
        ({"id": ["vocabulary"]}, ["values with counts"]),
        ({"id": [{"hash": {"buckets": 9}}]}, []),
    ],
)
def test_statistics_that_a_feature_needs(chains, expected):
    assert statistics_used(feature(**chains)) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"hash": {"buckets": 9}}, 10),
        ({"bucketize": {"boundaries": (1.0, 2.0)}}, 4),
        ({"bucketize": {"quantiles": 7}}, 14),
        ("vocabulary", None),
        ({"vocabulary": {"max_size": 10, "oov_buckets": 2}}, 13),
        ({"round_identity": {"num_buckets": 5}}, 6),
    ],
)
def test_ids_that_are_known_beforehand(step, expected):
    assert ids_before_fit(feature(id=[step])) == expected


def test_one_row_a_feature_with_memory():
    with_field = feature(id=[{"hash": {"buckets": 9}}])
    dense = feature(number=["log"])
    (hashed, number) = describe_plan(LOADED.config, [with_field, dense], None)
    assert (hashed.num_ids, hashed.dimension) == (10, 4)
    # A row holds the linear weight with its slots and the vector with its slots.
    assert hashed.max_bytes >= 10 * 4 * (1 + 1 + 3 * 4)
    assert (number.num_ids, number.dimension, number.max_bytes) == (None, None, None)
    assert number.number == "log"
    assert hashed.reason == "as the config says"


def test_decisions_are_told_in_a_line():
    features = [
        FeatureSpec(
            column="user",
            column_type=ColumnType.TEXT,
            number=(TargetEncode(smoothing=16.0), Standardize()),
            id=(Vocabulary(),),
        ),
        FeatureSpec(column="kind", column_type=ColumnType.TEXT, id=(Vocabulary(),)),
        FeatureSpec(column="price", column_type=ColumnType.NUMBER, number=(Log(),)),
        FeatureSpec(column="at", column_type=ColumnType.TEXT, id=(Datetime(parts=("hour",)),)),
        FeatureSpec(
            column="tags",
            column_type=ColumnType.TEXT,
            id=(Vocabulary(),),
            sequence=SequenceSpec(),
        ),
    ]
    assert describe_decisions(features) == (
        "Decided by the data: 2 texts, 1 number, 1 time, 1 list; 1 text with click rates as numbers"
    )
    assert describe_decisions(features[1:2]) == "Decided by the data: 1 text"
