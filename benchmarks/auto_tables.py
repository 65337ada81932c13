"""Tables of many shapes for `auto_quality.py`, from planted models, and windows of Criteo rows.

Each maker is a pure function of the numbers it draws. What a column is (`Shape`) is told to the
opponent, who has no other way to know; ours sees the values alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd
from criteo_quality import read_rows
from generated_sets import bias_of_rate
from logistic_regression import CATEGORIES, NUMBERS
from numpy.random import Generator
from numpy.typing import NDArray

from ctr_pipeline.apps.sample.planted_model import sigmoid

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LABEL = "click"


class Shape(StrEnum):
    """What a column is."""

    NUMBER = "number"
    CATEGORY = "category"
    LIST = "list"
    TIME = "time"


@dataclass(frozen=True)
class Sizes:
    """Rows of each part, which follow each other."""

    train: int
    valid: int
    test: int

    @property
    def total(self) -> int:
        """Rows of all parts."""
        return self.train + self.valid + self.test


@dataclass(frozen=True)
class Drawn:
    """Rows in order.

    Attributes:
        columns: By name, without the label.
        shapes: Of each column.
        logits_B: True ones, up to a constant.
        click_rate: Of all rows.
    """

    columns: dict[str, NDArray[np.generic] | list[str]]
    shapes: dict[str, Shape]
    logits_B: Floats
    click_rate: float


@dataclass(frozen=True)
class Parts:
    """A table's rows, divided.

    Attributes:
        rows: By part: train, valid, test; missing values are NaN or ''.
        shapes: Of each column but the label.
        true_B: Click probabilities of the test rows; None of real rows.
    """

    rows: dict[str, pd.DataFrame]
    shapes: Mapping[str, Shape]
    true_B: Floats | None

    def labels(self, part: str) -> Floats:
        """Clicks."""
        return self.rows[part][LABEL].to_numpy(dtype=np.float64)


def _zipf(random: Generator, size: int, num_values: int, power: float = 1.0) -> Ints:
    """Ids whose frequencies fall by a power law."""
    weights = 1.0 / np.arange(1, num_values + 1) ** power
    return random.choice(num_values, size=size, p=weights / weights.sum())


def _labels_of(random: Generator, num_values: int, digits: int) -> Ints:
    """Different whole numbers without meaning, of so many digits."""
    low, high = 10 ** (digits - 1), 10**digits
    return low + random.choice(high - low, size=num_values, replace=False)


def _texts(prefix: str, ids_B: Ints) -> list[str]:
    return [f"{prefix}{id_}" for id_ in ids_B]


def _hexadecimal(random: Generator, num_values: int, ids_B: Ints) -> list[str]:
    names = [f"{name:08x}" for name in random.choice(2**32, size=num_values, replace=False)]
    return [names[id_] for id_ in ids_B]


def _scaled(values_B: Floats, deviation: float) -> Floats:
    return (values_B - values_B.mean()) * (deviation / values_B.std())


def draw_census(random: Generator, size: int) -> Drawn:
    """Persons: few texts, and amounts that are mostly 0 and else tell by their exact value."""
    age_B = np.clip(random.gamma(8, 5, size), 17, 90).astype(int)
    education_B = _zipf(random, size, 16, 0.7)
    marital_B, occupation_B = _zipf(random, size, 7), _zipf(random, size, 14, 0.5)
    country_B = _zipf(random, size, 40, 1.8)
    hours_B = np.where(
        random.random(size) < 0.46, 40, np.clip(random.normal(40, 13, size), 1, 99).astype(int)
    )
    logits_B = (
        -(((age_B - 48) / 16) ** 2)
        + random.normal(0, 0.8, 16)[education_B]
        + random.normal(0, 0.7, 7)[marital_B]
        + random.normal(0, 0.5, 14)[occupation_B]
        + random.normal(0, 0.4, 40)[country_B]
        + np.clip((hours_B - 40) / 12, -2, 1.5) * (marital_B == 0)
    )
    amounts = {}
    for name, num_values, share in (("capital_gain", 120, 0.08), ("capital_loss", 90, 0.05)):
        values_V = np.sort(random.choice(np.arange(114, 20_000), num_values, replace=False))
        effects_V = random.normal(0, 2.5, num_values) + 1.5 * (values_V > 7_000)
        which_B = random.permutation(num_values)[_zipf(random, size, num_values, 0.7)]
        has_B = random.random(size) < share
        amounts[name] = np.where(has_B, values_V[which_B], 0)
        logits_B += np.where(has_B, effects_V[which_B], 0.0)
    columns = {
        "age": age_B,
        "weight": random.lognormal(12, 0.5, size).astype(int),
        "education": _texts("education ", education_B),
        "education_years": np.array(random.permutation(16) + 1)[education_B],
        "marital": _texts("m", marital_B),
        "occupation": _texts("o", occupation_B),
        "sex": _texts("s", random.integers(0, 2, size)),
        **amounts,
        "hours": hours_B,
        "country": _texts("country ", country_B),
    }
    texts = {"education", "marital", "occupation", "sex", "country"}
    shapes = {name: Shape.CATEGORY if name in texts else Shape.NUMBER for name in columns}
    return Drawn(columns, shapes, logits_B, 0.24)


def draw_advertising(random: Generator, size: int) -> Drawn:
    """An ad log whose ids are whole numbers under names that tell nothing."""
    advertisers, campaigns, ads, sites, devices = 40, 150, 600, 800, 15_000
    campaign_of_ad = random.integers(0, campaigns, ads)
    advertiser_of_campaign = random.integers(0, advertisers, campaigns)
    ad_B = _zipf(random, size, ads, 0.9)
    campaign_B = campaign_of_ad[ad_B]
    advertiser_B = advertiser_of_campaign[campaign_B]
    site_B, device_B = _zipf(random, size, sites, 1.0), _zipf(random, size, devices, 0.6)
    place_B, kind_B, hour_B = (
        _zipf(random, size, 7, 1.5),
        _zipf(random, size, 4),
        random.integers(0, 24, size),
    )
    width_V = np.array([120, 216, 300, 320, 480, 728, 768, 1024])
    width_B = random.integers(0, 8, ads)[ad_B]
    taste_SK, appeal_CK = random.normal(0, 1, (sites, 3)), random.normal(0, 1, (campaigns, 3))
    logits_B = (
        random.normal(0, 0.5, ads)[ad_B]
        + random.normal(0, 0.6, campaigns)[campaign_B]
        + random.normal(0, 0.6, advertisers)[advertiser_B]
        + random.normal(0, 0.8, sites)[site_B]
        + random.normal(0, 0.4, devices)[device_B]
        + random.normal(0, 0.3, 7)[place_B]
        + random.normal(0, 0.3, 4)[kind_B]
        + random.normal(0, 0.4, 8)[width_B]
        + 0.3 * np.sin(hour_B / 24 * 2 * np.pi)
        + 0.4 * np.sum(taste_SK[site_B] * appeal_CK[campaign_B], axis=1)
    )
    columns = {
        "c1": 1000 + kind_B,
        "c2": place_B,
        "c3": _hexadecimal(random, sites, site_B),
        "c4": _hexadecimal(random, devices, device_B),
        "c14": _labels_of(random, ads, 5)[ad_B],
        "c15": width_V[width_B],
        "c17": _labels_of(random, campaigns, 4)[campaign_B],
        "c19": random.choice(2_000, 70, replace=False)[_zipf(random, size, 70)],
        "c20": np.where(
            random.random(size) < 0.47, -1, _labels_of(random, 170, 6)[_zipf(random, size, 170)]
        ),
        "c21": _labels_of(random, advertisers, 3)[advertiser_B],
        "hour": hour_B,
    }
    return Drawn(columns, dict.fromkeys(columns, Shape.CATEGORY), logits_B, 0.17)


def draw_taste(random: Generator, size: int) -> Drawn:
    """Users and items whose hidden tastes meet; all ids are whole numbers."""
    users, items, regions = 1_500, 600, 80
    user_B, item_B = _zipf(random, size, users, 0.5), _zipf(random, size, items, 0.8)
    region_B = random.integers(0, regions, users)[user_B]
    taste_UK, appeal_IK = random.normal(0, 1, (users, 3)), random.normal(0, 1, (items, 3))
    logits_B = (
        random.normal(0, 0.8, users)[user_B]
        + random.normal(0, 0.8, items)[item_B]
        + random.normal(0, 0.4, regions)[region_B]
        + 0.5 * np.sum(taste_UK[user_B] * appeal_IK[item_B], axis=1)
    )
    columns = {
        "person": _labels_of(random, users, 7)[user_B],
        "film": _labels_of(random, items, 4)[item_B],
        "region": _labels_of(random, regions, 5)[region_B],
        "age": random.integers(15, 75, users)[user_B],
    }
    shapes = dict.fromkeys(columns, Shape.CATEGORY) | {"age": Shape.NUMBER}
    return Drawn(columns, shapes, logits_B, 0.3)


def draw_rare_texts(random: Generator, size: int) -> Drawn:
    """Texts of thousands of values, most of them rare; frequent ones are clicked more."""
    columns: dict[str, list[str]] = {}
    logits_B = np.zeros(size)
    for order, num_values in enumerate((20_000, 8_000, 3_000, 1_000)):
        ids_B = _zipf(random, size, num_values, 0.8)
        effects_V = random.normal(0, 0.8, num_values) - 0.15 * np.log1p(np.arange(num_values))
        logits_B += effects_V[ids_B]
        columns[f"key{order}"] = _hexadecimal(random, num_values, ids_B)
    for order, num_values in enumerate((50, 20, 10, 5)):
        ids_B = _zipf(random, size, num_values)
        logits_B += random.normal(0, 0.4, num_values)[ids_B]
        columns[f"group{order}"] = _texts("g", ids_B)
    return Drawn(dict(columns), dict.fromkeys(columns, Shape.CATEGORY), logits_B, 0.2)


def draw_measures(random: Generator, size: int) -> Drawn:
    """Measures that act in curves, by thresholds and two by two: the ground of trees."""
    x = random.normal(0, 1, (8, size))
    heavy = np.exp(random.normal(1, 1.5, (4, size)))
    logits_B = (
        1.2 * np.sin(2 * x[0])
        + 1.0 * (np.abs(x[1]) > 1)
        - 1.5 * ((x[2] > 0) ^ (x[3] > 0.5))
        + 0.8 * x[4] * x[5]
        + 1.0 * (heavy[0] > 5) * (x[0] > 0)
        + 0.5 * np.sin(3 * np.log(heavy[1]))
        + 0.4 * x[6]
    )
    columns: dict[str, NDArray[np.generic] | list[str]] = {
        f"x{order}": np.round(values_B, 4) for order, values_B in enumerate(x)
    }
    for order, values_B in enumerate(heavy):
        columns[f"amount{order}"] = np.round(values_B, 2)
    columns["x7"] = np.where(random.random(size) < 0.1, np.nan, np.round(x[7], 4))
    return Drawn(columns, dict.fromkeys(columns, Shape.NUMBER), logits_B, 0.3)


def draw_counts(random: Generator, size: int) -> Drawn:
    """Small counts with steps and curves, beside a few texts."""
    columns: dict[str, NDArray[np.generic] | list[str]] = {}
    logits_B = np.zeros(size)
    for order in range(10):
        rate_B = random.gamma(1.0, 1.0 + 2 * order, size)
        count_B = random.poisson(rate_B)
        steps = random.normal(0, 0.4, 6)
        logits_B += steps[np.minimum(count_B, 40).astype(int) * 6 // 41]
        logits_B += random.normal(0, 0.25) * np.log1p(count_B) + random.normal(0, 0.5) * (
            count_B == 0
        )
        columns[f"n{order}"] = count_B
    for order, num_values in enumerate((30, 12, 6, 3)):
        ids_B = _zipf(random, size, num_values)
        logits_B += random.normal(0, 0.5, num_values)[ids_B]
        columns[f"kind{order}"] = _texts("k", ids_B)
    logits_B += 0.6 * ((columns["n2"] > 2) & (columns["n5"] > 5))  # type: ignore[operator]
    shapes = {name: Shape.NUMBER if name.startswith("n") else Shape.CATEGORY for name in columns}
    return Drawn(columns, shapes, logits_B, 0.2)


def draw_lists(random: Generator, size: int) -> Drawn:
    """Lists of tags and of what was seen before, which meet the item's topic."""
    topics, tags = 30, 300
    interests_BK = random.integers(0, topics, (size, 2))
    topic_B = np.where(
        random.random(size) < 0.4, interests_BK[:, 0], random.integers(0, topics, size)
    )
    effects_T = random.normal(0, 0.6, tags)
    tag_lists, seen_lists = [], []
    logits_B = 1.2 * (interests_BK == topic_B[:, None]).any(axis=1).astype(np.float64)
    lengths_B = random.integers(1, 8, size)
    tags_BL = _zipf(random, size * 8, tags).reshape(size, 8)
    choices_BL = random.random((size, 10))
    noise_BL = random.integers(0, topics, (size, 10))
    for row in range(size):
        own = tags_BL[row, : lengths_B[row]]
        logits_B[row] += effects_T[own].mean() * 1.5
        tag_lists.append("|".join(f"t{tag}" for tag in own))
        seen = np.where(
            choices_BL[row] < 0.35,
            interests_BK[row, 0],
            np.where(choices_BL[row] < 0.7, interests_BK[row, 1], noise_BL[row]),
        )[: 1 + lengths_B[row]]
        seen_lists.append("|".join(f"topic{one}" for one in seen))
    source_B, price_B = _zipf(random, size, 200), np.round(random.lognormal(2, 1, size), 2)
    logits_B += random.normal(0, 0.5, 200)[source_B] - 0.3 * np.log(price_B)
    logits_B += random.normal(0, 0.4, topics)[topic_B]
    columns = {
        "tags": tag_lists,
        "seen": seen_lists,
        "topic": _texts("topic", topic_B),
        "source": _texts("source", source_B),
        "price": price_B,
    }
    shapes = {
        "tags": Shape.LIST,
        "seen": Shape.LIST,
        "topic": Shape.CATEGORY,
        "source": Shape.CATEGORY,
        "price": Shape.NUMBER,
    }
    return Drawn(dict(columns), shapes, logits_B, 0.2)


def _draw_mixture(
    random: Generator, size: int, vocabularies: tuple[int, ...], numbers: int, acting: int
) -> Drawn:
    """Texts and measures, of which the first so many of each kind act."""
    columns: dict[str, NDArray[np.generic] | list[str]] = {}
    logits_B = np.zeros(size)
    for order, num_values in enumerate(vocabularies):
        ids_B = _zipf(random, size, num_values)
        columns[f"text{order}"] = _texts("v", ids_B)
        if order < acting:
            logits_B += random.normal(0, 1, num_values)[ids_B]
    for order in range(numbers):
        z_B = random.normal(0, 1, size)
        values_B = z_B if order % 2 else np.exp(1 + 1.2 * z_B)
        columns[f"number{order}"] = np.where(
            random.random(size) < 0.05, np.nan, np.round(values_B, 3)
        )
        if order < acting:
            logits_B += np.sin(z_B * (1 + order % 3)) if order % 3 else z_B
    shapes = {
        name: Shape.NUMBER if name.startswith("number") else Shape.CATEGORY for name in columns
    }
    return Drawn(columns, shapes, _scaled(logits_B, 1.3), 0.2)


def draw_few_rows(random: Generator, size: int) -> Drawn:
    """Nine columns; its few rows are a matter of its sizes."""
    return _draw_mixture(random, size, (200, 60, 30, 15, 8, 4), 3, 3)


def draw_wide(random: Generator, size: int) -> Drawn:
    """A hundred columns, of which a fifth tells anything."""
    vocabularies = (500, 200, 100, 60, 40, 30, 20, 12, 8, 5) * 4
    return _draw_mixture(random, size, vocabularies, 60, 10)


def draw_drift(random: Generator, size: int) -> Drawn:
    """A month of rows by time: ids come and go, and what a campaign does changes."""
    seconds_B = np.sort(random.integers(0, 30 * 86_400, size))
    day_B = seconds_B / 86_400
    items = 3_000
    born_I = random.uniform(-15, 30, items)
    # An item is shown for some days after it came.
    item_B = np.empty(size, dtype=np.int64)
    by_birth = np.argsort(born_I)
    newest_B = np.searchsorted(born_I[by_birth], day_B)
    back_B = np.minimum(random.exponential(250, size).astype(int), newest_B - 1)
    item_B[:] = by_birth[newest_B - 1 - back_B]
    users, campaigns = 4_000, 60
    user_B, campaign_B = _zipf(random, size, users, 0.6), _zipf(random, size, campaigns, 0.7)
    start_C, change_C = random.normal(0, 0.7, campaigns), random.normal(0, 0.7, campaigns)
    hour_B = seconds_B % 86_400 / 3_600
    logits_B = (
        random.normal(0, 0.8, items)[item_B]
        - 0.05 * (day_B - born_I[item_B])
        + random.normal(0, 0.6, users)[user_B]
        + start_C[campaign_B]
        + change_C[campaign_B] * day_B / 30
        + 0.5 * np.sin(hour_B / 24 * 2 * np.pi)
    )
    start = 1_700_000_000
    columns = {
        "shown_at": start + seconds_B,
        "item": _texts("i", item_B),
        "user": _texts("u", user_B),
        "campaign": _texts("c", campaign_B),
        "item_age_hours": np.round((day_B - born_I[item_B]) * 24, 1),
    }
    shapes = {
        "shown_at": Shape.TIME,
        "item": Shape.CATEGORY,
        "user": Shape.CATEGORY,
        "campaign": Shape.CATEGORY,
        "item_age_hours": Shape.NUMBER,
    }
    return Drawn(dict(columns), shapes, logits_B, 0.15)


@dataclass(frozen=True)
class Table:
    """One line of the benchmark.

    Attributes:
        name: Of the line.
        draw: From random numbers and a number of rows.
        training: Share of the usual training and validation rows that it has.
    """

    name: str
    draw: Callable[[Generator, int], Drawn]
    training: float = 1.0

    def parts(self, sizes: Sizes, seed: int) -> Parts:
        """The table's rows."""
        valid = int(sizes.valid * self.training)
        sizes = Sizes(int(sizes.train * self.training), valid, sizes.test)
        random = np.random.default_rng([seed, *self.name.encode()])
        drawn = self.draw(random, sizes.total)
        true_B = sigmoid(drawn.logits_B + bias_of_rate(drawn.logits_B, drawn.click_rate))
        clicks_B = (random.random(sizes.total) < true_B).astype(np.int64)
        rows = _divide(pd.DataFrame({LABEL: clicks_B, **drawn.columns}), sizes)
        return Parts(rows, drawn.shapes, true_B[sizes.train + sizes.valid :])


TABLES = (
    Table("census", draw_census),
    Table("advertising", draw_advertising),
    Table("taste", draw_taste),
    Table("rare texts", draw_rare_texts),
    Table("measures", draw_measures),
    Table("counts", draw_counts),
    Table("lists", draw_lists),
    Table("few rows", draw_few_rows, training=0.15),
    Table("wide", draw_wide, training=0.5),
    Table("drift", draw_drift),
)
CRITEO = "criteo"


def criteo_parts(path: Path, sizes: Sizes, seed: int, num_windows: int) -> Parts:
    """A window of the file's first 110,000 rows; test rows of two windows differ.

    Raises:
        ValueError: If the file has too few rows for that.
    """
    stride = (110_000 - sizes.total) // max(num_windows - 1, 1)
    if num_windows > 1 and stride < sizes.test:
        raise ValueError(f"{num_windows} windows of {sizes.total:,} rows would share test rows")
    start = seed * stride
    rows = read_rows(path, start + sizes.total)[start:]
    if len(rows) < sizes.total:
        raise ValueError(f"{path} has fewer than {start + sizes.total:,} rows")
    rows = rows.rename(columns={"label": LABEL}).astype({LABEL: np.int64})
    rows[list(NUMBERS)] = rows[list(NUMBERS)].apply(pd.to_numeric).astype("Int64")
    shapes = dict.fromkeys(NUMBERS, Shape.NUMBER) | dict.fromkeys(CATEGORIES, Shape.CATEGORY)
    return Parts(_divide(rows.reset_index(drop=True), sizes), shapes, None)


def _divide(rows: pd.DataFrame, sizes: Sizes) -> dict[str, pd.DataFrame]:
    cut = sizes.train + sizes.valid
    return {
        "train": rows[: sizes.train],
        "valid": rows[sizes.train : cut],
        "test": rows[cut : sizes.total],
    }
