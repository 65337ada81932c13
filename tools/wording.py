"""Refuses descriptions that do not name their thing first.

A reader of "Of the newest one." has to guess what is meant; "Age of the newest one." says it. The
first words of docstrings, of the lines of their sections, and of the texts for users are looked at:
help of options, descriptions of keys, meanings of metrics.

    python -m tools.wording ctr_pipeline tools benchmarks
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_NOUN = "Of|That|Those|These|So|Such|Who|Whose"
_TEXT = re.compile(rf"({_NO_NOUN}|They|Their|It|Its|From|In|By|To)\b")
_DOCSTRING = re.compile(rf"({_NO_NOUN}|They|Their|It|Its|From|In|By|To|For|With)\b")
_SECTION = re.compile(rf"({_NO_NOUN})\b")
"""Beginnings that are refused; a condition may come first where it is a key's or an option's."""
_LINE_OF_SECTION = re.compile(r"\s+\*{0,2}\w+: (.*)")
_TEXTS = frozenset({"help", "description"})
"""Keywords of calls whose values users read."""
_METRICS = frozenset({"GaugeMetricFamily", "CounterMetricFamily"})
"""Classes whose second argument users read."""


@dataclass(frozen=True)
class Fault:
    """One description that does not name its thing first."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: name the thing first: {self.text}"


def find_faults(path: Path) -> list[Fault]:
    """Looks through one file of Python."""
    tree = ast.parse(path.read_text("utf-8"))
    return [
        Fault(path, line, text)
        for line, text, refused in _descriptions(tree)
        if refused.match(text)
    ]


def _descriptions(tree: ast.AST) -> Iterator[tuple[int, str, re.Pattern[str]]]:
    """First lines of descriptions, where they stand, and how they must not begin."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for statement in body:
                if isinstance(statement, ast.Expr) and (text := _text_of(statement.value)):
                    yield from _lines_of(text, statement.lineno)
        if isinstance(node, ast.Call):
            given = [one.value for one in node.keywords if one.arg in _TEXTS]
            if isinstance(node.func, ast.Name) and node.func.id in _METRICS:
                given += node.args[1:2]
            for value in given:
                if text := _text_of(value):
                    yield value.lineno, text.splitlines()[0], _TEXT


def _text_of(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _lines_of(text: str, first: int) -> Iterator[tuple[int, str, re.Pattern[str]]]:
    """The first line of a docstring, and those of its sections."""
    head, *others = text.splitlines()
    yield first, head, _DOCSTRING
    for number, line in enumerate(others, first + 1):
        if match := _LINE_OF_SECTION.fullmatch(line):
            yield number, match[1], _SECTION


def main() -> None:
    """Looks through all files of folders; the exit code tells whether there are faults."""
    files = [path for root in sys.argv[1:] for path in sorted(Path(root).rglob("*.py"))]
    faults = [fault for path in files for fault in find_faults(path)]
    for fault in faults:
        print(fault)  # noqa: T201  what a check is for
    if faults:
        sys.exit(f"{len(faults)} descriptions do not name their thing first")


if __name__ == "__main__":
    main()
