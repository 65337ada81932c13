"""Kills a worker and a parameter server of a training before your eyes; nothing is lost.

`ctrpipe run` trains on two parameter servers and two workers. When a quarter of the records are
trained one worker is killed, at half of them one parameter server. What the job makes of it is
shown as it happens, and at the end the records are counted.

    python benchmarks/elastic_demo.py configs/criteo_elastic.yaml --data FILE --output runs/demo
"""

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from watched_run import MissedError, OverdueError, WatchedRun

from ctr_pipeline.distributed.coordination.messages import MemberStats, Role
from ctr_pipeline.distributed.master.status import JobView

_RUN_SECONDS = 3600.0
KILLED: tuple[tuple[Role, int], ...] = (("worker", 1), ("ps", 0))
"""One after the other."""


class Story:
    """What happens, with the seconds since the beginning."""

    def __init__(self, run: WatchedRun) -> None:
        self._run = run
        self._began = time.monotonic()
        self._events_told = 0

    def tell(self, text: str) -> None:
        """One line."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def tell_events(self) -> None:
        """What the job says of itself since the last time."""
        view = self._run.view
        if view is None:
            return
        for event in view.events[self._events_told :]:
            seconds = f" ({event.recovery_seconds:.1f} s)" if event.recovery_seconds else ""
            done = f": {event.done}" if event.done else ""
            self.tell(f"         the job says: {event.what}{done}{seconds}")
        self._events_told = len(view.events)

    def tell_members(self) -> None:
        """Who is there."""
        for member in self._run.now.members:
            stats = member.stats or MemberStats()
            speed = stats.samples_per_second
            doing = f", {speed:,.0f} records/s" if speed else ""
            rows = f", {stats.rows_held:,} rows" if stats.rows_held else ""
            restarts = f", started again {member.restarts}×" if member.restarts else ""
            self.tell(
                f"         {member.role}-{member.index}: process {member.pid}, {member.state}"
                f"{doing}{rows}{restarts}"
            )


def wait_until_trained(run: WatchedRun, story: Story, fraction: float) -> None:
    """Waits for a fraction of the records, in the middle of steps."""

    def reached() -> bool:
        story.tell_events()
        view = run.view
        return (
            view is not None
            and view.records.trained >= fraction * view.records.total
            and run.is_training()
        )

    run.wait_for(f"{fraction:.0%} of the records", reached, _RUN_SECONDS)


def kill(run: WatchedRun, story: Story, role: Role, index: int) -> None:
    """Kills a member and waits until another process is in its place and steps run again."""
    victim = run.member_view(role, index)
    before = run.now.records
    run.send(victim.pid, signal.SIGKILL)
    began = time.monotonic()
    story.tell(f"kill -9 {victim.pid}: {role}-{index} is dead, {before.trained:,} records counted")

    def replaced() -> bool:
        story.tell_events()
        member = run.member_view(role, index)
        return member.pid not in {0, victim.pid} and member.state == "running"

    run.wait_for(f"a new {role}-{index}", replaced, 120.0)
    run.wait_for("running steps", run.is_training, 120.0)
    after = run.now.records
    pauses = run.progress_seconds(began, time.monotonic())
    story.tell_events()
    story.tell(
        f"{role}-{index} is process {run.member_view(role, index).pid} now; the longest pause "
        f"without progress was {pauses[0] if pauses else 0.0:.1f} s, and "
        f"{after.repeated - before.repeated:,} records are computed a second time"
    )


def broken_promises(view: JobView) -> list[str]:
    """What the job did not keep of what is shown here; empty if it kept all."""
    records, broken = view.records, []
    if view.state != "finished":
        broken.append(f"the job is {view.state}, not finished")
    if records.trained != records.total:
        broken.append(f"{records.total - records.trained:,} records are lost")
    if records.dropped:
        broken.append(f"{records.dropped:,} records are dropped")
    restarts = {(one.role, one.index): one.restarts for one in view.members}
    for role, index in KILLED:
        if not restarts.get((role, index)):
            broken.append(f"{role}-{index} was killed, and nothing says that it was started again")
    return broken


def main() -> int:
    """Runs the demonstration; exit code 1 if it does not show what it claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="Of a job in several processes.")
    parser.add_argument("--data", type=Path, required=True, help="Training rows.")
    parser.add_argument("--output", type=Path, required=True, help="Folder for the run.")
    parser.add_argument("--epochs", type=int, default=4, help="Passes over the rows.")
    arguments = parser.parse_args()
    config: dict[str, Any] = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))
    config["data"]["train"] = str(arguments.data.resolve())
    config["train"] |= {"epochs": arguments.epochs, "early_stopping": None}
    config["train"]["checkpoint_seconds"] = 5
    with WatchedRun(arguments.output.resolve(), config) as run:
        story = Story(run)
        story.tell(f"ctrpipe run {run.config_path} --overwrite")
        run.start("run", "--overwrite")
        try:
            run.wait_for("training", run.is_training, 600.0)
            story.tell("training; 'ctrpipe status' would show")
            story.tell_members()
            for fraction, (role, index) in zip((0.25, 0.5), KILLED, strict=True):
                wait_until_trained(run, story, fraction)
                kill(run, story, role, index)
            while not run.has_ended:
                story.tell_events()
                time.sleep(0.2)
            code = run.wait(10.0)
        except (MissedError, OverdueError) as error:
            story.tell(f"this did not go as it should: {error}")
            return 1
        view = run.final_view()
    story.tell_events()
    if code != 0:
        print(run.tail(30))
        return 1
    records = view.records
    per_epoch = records.total // arguments.epochs
    story.tell("the run has ended")
    print(
        f"\n{arguments.epochs} epochs of {per_epoch:,} records are {records.total:,}.\n"
        f"Counted: {records.trained:,}. Lost: {records.total - records.trained:,}. "
        f"Dropped: {records.dropped:,}.\nComputed a second time: {records.repeated:,} "
        f"({records.repeated / records.total:.1%}).\n"
        f"Test AUC: {run.metrics()['test']['auc']:.4f}. Report: {run.output / 'report.html'}"
    )
    broken = broken_promises(view)
    for promise in broken:
        print(f"This is not as it should be: {promise}.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
