from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ctr_pipeline.errors import ExportError
from ctr_pipeline.export.parity import TOLERANCE, ProvingProcess, compare_scores, describe_row


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def test_equal_scores_agree_whatever_they_are() -> None:
    logits = np.array([0.0, -3.0, 50.0, np.nan, np.inf, -np.inf])
    comparison = compare_scores(logits, logits.astype(np.float32), sigmoid(logits))
    assert comparison.problem is None
    assert comparison.max_difference == 0


@pytest.mark.parametrize(
    ("expected", "logit", "agree"),
    [
        (0.5, 0.5 + 0.9 * TOLERANCE, True),
        (0.5, 0.5 + 1.1 * TOLERANCE, False),
        # Relative where the logit is large.
        (1000.0, 1000.0 + 500 * TOLERANCE, True),
        (1000.0, 1000.0 + 1500 * TOLERANCE, False),
        (1.0, np.nan, False),
        (np.nan, 1.0, False),
        (np.inf, 1.0, False),
        (np.inf, -np.inf, False),
    ],
)
def test_tolerance(expected: float, logit: float, agree: bool) -> None:
    logits = np.array([1.0, logit, 2.0])
    with np.errstate(over="ignore"):
        comparison = compare_scores(np.array([1.0, expected, 2.0]), logits, sigmoid(logits))
    assert (comparison.problem is None) == agree
    assert comparison.row == 1
    if not agree:
        assert comparison.problem is not None
        assert f"{expected:.6g} in training" in comparison.problem


def test_probabilities_are_those_of_the_logits() -> None:
    logits = np.array([0.0, 1.0])
    comparison = compare_scores(logits, logits, np.array([0.5, 0.6]))
    assert comparison.row == 1
    assert comparison.problem is not None
    assert "probability 0.6" in comparison.problem


def test_rows_are_described_with_long_values_cut_and_sensitive_ones_hidden() -> None:
    rows = pa.table({"a": ["x" * 100], "b": [None], "c": ["secret"]})
    types = dict.fromkeys(rows.column_names, "string")
    described = describe_row(rows, 0, types, sensitive={"c"})
    assert described == f"a='{'x' * 35}...', b=missing, c=(hidden)"


def test_a_row_of_many_columns_is_described_in_part() -> None:
    rows = pa.table({f"c{index}": [index] for index in range(60)})
    described = describe_row(rows, 0, dict.fromkeys(rows.column_names, "double"), ())
    assert described.startswith("c0=0, c1=1, ")
    assert described.endswith("c49=49 and 10 more columns")


@pytest.mark.parametrize(
    ("script", "timeout_seconds", "said"),
    [
        ("echo out of memory >&2\nexit 137", 60.0, "cannot run the export: out of memory"),
        ("exec sleep 60", 0.01, "12 rows took longer than 0 seconds.*Lower export.parity_rows"),
    ],
)
def test_a_proving_process_that_dies_or_takes_forever_is_named(
    tmp_path: Path, script: str, timeout_seconds: float, said: str
) -> None:
    interpreter = tmp_path / "python.sh"
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    with (
        ProvingProcess(str(interpreter), timeout_seconds=timeout_seconds) as process,
        pytest.raises(ExportError, match=said) as caught,
    ):
        process.score(tmp_path / "export", tmp_path / "request", tmp_path / "response", 12)
    assert str(tmp_path / "export") in str(caught.value)
