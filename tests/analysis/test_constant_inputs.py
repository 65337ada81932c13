"""Dense inputs that are the same in all training rows: nothing was learned of other values."""

import numpy as np
import pytest

from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.preprocessing.fit import ends_of_inputs, plan_preprocessing
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.clip import Clip
from ctr_pipeline.transforms.fill import Fill
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.normalize import Normalize
from ctr_pipeline.transforms.standardize import Standardize

SAME, MISSING, SOME = [7.0] * 5, [None] * 5, [7.0, None, 7.0, None, 7.0]
LATER = np.array([7.0, np.nan, 0.0, -3.0, 8.5, 1e6, 1e18, -1e300, np.inf, -np.inf])


def fitted(collect, folder, values, chain):
    """The steps of the only dense input, and its ends as `ends_of_inputs` gives them."""
    spec = FeatureSpec(column="x", column_type=ColumnType.NUMBER, number=chain)
    statistics = collect({"x": values}, specs=[spec], folder=folder)
    (number,) = plan_preprocessing([spec], statistics, folder).numbers
    return number.steps, ends_of_inputs([spec], statistics).get("x")


def given(steps, values):
    for step in steps:
        values = step.kernel(values)
    return np.nan_to_num(values, nan=0.0)


@pytest.mark.parametrize(
    ("values", "chain", "constant"),
    [
        (SAME, [Standardize()], 0.0),
        (SAME, [Normalize()], 0.0),
        (SAME, [Log(), Standardize(clip=None)], 0.0),
        (SAME, [Fill(value=2.0)], 7.0),
        (MISSING, [Standardize()], 0.0),
        (MISSING, [Normalize()], 0.0),
        (MISSING, [Fill(value=30.0), Log()], np.log(31.0)),
        # Missing is 0 in the end, and so is the only value.
        (SOME, [Normalize()], 0.0),
        (SOME, [Fill(value=7.0), Standardize()], 0.0),
        # The chain makes it constant.
        ([5.0, 9.0, 2.0, 80.0, 6.0], [Clip(maximum=1.0), Standardize()], 0.0),
    ],
)
def test_input_that_no_training_row_tells_apart_stays_as_it_was(
    collect, tmp_path, values, chain, constant
):
    steps, ends = fitted(collect, tmp_path, values, chain)
    assert ends == (constant, constant)
    np.testing.assert_array_equal(given(steps, LATER), constant)


@pytest.mark.parametrize(
    ("values", "chain", "ends"),
    [
        ([1.0, 2.0, 3.0, 4.0, 1e18], [Fill(value=0.0)], (1.0, 1e18)),
        ([1.0, 1.0, 1.0, 1.0, 2.0], [Normalize()], (0.0, 1.0)),
        (SOME, [Fill(value=2.0)], (2.0, 7.0)),
        # Missing is 0 in the end, and no value is.
        (SOME, [Log()], (0.0, np.log(8.0))),
        ([np.inf, 7.0, 7.0, 7.0, 7.0], [Clip(maximum=9.0)], None),
    ],
)
def test_input_that_rows_tell_apart_is_left_alone(collect, tmp_path, values, chain, ends):
    steps, found = fitted(collect, tmp_path, values, chain)
    assert len(steps) == len(chain)
    assert found == ends
