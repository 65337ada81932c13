import numpy as np
import pytest

from ctr_pipeline.errors import TrainingError
from ctr_pipeline.pipeline.model.score_files import ScoreFiles
from tests.training.training_problem import draw_rows, write_rows


@pytest.fixture
def encoded(tmp_path):
    return write_rows(tmp_path / "valid", *draw_rows(300, 2))


def put(folder, task, logits):
    folder.mkdir(exist_ok=True)
    np.asarray(logits, "<f4").tofile(folder / f"valid-{task}.f32")


def test_tasks_are_put_in_the_order_of_their_numbers(tmp_path, encoded):
    expected = np.arange(300, dtype=np.float32)
    scores = tmp_path / "scores"
    for task in range(12):
        put(scores, task, expected[task * 25 : (task + 1) * 25])
    put(tmp_path / "scores", 0, expected[:25])
    (scores / "test-0.f32").write_bytes(b"other")
    found = ScoreFiles(scores).load("valid", encoded)
    assert np.array_equal(found.logits, expected)
    assert np.array_equal(found.labels, draw_rows(300, 2)[2])


@pytest.mark.parametrize("tasks", [(0,), (0, 2), (1, 2), ()])
def test_rows_without_scores_are_told(tmp_path, encoded, tasks):
    for task in tasks:
        put(tmp_path / "scores", task, np.zeros(100))
    with pytest.raises(TrainingError, match=f"{len(tasks) * 100} of 300 valid rows"):
        ScoreFiles(tmp_path / "scores").load("valid", encoded)
