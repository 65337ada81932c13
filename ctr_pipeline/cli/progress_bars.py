"""Progress bars on a terminal: one per task, with its rate and the time left."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ctr_pipeline.cli.markup import escape
from ctr_pipeline.cli.progress_lines import format_amount, format_seconds


class _AmountColumn(ProgressColumn):
    """`45 % · 12,300 rows/s · 7.2 s left`, as far as known."""

    def render(self, task: Task) -> Text:
        """The text beside the bar."""
        unit = task.fields["unit"]
        parts = []
        if task.finished:
            parts.append(format_seconds(task.finished_time or 0.0))
        elif task.total:
            parts.append(f"{task.percentage:.0f} %")
        elif task.elapsed is not None:
            parts.append(format_seconds(task.elapsed))
        if task.completed:
            speed = task.finished_speed or task.speed
            amount = format_amount(speed or task.completed, unit)
            parts.append(f"{amount}/s" if speed else amount)
        if task.time_remaining is not None and not task.finished:
            parts.append(f"{format_seconds(task.time_remaining)} left")
        return Text(" · ".join(parts), style="cyan")


class _BarsAndBoard(Bars):
    """Bars, and lines below them."""

    board: tuple[str, ...] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, then the lines."""
        yield from super().get_renderables()
        yield from (Text(f"  {line}", style="dim") for line in self.board)


class BarProgress:
    """A `Progress` that draws bars on a terminal's stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._bars: _BarsAndBoard | None = None
        self._num_open = 0

    def task(self, name: str, *, total: int | None, unit: str = "rows") -> "BarTask":
        """Draws a bar for `name`."""
        if self._bars is None:
            self._bars = _BarsAndBoard(
                SpinnerColumn(finished_text="[green]✓"),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                _AmountColumn(),
                TextColumn("[dim]{task.fields[note]}"),
                console=self._console,
            )
            self._bars.start()
        self._num_open += 1
        number = self._bars.add_task(f"{escape(name):<12}", total=total, unit=unit, note="")
        return BarTask(self, self._bars, int(number))

    def log(self, text: str) -> None:
        """One line, above the bars."""
        self._console.print(escape(text), soft_wrap=True)

    def board(self, lines: Sequence[str]) -> None:
        """Lines below the bars, while there are any."""
        if self._bars is not None:
            self._bars.board = tuple(lines)

    def close(self) -> None:
        """Ends the drawing once the last open bar has ended; the bars stay on the screen."""
        self._num_open -= 1
        if self._num_open == 0 and self._bars is not None:
            self._bars.board = ()
            self._bars.stop()
            self._bars = None


class BarTask:
    """One bar."""

    def __init__(self, progress: BarProgress, bars: Bars, number: int) -> None:
        self._progress = progress
        self._bars = bars
        self._number = next(task.id for task in bars.tasks if int(task.id) == number)

    def advance(self, amount: int) -> None:
        """Moves the bar."""
        self._bars.advance(self._number, amount)

    def note(self, text: str) -> None:
        """Shows `text` beside the bar."""
        self._bars.update(self._number, note=escape(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task = next(task for task in self._bars.tasks if task.id == self._number)
        if kind is None:
            # What was not counted to the end, or had no total, is whole now.
            done = max(task.completed, task.total or 0)
            self._bars.update(self._number, total=done, completed=done)
        else:
            self._bars.stop_task(self._number)
        self._progress.close()
