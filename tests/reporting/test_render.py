import html as html_text
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from ctr_pipeline.dataset.bad_rows import BadRows
from ctr_pipeline.evaluation.calibration import CalibrationBin, Interval
from ctr_pipeline.evaluation.importance import ImportanceRow
from ctr_pipeline.reporting.data import (
    PlanRow,
)
from ctr_pipeline.reporting.profile_charts import histogram_chart
from ctr_pipeline.reporting.render import render_report
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import ColumnStatistics, HistogramBin, Statistics, ValueCount
from ctr_pipeline.training.history import ModelSummary
from tests.reporting.fake_report import (
    CONFIG,
    bad_row,
    history,
    lifelike_report,
    number_column,
    text_column,
)

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what a browser would see."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.stack, self.problems, self.ids, self.targets = [], [], [], []
        self.tags, self.addresses, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(name for name, _ in attrs)
        named = dict(attrs)
        if len(named) != len(attrs):
            self.problems.append(f"an attribute twice in {tag}")
        if "id" in named:
            self.ids.append(named["id"])
        for name in ("src", "href", "action", "data"):
            if name in named:
                self.addresses.append(named[name])
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        if not self.stack or self.stack.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if self.stack and self.stack[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def full():
    return render_report(lifelike_report())


def assert_well_formed(html):
    page = Page(html)
    assert page.problems == []
    assert page.stack == []
    assert len(page.ids) == len(set(page.ids))
    return page


def test_the_page_is_well_formed_and_every_link_has_its_target(full):
    page = assert_well_formed(full)
    anchors = [address[1:] for address in page.addresses if address.startswith("#")]
    assert set(anchors) == set(page.ids)


def test_the_page_asks_nobody_and_runs_nothing(full):
    page = Page(full)
    assert "script" not in page.tags
    assert not [name for name in page.attributes if name.startswith("on")]
    assert all(address.startswith("#") or address == "data:," for address in page.addresses)
    assert not re.search(r"https?://|//\w|@import|url\(", full)
    assert "default-src 'none'" in full


def test_rendering_twice_gives_the_same_bytes(full):
    assert render_report(lifelike_report()) == full


def test_everything_the_run_knows_is_shown(full):
    text = Page(full).text
    data = lifelike_report()
    for expected in (
        f"{data.test.auc:.4f}",
        f"{data.test.logloss:.4f}",
        f"{data.test.baseline_logloss:.4f}",
        f"{data.test.gauc:.4f}",
        f"{data.valid.auc:.4f}",
        "DeepFM learned from 160,000 rows",
        "14 March 2026, 09:26 UTC",
        "kept 0.47",
        "log → standardize",
        "vocabulary(min_count=2)",
        "automatic: text with many distinct values",
        "4,312 values in 4,312 rows",
        "session_id",
        "as many distinct values as rows",
        "12 wrong number of columns",
        "twelve",
        "14.6 s",
        "steps wait for batches 13% of their time",
        "1,875 steps in 2 min",
        "1.9 of 2 cores busy",
        "another thread reads ahead",
        "read ahead: find or make rows 41.0 s",
        "sparse update 18.3 s 15.2 % 9.76",
        "TensorFlow 2.21.0",
        "proved on 1,000 rows",
        "320,000 of 320,000",
        "ps-0 finished 142,060 rows 171 MB 1.18 GB 9.7 s 1 parameter server 0 was killed",
        "parameter server 0 was killed (signal 9): the job goes back to checkpoint 3 "
        "24,064 records repeated, 3.4 s lost",
        "Another number of workers is asked for: 2, 1 to 4",
        "items: clicked_items, item_id 4.31 MB 33 k",
        "ps-1 32 101,888 13.3 MB 3.75 M 49.7 %",
        "152,833",
        "240 bytes a row, index included",
        "runs/criteo-deepfm/export/1",
        "train 160,000 80.0 % 25.67 %",
    ):
        assert expected in text, expected


def test_the_config_is_shown_letter_by_letter(full):
    block = re.search(r'<pre class="config">(.*?)</pre>', full, re.DOTALL)[1]
    assert html_text.unescape(re.sub(r"<[^>]*>", "", block)) == CONFIG


HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "</title></style></svg><b>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;already&gt;",
    "\u202eright to left override",
    "nul\x00 and lone \ud800 surrogate",
    "x" * 5000,
    "שלום עולם",
    "你好，世界",
    "line\nbreak\ttab",
    "https://example.com/x.js",
    "",
)


def hostile_report(**changes):
    """Every text that comes from data or config is hostile somewhere."""
    columns, plan = {}, []
    for index, name in enumerate(HOSTILE):
        plan.append(
            PlanRow(feature=name, column_type="text", id=name, reason=name, statistics=(name,))
        )
        columns[name] = ColumnStatistics(
            column=name,
            column_type=ColumnType.TEXT,
            count=1000,
            num_missing=index,
            num_distinct=len(HOSTILE) + 5,
            top_values=tuple(
                ValueCount(value=value, count=50, label_rate=0.1 * index / 2) for value in HOSTILE
            ),
        )
    joined = " ".join(HOSTILE)
    fields = {
        "name": joined[:100],
        "model": joined[:200],
        "run_folder": joined,
        "export_path": joined,
        "config_yaml": "\n".join(f"key: {value}\n{value}: 1\n# {value}" for value in HOSTILE),
        "statistics": Statistics(
            fingerprint="0", num_rows=1000, label_rate=0.2, columns=columns, notes=HOSTILE
        ),
        "plan": tuple(plan),
        "left_out": {value: value for value in HOSTILE},
        "bad_rows": BadRows(
            total=len(HOSTILE),
            by_reason={"not a number": len(HOSTILE)},
            examples=tuple(
                bad_row("not a number", 1, value, value, file=value) for value in HOSTILE
            ),
        ),
        "timings": dict.fromkeys(HOSTILE, 1.0),
        "environment": {value: value for value in HOSTILE},
        "notes": HOSTILE,
    }
    return lifelike_report(1, 1, **(fields | changes))


def test_hostile_texts_are_escaped_shortened_and_made_visible():
    html = render_report(hostile_report())
    page = assert_well_formed(html)
    html.encode("utf-8")
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name in page.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert "&lt;already&gt;" in page.text
    assert "\\u202e" in page.text
    assert "\u202e" not in html
    assert "\x00" not in html
    assert "x" * 500 not in html
    assert "שלום עולם" in page.text
    assert all(address.startswith("#") or address == "data:," for address in page.addresses)


def test_values_of_sensitive_columns_are_nowhere():
    secret_text = text_column("card", np.random.default_rng(0), ["4111-secret"])
    secret_number = number_column("salary", np.random.default_rng(0), sensitive_marker=98765.4321)
    plan = (
        PlanRow(feature="card", column_type="text", id="hash(buckets=10)", sensitive=True),
        PlanRow(feature="salary", column_type="number", number="standardize", sensitive=True),
    )
    statistics = Statistics(
        fingerprint="0",
        num_rows=160_000,
        label_rate=0.25,
        columns={"card": secret_text, "salary": secret_number},
    )
    bad_rows = BadRows(
        total=4,
        by_reason={"not a number": 4},
        examples=(
            bad_row("not a number", 1, "salary", "9e9-secret"),
            bad_row("not a number", 2, "age", "old"),
            bad_row("not a number", 3, None, "whole-row-secret"),
            bad_row("not a number", 4, "age", None),
        ),
    )
    html = render_report(lifelike_report(plan=plan, statistics=statistics, bad_rows=bad_rows))
    assert "secret" not in html
    assert "98,765" not in html
    assert "quantile" not in Page(html).text.split("Model")[0].replace("Quantiles", "")
    assert 'class="spark"' not in html
    assert "old" in html
    assert html.count("hidden, may be sensitive") == 3
    assert Page(html).text.count("are sensitive and are not shown") == 2


def test_importance_shows_its_spread_where_it_was_measured():
    def shown(**spread):
        row = ImportanceRow(feature="I1", auc_drop=0.03, logloss_rise=0.02, **spread)
        return render_report(lifelike_report(1, 1, importance=(row,)))

    html = shown(auc_drop_std=0.01, logloss_rise_std=0.0, repeats=5)
    assert_well_formed(html)
    # The bar ends at 0.03 of 0.04, and the line reaches 0.01 to both sides of that.
    assert 'title="± 0.0100 over 5 shuffles"' in html
    assert '<span style="width:75.0%"></span>' in html
    assert '<span class="spread" style="left:50.0%;width:50.0%"></span>' in html
    assert "the mean of 5 shuffles" in Page(html).text
    once = shown()
    assert "shuffles" not in once
    assert 'class="spread"' not in once
    assert '<span style="width:100.0%"></span>' in once


def test_calibration_says_how_many_intervals_hold_the_prediction():
    data = lifelike_report(1, 1)
    bins = tuple(
        CalibrationBin(
            num_rows=100,
            mean_predicted=mean,
            observed_rate=0.2,
            interval=Interval(low=0.1, high=0.3),
        )
        for mean in (0.05, 0.1, 0.2, 0.4)
    )
    test = data.test.model_copy(update={"calibration_bins": bins})
    text = Page(render_report(data.model_copy(update={"test": test}))).text
    assert "the prediction lies inside 2 of 4 intervals" in " ".join(text.split())


def test_models_of_an_ensemble_stand_beside_all_together():
    members = [
        ModelSummary(
            model="deepfm",
            seed=seed,
            epochs=4,
            best_epoch=3,
            valid_logloss=0.4812,
            valid_auc=0.7611,
            stopped_because="validation logloss is worse",
        )
        for seed in (7, 9)
    ]
    other = ModelSummary(model="<b>mine</b>", seed=8, epochs=1)
    html = render_report(lifelike_report(1, 1, ensemble=(members[0], other, members[1])))
    assert_well_formed(html)
    text = " ".join(Page(html).text.split())
    assert "Ensemble of 2 × DeepFM, <b>mine</b> learned from" in text
    assert "Curves of the first of 3 models" in text
    assert "<b>mine" not in html
    assert "DeepFM 7 4 3 0.4812 0.7611 validation logloss is worse" in text
    assert "All together" in text


def test_rows_of_validation_count_where_they_were_trained_on():
    text = Page(render_report(lifelike_report(1, 1, num_refit_rows=180_000))).text
    assert "DeepFM learned from 180,000 rows" in text


def test_a_report_with_nothing_optional_still_renders():
    data = lifelike_report(
        test=None,
        valid=None,
        splits={},
        history=(),
        best_step=None,
        statistics=None,
        plan=(),
        left_out={},
        bad_rows=BadRows(),
        timings={},
        training_profile=None,
        environment={},
        importance=(),
        importance_num_rows=None,
        parity=None,
        num_dense_parameters=None,
        num_embedding_rows=None,
        export_path=None,
        config_yaml="",
    )
    page = assert_well_formed(render_report(data))
    assert "No rows were held out" in page.text
    assert "No bad rows were found" in page.text


@pytest.mark.parametrize(
    "changes",
    [
        {"test": None},
        {"valid": None},
        {"statistics": None},
        {"history": history(1), "best_step": 156},
        {"history": history(600), "best_step": 78_000},
    ],
    ids=["no test", "no validation", "no statistics", "one validation", "long history"],
)
def test_partial_reports_render(changes):
    assert_well_formed(render_report(lifelike_report(2, 2, **changes)))


def test_columns_without_any_value_render():
    empty = ColumnStatistics(
        column="I1", column_type=ColumnType.NUMBER, count=10, num_missing=10, num_distinct=0
    )
    data = lifelike_report(
        plan=(PlanRow(feature="I1", column_type="number", number="log"),),
        statistics=Statistics(fingerprint="0", num_rows=10, label_rate=0.0, columns={"I1": empty}),
    )
    page = assert_well_formed(render_report(data))
    assert "100.0 %" in page.text
    assert "Missing in more than 99 % of rows: I1." in page.text


def test_learning_curves_count_epochs_from_one_and_mark_the_one_that_was_kept():
    by_epoch = history(4)
    html = render_report(lifelike_report(1, 1, history=by_epoch, best_step=by_epoch[2].step))
    assert "Validation AUC by epoch" in html
    kept = re.search(r'<tr class="best"><td class="n">(\d)</td>', html)
    assert kept.group(1) == "3"
    assert f"epoch 3: validation {by_epoch[2].valid_logloss:.4f}" in html


def test_histograms_of_single_values_name_each_value():
    values = [0.0, 1.0, 2.0, 7.0]
    bins = tuple(
        HistogramBin(left=left, right=right, count=10, label_rate=0.5)
        for left, right in zip(values, [*values[1:], values[-1]], strict=True)
    )
    html = histogram_chart(bins, base_rate=0.3, label="values")
    assert re.findall(r"<title>(.*?)</title>", html) == [
        f"{value}: 10 rows, click rate 50.0 %" for value in (0, 1, 2, 7)
    ]
    assert re.findall(r'<text class="tick middle"[^>]*>(.*?)<', html) == ["0", "1", "2", "7"]


def test_notes_of_statistics_are_said_once():
    html = render_report(lifelike_report(1, 1, notes=("Quantiles are exact.",)))
    assert html.count("Quantiles are exact.") == 1


@pytest.mark.slow
def test_many_features_stay_within_a_few_megabytes():
    html = render_report(lifelike_report(200, 400))
    page = assert_well_formed(html)
    assert "Charts are drawn for the first 400 features" in page.text
    assert "C400" in page.text
    assert len(html) < 6_000_000


def test_drift_table_says_what_its_figures_are_on_a_narrow_screen(full):
    narrow = full[full.index("@media (max-width: 820px)") :]
    assert ".drift-head { display: none; }" in narrow
    assert ".drift-row > summary .n::before { content: attr(data-label)" in narrow
    for label in ("Index", "Missing", "New values (expected)"):
        assert f'data-label="{label}"' in full
