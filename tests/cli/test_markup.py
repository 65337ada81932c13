import io

from rich.console import Console

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.progress_lines import LineProgress

HOSTILE = "\x1b]0;owned\x07[red]name\u202e"


def test_a_name_is_neither_markup_nor_a_command_to_the_terminal():
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=200).print(escape(HOSTILE))
    said = stream.getvalue()
    assert "\x1b]" not in said
    assert "\x07" not in said
    assert "\u202e" not in said
    assert "[red]name" in said.replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_a_line_of_progress_commands_no_terminal(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    LineProgress().log(HOSTILE)
    assert stream.getvalue() == "\\x1b]0;owned\\x07[red]name\\u202e\n"
