import math

from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.distributed.coordination.exact_sum import ExactSum


@given(values=st.lists(st.floats(-1e15, 1e15), max_size=40))
def test_a_running_sum_is_as_exact_as_one_over_all(values):
    total = ExactSum()
    for value in values:
        total.add(value)
    assert math.fsum(total.parts) == math.fsum(values)


def test_a_running_sum_takes_what_is_no_number():
    total = ExactSum()
    for value in (1.0, math.inf, 2.0):
        total.add(value)
    assert math.fsum(total.parts) == math.inf
    total.add(-math.inf)
    assert math.isnan(math.fsum(total.parts))
