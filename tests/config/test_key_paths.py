import pytest

from ctr_pipeline.config.key_paths import (
    KeyPathError,
    parse_key_path,
    put_at,
    render_key_path,
    value_at,
)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("train", ("train",)),
        ("train.epochs", ("train", "epochs")),
        ("features[0].id", ("features", 0, "id")),
        ("a[1][2].b", ("a", 1, 2, "b")),
    ],
)
def test_path_round_trips(text, path):
    assert parse_key_path(text) == path
    assert render_key_path(path) == text


@pytest.mark.parametrize("text", ["", ".a", "a.", "a..b", "[0]", "a[x]", "a[", "a]b", "a[-1]"])
def test_bad_path_is_refused(text):
    with pytest.raises(KeyPathError, match="not a key path"):
        parse_key_path(text)


def test_put_makes_absent_and_null_mappings():
    root = {"a": None, "list": [None, 1]}
    put_at(root, ("a", "b", "c"), 1)
    put_at(root, ("list", 0, "x"), 2)
    put_at(root, ("list", 1), 3)
    assert root == {"a": {"b": {"c": 1}}, "list": [{"x": 2}, 3]}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (("text", "x"), "text is not a mapping"),
        (("text", 0), "text is not a list"),
        (("list", 5), "list has 1 entries"),
    ],
)
def test_put_refuses_what_is_not_there(path, reason):
    with pytest.raises(KeyPathError, match=reason):
        put_at({"text": "auto", "list": [1]}, path, 1)


def test_value_of_an_absent_path_is_none():
    assert value_at({"a": [1]}, ("a", 3)) is None
    assert value_at({"a": [1]}, ("a", "b")) is None
    assert value_at({"a": [1]}, ("a", 0)) == 1
