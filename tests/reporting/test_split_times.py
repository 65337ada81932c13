"""The report of rows that are divided by time."""

from fake_report import lifelike_report

from ctr_pipeline.reporting.render import render_report


def test_rows_divided_by_time_show_their_times():
    borders = {"train": ("day 1", "day 8"), "valid": ("day 9", "day 9"), "test": ("day 10", None)}
    data = lifelike_report()
    splits = tuple(
        split.model_copy(
            update={"first_time": borders[split.name][0], "last_time": borders[split.name][1]}
        )
        for split in data.splits
    )
    html = render_report(lifelike_report(splits=splits))
    assert "<th>From</th><th>To</th>" in html
    for text in ("day 1", "day 8", "day 9", "day 10"):
        assert f"<td>{text}</td>" in html
    assert "<th>From</th>" not in render_report(data)
