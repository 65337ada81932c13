"""The population stability index by hand and as a measure, and drift through the database."""

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from ctr_pipeline.analysis import collect_statistics, plan_statistics
from ctr_pipeline.analysis.stability import population_stability_index, sampling_noise
from ctr_pipeline.dataset.parts import write_part
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import DriftLevel, load_statistics

COUNTS = st.lists(st.integers(0, 10**9), min_size=1, max_size=30)


def test_index_by_hand():
    expected = 0.2 * math.log(0.4 / 0.2) + 0.2 * math.log(0.8 / 0.6)
    assert population_stability_index([40, 60], [20, 80]) == pytest.approx(expected, rel=1e-15)
    assert population_stability_index([1, 1], [500, 500]) == 0.0


def test_an_empty_cell_counts_as_half_a_row_or_one_in_ten_thousand():
    half_a_row = (0.5 - 0.005) * math.log(0.5 / 0.005) + 0.5 * math.log(2)
    assert population_stability_index([50, 50], [0, 100]) == pytest.approx(half_a_row, rel=1e-12)
    large = (0.5 - 1e-4) * math.log(0.5 / 1e-4) + 0.5 * math.log(2)
    index = population_stability_index([50_000, 50_000], [0, 10**6])
    assert index == pytest.approx(large, rel=1e-12)


def test_index_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no rows"):
        population_stability_index([0, 0], [1, 2])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        population_stability_index([1], [1, 2])


@given(pairs=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1))
def test_index_is_not_negative_and_symmetric(pairs):
    one, other = zip(*pairs, strict=True)
    if not sum(one) or not sum(other):
        return
    index = population_stability_index(one, other)
    assert index >= 0
    assert population_stability_index(other, one) == index


@given(counts=COUNTS, factor=st.integers(1, 1000))
def test_index_of_equal_shares_is_zero(counts, factor):
    if sum(counts):
        times = [count * factor for count in counts]
        assert population_stability_index(counts, times) == pytest.approx(0, abs=1e-12)
        assert population_stability_index(counts, counts) == 0.0


@pytest.mark.parametrize("cells", [2, 3, 5, 10, 22, 100])
def test_noise_is_the_quantile_of_chi_square(cells):
    tolerance = 0.03 if cells == 2 else 0.01
    expected = chi2.ppf(0.99, cells - 1) * (1 / 5000 + 1 / 700)
    assert sampling_noise(5000, 700, cells) == pytest.approx(expected, rel=tolerance)
    assert sampling_noise(5000, 700, 1) == 0.0


def test_noise_is_rarely_exceeded_if_nothing_changed():
    random = np.random.default_rng(1)
    shares = random.dirichlet(np.ones(12) * 3)
    noise = sampling_noise(3000, 1000, 12)
    exceeded = sum(
        population_stability_index(
            random.multinomial(3000, shares).tolist(), random.multinomial(1000, shares).tolist()
        )
        > noise
        for _ in range(1000)
    )
    assert exceeded < 30


def drift_in(tmp_path):
    def run(old, new, **options):
        """The drift of columns of strings or numbers; None is NULL."""
        files, specs = [], []
        for name, columns in (("old", old), ("new", new)):
            arrays = {"label": pa.array([0, 1] * len(next(iter(columns.values()))), pa.int8())}
            arrays["label"] = arrays["label"][: len(arrays["label"]) // 2]
            for column, values in columns.items():
                known = [*old[column], *new[column]]
                is_text = any(isinstance(value, str) for value in known)
                arrays[column] = pa.array(
                    values, pa.string() if is_text else pa.float64(), from_pandas=False
                )
                kind = ColumnType.TEXT if is_text else ColumnType.NUMBER
                specs.append(FeatureSpec(column=column, column_type=kind))
            files.append(tmp_path / f"{name}.arrow")
            write_part(pa.table(arrays), files[-1], "label")
        plan = plan_statistics(specs, "label")
        return collect_statistics(
            plan,
            [files[0]],
            tmp_path,
            data_fingerprint="d",
            threads=2,
            memory_limit_gb=0.5,
            progress=SilentProgress(),
            others={"new": [files[1]], **options},
        )

    return run


@pytest.fixture
def drift(tmp_path):
    return drift_in(tmp_path)


def test_texts_by_top_values_rest_and_missing(drift):
    old = [f"v{n}" for n in range(20) for _ in range(40 - n)] + ["r1", "r2", "r2", "", None]
    new = ["v0"] * 5 + ["v19"] * 3 + ["r1", "never", "never seen", "", None, None, "V0"]
    found = drift({"c": old}, {"c": new}).drift["new"].columns["c"]
    cells = {(cell.kind, cell.value): (cell.old_count, cell.new_count) for cell in found.cells}
    assert cells["value", "v0"] == (40, 5)
    assert cells["value", "v19"] == (21, 3)
    assert cells["value", "v7"] == (33, 0)
    assert cells["rest", None] == (3, 4)
    assert cells["missing", None] == (2, 3)
    assert len(cells) == 22
    assert found.unseen_rate == 3 / 15
    assert found.expected_unseen_rate == 1 / len(old)
    assert (found.old_missing_rate, found.new_missing_rate) == (2 / len(old), 3 / 15)
    pairs = list(cells.values())
    assert found.psi == population_stability_index(*zip(*pairs, strict=True))


NUMBERS = st.one_of(
    st.none(),
    st.sampled_from([0.0, -0.0, 1.0, 2.5, math.nan, math.inf, -math.inf, 2.0**53, -1e300, 5e-324]),
    st.floats(-100, 100),
)


@given(data=st.data())
def test_numbers_equal_counting(tmp_path_factory, data):
    old = data.draw(st.lists(NUMBERS, min_size=1, max_size=60))
    new = data.draw(st.lists(NUMBERS, min_size=1, max_size=40))
    run = drift_in(tmp_path_factory.mktemp("drift"))
    found = run({"x": old}, {"x": new}).drift["new"].columns["x"]
    check_intervals(found, old, new)


def check_intervals(found, old, new):
    def count(values, cell):
        if cell.kind == "missing":
            return sum(value is None or math.isnan(value) for value in values)
        left = -math.inf if cell.left is None else cell.left
        right = math.inf if cell.right is None else cell.right
        return sum(
            value is not None
            and (left < value or (cell.left is None and value == left))
            and value <= right
            for value in values
        )

    for cell in found.cells:
        assert (cell.old_count, cell.new_count) == (count(old, cell), count(new, cell)), cell
    assert sum(cell.old_count for cell in found.cells) == len(old)
    assert sum(cell.new_count for cell in found.cells) == len(new)


TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "nul\0", "'; DROP TABLE x", "A"]))


@given(data=st.data())
def test_texts_equal_counting(tmp_path_factory, data):
    texts = st.one_of(TEXTS, st.text("xyz", min_size=1, max_size=3))
    old = data.draw(st.lists(texts, min_size=1, max_size=60))
    new = data.draw(st.lists(texts, min_size=1, max_size=40))
    run = drift_in(tmp_path_factory.mktemp("drift"))
    found = run({"c": [*old, "k"]}, {"c": new}).drift["new"].columns["c"]
    counts = Counter(value or "" for value in new)
    known = {value for value in [*old, "k"] if value}
    for cell in found.cells:
        if cell.kind == "value":
            assert cell.new_count == counts[cell.value]
    assert sum(cell.new_count for cell in found.cells) == len(new)
    assert found.unseen_rate == sum(
        times for value, times in counts.items() if value and value not in known
    ) / len(new)
    assert found.new_missing_rate == counts[""] / len(new)


def test_levels(drift):
    random = np.random.default_rng(5)
    size = 4000
    old = {
        "same": random.normal(size=size).tolist(),
        "shifted": random.normal(size=size).tolist(),
        "moved": random.normal(size=size).tolist(),
        "goes missing": [1.0] * size,
        "ids": [f"{n}" for n in random.integers(0, 10**6, size)],
        "new ids": [f"{n // 4}" for n in range(size)],
    }
    new = {
        "same": random.normal(size=size).tolist(),
        "shifted": (random.normal(size=size) + 0.4).tolist(),
        "moved": (random.normal(size=size) + 1.5).tolist(),
        "goes missing": [None if n % 2 else 1.0 for n in range(size)],
        "ids": [f"{n}" for n in random.integers(0, 10**6, size)],
        "new ids": [f"x{n // 4}" for n in range(size)],
    }
    columns = drift(old, new).drift["new"].columns
    assert {name: column.level for name, column in columns.items()} == {
        "same": DriftLevel.STABLE,
        "shifted": DriftLevel.MODERATE,
        "moved": DriftLevel.LARGE,
        "goes missing": DriftLevel.LARGE,
        "ids": DriftLevel.STABLE,
        "new ids": DriftLevel.MODERATE,
    }
    assert [column.psi for column in columns.values()] == sorted(
        (column.psi for column in columns.values()), reverse=True
    )
    # Nearly every id is new, as the ids that occur once foretold.
    assert columns["ids"].unseen_rate > 0.98
    assert columns["ids"].expected_unseen_rate == pytest.approx(
        columns["ids"].unseen_rate, abs=0.02
    )
    assert columns["new ids"].has_unexpected_values


def test_a_few_rows_raise_no_alarm(drift):
    random = np.random.default_rng(2)
    old = {"x": random.normal(size=5000).tolist()}
    found = drift(old, {"x": random.normal(size=40).tolist()}).drift["new"].columns["x"]
    assert found.psi > 0.25  # as sampling explains
    assert found.level is DriftLevel.STABLE


def test_drift_is_kept_and_found_again(drift, tmp_path):
    rows = {"x": [1.0, 2.0, None], "c": ["a", "b", None]}
    first = drift(rows, rows)
    assert load_statistics(tmp_path / "statistics.json") == first
    assert drift(rows, rows) == first
    assert all(column.psi == 0.0 for column in first.drift["new"].columns.values())
    assert list(drift(rows, rows, more=[tmp_path / "new.arrow"]).drift) == ["new", "more"]


def test_a_column_without_any_old_value(drift):
    found = drift({"x": [None, None]}, {"x": [1.0, None]}).drift["new"].columns["x"]
    assert found.cells[0].old_count == 0
    assert found.psi > 0.5
