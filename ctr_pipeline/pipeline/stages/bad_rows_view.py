"""Rows that were left out, as pages show them."""

from ctr_pipeline.dataset.bad_rows import BadRows
from ctr_pipeline.reporting import data as page


def shown_bad_rows(bad: BadRows) -> tuple[page.BadRows, ...]:
    """Bad rows as pages show them."""
    return tuple(
        page.BadRows(
            reason=reason.value,
            count=count,
            examples=tuple(
                page.BadRowExample(
                    place=f"{example.file}:{example.row}",
                    column=example.column,
                    text=example.value or "(hidden)",
                )
                for example in bad.examples
                if example.reason is reason
            ),
        )
        for reason, count in bad.by_reason.items()
    )
