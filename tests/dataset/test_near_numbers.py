"""Columns that are texts for a few of their values, and would be numbers without."""

import pyarrow as pa
import pytest

from ctr_pipeline.dataset.bad_rows import BadRow, BadRowReason, shorten
from ctr_pipeline.dataset.near_numbers import find_near_numbers, means_missing
from ctr_pipeline.specs.columns import ColumnType

NUMBERS = [f"{number / 8}" for number in range(95)]


def near(values, kind=ColumnType.TEXT):
    return find_near_numbers(
        pa.table({"price": pa.array(values, pa.string())}), {"price": kind}
    ).get("price")


@pytest.mark.parametrize(
    "word", ["NULL", "\\N", "NA", "n/a", "-", "None", "NaT", "?", "(null)", " NULL "]
)
def test_words_that_mean_missing(word):
    found = near([*NUMBERS, word, word, None])
    assert found.words == (word.strip(),)
    assert found.share == pytest.approx(2 / 97)
    assert found.reason == f"numbers but for '{word.strip()}' in 2.1% of its values"
    assert f"list '{word.strip()}' in data.missing_values" in found.describe("price")


def test_several_words_and_one_in_many():
    assert near([*NUMBERS, "NULL", "-", "NULL"]).words == ("NULL", "-")
    assert "under 0.1%" in near([*NUMBERS * 21, "NULL"]).reason


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (["$1.20", "$3", "-$0.5"], "a currency sign"),
        (["1,20 €", "3 €"], "a currency sign"),
        (["12 %", "7%", "NULL"], "a percent sign"),
        (["1,50", "0,25"], "commas"),
        (["1,234,567", "1,000.5"], "commas"),
        (["1.234,5", "3"], "commas"),
        ([*NUMBERS, "$1.20"], "a currency sign"),
        ([*NUMBERS, "many", "off"], "other texts"),
    ],
)
def test_numbers_that_are_written_otherwise(values, what):
    found = near(values)
    assert found.words == ()
    assert what in found.what
    example = next(value for value in values if value not in {*NUMBERS, "3"})
    assert found.example == example
    # A reason may be about a sensitive column.
    assert example not in found.reason
    assert f"('{example}')" in found.describe("price")
    assert example not in found.describe("price", is_sensitive=True)


@pytest.mark.parametrize(
    "values",
    [
        ["rome", "oslo", "NULL"],
        ["NULL", "NA"],
        [None, None],
        # Codes are no numbers, and so are lists, dates, and numbers among many texts.
        [*NUMBERS, "007", "NULL"],
        [*NUMBERS, "02134"],
        ["1,2,3", "4,5,6"],
        ["2024-03-31", "2024-04-01"],
        [*NUMBERS[:10], "a", "b", "c"],
        ["$1.20", "12 %"],
    ],
)
def test_texts_are_texts(values):
    assert near(values) is None


def test_numbers_are_not_looked_at():
    assert near([*NUMBERS, "NULL"], ColumnType.NUMBER) is None


@pytest.mark.parametrize("word", ["NULL", "\\N", " na "])
def test_a_word_among_numbers_has_its_remedy(word):
    assert means_missing(word)
    bad = BadRow(
        file="a.csv", row=7, column="x", reason=BadRowReason.NOT_A_NUMBER, value=shorten(word)
    )
    error = bad.as_error()
    assert error.place == "a.csv, row 7, column 'x'"
    assert f"data.missing_values: ['{word}']" in error.remedy
    other = bad.model_copy(update={"value": shorten("it's")}).as_error()
    assert "Mend the value, list it in data.missing_values" in other.remedy
    assert not means_missing("0")
