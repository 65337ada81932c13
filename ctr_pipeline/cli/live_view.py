"""A running job on a terminal: one page that is drawn again, and a line above it an event."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ctr_pipeline.cli.job_tables import render_job, spoken_time
from ctr_pipeline.pipeline.job_display import NewEvents, spoken_event

if TYPE_CHECKING:
    from ctr_pipeline.distributed.master.status import JobView


class LiveJobDisplay:
    """A `JobDisplay` on a terminal; its last page stays on the screen.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._events = NewEvents()

    def show(self, view: "JobView") -> None:
        """Draws the page."""
        now = time.time()
        for event in self._events.of(view):
            when = spoken_time(event.time, now)
            line = f"[dim]{when}[/] {escape(spoken_event(event))}"
            self._console.print(line, soft_wrap=True, highlight=False)
        self._live.update(_render_page(view, now), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


def _render_page(view: "JobView", now: float) -> RenderableType:
    records = view.records
    bar = Table.grid(padding=(0, 1))
    fraction = records.trained / records.total if records.total else 0.0
    bar.add_row(
        ProgressBar(total=max(records.total, 1), completed=records.trained, width=40),
        Text(f"{fraction:.0%}", style="cyan"),
    )
    return Group(render_job(view, now=now, num_events=0), bar)
