"""`render_report`: facts in, one HTML text out."""

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ctr_pipeline.reporting.comparison_view import comparison_page
from ctr_pipeline.reporting.data import (
    ComparisonData,
    DriftData,
    LiveData,
    ProfileData,
    ReportData,
)
from ctr_pipeline.reporting.findings import decide_findings
from ctr_pipeline.reporting.formats import (
    bytes_text,
    count_text,
    duration_text,
    metric_text,
    percent_text,
    short_count,
    shorten,
    value_text,
    visible_text,
)
from ctr_pipeline.reporting.headline import headline_cards, model_title, summary_sentence
from ctr_pipeline.reporting.live_page import live_page
from ctr_pipeline.reporting.search_data import SearchData
from ctr_pipeline.reporting.search_page import search_page
from ctr_pipeline.reporting.section import PageSection
from ctr_pipeline.reporting.sections import LIVE_SECTIONS, PROFILE_SECTIONS, REPORT_SECTIONS
from ctr_pipeline.reporting.table_pages import drift_page, drift_sections, moment_text, profile_page

_TEMPLATES = Path(__file__).parent / "templates"
_SECTIONS = Path(__file__).parent / "sections"

_LIVE_SCRIPT = (_TEMPLATES / "live.js").read_text(encoding="utf-8")
LIVE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; script-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(_LIVE_SCRIPT.encode()).digest()).decode()}'"
)
"""`Content-Security-Policy` of the page that `render_live` makes."""


def render_report(data: ReportData) -> str:
    """One self-contained HTML page: no script, no request to anywhere, light and dark.

    Every text of the data is escaped, shortened and freed of control characters; values of
    sensitive columns are left out.
    """
    head = {
        "data": data,
        "title": data.name,
        "page_kind": "report",
        "kicker": f"{shorten(model_title(data), 60)} · {moment_text(data.created)}",
        "summary": summary_sentence(data),
        "cards": headline_cards(data),
        "findings": decide_findings(data),
    }
    return _render("page.html.j2", head, (section(data) for section in REPORT_SECTIONS))


def render_live(data: LiveData) -> str:
    """The page of a run that goes on, made as `render_report` makes its.

    It brings itself up to date by a script of its own, the only one that `LIVE_POLICY` lets run.
    """
    sections = (section(data) for section in LIVE_SECTIONS)
    values = live_page(data) | {"policy": LIVE_POLICY, "script": Markup(_LIVE_SCRIPT)}  # noqa: S704 - our own file
    return _render("live.html.j2", values, sections)


def render_profile(data: ProfileData) -> str:
    """One page about a table, made as `render_report` makes its."""
    sections = (section(data) for section in PROFILE_SECTIONS)
    return _render("page.html.j2", profile_page(data), sections)


def render_drift(data: DriftData) -> str:
    """One page about how far rows are from others, made as `render_report` makes its."""
    return _render("page.html.j2", drift_page(data), drift_sections(data))


def render_comparison(data: ComparisonData) -> str:
    """One page about several runs, made as `render_report` makes its."""
    return _render("comparison.html.j2", comparison_page(data))


def render_search(data: SearchData) -> str:
    """One page about a search, made as `render_report` makes its."""
    return _render("search.html.j2", search_page(data))


def _render(
    template: str, values: dict[str, Any], sections: Iterable[PageSection | None] = ()
) -> str:
    environment = _environment()
    style = Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    shown = [
        {
            "anchor": one.anchor,
            "title": one.title,
            "html": Markup(  # noqa: S704 - escaped by its template
                environment.get_template(one.template).render(data=values["data"], **one.values)
            ),
        }
        for one in sections
        if one is not None
    ]
    return environment.get_template(template).render(style=style, sections=shown, **values)


@cache
def _environment() -> jinja2.Environment:
    """Templates, each compiled once: a page that brings itself up to date is made often."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_TEMPLATES, _SECTIONS]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=count_text,
        short_count=short_count,
        percent=percent_text,
        bytes=bytes_text,
        duration=duration_text,
        metric=metric_text,
        value=value_text,
        short=shorten,
    )
    return environment


def _clean(value: object) -> object:
    """Control characters and lone surrogates must not reach the page from any expression."""
    return visible_text(value) if type(value) is str else value
