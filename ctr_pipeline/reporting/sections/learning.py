"""Learning curves: training loss, validation logloss and AUC of each epoch."""

from itertools import accumulate

from markupsafe import Markup

from ctr_pipeline.reporting.charts import Mark, Series, line_chart
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.specs.model_kinds import title_of
from ctr_pipeline.training.history import EpochRecord

REPORT_POSITION = 30
LIVE_POSITION = 30

_HISTORY_SHOWN = 400


def section(data: ReportData) -> PageSection | None:
    """None if no epoch was finished."""
    if not data.history:
        return None
    seconds = accumulate(row.seconds for row in data.history)
    values = {
        "loss_chart": _loss_chart(data),
        "auc_chart": _auc_chart(data),
        "history": list(zip(data.history, seconds, strict=True))[-_HISTORY_SHOWN:],
        "title_of": title_of,
    }
    return PageSection("learning", "Learning", "learning.html.j2", values)


def _loss_chart(data: ReportData) -> Markup:
    """Training loss and validation logloss."""
    training = [
        (_x(row), row.train_logloss, f"{_point(row)}: training loss {row.train_logloss:.4f}")
        for row in data.history
    ]
    valid = [
        (_x(row), row.valid_logloss, f"{_point(row)}: validation {row.valid_logloss:.4f}")
        for row in data.history
    ]
    kept = _kept(data)
    mark = None
    if kept is not None:
        # The kept logloss is a minimum; its text stands on the side that no line comes to, unless
        # the training loss runs there.
        crowded = kept.train_logloss < kept.valid_logloss
        mark = Mark(
            _x(kept), kept.valid_logloss, f"kept {kept.valid_logloss:.4f}", below=not crowded
        )
    return line_chart(
        [Series("second", training, markers=True), Series("model", valid, markers=True)],
        x_name="epoch",
        label="Training loss and validation logloss by epoch",
        mark=mark,
        reference=None if data.valid is None else data.valid.baseline_logloss,
    )


def _auc_chart(data: ReportData) -> Markup:
    """Validation AUC."""
    points = [
        (_x(row), row.valid_auc, f"{_point(row)}: validation AUC {row.valid_auc:.4f}")
        for row in data.history
    ]
    kept = _kept(data)
    return line_chart(
        [Series("model", points, markers=True)],
        x_name="epoch",
        label="Validation AUC by epoch",
        mark=None if kept is None else Mark(_x(kept), kept.valid_auc, f"kept {kept.valid_auc:.4f}"),
    )


def _x(row: EpochRecord) -> float:
    return row.epoch + 1.0


def _point(row: EpochRecord) -> str:
    return f"epoch {row.epoch + 1}"


def _kept(data: ReportData) -> EpochRecord | None:
    """The epoch whose checkpoint was kept."""
    return next((row for row in data.history if row.step == data.best_step), None)
