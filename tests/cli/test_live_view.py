import dataclasses
import io
import sys
from pathlib import Path

from rich.console import Console

from ctr_pipeline.cli.progress_bars import BarProgress
from ctr_pipeline.cli.progress_lines import LineProgress
from ctr_pipeline.distributed.master.status import JobEvent, RecordCounts
from ctr_pipeline.pipeline.job_display import NewEvents, display_job, spoken_progress

sys.path.insert(0, str(Path(__file__).parent))
from job_views import a_member, a_view


class TestTerminal:
    def test_a_page_with_members_and_a_line_an_event(self):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=160, height=60)
        with display_job(BarProgress(console)) as display:
            display.show(a_view())
            display.show(a_view(step=700))
        text = screen.getvalue()
        assert "worker-1" in text
        assert "backing off" in text
        assert "25%" in text
        assert "700" in text
        assert text.count("worker-1 was killed: it is started again") == 1

    def test_markup_in_words_of_others_is_text(self):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=160, height=60)
        event = JobEvent(1_700_000_000.0, "[red]worker[/nothing]", "", None)
        with display_job(BarProgress(console)) as display:
            display.show(a_view(events=(event,), reason="[/]"))
        assert "[red]worker[/nothing]" in screen.getvalue()


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class TestLines:
    def show(self, *views, seconds=11.0):
        stream, clock = io.StringIO(), Clock()
        progress = LineProgress(stream, clock=clock, heartbeat=False)
        with display_job(progress) as display:
            for view in views:
                display.show(view)
                clock.now += seconds
                progress.beat()
        return stream.getvalue().splitlines()

    def test_a_line_every_ten_seconds_and_one_an_event(self):
        lines = self.show(a_view(), a_view(step=700))
        assert lines[0] == "training: started (80,000 rows)"
        assert lines[1] == "worker-1 was killed: it is started again (1.2 s)"
        assert lines[2].startswith("training: 25%, 20,000 rows, ")
        assert lines[2].endswith(
            "epoch 1 of 2, task 10 of 40, 1 of 2 workers, 25,000 rows/s, loss 0.4567, AUC 0.7654"
        )
        assert len(lines) == 5

    def test_nothing_goes_backwards_after_a_rollback(self):
        records = RecordCounts(total=80_000, trained=10_000, repeated=10_000, dropped=0)
        lines = self.show(a_view(), a_view(records=records, events=()))
        assert "20,000 rows" in lines[-2]
        assert "20,000 rows" in lines[-1]

    def test_nothing_is_shown_of_a_job_that_was_never_seen(self):
        assert self.show() == []


class TestWords:
    def test_one_worker_is_no_plural(self):
        view = a_view(workers_wanted=1, members=(a_member(),), auc=None, train_logloss=None)
        assert spoken_progress(view) == "epoch 1 of 2, task 10 of 40, 1 worker, 25,000 rows/s"

    def test_other_states_are_named(self):
        assert spoken_progress(a_view(state="validating")).startswith("validating, epoch 1 of 2")

    def test_events_are_told_once_even_if_two_are_alike(self):
        first = JobEvent(1.0, "a", "", None)
        second = dataclasses.replace(first, time=2.0)
        events = NewEvents()
        assert events.of(a_view(events=(first,))) == [first]
        assert events.of(a_view(events=(first, second))) == [second]
        assert events.of(a_view(events=(second,))) == []
