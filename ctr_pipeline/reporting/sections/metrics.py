"""Metrics of held-out rows: the ROC curve, calibration and a table."""

from dataclasses import dataclass

from markupsafe import Markup

from ctr_pipeline.evaluation.likelihood import normalized_entropy
from ctr_pipeline.evaluation.metrics import EvaluationResult
from ctr_pipeline.reporting.charts import calibration_chart, roc_chart
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import count_text, metric_text, percent_text
from ctr_pipeline.reporting.headline import held_out
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 10


@dataclass(frozen=True)
class MetricRow:
    """One line of the table of metrics; texts of test, validation and baseline."""

    name: str
    explanation: str
    test: str
    valid: str
    baseline: str


def section(data: ReportData) -> PageSection | None:
    """None if no rows were held out."""
    name, result = held_out(data)
    if result is None:
        return None
    calibration = calibration_chart(
        result.calibration_bins, label="Observed click rate against predicted probability"
    )
    held = sum(one.interval.contains(one.mean_predicted) for one in result.calibration_bins)
    return PageSection(
        "metrics",
        "Metrics",
        "metrics.html.j2",
        {
            "held_out_name": name,
            "result": result,
            "roc": _roc(data, result),
            "calibration": calibration,
            "calibration_held": held,
            "metric_rows": _metric_rows(data, result),
        },
    )


def _roc(data: ReportData, result: EvaluationResult) -> Markup:
    curves = []
    if data.test is not None and data.valid is not None:
        curves.append(("second", data.valid.roc))
    curves.append(("model", result.roc))
    return roc_chart(curves, label="True positive rate against false positive rate")


def _metric_rows(data: ReportData, shown: EvaluationResult) -> tuple[MetricRow, ...]:
    """Every scalar metric of test and validation beside the constant-rate baseline."""

    def of(attribute: str, digits: int = 4) -> tuple[str, str]:
        texts = [
            "–" if result is None else metric_text(getattr(result, attribute), digits)
            for result in (data.test, data.valid)
        ]
        return texts[0], texts[1]

    def interval_of(result: EvaluationResult | None) -> str:
        if result is None:
            return "–"
        interval = result.calibration_interval
        return f"{metric_text(interval.low, 3)} – {metric_text(interval.high, 3)}"

    def counts_of(attribute: str) -> tuple[str, str]:
        texts = [
            "–" if result is None else count_text(getattr(result, attribute))
            for result in (data.test, data.valid)
        ]
        return texts[0], texts[1]

    def rate_of(result: EvaluationResult | None) -> str:
        return "–" if result is None else percent_text(result.label_rate, 2)

    baseline_entropy = normalized_entropy(shown.baseline_logloss, shown.label_rate)
    rows = [
        MetricRow("AUC", "click ranked above non-click", *of("auc"), "0.5000"),
        MetricRow("Logloss", "nats a row", *of("logloss"), metric_text(shown.baseline_logloss)),
        MetricRow(
            "Normalised entropy",
            "logloss over that of the rows' own click rate",
            *of("normalized_entropy"),
            metric_text(baseline_entropy),
        ),
        MetricRow(
            "Calibration",
            "sum of predictions over clicks",
            *of("calibration", 3),
            metric_text(shown.baseline_rate / shown.label_rate, 3),
        ),
        MetricRow(
            "Calibration, 95 % interval",
            "rows drawn independently",
            interval_of(data.test),
            interval_of(data.valid),
            "",
        ),
        MetricRow(
            "Expected calibration error",
            "mean distance over bins",
            *of("expected_calibration_error"),
            "",
        ),
    ]
    if shown.gauc is not None:
        counted = f"{count_text(shown.gauc_num_rows or 0)} of {count_text(shown.num_rows)} rows in "
        groups = f"{count_text(shown.gauc_num_groups or 0)} of "
        total = f"{count_text(shown.gauc_num_groups_total or 0)} groups counted"
        rows.append(MetricRow("GAUC", counted + groups + total, *of("gauc"), "0.5000"))
    rows.append(MetricRow("Rows", "", *counts_of("num_rows"), ""))
    rows.append(
        MetricRow(
            "Click rate",
            "",
            rate_of(data.test),
            rate_of(data.valid),
            percent_text(shown.baseline_rate, 2),
        )
    )
    return tuple(rows)
