"""Autoscaling on simulated clusters: where it ends, how soon, and what that costs.

Each case is a speed curve with its own limit (workers, parameter servers, the network), noise,
workers that take time to join, and now and then a worker that turns slow. The decisions are those
of `ctr_pipeline.distributed.coordination.scaling`, on samples two seconds apart; only the cluster
is made up. "Best" is the last number whose worker adds a fifth of the average before it, found by
trying all of them without noise.

    python benchmarks/scaling_simulator.py
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import Spread, describe_machine, print_machine, print_table, write_results

from ctr_pipeline.distributed.coordination.scaling import (
    ScalingRules,
    SpeedLog,
    WorkerBounds,
    decide_workers,
)

STEP_SECONDS = 0.5
BOUNDS = WorkerBounds(1, 64)


@dataclass(frozen=True)
class Cluster:
    """What limits a simulated job.

    Attributes:
        name: For the table.
        speed: Records per second by number of workers, without noise.
        server_cpu: Share of the busiest parameter server, by number of workers.
        noise: Standard deviation of the speed over a second, as a fraction of it.
        join_seconds: From the decision to a worker that trains.
        slow_worker: Worker 1 runs at a third of its speed from this second on, until replaced.
        changes_at: From this second on, `speed_later` holds.
        speed_later: The speed after that.
    """

    name: str
    speed: Callable[[float], float]
    server_cpu: Callable[[float], float] = lambda _: 0.2
    noise: float = 0.05
    join_seconds: float = 12.0
    slow_worker: float = math.inf
    changes_at: float = math.inf
    speed_later: Callable[[float], float] = lambda workers: workers


def clusters() -> tuple[Cluster, ...]:
    """The cases."""
    return (
        Cluster("two cores for all", lambda n: 83_000 * (1 - 0.25**n) / (1 + 0.01 * n)),
        Cluster("16 cores, one a worker", lambda n: 20_000 * min(n, 15)),
        Cluster("network of a server", lambda n: 20_000 * n / math.hypot(1, n / 8)),
        Cluster("linear to the bound", lambda n: 20_000 * n),
        Cluster(
            "servers saturate at 6",
            lambda n: 20_000 * min(n, 6.5),
            server_cpu=lambda n: min(0.16 * n, 1.0),
        ),
        Cluster("contention: slower beyond 5", lambda n: 20_000 * n / (1 + (n / 8) ** 3)),
        Cluster("one worker serves best", lambda n: 60_000 / n**0.1),
        Cluster("noisy neighbours", lambda n: 20_000 * min(n, 10), noise=0.15),
        Cluster("slow to join", lambda n: 20_000 * min(n, 10), join_seconds=60.0),
        Cluster("a straggler", lambda n: 20_000 * min(n, 8), slow_worker=600.0),
        Cluster(
            "room comes back",
            lambda n: 20_000 * min(n, 3),
            changes_at=900.0,
            speed_later=lambda n: 20_000 * min(n, 9),
        ),
    )


@dataclass
class Outcome:
    """What became of one simulated job.

    Attributes:
        workers: At the end.
        best: Number that it should have.
        steady_seconds: When the number last differed from the one at the end.
        speed_fraction: Records over those of a job with the best number from the first second.
        worker_fraction: Worker-seconds over those of that job.
        replaced: Stragglers that were replaced.
        changes: Of the number.
    """

    workers: int
    best: int
    steady_seconds: float
    speed_fraction: float
    worker_fraction: float
    replaced: list[int] = field(default_factory=list)
    changes: int = 0


def best_number(speed: Callable[[float], float], server_cpu: Callable[[float], float]) -> int:
    """The last number, one by one, that is worth it; none is added to a saturated server."""
    rules = ScalingRules()
    number = 1
    while number < BOUNDS.most and server_cpu(number) <= rules.saturated_cpu:
        if speed(number + 1) - speed(number) < rules.least_gain * speed(number) / number:
            break
        number += 1
    return number


def simulate(cluster: Cluster, *, seconds: float, seed: int) -> Outcome:
    """One job."""
    dice = random.Random(seed)  # noqa: S311
    log = SpeedLog()
    now = trained = ideal = worker_seconds = ideal_seconds = cpu_seconds = 0.0
    wanted = training = BOUNDS.least
    joining: list[float] = []
    slow_since = cluster.slow_worker
    replaced_at: dict[int, float] = {}
    outcome = Outcome(1, 1, 0.0, 0.0, 0.0)
    while now < seconds:
        now += STEP_SECONDS
        speed = cluster.speed if now < cluster.changes_at else cluster.speed_later
        joined = [at for at in joining if at <= now]
        joining = [at for at in joining if at > now]
        training = min(training + len(joined), wanted)
        is_slow = now >= slow_since and training > 1
        effective = training - (2.0 / 3.0 if is_slow else 0.0)
        noisy = speed(effective) * (1 + dice.gauss(0, cluster.noise / math.sqrt(STEP_SECONDS)))
        trained += max(noisy, 0.0) * STEP_SECONDS
        cpu_seconds += cluster.server_cpu(effective) * STEP_SECONDS
        share = speed(effective) / effective
        speeds = dict.fromkeys(range(training), share)
        if is_slow:
            speeds[1] = share / 3
        seen = len(log.samples)
        log.note(
            now,
            trained=int(trained),
            workers=training,
            worker_speeds=speeds,
            server_cpu_seconds=(cpu_seconds,),
        )
        worker_seconds += (training + len(joining)) * STEP_SECONDS
        outcome.best = best_number(speed, cluster.server_cpu)
        ideal += speed(outcome.best) * STEP_SECONDS
        ideal_seconds += outcome.best * STEP_SECONDS
        if len(log.samples) == seen:
            continue
        decision = decide_workers(log.samples, BOUNDS, wanted, replaced_at=replaced_at)
        if decision.workers != wanted:
            if decision.workers > wanted:
                more = decision.workers - training - len(joining)
                joining += [now + cluster.join_seconds] * max(more, 0)
            else:
                training, joining = min(training, decision.workers), []
            wanted = decision.workers
            outcome.steady_seconds = now
            outcome.changes += 1
        for index in decision.stragglers:
            replaced_at[index] = now
            outcome.replaced.append(index)
            slow_since = math.inf
            training -= 1
            joining.append(now + cluster.join_seconds)
    outcome.workers = wanted
    outcome.speed_fraction = trained / ideal
    outcome.worker_fraction = worker_seconds / ideal_seconds
    return outcome


def summarise(outcomes: list[Outcome]) -> Mapping[str, Any]:
    """Over the seeds of a case."""
    return {
        "best": outcomes[0].best,
        "workers": sorted(one.workers for one in outcomes),
        "steady_seconds": Spread.of([one.steady_seconds for one in outcomes]).as_dict(),
        "speed_fraction": Spread.of([one.speed_fraction for one in outcomes]).as_dict(),
        "worker_fraction": Spread.of([one.worker_fraction for one in outcomes]).as_dict(),
        "changes": Spread.of([float(one.changes) for one in outcomes]).as_dict(),
        "replaced": [one.replaced for one in outcomes],
    }


def main() -> None:
    """Simulates every case with several seeds and prints where it ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=10, help="Seeds of each case.")
    parser.add_argument("--minutes", type=float, default=60.0, help="Of a simulated job.")
    parser.add_argument("--quick", action="store_true", help="Two seeds of 20 minutes.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    repeats, minutes = (2, 20.0) if arguments.quick else (arguments.repeats, arguments.minutes)
    machine = describe_machine()
    results: dict[str, Any] = {}
    for cluster in clusters():
        outcomes = [simulate(cluster, seconds=60 * minutes, seed=seed) for seed in range(repeats)]
        results[cluster.name] = summarise(outcomes)
    print(f"Jobs of {minutes:g} simulated minutes, {repeats} seeds each\n")
    print_machine(machine)
    print_table(
        [
            "cluster",
            "best",
            "ended at",
            "changed last, s",
            "speed / best",
            "workers / best",
            "replaced",
        ],
        [
            [
                name,
                str(one["best"]),
                ", ".join(str(number) for number in sorted(set(one["workers"]))),
                f"{one['steady_seconds']['mean']:.0f}",
                f"{one['speed_fraction']['mean']:.2f} ± {one['speed_fraction']['std']:.2f}",
                f"{one['worker_fraction']['mean']:.2f} ± {one['worker_fraction']['std']:.2f}",
                f"{sum(map(len, one['replaced'])) / repeats:.1f}",
            ]
            for name, one in results.items()
        ],
    )
    write_results(arguments.json, benchmark="scaling_simulator", machine=machine, results=results)


if __name__ == "__main__":
    main()
