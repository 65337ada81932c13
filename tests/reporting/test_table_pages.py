"""The sections about information and drift, and the pages of a table and of a comparison."""

from datetime import UTC, datetime

import numpy as np
import pytest

from ctr_pipeline.reporting.data import DriftData, PlanRow, ProfileData
from ctr_pipeline.reporting.render import render_drift, render_profile, render_report
from ctr_pipeline.reporting.sections.drift import cell_name, drift_view
from ctr_pipeline.reporting.sections.information import information_bars
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import DriftCell, RowsDrift, Statistics
from tests.reporting.fake_report import (
    column_drift,
    drift_of,
    lifelike_report,
    number_column,
    text_column,
)
from tests.reporting.test_render import HOSTILE, Page, assert_well_formed

RANDOM = np.random.default_rng(4)


def profile_of(columns, *, label="click", **changes):
    fields = {
        "name": "clicks",
        "source": "data/clicks.csv",
        "format": "csv",
        "created": datetime(2026, 3, 14, 9, 26, tzinfo=UTC),
        "label": label,
        "statistics": Statistics(
            fingerprint="0", num_rows=160_000, label_rate=0.2567, columns=columns
        ),
        "plan": tuple(
            PlanRow(feature=name, column_type=column.column_type, id="vocabulary", reason="auto")
            for name, column in columns.items()
        ),
        "left_out": {"constant": "one value only"},
        "seconds": 2.1,
    }
    return ProfileData(**(fields | changes))


def columns_of(names=("I1", "C1")):
    return {
        names[0]: number_column(names[0], RANDOM),
        names[1]: text_column(names[1], RANDOM),
    }


def test_bars_are_sorted_by_what_a_column_says():
    data = lifelike_report(3, 3)
    shuffled = ["C2", "I1", "C3", "I3", "I2", "C1"]
    bars = information_bars(data.statistics, shuffled)
    assert [bar.name for bar in bars] == ["I1", "I2", "I3", "C1", "C2", "C3"]
    assert bars[0].width == 100
    # 0.08 nats of the 0.5694 nats of a label with the rate 0.2567.
    assert bars[0].value == "14.05 %"
    assert bars[0].detail == "0.9"


def test_information_section_is_absent_without_information():
    assert information_bars(None, ["a"]) == []
    plain = columns_of()
    assert 'id="information"' not in render_profile(profile_of(plain))


def test_the_report_shows_information_and_drift():
    text = Page(render_report(lifelike_report())).text
    for expected in (
        "Before training",
        "14.05 %",
        "validation",
        "0.420",
        "31.0 % (28.0 %)",
        "2 columns are far from training in the test rows (index above 0.25): I1, I2.",
        "above 1 to 2",
        "value 3",
        "large",
    ):
        assert expected in text, expected


def test_drift_rows_are_sorted_by_the_worst_sample():
    data = lifelike_report(2, 2)
    view = drift_view(data.statistics.drift, frozenset())
    assert [row.name for row in view.rows] == ["I1", "I2", "C1", "C2"]
    assert view.names == ("valid", "test")
    assert [row.tag for row in view.rows] == ["large", "large", "moderate", "moderate"]
    assert view.num_drifted == 4
    assert (view.rows[0].cells_of, view.rows[0].cells_sample) == ("test", 1)
    assert view.rows[0].samples[1].width > view.rows[0].samples[0].width
    assert 0 < view.moderate_at < view.large_at < 100


def test_a_difference_within_sampling_error_is_pale_and_stable():
    column = number_column("x", RANDOM)
    drift = RowsDrift(num_rows=10, columns={"x": column_drift(column, 0.4, RANDOM, noise=1)})
    (row,) = drift_view({"new": drift}, frozenset()).rows
    assert (row.tag, row.samples[0].is_noise) == ("stable", True)


def test_cells_of_sensitive_columns_are_hidden():
    data = lifelike_report(2, 9)
    assert data.sensitive_columns == {"C9"}
    rows = {row.name: row for row in drift_view(data.statistics.drift, {"C9"}).rows}
    assert rows["C9"].cells == ()
    assert rows["C8"].cells


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ({"kind": "interval", "right": 3.5}, "up to 3.5"),
        ({"kind": "interval", "left": 3.5}, "above 3.5"),
        ({"kind": "interval", "left": 1.0, "right": 2.0}, "above 1 to 2"),
        ({"kind": "interval"}, "any number"),
        ({"kind": "value", "value": "a\nb"}, "a\\nb"),
        ({"kind": "rest"}, "all other values"),
        ({"kind": "missing"}, "missing"),
    ],
)
def test_cells_have_names(cell, name):
    assert cell_name(DriftCell(old_count=1, new_count=2, **cell)) == name


def test_a_profile_page():
    data = lifelike_report(2, 2)
    html = render_profile(profile_of(dict(data.statistics.columns)))
    page = assert_well_formed(html)
    for expected in (
        "160,000 rows of 4 columns; 25.67 % of them have click = 1.",
        "Tells most",
        "constant",
        "one value only",
        "data/clicks.csv",
        "Click rates",
    ):
        assert expected in page.text, expected
    anchors = [address[1:] for address in page.addresses if address.startswith("#")]
    assert set(anchors) == set(page.ids)


def test_a_profile_without_a_label_says_nothing_of_clicks():
    html = render_profile(profile_of(columns_of(), label=None, name="rows", source="rows.csv"))
    page = assert_well_formed(html)
    assert "lick" not in page.text
    assert 'class="rate' not in html


def test_a_drift_page():
    columns = columns_of()
    data = DriftData(
        old="old.csv",
        new="new.csv",
        created=datetime(2026, 3, 14, 9, 26, tzinfo=UTC),
        num_old_rows=160_000,
        drift=drift_of(columns, RANDOM),
        notes=("The column 'x' is in old.csv alone.",),
    )
    page = assert_well_formed(render_drift(data))
    for expected in (
        "new.csv beside old.csv: 20,000 rows beside 160,000.",
        "The column 'x' is in old.csv alone.",
        "0.42",
    ):
        assert expected in page.text, expected


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_values_stay_texts(text):
    columns = {
        text: number_column(text, RANDOM),
        "c": text_column("c", RANDOM, values=[text, "b"]),
    }
    assert_well_formed(render_profile(profile_of(columns, name=text, source=text, label=text)))
    drift = drift_of(columns, RANDOM)
    cell = DriftCell(kind="value", value=text, old_count=5, new_count=7)
    drift.columns["c"] = drift.columns["c"].model_copy(update={"cells": (cell,)})
    data = DriftData(
        old=text, new=text, created=datetime.now(UTC), num_old_rows=9, drift=drift, notes=(text,)
    )
    html = render_drift(data)
    page = assert_well_formed(html)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert columns["c"].column_type is ColumnType.TEXT
