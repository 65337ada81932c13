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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from job_watch import JobWatch, MissedError, OverdueError
from watched_run import WatchedRun

from ctr_pipeline.distributed.coordination.messages import MemberStats, Role

_RUN_SECONDS = 3600.0
KILLED: tuple[tuple[Role, int], ...] = (("worker", 1), ("ps", 0))
"""One after the other."""


class Story:
    """What happens, with the seconds since the beginning."""

    def __init__(self, run: JobWatch) -> None:
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
        """Tells who is there."""
        for member in self._run.now.members:
            stats = member.stats or MemberStats()
            speed = stats.samples_per_second
            doing = f", {speed:,.0f} records/s" if speed else ""
            rows = f", {stats.rows_held:,} rows" if stats.rows_held else ""
            restarts = f", started again {member.restarts}×" if member.restarts else ""
            self.tell(
                f"         {member.name}: process {member.pid} on {member.host}, {member.state}"
                f"{doing}{rows}{restarts}"
            )


def wait_until_trained(run: JobWatch, story: Story, fraction: float) -> None:
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


def lose(
    run: JobWatch,
    story: Story,
    name: str,
    strike: Callable[[], str],
    is_back: Callable[[], bool],
) -> int:
    """Has members end, and waits until others are in their places and steps run again.

    Args:
        name: What is lost.
        strike: Ends it, and says so.

    Returns:
        Records that are computed a second time for it.
    """
    before = run.now.records
    began = time.monotonic()
    story.tell(f"{strike()}; {before.trained:,} records counted")

    def replaced() -> bool:
        story.tell_events()
        return is_back()

    run.wait_for(f"a new {name}", replaced, 120.0)
    run.wait_for("running steps", run.is_training, 120.0)
    repeated = run.now.records.repeated - before.repeated
    pauses = run.progress_seconds(began, time.monotonic())
    story.tell_events()
    story.tell(
        f"{name}: back; the longest pause without progress was "
        f"{pauses[0] if pauses else 0.0:.1f} s, and {repeated:,} records "
        "are computed a second time"
    )
    return repeated


def kill(run: WatchedRun, story: Story, role: Role, index: int) -> None:
    """Kills the process of a member."""
    victim = run.member_view(role, index)

    def strike() -> str:
        run.send(victim.pid, signal.SIGKILL)
        return f"kill -9 {victim.pid}: {victim.name} is dead"

    lose(run, story, victim.name, strike, run.watch_for_next(role, index))


def broken_promises(metrics: Mapping[str, Any], killed: Sequence[Role]) -> list[str]:
    """What the job did not keep of what is shown here; empty if it kept all.

    Args:
        metrics: `metrics.json` of the run.
    """
    runtime, broken = metrics["runtime"], []
    records = runtime["records"]
    if records["trained"] != records["total"]:
        broken.append(f"{records['total'] - records['trained']:,} records are lost")
    if records["dropped"]:
        broken.append(f"{records['dropped']:,} records are dropped")
    broken += [
        f"a {role} was killed, and nothing says that one was started again"
        for role in killed
        if not runtime["restarts"][role]
    ]
    return broken


def sum_up(metrics: Mapping[str, Any], report: Path, epochs: int, killed: Sequence[Role]) -> int:
    """Prints what was counted; returns 1 if something is not as it should be."""
    records = metrics["runtime"]["records"]
    total, trained = records["total"], records["trained"]
    print(
        f"\n{epochs} epochs of {total // epochs:,} records are {total:,}.\n"
        f"Counted: {trained:,}. Lost: {total - trained:,}. Dropped: {records['dropped']:,}.\n"
        f"Computed a second time: {records['repeated']:,} ({records['repeated'] / total:.1%}).\n"
        f"Test AUC: {metrics['test']['auc']:.4f}. Report: {report}"
    )
    broken = broken_promises(metrics, killed)
    for promise in broken:
        print(f"This is not as it should be: {promise}.")
    return 1 if broken else 0


def load_config(path: Path, epochs: int) -> dict[str, Any]:
    """The config of a job that trains for so long that something can be done to it."""
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["train"] |= {"epochs": epochs, "early_stopping": None, "checkpoint_seconds": 5}
    return config


def main() -> int:
    """Runs the demonstration; exit code 1 if it does not show what it claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="Of a job in several processes.")
    parser.add_argument("--data", type=Path, required=True, help="Training rows.")
    parser.add_argument("--output", type=Path, required=True, help="Folder for the run.")
    parser.add_argument("--store", help="Keep the run at this address, such as s3://bucket/demo.")
    parser.add_argument("--epochs", type=int, default=4, help="Passes over the rows.")
    arguments = parser.parse_args()
    config = load_config(arguments.config, arguments.epochs)
    config["data"]["train"] = str(arguments.data.resolve())
    with WatchedRun(arguments.output.resolve(), config, stored_at=arguments.store) as run:
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
    story.tell_events()
    if code != 0:
        print(run.tail(30))
        return 1
    story.tell("the run has ended")
    roles = [role for role, _ in KILLED]
    return sum_up(run.metrics(), run.output / "report.html", arguments.epochs, roles)


if __name__ == "__main__":
    sys.exit(main())
