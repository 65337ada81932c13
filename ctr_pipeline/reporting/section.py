"""What a section of a page is."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PageSection:
    """A part of a page that the list of contents leads to.

    Attributes:
        anchor: Its `id` in the page.
        title: Text in the list of contents.
        template: Its file in `sections/`.
        values: What the template names, beside `data`.
    """

    anchor: str
    title: str
    template: str
    values: dict[str, Any]
