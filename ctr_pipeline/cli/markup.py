"""Escapes texts from data (names of columns, values, paths) for Rich."""

from rich import markup

from ctr_pipeline.reporting.formats import visible_text


def escape(text: str) -> str:
    """The text as neither Rich nor the terminal interprets it."""
    return markup.escape(visible_text(text))
