import math

import numpy as np
import pyarrow as pa
import pytest

from ctr_pipeline.export.raw_table import columns_as_arrays, columns_as_texts, render_value

ROWS = pa.table({"n": [1.5, None, -math.inf, 0.1], "t": ["a", None, "ž", ""], "i": [1, 2, None, 3]})
TYPES = {"n": "double", "t": "string", "i": "double"}


def test_typed_columns() -> None:
    columns = columns_as_arrays(ROWS, TYPES)
    np.testing.assert_equal(columns["n"], [1.5, math.nan, -math.inf, 0.1])
    np.testing.assert_equal(columns["i"], [1.0, 2.0, math.nan, 3.0])
    assert columns["t"].tolist() == [b"a", b"", "ž".encode(), b""]


def test_texts_read_back_as_the_same_number() -> None:
    texts = columns_as_texts(ROWS, TYPES)
    assert texts["n"].tolist() == [b"1.5", b"", b"-inf", b"0.1"]
    assert texts["t"].tolist() == [b"a", b"", "ž".encode(), b""]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no column 'x'"):
        columns_as_arrays(ROWS, {"x": "double"})
    with pytest.raises(ValueError, match="column 't' is no double"):
        columns_as_arrays(ROWS, {"t": "double"})


def test_values_in_messages_are_short() -> None:
    assert render_value(None) == "missing"
    assert render_value("x" * 5000) == f"'{'x' * 35}...'"
