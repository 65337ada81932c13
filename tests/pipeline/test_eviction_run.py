"""Rows evicted by age: ids that stop appearing vanish, within a run and over runs."""

import random

import numpy as np
import pytest

import ctr_pipeline
from ctr_pipeline.dataset.encoded import EncodedReader

pytestmark = pytest.mark.slow

BATCH = 64
NUM_ROWS = 1600


def write_rows(path, *, seed, names):
    """Clicks of items; each name is an item's in a part of the rows, one part after the other."""
    chance = random.Random(seed)
    lines = ["click,item,user"]
    for number in range(NUM_ROWS):
        some = names[number * len(names) // NUM_ROWS]
        item = f"{some}{chance.randrange(12)}"
        click = int(chance.random() < (0.6 if item.endswith("1") else 0.3))
        lines.append(f"{click},{item},u{chance.randrange(9)}")
    path.write_text("\n".join(lines) + "\n")


def run(tmp_path, name, *, evict_after, epochs=1, **train):
    embeddings = {} if evict_after is None else {"evict_after": evict_after}
    return ctr_pipeline.run(
        {
            "name": name,
            "data": {
                "train": str(tmp_path / f"{name[:4]}.csv"),
                "label": "click",
                "split": {"valid": 0.1, "test": 0.1},
            },
            "features": [{"columns": ["item", "user"], "id": [{"hash": {"buckets": 5000}}]}],
            "model": {"name": "deepfm", "embedding_dim": 4, "hidden_units": [8]},
            "train": {
                "epochs": epochs,
                "batch_size": BATCH,
                "shuffle": False,
                "early_stopping": None,
                "embeddings": embeddings,
                **train,
            },
            "report": {},
            "output": str(tmp_path / name),
        }
    )


def last_steps(tmp_path, name):
    """The last step of each id of each field, counted from 1, and the number of steps."""
    with EncodedReader(tmp_path / name / "cache/encoded/train") as rows:
        ids_RF = rows.read_range(0, rows.meta.num_rows).ids_BF
    found = {}
    for number, ids in enumerate(ids_RF):
        for field, one in enumerate(ids):
            found[field, int(one)] = number // BATCH + 1
    return found, -(-len(ids_RF) // BATCH)


def test_ids_that_stop_appearing_vanish_and_those_that_go_on_stay(tmp_path):
    write_rows(tmp_path / "day1.csv", seed=1, names="ab")
    after = 4
    # The proof that export and trainer score alike is part of it: rows of vanished ids are in it.
    result = run(tmp_path, "day1", evict_after=after, epochs=2)
    last, steps = last_steps(tmp_path, "day1")
    staying = sum(seen >= steps - after for seen in last.values())
    assert result.metrics["training"]["embedding_rows"] == staying < len(last) - 10
    said = f"{len(last) - staying} embedding rows without an update in {after} steps are removed"
    # In the second epoch they were there again, and went again.
    assert (tmp_path / "day1/run.log").read_text().count(said) == 2


def test_ages_go_on_in_a_run_that_begins_from_another(tmp_path):
    write_rows(tmp_path / "day1.csv", seed=1, names="abcd")
    write_rows(tmp_path / "day2.csv", seed=2, names="d")
    first = run(tmp_path, "day1", evict_after=None)
    before, steps = last_steps(tmp_path, "day1")
    assert first.metrics["training"]["embedding_rows"] == len(before)
    # Both runs have as many steps: first, all of day 1 alone is old, then what its first part had.
    for name, after in (("day2", steps), ("day2-long", steps + 8)):
        result = run(tmp_path, name, evict_after=after, init_from={"run": str(tmp_path / "day1")})
        own, own_steps = last_steps(tmp_path, name)
        assert own_steps == steps
        last = {**before, **{one: steps + seen for one, seen in own.items()}}
        staying = sum(seen >= 2 * steps - after for seen in last.values())
        assert result.metrics["training"]["embedding_rows"] == staying
        assert len(own) <= staying < len(last) - 5
        assert (staying > len(own) + 5) == (after > steps)


def test_rows_stay_without_eviction(tmp_path):
    write_rows(tmp_path / "day1.csv", seed=1, names="ab")
    results = [
        run(tmp_path, name, evict_after=after) for name, after in (("day1", None), ("day1-x", 99))
    ]
    last, _ = last_steps(tmp_path, "day1")
    assert [one.metrics["training"]["embedding_rows"] for one in results] == [len(last)] * 2
    assert results[0].metrics["test"] == results[1].metrics["test"]
    assert np.isfinite(results[0].metrics["test"]["logloss"])
