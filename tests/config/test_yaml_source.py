import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.config import yaml_source
from ctr_pipeline.config.yaml_source import dump_yaml, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E6", 1e6),
        ("-1.5e+3", -1500.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("1_000_000", 1_000_000),
        ("0x10", 16),
        ("0", 0),
        ("-3", -3),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("007", "007"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("null", None),
        ("~", None),
        ("'1'", "1"),
        ("=", "="),
        ("I1..I13", "I1..I13"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
    ],
)
def test_scalar_is_read_as_a_person_means_it(text, value):
    parsed, source = parse_yaml(f"key: {text}", "c.yaml")
    assert parsed == {"key": value}
    assert type(parsed["key"]) is type(value)
    assert source.problems == []


def test_infinity_and_nan_are_numbers():
    parsed, _ = parse_yaml("[.inf, -.inf, .nan]", "c.yaml")
    assert parsed[:2] == [math.inf, -math.inf]
    assert math.isnan(parsed[2])


def test_places_are_lines_of_keys_and_entries():
    _, source = parse_yaml("a:\n  b: 1\n  c:\n    - x\n    - y\n", "c.yaml")
    assert source.place_of(("a", "b")).text == "c.yaml:2"
    assert source.place_of(("a", "c", 1)).text == "c.yaml:5"
    assert source.place_of(("a", "absent")).text == "c.yaml:1"
    assert source.place_of(("absent",)).text == "c.yaml"


def problems_of(text):
    _, source = parse_yaml(text, "c.yaml")
    return [str(problem) for _, problem in source.problems]


def test_key_given_twice_names_both_lines():
    assert problems_of("a: 1\nb:\n  x: 1\n  x: 2\na: 2\n") == [
        "c.yaml:5: a: given twice: here and at c.yaml:1; keep one",
        "c.yaml:4: b.x: given twice: here and at c.yaml:3; keep one",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: !!python/name:os.system x",
            "the YAML tag !!python/name:os.system has no meaning here",
        ),
        ("a: !!binary eA==", "the YAML tag !!binary has no meaning here"),
        ("a: &x [*x]", "an alias (*name) that contains itself"),
        ("? [1, 2]\n: 3", "a key must be a plain text"),
        ("a: !!int x", "'x' is not what its YAML tag says"),
    ],
)
def test_odd_yaml_is_a_problem(text, message):
    (problem,) = problems_of(text)
    assert message in problem


def test_merge_keys_bring_defaults_that_own_keys_override():
    parsed, source = parse_yaml("d: &d {x: 1, y: 2}\na: {<<: *d, y: 3}\n", "c.yaml")
    assert parsed["a"] == {"x": 1, "y": 3}
    assert source.problems == []


def test_nested_aliases_cannot_fill_the_memory():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(yaml.YAMLError, match="more than"):
        parse_yaml("\n".join(levels), "c.yaml")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])),
    st.sampled_from(
        ["yes", "no", "1e-3", "007", "12:30", "null", "~", "", "<<", "=", "1_0", "0x1"]
    ),
)


@given(st.dictionaries(st.text("abc", min_size=1), SCALARS | st.lists(SCALARS, max_size=4)))
def test_yaml_reader_returns_what_was_written(values):
    parsed, source = parse_yaml(dump_yaml(values), "c.yaml")
    assert (parsed or {}) == values
    by_libyaml, other = parse_yaml(dump_yaml(values), "c.yaml", is_written=True)
    assert by_libyaml == parsed
    assert other.places == source.places


@given(st.dictionaries(st.text("abc", min_size=1), SCALARS))
def test_other_yaml_readers_see_the_same_texts(values):
    texts = {key: value for key, value in values.items() if isinstance(value, str)}
    assert (yaml.safe_load(dump_yaml(texts)) or {}) == texts


def test_a_large_file_may_hold_many_values_and_a_small_one_may_not_stand_for_them(monkeypatch):
    monkeypatch.setattr(yaml_source, "MAX_VALUES", 50)
    many = list(range(1000))
    assert parse_yaml(f"a: {many}", "c.yaml")[0] == {"a": many}
    bomb = "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\nb: &b [*a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b]\n"
    with pytest.raises(yaml.YAMLError, match="values, counting aliases"):
        parse_yaml(bomb, "c.yaml")
