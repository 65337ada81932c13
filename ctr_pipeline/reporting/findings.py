"""Findings: plain sentences about a run, decided from its numbers.

The report, the terminal and `metrics.json` show the same ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ctr_pipeline.evaluation.metrics import EvaluationResult
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import (
    SPLIT_TITLES,
    count_text,
    duration_text,
    metric_text,
    percent_text,
    shorten,
)
from ctr_pipeline.reporting.sections.drift import drifted_columns
from ctr_pipeline.statistics import DriftLevel, RowsDrift

Tone = Literal["good", "note", "look"]

_LEAK_AUC = 0.98
_DRIFT = 0.15
_GAP = 0.01
_NEARLY_ALL_MISSING = 0.99
_SUSPICIONS_SHOWN = 5
_BEFORE_THE_CLICK = ": check that it is known before the click"
_DOMINANT_SHARE = 0.6
_SUSPECT_DROP = 0.2
"""AUC that one feature alone gives to the model; few that are known before a click give as much."""


@dataclass(frozen=True)
class Finding:
    """One sentence and how much it matters: `good`, `note`, or `look` (worth acting on)."""

    tone: Tone
    text: str


def decide_findings(data: ReportData) -> tuple[Finding, ...]:
    """All findings, those worth acting on first."""
    beside_features = () if data.statistics is None else data.statistics.notes
    found = [
        *_on_model(data),
        *_on_training(data),
        *_on_data(data),
        *_on_drift(data),
        *_on_importance(data),
        *_on_job(data),
        *_on_export(data),
        *(Finding("note", note) for note in data.notes if note not in beside_features),
    ]
    order = {"look": 0, "good": 1, "note": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.tone]))


def _on_model(data: ReportData) -> list[Finding]:
    measured = [("test", data.test), ("validation", data.valid)]
    name, result = next(((n, r) for n, r in measured if r is not None), ("", None))
    if result is None and not data.is_finished:
        # Its note says what is missing; whether rows are held out is another matter.
        return []
    if result is None:
        return [
            Finding("look", "There are no held-out rows, so nothing says how good the model is.")
        ]
    found = on_result(result, name, telling=_most_informative(data))
    if data.test is not None and data.valid is not None and data.valid.auc - data.test.auc > _GAP:
        found.append(
            Finding(
                "note",
                f"Test AUC is {metric_text(data.valid.auc - data.test.auc)} below validation AUC: "
                "later rows differ, or validation was tuned on.",
            )
        )
    return found


def on_result(result: EvaluationResult, name: str, *, telling: str | None = None) -> list[Finding]:
    """Findings on the metrics of a set of rows.

    Args:
        result: The metrics.
        name: Name of the rows, such as `test`.
        telling: The feature that predicts the click best, if known.
    """
    found = []
    gain = 1 - result.logloss / result.baseline_logloss
    if gain <= 0:
        found.append(
            Finding(
                "look",
                f"On the {name} rows the model is no better than always predicting the click rate "
                f"of {percent_text(result.baseline_rate, 2)}.",
            )
        )
    if result.auc > _LEAK_AUC:
        first = "" if telling is None else f". Look at '{shorten(telling, 40)}' first"
        found.append(
            Finding(
                "look",
                f"An AUC of {metric_text(result.auc)} is too good for clicks: look for a column "
                f"that is written after the click{first}.",
            )
        )
    interval = result.calibration_interval
    if interval.contains(1.0):
        found.append(
            Finding(
                "good",
                "Predictions are calibrated: their sum agrees with the clicks on the "
                f"{name} rows within sampling error.",
            )
        )
    else:
        direction = "high" if result.calibration > 1 else "low"
        found.append(
            Finding(
                "look",
                f"Predictions are {percent_text(abs(result.calibration - 1))} too {direction} "
                f"on the {name} rows, more than sampling error explains.",
            )
        )
    return found


def _most_informative(data: ReportData) -> str | None:
    """The feature of greatest importance, or else of greatest mutual information with the click."""
    if data.importance:
        return max(data.importance, key=lambda row: row.auc_drop).feature
    known = {} if data.statistics is None else data.statistics.columns
    told = {
        row.feature: information.mutual_information
        for row in data.plan
        if row.feature in known
        and (information := known[row.feature].label_information) is not None
    }
    return max(told, key=lambda feature: told[feature], default=None)


def _on_training(data: ReportData) -> list[Finding]:
    if len(data.history) < 2:
        return []
    best = min(data.history, key=lambda row: row.valid_logloss)
    if best.step == data.history[-1].step:
        return [
            Finding("note", "The last validation was the best: more epochs may improve the model.")
        ]
    return []


def _on_data(data: ReportData) -> list[Finding]:
    found: list[Finding] = []
    suspects = [row for row in data.plan if row.suspicion is not None]
    found += [
        Finding("look", f"'{shorten(row.feature, 40)}' {row.suspicion}{_BEFORE_THE_CLICK}.")
        for row in suspects[:_SUSPICIONS_SHOWN]
    ]
    if data.left_out:
        names = _listed([*data.left_out])
        found.append(Finding("note", f"Left out of the model: {names}."))
    num_bad = data.bad_rows.total
    if num_bad:
        found.append(Finding("note", f"{count_text(num_bad)} bad rows were left out."))
    rates = {name: split.label_rate for name, split in data.splits.items()}
    train, test = rates.get("train"), rates.get("test")
    if train and test and abs(test / train - 1) > _DRIFT:
        found.append(
            Finding(
                "look",
                f"The click rate drifts: {percent_text(train)} in training, "
                f"{percent_text(test)} in the test rows.",
            )
        )
    if data.statistics is not None:
        columns = data.statistics.columns
        empty = [
            row.feature
            for row in data.plan
            if row.feature in columns
            and columns[row.feature].num_missing
            > _NEARLY_ALL_MISSING * max(columns[row.feature].count, 1)
        ]
        if empty:
            found.append(Finding("note", f"Missing in more than 99 % of rows: {_listed(empty)}."))
    return found


def _on_drift(data: ReportData) -> list[Finding]:
    """Findings on the drift of the test rows, or else of the rows that were compared."""
    drift = {} if data.statistics is None else data.statistics.drift
    if not drift:
        return []
    name = "test" if "test" in drift else next(iter(drift))
    return on_drift({name: drift[name]}, f"the {SPLIT_TITLES.get(name, name)} rows")


def on_drift(drift: Mapping[str, RowsDrift], rows: str) -> list[Finding]:
    """Findings on the drift of one sample."""
    found = []
    ((_, large),) = drifted_columns(drift, DriftLevel.LARGE)
    if large:
        found.append(
            Finding(
                "look",
                f"{_columns(large)} far from training in {rows} (index above 0.25): "
                f"{_listed(large)}.",
            )
        )
    ((_, moderate),) = drifted_columns(drift, DriftLevel.MODERATE)
    if moderate:
        found.append(
            Finding("note", f"{_columns(moderate)} drifting in {rows}: {_listed(moderate)}.")
        )
    return found


def _columns(names: list[str]) -> str:
    return "1 column is" if len(names) == 1 else f"{len(names)} columns are"


def _on_importance(data: ReportData) -> list[Finding]:
    gains = {row.feature: max(row.auc_drop, 0.0) for row in data.importance}
    total = sum(gains.values())
    if total <= 0:
        return []
    top = max(gains, key=lambda feature: gains[feature])
    found = []
    suspected = any(row.feature == top and row.suspicion is not None for row in data.plan)
    if gains[top] > _DOMINANT_SHARE * total and len(gains) > 2 and not suspected:
        share = percent_text(gains[top] / total, 0)
        is_suspect = gains[top] > _SUSPECT_DROP
        check = _BEFORE_THE_CLICK if is_suspect else ""
        text = f"'{shorten(top, 40)}' carries {share} of all importance{check}."
        found.append(Finding("look" if is_suspect else "note", text))
    idle = [row.feature for row in data.importance if row.auc_drop <= 0 and row.logloss_rise <= 0]
    if idle:
        found.append(
            Finding("note", f"Shuffling does no harm, so they may be left out: {_listed(idle)}.")
        )
    return found


def _on_job(data: ReportData) -> list[Finding]:
    job = data.job
    if job is None:
        return []
    records = job.records
    if records.dropped:
        return [
            Finding(
                "look",
                f"{count_text(records.dropped)} of {count_text(records.total)} records were given "
                "up: their tasks failed again and again.",
            )
        ]
    if not job.disruptions:
        return []
    slowest = max(one.seconds_lost for one in job.disruptions)
    times = "once" if len(job.disruptions) == 1 else f"{len(job.disruptions)} times"
    return [
        Finding(
            "good",
            f"The job recovered {times} from a failure, in at most {duration_text(slowest)}; no "
            f"record was lost, {count_text(records.repeated)} were trained again.",
        )
    ]


def _on_export(data: ReportData) -> list[Finding]:
    if data.parity is None:
        return []
    if data.parity.largest_difference <= data.parity.tolerance:
        return [
            Finding(
                "good",
                f"The exported model scores {count_text(data.parity.num_rows)} raw rows as the "
                "trainer does.",
            )
        ]
    return [Finding("look", "The exported model does not score as the trainer does.")]


def _listed(names: list[str]) -> str:
    """Names with commas, at most five of them."""
    shown = ", ".join(shorten(name, 40) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
