import math

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.dataset.value_texts import one_text
from ctr_pipeline.export.request_texts import one_texts, parse_numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e3", 1000.0),
        ("-4", -4.0),
        (" 5", 5.0),
        ("\u00a05\t", 5.0),
        ("+5", 5.0),
        (".5", 0.5),
        ("True", 1.0),
        ("FALSE", 0.0),
        ("5.", 5.0),
        ("00012", 12.0),
        ("1e400", math.inf),
        ("-1e400", -math.inf),
        ("1e-400", 0.0),
        ("5e-324", 5e-324),
        ("Infinity", math.inf),
        ("-INF", -math.inf),
        ("123456789012345678901234567890", 123456789012345678901234567890.0),
        *((text, math.nan) for text in ["", " ", "nan", "abc", "1,5", "0x10", "1e", "--1", "1_0"]),
        *((text, math.nan) for text in ["5\x00", "٣", "1 2", "NA", "-"]),
    ],
)
def test_number_parser_reads_as_the_file_readers_do(text: str, number: float) -> None:
    np.testing.assert_equal(parse_numbers(tf.constant([text])).numpy(), [number])


def test_bytes_that_are_no_text_are_missing() -> None:
    assert np.isnan(parse_numbers(tf.constant([b"\xff5"])).numpy()).all()


def test_the_one_text_of_a_value_is_that_of_the_file_readers() -> None:
    texts = ["1084.0", "-0.0", "9000000000000000.0", "True", "fALSE", "007.0", "7.5", "", "é.0"]
    texts += [" 7.0", "u1 ", "\t\v\nu 1\f\r", "  ", "é ", "\u00a0x", "a\nb "]
    expected = one_text(pa.array(texts)).to_pylist()
    assert [text.decode() for text in one_texts(tf.constant(texts)).numpy()] == expected


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_shortest_digits_read_back_exactly(numbers: list[float]) -> None:
    parsed = parse_numbers(tf.constant([repr(number) for number in numbers])).numpy()
    np.testing.assert_array_equal(parsed, numbers)
