"""Labels that are written otherwise than 0 and 1."""

import pytest

from ctr_pipeline.config import config_from_mapping
from ctr_pipeline.config.label_values import LabelValues, find_label_values
from ctr_pipeline.errors import ConfigError


def values_of(**data):
    return config_from_mapping({"data": {"train": "a", **data}}).config.data.label_values


@pytest.mark.parametrize(
    ("positive", "clicked", "other", "neither"),
    [
        ("True", ["True", "true", " TRUE "], ["False", "false"], ["1", "yes", "", "maybe"]),
        (True, ["True"], ["false"], ["0"]),
        ("yes", ["yes", "YES"], ["no", "No"], ["y", "true"]),
        (1, ["1", "1.0", "+1", "1e0"], ["-1", "-1.0"], ["0", "2", "yes"]),
        (1.0, ["1"], ["-1"], ["0"]),
    ],
)
def test_the_opposite_of_a_usual_value_goes_without_saying(positive, clicked, other, neither):
    values = values_of(positive=positive)
    assert [values.number_of(text) for text in clicked] == [1.0] * len(clicked)
    assert [values.number_of(text) for text in other] == [0.0] * len(other)
    assert [values.number_of(text) for text in neither] == [None] * len(neither)


@pytest.mark.parametrize(
    ("keys", "labels"),
    [
        ({"positive": "True"}, {"1": 1, "0.0": 0, "false": 0, "yes": None}),
        ({"positive": "yes"}, {"1": 1, "FALSE": 0, "no": 0, "2": None, "-1": None}),
        ({"positive": 1}, {"true": 1, "-1": 0, "0": None, "false": None}),
        ({"positive": 2, "negative": 1}, {"true": 0, "2": 1, "0": None}),
        ({"positive": "a", "negative": "1"}, {"a": 1, "True": 0, "0": None}),
    ],
)
def test_other_files_may_write_labels_as_one_and_zero(keys, labels):
    assert {text: values_of(**keys).read(text) for text in labels} == labels


def test_any_two_values_may_be_said():
    values = values_of(positive="buy", negative="view")
    assert [values.number_of(text) for text in ("buy", "View", "cart")] == [1.0, 0.0, None]
    values = values_of(positive=2, negative=1)
    assert [values.number_of(text) for text in ("2.0", "1", "0")] == [1.0, 0.0, None]
    assert values_of() is None


@pytest.mark.parametrize(
    ("data", "key", "message"),
    [
        ({"positive": "buy"}, "data.positive", "say in data.negative what label 0 is written as"),
        ({"negative": "no"}, "data.negative", "only beside data.positive"),
        ({"positive": "yes", "negative": "YES"}, "data.negative", "is the same as data.positive"),
        ({"positive": 1, "negative": "1.0"}, "data.negative", "is the same as data.positive"),
    ],
)
def test_values_that_tell_nothing_apart_are_refused(data, key, message):
    with pytest.raises(ConfigError) as caught:
        values_of(**data)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert message in problem.message


@pytest.mark.parametrize(
    ("texts", "pair"),
    [
        (["True", "False"], LabelValues("True", "False")),
        (["n", "Y"], LabelValues("Y", "n")),
        (["-1", "1"], LabelValues("1", "-1")),
        (["no"], LabelValues("yes", "no")),
        (["True", "no"], None),
        (["1", "2"], None),
        (["buy", "view"], None),
        ([], None),
    ],
)
def test_a_pair_is_found_where_there_is_no_doubt(texts, pair):
    assert find_label_values(texts) == pair
