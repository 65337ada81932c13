"""`features: auto` decides by what columns hold: headers play no part, and the plan is good."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctr_pipeline.apps.check import preview_features
from ctr_pipeline.apps.sample.criteo_sample import write_criteo_sample
from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.pipeline.run import train
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "configs" / "examples").glob("*.csv"))}
CODINGS = {
    "counted": lambda which: which + 1,
    "from a million on": lambda which: which + 10**6,
    "from 10^17 on": lambda which: which + 10**17,
    "hashes": lambda which: (
        (which.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    ),
}
IDS = ("user", "item", "code")
MEASURES = ("age", "price", "seen")
# What names could be taken for: ids, times, codes, measures, and words of SQL.
NAMES = ["zip", "user_id", "price", "timestamp", "hash", "age", "created_at", "count", "from", "0"]


def draw(coding, *, seed=0, size=12_000):
    """Ids, codes whose order means nothing, measures and small counts, of which all act."""
    random = np.random.default_rng(seed)
    logits = np.zeros(size)
    columns = {}
    for name, num_values, effect in (("user", 300, 0.9), ("item", 2_000, 0.7), ("code", 60, 0.6)):
        which = (num_values * random.random(size) ** 1.5).astype(np.int64)
        logits += random.normal(0, effect, num_values)[which]
        columns[name] = coding(which) if name != "code" else 37 * which % 1009
    columns["age"] = random.integers(15, 75, size)
    columns["price"] = random.lognormal(5, 1.5, size).astype(np.int64)
    columns["seen"] = random.poisson(random.gamma(1, 3, size))
    logits += np.sin(columns["age"] / 10) + 0.4 * np.log1p(columns["seen"])
    logits -= 0.4 * np.log1p(columns["price"])
    chances = 1 / (1 + np.exp(logits.mean() - logits + 1.2))
    return pd.DataFrame({"click": (random.random(size) < chances).astype(int), **columns})


def preview(path, label="click", **data):
    settings = {"data": {"train": str(path), "label": label, **data}, "features": "auto"}
    return preview_features(config_from_mapping(settings))


def plan_by_place(path, names, label="click"):
    """What becomes of each column and why, in the order of the columns, without their names."""
    found = preview(path, label)
    places = {name: place for place, name in enumerate(names)}
    used = [
        (places[one.column], one.model_dump(mode="json", exclude={"column"}))
        for one in found.features
    ]
    left_out = [(places[one.column], one.reason) for one in found.left_out]
    return sorted(used, key=lambda pair: pair[0]), sorted(left_out)


def rename(path, output, label, seed):
    """Writes the table with other names, its own by turns if there is no seed; both headers."""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file, delimiter=delimiter)
    others = [name for name in header if name != label]
    drawn = iter([*others[1:], others[0]])
    if seed is not None:
        pool = np.array(list(dict.fromkeys([*others, *NAMES])))
        drawn = iter(np.random.default_rng(seed).permutation(pool).tolist())
    renamed = [name if name == label else next(drawn) for name in header]
    with output.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([renamed, *rows])
    return header, renamed


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Paths of tables, and their labels."""
    folder = tmp_path_factory.mktemp("tables")
    found = {name: (path, "click") for name, path in EXAMPLES.items()}
    for name, coding in CODINGS.items():
        path = folder / f"{name}.csv"
        draw(coding).to_csv(path, index=False)
        found[name] = path, "click"
    found["sample"] = folder / "sample.tsv", "label"
    write_criteo_sample(
        found["sample"][0], num_rows=3_000, seed=0, header=True, progress=SilentProgress()
    )
    return found


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("name", [*EXAMPLES, "sample", *CODINGS])
def test_other_headers_give_the_same_plan(tables, name, seed, tmp_path):
    path, label = tables[name]
    output = tmp_path / f"renamed{path.suffix}"
    header, renamed = rename(path, output, label, seed)
    assert renamed != header
    plan = plan_by_place(path, header, label)
    assert plan_by_place(output, renamed, label) == plan
    assert plan[0]


@pytest.mark.parametrize("name", CODINGS)
def test_ids_are_ids_and_measures_are_numbers(tables, name):
    found = {one.column: one for one in preview(tables[name][0]).features}
    types = {column: one.column_type for column, one in found.items()}
    assert types == dict.fromkeys(IDS, ColumnType.TEXT) | dict.fromkeys(MEASURES, ColumnType.NUMBER)
    assert "so they are ids" in found["code"].reason
    assert "so they are a measure" in found["price"].reason


@pytest.mark.parametrize("name", ["counted", "hashes"])
def test_parquet_files_give_the_plan_of_text_files(tables, name, tmp_path):
    path, _ = tables[name]
    draw(CODINGS[name]).to_parquet(tmp_path / "rows.parquet")
    (found, other) = (
        [one.model_dump(mode="json") for one in preview(one_path).features]
        for one_path in (path, tmp_path / "rows.parquet")
    )
    assert found == other


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_ids_that_are_stored_as_floats_are_ids(tables, ending, tmp_path):
    """As pandas stores them where one is missing, and not where none is."""
    rows = draw(CODINGS["counted"]).astype({"user": float})
    path = tmp_path / f"rows.{ending}"
    rows.to_parquet(path) if ending == "parquet" else rows.to_csv(path, index=False)
    found, other = (
        {one.column: one.model_dump(mode="json") for one in preview(one_path).features}
        for one_path in (path, tables["counted"][0])
    )
    assert found["user"] == other["user"]


@pytest.mark.parametrize(
    "name",
    [
        "counted",
        "hashes",
        pytest.param("from a million on", marks=pytest.mark.nightly),
        pytest.param("from 10^17 on", marks=pytest.mark.nightly),
    ],
)
def test_the_plan_is_as_good_as_the_best_by_hand(name, tmp_path):
    by_hand = {
        "right": [
            {"columns": list(IDS), "type": "categorical"},
            {"columns": list(MEASURES), "type": "numeric"},
        ],
        "all ids": [{"columns": [*IDS, *MEASURES], "type": "categorical"}],
        "all numbers": [{"columns": [*IDS, *MEASURES], "type": "numeric"}],
    }
    found = {"auto": [], **{plan: [] for plan in by_hand}}
    for seed in range(2):
        path = tmp_path / f"{seed}.csv"
        draw(CODINGS[name], seed=seed, size=24_000).to_csv(path, index=False)
        for plan, features in {"auto": "auto", **by_hand}.items():
            if seed and np.mean(found[plan]) < np.mean(found["auto"]) - 0.02:
                continue
            settings = {
                "data": {
                    "train": str(path),
                    "label": "click",
                    "split": {"valid": 0.1, "test": 0.4},
                },
                "features": features,
                "model": {"embedding_dim": 4, "hidden_units": [16]},
                "train": {"seed": seed},
                "output": str(tmp_path / "run"),
            }
            loaded = config_from_mapping(settings)
            train(loaded, overwrite=True, progress=SilentProgress())
            metrics = evaluate(loaded, progress=SilentProgress())
            found[plan].append(metrics["auc"])
    best = max(np.mean(aucs) for aucs in found.values())
    assert np.mean(found["auto"]) > best - 0.002, found
