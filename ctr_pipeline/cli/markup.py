"""Foreign texts in what Rich prints: names of columns, values, paths."""

from rich import markup

from ctr_pipeline.reporting.formats import visible_text


def escape(text: str) -> str:
    """The text as it stands, of which neither Rich nor the terminal obeys anything."""
    return markup.escape(visible_text(text))
