"""The report of rows that are divided by time."""

from ctr_pipeline.dataset.ingested import TimeRange
from ctr_pipeline.reporting.render import render_report
from tests.reporting.fake_report import lifelike_report


def test_rows_divided_by_time_show_their_times():
    borders = {"train": ("day 1", "day 8"), "valid": ("day 9", "day 9"), "test": ("day 10", "")}
    data = lifelike_report()
    splits = {
        name: split.model_copy(
            update={"times": TimeRange(first=borders[name][0], last=borders[name][1])}
        )
        for name, split in data.splits.items()
    }
    html = render_report(lifelike_report(splits=splits))
    assert "<th>From</th><th>To</th>" in html
    for text in ("day 1", "day 8", "day 9", "day 10"):
        assert f"<td>{text}</td>" in html
    assert "<th>From</th>" not in render_report(data)
