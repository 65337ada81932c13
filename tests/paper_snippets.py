"""The papers of the repository and what stands in them: blocks of code, commands, inline code."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        paper: Path of the paper from the root.
        line: Where the block starts.
        language: As the fence says; empty for commands and output.
        text: The content.
    """

    paper: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.paper}:{self.line}"


def papers() -> list[str]:
    """All papers, as paths from the root."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def text_of(paper: str) -> str:
    return (ROOT / paper).read_text(encoding="utf-8")


def blocks(paper: str, *languages: str) -> list[Block]:
    text = text_of(paper)
    return [
        Block(paper, text[: found.start()].count("\n") + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
        if found[1] in languages
    ]


def inline_code(paper: str) -> list[str]:
    """Inline code, each on one line."""
    prose = _FENCE.sub("", text_of(paper))
    return [" ".join(code.split()) for code in _INLINE.findall(prose)]


def commands(block: Block) -> list[list[str]]:
    """The arguments of each `ctrpipe` command in a block, without redirections and pipes."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if not line.startswith(("ctrpipe ", ".venv/bin/ctrpipe ")):
            continue
        arguments = shlex.split(line, comments=True)[1:]
        ends = [place for place, word in enumerate(arguments) if word in {">", "|", "&&"}]
        found.append(arguments[: ends[0]] if ends else arguments)
    return found
