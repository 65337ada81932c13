"""`ctrpipe init` and `ctrpipe run`, nothing edited between them, on tables unlike Criteo's."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from ctr_pipeline.cli.main import main

pytestmark = pytest.mark.slow


def clicks_of(random, logits):
    return (random.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(int)


def write_shop(folder):
    """Timestamps, blanks and other letters in names, booleans, lists, sentences, an identifier."""
    random = np.random.default_rng(0)
    num_rows = 6_000
    seconds = np.sort(random.integers(0, 30 * 86_400, num_rows))
    moments = pd.Timestamp("2024-03-01") + pd.to_timedelta(seconds, unit="s")
    hours = (seconds // 3600) % 24
    goods = random.integers(0, 40, num_rows)
    is_mobile = random.random(num_rows) < 0.4
    tags = [
        "|".join(
            random.choice(["новый", "sale", "赤", "x y"], random.integers(1, 4), replace=False)
        )
        for _ in range(num_rows)
    ]
    words = np.array(["soft", "broken", "fine", "late", "schön", "again", "never", "box"])
    logits = -1.0 + 1.2 * (hours > 17) + np.linspace(-1, 1, 40)[goods] + 0.8 * is_mobile
    table = pd.DataFrame(
        {
            "clicked": clicks_of(random, logits),
            "Zeit der Anzeige": moments.strftime("%Y-%m-%d %H:%M:%S"),
            "商品 id": [f"п{number}" for number in goods],
            "is mobile": np.where(is_mobile, "true", "false"),
            "Schlagwörter, alle": tags,
            "review text": [
                " ".join(random.choice(words, 9)) + f" {number}" for number in range(num_rows)
            ],
            "order no.": [f"{number:08x}" for number in random.permutation(num_rows)],
            "currency": "EUR",
        }
    )
    table.to_csv(folder / "shop.csv", index=False)
    return "shop.csv", {"order no.", "currency"}


def write_sensors(folder):
    """A hundred numbers with gaps, heavy tails and negatives; a copy of the label among them."""
    random = np.random.default_rng(1)
    num_rows = 5_000
    numbers = random.normal(0, 1, (num_rows, 100))
    clicks = clicks_of(random, numbers[:, :5].sum(axis=1) - 1)
    columns = {f"x{index}": numbers[:, index] for index in range(100)}
    columns["x7"] = np.exp(3 * numbers[:, 7])
    columns["x8"] = np.where(random.random(num_rows) < 0.6, np.nan, numbers[:, 8])
    columns["x9"] = np.round(numbers[:, 9])
    columns["billed"] = clicks * 2.5
    columns["empty"] = np.full(num_rows, np.nan)
    pd.DataFrame({"clicked": clicks, **columns}).to_parquet(folder / "sensors.parquet")
    return "sensors.parquet", {"billed", "empty"}


def write_rare(folder):
    """Three columns, and three clicks in a thousand rows."""
    random = np.random.default_rng(2)
    num_rows = 120_000
    site, slot = random.integers(0, 200, num_rows), random.integers(0, 4, num_rows)
    price = random.lognormal(1, 1, num_rows).round(2)
    logits = -7.6 + np.linspace(-2, 2, 200)[site] + 0.5 * slot + 0.3 * np.log(price)
    table = pd.DataFrame(
        {"clicked": clicks_of(random, logits), "site": site, "slot": slot, "price": price}
    )
    assert 0.002 < table["clicked"].mean() < 0.004
    table.to_csv(folder / "rare.tsv", index=False, sep="\t")
    return "rare.tsv", set()


@pytest.mark.parametrize("write", [write_shop, write_sensors, write_rare])
def test_an_unedited_config_learns(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    data, left_out = write(tmp_path)
    assert main(["init", data, "--label", "clicked", "--output", "new.yaml", "-q"]) == 0
    call = ["run", "new.yaml", "-q", "--set", "output=run", "--set", "train.epochs=3"]
    assert main(call) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"]["auc"] > 0.62
    assert metrics["test"]["logloss"] < metrics["test"]["baseline_logloss"]
    resolved = (tmp_path / "run" / "config.resolved.yaml").read_text(encoding="utf-8")
    features = yaml.safe_load(resolved)["features"]
    used = {name for entry in features for name in entry["columns"]}
    assert used
    assert not used & left_out
    assert (tmp_path / "run" / "report.html").exists()
