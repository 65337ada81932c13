"""One section of a page."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PageSection:
    """A section of a page, with an entry in the list of contents.

    Attributes:
        anchor: Its `id` in the page.
        title: Text in the list of contents.
        template: Its file in `sections/`.
        values: Variables of the template, beside `data`.
    """

    anchor: str
    title: str
    template: str
    values: dict[str, Any]
