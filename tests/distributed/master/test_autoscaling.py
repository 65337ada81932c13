"""The rules have tests of their own; here a job is simulated and its number of workers watched."""

from dataclasses import dataclass

import pytest

from ctr_pipeline.distributed.coordination.job.status import JobStatus, MemberStatus
from ctr_pipeline.distributed.coordination.messages import MemberStats
from ctr_pipeline.distributed.coordination.scaling import ScalingRules, WorkerBounds
from ctr_pipeline.distributed.master.autoscaling import Autoscaler

RULES = ScalingRules(settle_seconds=2.0, least_samples=3, most_samples=6)


@dataclass
class Simulated:
    """A job whose speed depends on its number of workers."""

    speed_of: object
    target: int = 8
    now: float = 0.0
    trained: int = 0
    generation: int = 1
    phase: str = "training"
    speeds: object = None
    server_cores: float = 1.0
    server_load: float = 0.0
    """Cores that its parameter server keeps busy."""

    def status(self):
        def member(role, index, leases, stats):
            return MemberStatus(
                role, index, 1, "here", "", "", "running", leases=leases, stats=stats
            )

        each = self.speed_of(self.target) / self.target
        speeds = self.speeds or {}
        workers = [
            member(
                "worker",
                index,
                2,
                MemberStats(samples_per_second=speeds.get(index, each)),
            )
            for index in range(self.target)
        ]
        server = member(
            "ps",
            0,
            0,
            MemberStats(cpu_seconds=self.now * self.server_load, cores=self.server_cores),
        )
        return JobStatus(
            phase=self.phase,
            reason="",
            traceback="",
            generation=self.generation,
            epoch=0,
            tasks_done=0,
            tasks_total=10,
            epochs=(),
            step=0,
            trained=self.trained,
            repeated=0,
            dropped=0,
            dropped_tasks=(),
            history=(),
            best_epoch=None,
            last_cut=0,
            best_cut=0,
            cut_age_seconds=0.0,
            members=(server, *workers),
            target_workers=self.target,
            refused_reports=0,
            final_scores=(),
        )

    def run(self, scaler, seconds):
        """Lets time pass; everything that was asked for."""
        steps = []
        for _ in range(int(seconds)):
            step = scaler.poll(self.status())
            if step is not None:
                steps.append(step)
                if step.scale is not None:
                    self.target = step.scale.target_workers
            self.now += 1.0
            self.trained += int(self.speed_of(self.target))
        return steps


def simulate(job, seconds=600, most=8):
    scaler = Autoscaler(WorkerBounds(1, most), lambda: job.now, RULES)
    return job.run(scaler, seconds)


def test_a_new_job_begins_with_one_worker():
    job = Simulated(lambda workers: 100.0 * workers)
    (step,) = simulate(job, seconds=1)
    assert step.scale.target_workers == 1


def test_autoscaler_adds_workers_while_they_are_worth_it():
    job = Simulated(lambda workers: 100.0 * workers)
    simulate(job)
    assert job.target == 8


def test_autoscaler_stops_adding_workers_that_are_not_worth_it():
    job = Simulated(lambda workers: 100.0 * min(workers, 3))
    simulate(job)
    assert job.target == 3


@pytest.mark.parametrize(("server_cores", "workers"), [(1.0, 1), (4.0, 8)])
def test_a_server_is_full_when_all_of_its_cores_are(server_cores, workers):
    job = Simulated(
        lambda workers: 100.0 * workers, target=1, server_cores=server_cores, server_load=0.99
    )
    simulate(job)
    assert job.target == workers


def test_a_job_that_goes_on_keeps_its_number():
    job = Simulated(lambda workers: 100.0 * workers, target=5, trained=1000)
    simulate(job, seconds=2)
    assert job.target == 5


def test_worker_count_a_person_asks_for_is_the_most_from_then_on():
    job = Simulated(lambda workers: 100.0 * workers)
    scaler = Autoscaler(WorkerBounds(1, 8), lambda: job.now, RULES)
    job.run(scaler, 600)
    job.target = 2
    job.run(scaler, 600)
    assert job.target == 2


def test_autoscaler_measures_nothing_outside_of_training():
    job = Simulated(lambda workers: 100.0 * workers, trained=10, target=1, phase="validating")
    assert simulate(job) == []


def test_a_worker_far_behind_is_replaced_once():
    job = Simulated(lambda workers: 400.0, target=4, trained=1)
    job.speeds = {0: 110.0, 1: 120.0, 2: 115.0, 3: 10.0}
    scaler = Autoscaler(WorkerBounds(4, 4), lambda: job.now, RULES)
    stragglers = [step.stragglers for step in job.run(scaler, 300) if step.stragglers]
    assert stragglers == [(3,)]


@pytest.mark.parametrize("most", [1, 3])
def test_bounds_are_kept(most):
    job = Simulated(lambda workers: 100.0 * workers)
    steps = simulate(job, most=most)
    assert all(1 <= step.scale.target_workers <= most for step in steps if step.scale)
    assert job.target == most
