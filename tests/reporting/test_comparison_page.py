"""The page about several runs."""

from datetime import UTC, datetime

import pytest

from ctr_pipeline.evaluation.bootstrap import PairedDifference
from ctr_pipeline.evaluation.calibration import Interval
from ctr_pipeline.evaluation.metrics import MeasuredRows
from ctr_pipeline.reporting.charts import calibration_chart, calibration_overlay
from ctr_pipeline.reporting.comparison_view import (
    MAX_DRAWN,
    difference_text,
    run_views,
    setting_text,
    signed_text,
)
from ctr_pipeline.reporting.data import (
    ComparedRun,
    ComparisonData,
    ConfigDifference,
)
from ctr_pipeline.reporting.render import render_comparison
from tests.reporting.fake_report import evaluation, history
from tests.reporting.test_render import HOSTILE, Page, assert_well_formed

MEASURED = evaluation(1, num_rows=2000)


def difference(low, high, metric="auc"):
    return PairedDifference(
        metric=metric,
        difference=(low + high) / 2,
        interval=Interval(low=low, high=high),
        share_above_zero=0.5,
    )


def compared(name, *, auc=None, logloss=None, **changes):
    figures = {key: getattr(MEASURED, key) for key in MeasuredRows.model_fields}
    fields = {
        "name": name,
        "folder": f"runs/{name}",
        "model": "deepfm",
        "test": MeasuredRows(**figures),
        "valid": MeasuredRows(**figures),
        "history": history(),
        "num_training_rows": 160_000,
        "num_epochs": 4,
        "best_epoch": 3,
        "training_seconds": 125.0,
        "num_dense_parameters": 152_833,
        "num_embedding_rows": 284_113,
        "roc": MEASURED.roc,
        "calibration_bins": MEASURED.calibration_bins,
        "auc_difference": auc and difference(*auc),
        "logloss_difference": logloss and difference(*logloss, "logloss"),
    }
    return ComparedRun(**(fields | changes))


def comparison(*runs, **changes):
    fields = {"created": datetime(2026, 3, 14, 9, 26, tzinfo=UTC), "runs": runs, "repeats": 1000}
    return ComparisonData(**(fields | changes))


@pytest.mark.parametrize(
    ("metric", "low", "high", "verdict"),
    [
        ("auc", 0.001, 0.002, "ahead"),
        ("auc", -0.002, -0.001, "behind"),
        ("auc", -0.001, 0.001, "open"),
        ("auc", 0.0, 0.0, "open"),
        ("auc", 0.0, 0.1, "open"),
        ("logloss", 0.001, 0.002, "behind"),
        ("logloss", -0.002, -0.001, "ahead"),
        ("logloss", -0.001, 0.001, "open"),
    ],
)
def test_an_interval_beyond_0_decides(metric, low, high, verdict):
    assert difference(low, high, metric).verdict == verdict


def test_texts():
    assert difference_text(difference(-0.001, 0.002)) == "+0.0005 [−0.0010, +0.0020]"
    assert [signed_text(value) for value in (0.0, -1e-9, 0.00009)] == [
        "0.0000",
        "0.0000",
        "+0.0001",
    ]
    assert [setting_text(value) for value in (None, "a", True, [1, 2], {"b": None})] == [
        "–",
        "a",
        "true",
        "[1, 2]",
        '{"b": null}',
    ]


def test_the_first_run_has_no_difference_and_others_say_why_they_have_none():
    views = run_views(
        comparison(compared("a"), compared("b", not_compared="has no test rows", test=None))
    )
    assert [view.auc_ahead for view in views] == [("", "open"), ("not compared", "open")]
    assert (views[1].auc, views[1].calibration) == ("–", "–")
    assert dict(views[0].facts) == {
        "Valid AUC": f"{MEASURED.auc:.4f}",
        "Valid logloss": f"{MEASURED.logloss:.4f}",
        "Kept epoch": "3 of 4",
        "Training": "2 min 5 s",
        "Training rows": "160,000",
        "Dense parameters": "152,833",
        "Embedding rows": "284,113",
    }


def test_a_page():
    html = render_comparison(
        comparison(
            compared("base"),
            compared("better", auc=(0.001, 0.003), logloss=(-0.003, -0.001), model="dcnv2"),
            compared("worse", auc=(-0.003, -0.001), logloss=(-0.001, 0.001)),
            compared("alike", auc=(-0.001, 0.001), logloss=(-0.001, 0.001)),
            compared("mixed", auc=(0.001, 0.003), logloss=(0.001, 0.003)),
            compared(
                "other", not_compared="has no test rows", test=None, roc=(), calibration_bins=()
            ),
            config_differences=(
                ConfigDifference(key="train.epochs", values=(1, 2, 3, None, 5, 6)),
            ),
            notes=("A note.",),
        )
    )
    page = assert_well_formed(html)
    for expected in (
        "6 runs; the others are held against base.",
        "better is ahead of base: AUC +0.0020 [+0.0010, +0.0030], logloss −0.0020",
        "worse is behind base",
        "alike is not told from base by these rows",
        "mixed is ahead of base in one metric and behind in the other",
        "other has no test rows.",
        "A note.",
        "train.epochs 1 2 3 – 5 6",
        "DCN v2",
        "runs/better",
        "scored by 5 of 6 runs",
    ):
        assert expected in page.text, expected
    anchors = [address[1:] for address in page.addresses if address.startswith("#")]
    assert set(anchors) == set(page.ids)
    assert html.count("<svg") == 4
    assert '"line of-run run1"' in html
    assert "better, epoch 2: 0." in html


def test_runs_beyond_the_colours_stand_in_tables_alone():
    runs = [compared(f"r{number}") for number in range(MAX_DRAWN + 2)]
    html = render_comparison(comparison(*runs))
    assert f"Charts show the first {MAX_DRAWN} runs; 2 more are in tables." in html
    assert f"r{MAX_DRAWN + 1}" in Page(html).text
    assert f"run{MAX_DRAWN}" not in html
    assert f"r{MAX_DRAWN}, epoch" not in html


def test_runs_that_measured_nothing_have_no_charts():
    bare = {"roc": (), "calibration_bins": (), "history": (), "test": None, "valid": None}
    facts = dict.fromkeys(
        (
            *("num_training_rows", "num_epochs", "best_epoch", "training_seconds"),
            *("num_dense_parameters", "num_embedding_rows"),
        )
    )
    html = render_comparison(comparison(compared("a", **bare, **facts), compared("b", **bare)))
    assert_well_formed(html)
    assert "<svg" not in html
    assert "differ in no key" in html


def test_one_model_alone_is_drawn_as_in_the_report():
    bins = MEASURED.calibration_bins
    alone = calibration_chart(bins, label="x")
    assert "line thin" not in alone
    assert alone.count('class="area"') == 1
    assert alone.count("whisker") == len(bins)
    both = calibration_overlay([("a", "one", bins), ("b", "two", bins)], label="x")
    assert both.count("line thin") == 2
    assert 'class="area"' not in both
    assert both.count("<title>two: ") == len(bins)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_settings_stay_texts(text):
    data = comparison(
        compared(text, folder=text, model=text),
        compared("b", not_compared=text),
        config_differences=(ConfigDifference(key=text, values=(text, [text])),),
        notes=(text,),
    )
    page = assert_well_formed(render_comparison(data))
    assert "script" not in page.tags
    assert "img" not in page.tags


def test_equal_curves_do_not_hide_each_other():
    """Later runs are drawn over earlier ones, with gaps that show those."""
    page = render_comparison(
        ComparisonData(created=datetime.now(UTC), runs=(compared("a"), compared("b")), repeats=10)
    )
    assert 'class="line of-run run0"' in page
    assert 'class="line of-run run1"' in page
    for run in range(1, MAX_DRAWN):
        rules = [line for line in page.splitlines() if f".line.run{run}" in line]
        assert any("stroke-dasharray" in line for line in rules)
