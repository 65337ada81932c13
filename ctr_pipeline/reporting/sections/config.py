"""The config as coloured lines: key, value, comment. A reader's aid, not a YAML parser."""

import re
from dataclasses import dataclass

from ctr_pipeline.reporting.data import ReportData
from ctr_pipeline.reporting.formats import shorten, visible_text
from ctr_pipeline.reporting.section import PageSection

REPORT_POSITION = 130

_LINE = re.compile(r"^(?P<lead>\s*(?:- )*)(?P<key>[\w.\"'-]+)(?P<rest>:(?:\s.*|))$")
_MAX_LINES = 4000
_LINE_LENGTH = 400


@dataclass(frozen=True)
class ConfigLine:
    """One line in the parts that are coloured differently; together they are the line."""

    lead: str
    key: str
    rest: str
    comment: bool = False


def section(data: ReportData) -> PageSection:
    """The config of the run."""
    values = {"config": config_lines(data.config_yaml)}
    return PageSection("config", "Config", "config.html.j2", values)


def config_lines(text: str) -> tuple[ConfigLine, ...]:
    """The lines of a YAML text, at most a few thousand, each cut to a readable length."""
    lines = [_config_line(line) for line in text.rstrip("\n").split("\n")[:_MAX_LINES]]
    if text.count("\n") > _MAX_LINES:
        lines.append(ConfigLine("", "", "# … cut here; config.resolved.yaml has all of it", True))
    return tuple(lines)


def _config_line(line: str) -> ConfigLine:
    shown = visible_text(line) if len(line) <= _LINE_LENGTH else shorten(line, _LINE_LENGTH)
    if shown.lstrip().startswith("#"):
        return ConfigLine("", "", shown, comment=True)
    match = _LINE.match(shown)
    if match is None:
        return ConfigLine("", "", shown)
    return ConfigLine(match["lead"], match["key"], match["rest"])
