import logging

import pytest

from ctr_pipeline.errors import DataError
from ctr_pipeline.tracebacks import LogFormatter, conceal_values, render_traceback, summarize


@pytest.fixture(autouse=True)
def openly():
    conceal_values(False)
    yield
    conceal_values(False)


VALUE = "alice@" + "example"
"""No line of this file holds it whole: tracebacks quote lines."""


def caught():
    try:
        try:
            raise ValueError(VALUE)
        except ValueError as error:
            raise RuntimeError("row of", VALUE) from error
    except RuntimeError as error:
        return error


def test_texts_are_told_where_no_column_is_sensitive():
    assert VALUE in summarize(caught())
    assert render_traceback(caught()).count(VALUE) == 2


def test_types_and_places_alone_are_told_where_one_is():
    conceal_values(True)
    told = render_traceback(caught())
    assert VALUE not in told
    assert told.endswith("RuntimeError\n")
    assert "ValueError\n" in told
    assert "test_tracebacks.py" in told
    assert summarize(caught()) == "RuntimeError"


def test_our_own_messages_are_told_always():
    conceal_values(True)
    assert summarize(DataError("is empty", place="x.csv")) == "DataError: x.csv: is empty"


def test_log_records_tell_no_more():
    conceal_values(True)
    error = caught()
    info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "failed", (), info)
    told = LogFormatter("%(message)s").format(record)
    assert told.startswith("failed\n")
    assert VALUE not in told


def test_a_cycle_of_causes_ends():
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    conceal_values(True)
    assert render_traceback(first).count("ValueError") == 1


def test_a_log_line_commands_no_terminal():
    record = logging.LogRecord(
        "n", logging.ERROR, "f", 1, "column %s\nnext", ("\x1b]0;x\x07",), None
    )
    assert LogFormatter("%(message)s").format(record) == "column \\x1b]0;x\\x07\nnext"
