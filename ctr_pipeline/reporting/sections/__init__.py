"""Sections of the pages: each a module with a function `section`, its template beside it.

Both files are all that a section is. `REPORT_POSITION` puts it into the report, `LIVE_POSITION`
onto the page of a run that goes on, and `PROFILE_POSITION` onto that of a table, where it stands by
increasing positions.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ctr_pipeline.reporting.data import ProfileData, ReportData
from ctr_pipeline.reporting.section import PageSection

_MODULES = [import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__)]


def _sections(position: str) -> tuple[Callable[[Any], PageSection | None], ...]:
    placed = [module for module in _MODULES if hasattr(module, position)]
    placed.sort(key=lambda module: int(getattr(module, position)))
    return tuple(module.section for module in placed)


REPORT_SECTIONS: tuple[Callable[[ReportData], PageSection | None], ...] = _sections(
    "REPORT_POSITION"
)
"""Sections of the report, in the order of the page."""

LIVE_SECTIONS: tuple[Callable[[ReportData], PageSection | None], ...] = _sections("LIVE_POSITION")
"""Sections of the page of a run that goes on, in its order."""

PROFILE_SECTIONS: tuple[Callable[[ProfileData], PageSection | None], ...] = _sections(
    "PROFILE_POSITION"
)
"""Sections of the page of a table, in its order."""
