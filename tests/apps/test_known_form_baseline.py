import pytest
from generated_sets import Kind, draw_set
from known_form_baseline import predict_known_form


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "least", "most"), [(1_000, 0.01, 0.1), (40_000, 0.0, 0.006)])
def test_the_baseline_approaches_the_true_effects_as_rows_grow(num_rows, least, most):
    kind = Kind("small", (30, 20, 10), 1, 2, 0.2, num_rows=num_rows)
    generated = draw_set(kind, num_rows=0, seed=0)
    losses = generated.losses(predict_known_form(generated))
    assert least < losses["ours"] / losses["floor"] - 1 < most
    assert losses["ours"] < losses["constant"]
