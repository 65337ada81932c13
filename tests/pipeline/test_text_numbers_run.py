"""Counts and click rates of texts through a whole run: training rows, test rows, export."""

import json
import random

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.pipeline.run import run_pipeline
from ctr_pipeline.progress import SilentProgress

pytestmark = pytest.mark.slow

NUM_ROWS = 1500


def when(number):
    """A text in all forms of a time; every hundredth tells none."""
    day, hour = number % 28 + 1, number % 24
    return (
        f"2024-02-{day:02d}",
        f"2024-02-{day:02d}T{hour:02d}:05",
        f"2024-02-{day:02d} {hour:02d}:05:59.5+0530",
        "soon" if number % 100 == 3 else "",
    )[number % 4]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    chance = random.Random(2)
    lines = ["label,session,city,price,when"]
    for number in range(NUM_ROWS):
        city = chance.choice("abcde")
        label = int(chance.random() < 0.1 + 0.15 * "abcde".index(city))
        lines.append(f"{label},s{number // 2},{city},{chance.random():.4f},{when(number)}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    loaded = config_from_mapping(
        {
            "data": {"train": str(folder / "rows.csv")},
            "features": [
                # Two rows a session and no click in common: what it predicts is a leak.
                {"columns": "session", "number": [{"target_encode": {"smoothing": 1.0}}]},
                {
                    "columns": "city",
                    "number": [{"target_encode": {"order": "time"}}, "standardize"],
                    "id": ["count_encode", {"bucketize": {"quantiles": 3}}],
                },
                {
                    "columns": "when",
                    "number": [{"age": {"at": "2024-03-01"}}, "log"],
                    "id": {"datetime": {"parts": ["hour", "weekday"]}},
                },
                {"columns": "price", "id": {"bucketize": {"equal_width": 5}}},
            ],
            "model": {"embedding_dim": 2, "hidden_units": [4]},
            "train": {"epochs": 1, "batch_size": 128},
            "export": {"parity_rows": 100},
            "output": str(folder / "out"),
        }
    )
    run_pipeline(loaded, progress=SilentProgress())
    return folder / "out"


def rows_of(folder, split):
    with EncodedReader(folder / "cache" / "encoded" / split) as reader:
        return reader.read_range(0, reader.meta.num_rows)


def test_sessions_do_not_give_their_own_labels_away(finished):
    train = rows_of(finished, "train")
    assert abs(roc_auc_score(train.labels_B, train.numbers_BN[:, 0]) - 0.5) < 0.06
    # A session of the test rows is new, or has a row at the border: all but one have the base rate.
    test = rows_of(finished, "test")
    values, counts = np.unique(test.numbers_BN[:, 0], return_counts=True)
    base = values[counts.argmax()]
    assert counts.max() >= len(test.labels_B) - 1
    assert base == pytest.approx(train.labels_B.mean(), rel=1e-6)


def test_cities_are_still_told_apart(finished):
    for split, least in (("train", 0.6), ("test", 0.6)):
        rows = rows_of(finished, split)
        assert roc_auc_score(rows.labels_B, rows.numbers_BN[:, 1]) > least
    test = rows_of(finished, "test")
    assert len(np.unique(test.numbers_BN[:, 1])) == 5


def test_texts_without_a_time_are_counted_and_missing(finished):
    html = (finished / "report.html").read_text()
    assert "12 of 912 texts tell no time" in html
    test = rows_of(finished, "test")
    # Fields: count of cities, hour, weekday, price; the last id of each is that of missing values.
    assert set(np.unique(test.ids_BF[:, 2])) == set(range(8))
    is_missing = test.ids_BF[:, 2] == 7
    assert (test.ids_BF[is_missing, 1] == 24).all()
    assert (test.numbers_BN[is_missing, 2] == 0).all()
    assert is_missing.mean() == pytest.approx(0.25, abs=0.01)


def test_the_export_scores_as_the_trainer_does(finished):
    proof = json.loads((finished / "export" / "1" / "parity.json").read_text())
    assert proof["num_rows"] >= 100
    html = (finished / "report.html").read_text()
    assert "target_encode" in html
    assert "count_encode" in html
