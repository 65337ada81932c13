"""Chains that make no sense, and the sentence that says so."""

import numpy as np
import pytest

from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.preprocessing.chains import check_chain
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.hash import Hash
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.log_round import LogRound
from ctr_pipeline.transforms.round_identity import RoundIdentity
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.vocabulary import Vocabulary
from tests.preprocessing.preprocessing_cases import EXAMPLES, example_specs, number_spec, text_spec

BUCKETIZE = Bucketize(boundaries=(1.0,))


def test_every_example_is_sound():
    for spec in example_specs():
        assert check_chain(spec) == []
    assert check_chain(FeatureSpec(column="x", column_type=ColumnType.TEXT)) == []


@pytest.mark.parametrize(
    ("spec", "fault", "remedy"),
    [
        (number_spec("x", number=[BUCKETIZE]), "'bucketize' gives an id", "Move it to `id`"),
        (
            FeatureSpec(column="x", column_type=ColumnType.TEXT, number=(Log(),)),
            "its column is text",
            "vocabulary or hash",
        ),
        (number_spec("x", id=[]), "`id` chain is empty", "Add a transform"),
        (number_spec("x", id=[Hash(buckets=3)]), "'hash' reads text", "categorical"),
        (number_spec("x", id=[Log(), Vocabulary()]), "'vocabulary' reads text", "bucketize"),
        (number_spec("x", id=[Log()]), "ends in 'log'", "Add bucketize"),
        (number_spec("x", id=[BUCKETIZE, LogRound(num_bins=2)]), "cannot follow", "last"),
        (text_spec("x", BUCKETIZE), "'bucketize' reads a number", "vocabulary or hash"),
        (text_spec("x", Hash(buckets=2), Vocabulary()), "follows it", "Keep one"),
        (text_spec("x", Hash(buckets=2**31)), "32-bit", "fewer than"),
        (number_spec("x", id=[RoundIdentity(num_buckets=2**31)]), "32-bit", "fewer than"),
        (number_spec("x", id=[LogRound(num_bins=2**31)]), "32-bit", "fewer than"),
        (
            number_spec("x", id=[LogRound(num_bins=2, default_value=2)]),
            "default_value 2",
            "below num_bins",
        ),
        (
            number_spec("x", id=[RoundIdentity(num_buckets=2, default_value=5)]),
            "default_value 5",
            "below num_buckets",
        ),
        (
            FeatureSpec(
                column="x",
                column_type=ColumnType.TEXT,
                id=(Hash(buckets=9, functions=2),),
                cross=(text_spec("a"), text_spec("b")),
            ),
            "by one function",
            "Leave",
        ),
        (number_spec("x", number=[Fill(value=np.nan)]), "value nan", "finite"),
        (number_spec("x", number=[Clip(minimum=np.inf)]), "minimum inf", "finite"),
        (number_spec("x", id=[Bucketize(boundaries=(0.0, np.inf))]), "boundary inf", "finite"),
        (number_spec("x", id=[LogRound(num_bins=3, base=np.inf)]), "base inf", "finite"),
    ],
)
def test_a_wrong_chain_is_named_with_its_remedy(spec, fault, remedy):
    (problem,) = check_chain(spec)
    assert problem.startswith("feature 'x': ")
    assert fault in problem
    assert remedy in problem


def test_an_id_in_the_middle_is_one_problem():
    (problem,) = check_chain(number_spec("x", id=[BUCKETIZE, Standardize(), BUCKETIZE]))
    assert "'bucketize' gives an id, and 'standardize' cannot follow it" in problem


def test_all_problems_come_at_once():
    spec = number_spec("x", number=[BUCKETIZE, Hash(buckets=2)], id=[Standardize()])
    assert len(check_chain(spec)) == 3


def test_examples_cover_every_transform():
    assert all(EXAMPLES.values())
