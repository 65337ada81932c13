"""Metrics by the values of a column, as the report shows them."""

from dataclasses import dataclass

from ctr_pipeline.evaluation.calibration import Interval
from ctr_pipeline.evaluation.groups import ColumnMetrics, GroupMetrics
from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import count_text, metric_text, percent_text, shorten
from ctr_pipeline.reporting.headline import held_out
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 20


@dataclass(frozen=True)
class GroupRow:
    """One line of the table: texts, intervals in brackets beside what they belong to."""

    name: str
    is_value: bool
    num_rows: str
    click_rate: str
    auc: str
    auc_interval: str
    logloss: str
    calibration: str
    calibration_interval: str
    hint: str


@dataclass(frozen=True)
class GroupTable:
    """The groups of one column, by descending number of rows, the other values last."""

    column: str
    num_values: int
    rows: tuple[GroupRow, ...]


def section(data: ReportData) -> PageSection | None:
    """None unless metrics by the values of a column were asked for."""
    name, result = held_out(data)
    tables = () if result is None else tuple(_table(one) for one in result.by_column)
    if not tables:
        return None
    values = {"held_out_name": name, "group_tables": tables}
    return PageSection("groups", "By group", "groups.html.j2", values)


def _table(found: ColumnMetrics) -> GroupTable:
    rows = [
        _row("missing" if group.value is None else shorten(group.value, 60), group)
        for group in found.groups
    ]
    if found.others is not None:
        num_others = found.num_values - len(found.groups)
        rows.append(_row(f"{count_text(num_others)} other values", found.others, is_value=False))
    return GroupTable(shorten(found.column, 60), found.num_values, tuple(rows))


def _row(name: str, group: GroupMetrics, *, is_value: bool = True) -> GroupRow:
    return GroupRow(
        name=name,
        is_value=is_value and group.value is not None,
        num_rows=count_text(group.num_rows),
        click_rate=percent_text(group.label_rate, 2),
        auc=metric_text(group.auc),
        auc_interval=_ends(group.auc_interval),
        logloss=metric_text(group.logloss),
        calibration=metric_text(group.calibration, 3),
        calibration_interval=_ends(group.calibration_interval),
        hint=group.hint,
    )


def _ends(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{metric_text(interval.low, 3)} – {metric_text(interval.high, 3)}"
