import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.reporting.formats import (
    bytes_text,
    count_text,
    duration_text,
    metric_text,
    percent_text,
    short_count,
    shorten,
    value_text,
    visible_text,
)


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (count_text, 1234567, "1,234,567"),
        (short_count, 9999, "9,999"),
        (short_count, 17_600, "17.6 k"),
        (short_count, 999_950, "1 M"),
        (short_count, 1_234_567, "1.23 M"),
        (short_count, 2_000_000_000, "2 G"),
        (percent_text, 0.2567, "25.7 %"),
        (percent_text, 0.0, "0.0 %"),
        (percent_text, 0.0001, "< 0.1 %"),
        (percent_text, 0.99999, "> 99.9 %"),
        (percent_text, 1.0, "100.0 %"),
        (percent_text, None, "–"),
        (bytes_text, 2048, "2 KB"),
        (bytes_text, 3 * 2**40, "3 TB"),
        (duration_text, 0.0421, "42 ms"),
        (duration_text, 0.9999, "1.0 s"),
        (duration_text, 59.99, "1 min 0 s"),
        (duration_text, 125, "2 min 5 s"),
        (duration_text, 7260, "2 h 1 min"),
        (value_text, 0.0, "0"),
        (value_text, -2.0, "−2"),
        (value_text, 25.3149, "25.31"),
        (value_text, 3.1e-7, "3.1e−7"),
        (value_text, 1234.5678, "1,235"),
        (value_text, -1.5e12, "−1.5e12"),
        (value_text, float("inf"), "∞"),
        (value_text, float("nan"), "NaN"),
        (value_text, None, "–"),
        (metric_text, -0.00312, "−0.0031"),
    ],
)
def test_numbers_as_a_person_reads_them(function, value, text):
    assert function(value) == text


@given(st.text(max_size=200), st.integers(5, 40))
def test_shortened_text_is_one_printable_line_that_can_be_encoded(text, length):
    line = shorten(text, length)
    assert len(line) <= length
    assert "\n" not in line
    line.encode("utf-8")


@given(st.floats())
def test_every_value_has_a_short_text(value):
    assert 1 <= len(value_text(value)) <= 12


def test_direction_overrides_and_control_characters_are_shown_not_obeyed():
    assert visible_text("a\u202eb\x00c\ud800") == "a\\u202eb\\x00c\\ud800"
    assert visible_text("שלום 你好 é") == "שלום 你好 é"
    assert shorten("a\nb\tc", 20) == "a\\nb\\tc"
