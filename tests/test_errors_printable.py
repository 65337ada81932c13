"""Errors stay one line a problem, whatever names and values they tell of."""

import pytest

from ctr_pipeline.errors import ConfigError, ConfigProblem, DataError, printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain 'text' — naïve 列 🙂", "plain 'text' — naïve 列 🙂"),
        ("two\nlines\tand\0nul", "two\\nlines\\tand\\x00nul"),
        ("\x1b[2Jcleared", "\\x1b[2Jcleared"),
        ("\u202eturned", "\\u202eturned"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_control_characters_are_spelled_out(text, expected):
    assert printable(text) == expected


def test_long_texts_are_cut_in_the_middle():
    shown = printable("a" * 10**6 + "b")
    assert len(shown) == 2001
    assert shown.startswith("aaa")
    assert shown.endswith("b")


def test_errors_are_one_line():
    error = DataError("no column 'a\nb'", place="x\r.csv", remedy="Rename 'a\nb'")
    assert str(error) == "x\\r.csv: no column 'a\\nb'. Rename 'a\\nb'"
    # What programs read is as it is.
    assert error.message == "no column 'a\nb'"


def test_config_errors_are_a_line_a_problem():
    problems = [ConfigProblem("c.yaml:1", "a", "bad\nname"), ConfigProblem("c.yaml:2", "", "b")]
    assert str(ConfigError(problems)).splitlines() == [
        "2 problems in the config:",
        "  c.yaml:1: a: bad\\nname",
        "  c.yaml:2: b",
    ]
