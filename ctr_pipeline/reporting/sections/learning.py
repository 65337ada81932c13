"""Learning curves: training loss, validation logloss and AUC as training went on."""

from collections.abc import Callable

from markupsafe import Markup

from ctr_pipeline.models.registry import title_of
from ctr_pipeline.reporting.charts import Mark, Series, line_chart
from ctr_pipeline.reporting.data import HistoryRow, ReportData
from ctr_pipeline.reporting.formats import count_text
from ctr_pipeline.reporting.section import Section

_HISTORY_SHOWN = 400


def section(data: ReportData) -> Section | None:
    """None if nothing was measured while training."""
    loss, auc = _loss_chart(data), _auc_chart(data)
    if loss is None and auc is None:
        return None
    values = {
        "loss_chart": loss,
        "auc_chart": auc,
        "history": _history_shown(data.history),
        "title_of": title_of,
    }
    return Section("learning", "Learning", "learning.html.j2", values)


def _history_shown(history: tuple[HistoryRow, ...]) -> list[HistoryRow]:
    """Rows with a validation, or all if there are few; never more than fit a page."""
    rows = list(history)
    if len(rows) > 60:
        rows = [row for row in rows if row.valid_logloss is not None] or rows
    return rows[-_HISTORY_SHOWN:]


def _loss_chart(data: ReportData) -> Markup | None:
    """Training loss and validation logloss; None if neither was measured."""
    x_name, x_of = _x_axis(data)
    training = [
        (x_of(row), row.training_loss, f"{_point(row)}: training loss {row.training_loss:.4f}")
        for row in data.history
        if row.training_loss is not None
    ]
    valid = [
        (x_of(row), row.valid_logloss, f"{_point(row)}: validation {row.valid_logloss:.4f}")
        for row in data.history
        if row.valid_logloss is not None
    ]
    if not training and not valid:
        return None
    kept = _kept(data)
    mark = None
    if kept is not None and kept.valid_logloss is not None:
        # The kept logloss is a minimum; its text stands on the side that no line comes to, unless
        # the training loss runs there.
        crowded = kept.training_loss is not None and kept.training_loss < kept.valid_logloss
        mark = Mark(
            x_of(kept), kept.valid_logloss, f"kept {kept.valid_logloss:.4f}", below=not crowded
        )
    return line_chart(
        [
            Series("second", training, markers=x_name == "epoch"),
            Series("model", valid, markers=True),
        ],
        x_name=x_name,
        label=f"Training loss and validation logloss by {x_name}",
        mark=mark,
        reference=None if data.valid is None else data.valid.baseline_logloss,
    )


def _auc_chart(data: ReportData) -> Markup | None:
    """Validation AUC; None if it was not measured."""
    x_name, x_of = _x_axis(data)
    points = [
        (x_of(row), row.valid_auc, f"{_point(row)}: validation AUC {row.valid_auc:.4f}")
        for row in data.history
        if row.valid_auc is not None
    ]
    if not points:
        return None
    kept = _kept(data)
    mark = None
    if kept is not None and kept.valid_auc is not None:
        mark = Mark(x_of(kept), kept.valid_auc, f"kept {kept.valid_auc:.4f}")
    return line_chart(
        [Series("model", points, markers=True)],
        x_name=x_name,
        label=f"Validation AUC by {x_name}",
        mark=mark,
    )


def _x_axis(data: ReportData) -> tuple[str, Callable[[HistoryRow], float]]:
    """Epochs where each has one row, steps otherwise."""
    if len({row.epoch for row in data.history}) == len(data.history):
        return "epoch", lambda row: float(row.epoch)
    return "step", lambda row: float(row.step)


def _point(row: HistoryRow) -> str:
    return f"epoch {row.epoch}, step {count_text(row.step)}"


def _kept(data: ReportData) -> HistoryRow | None:
    """The measured row of the checkpoint that was kept."""
    measured = (row for row in data.history if row.valid_logloss is not None)
    return next((row for row in measured if row.step == data.best_step), None)
