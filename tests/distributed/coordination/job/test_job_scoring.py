"""A job that scores with a cut and trains nothing."""

import pytest

from ctr_pipeline.distributed.coordination.events import (
    DropCuts,
    RestoreCut,
    RestoreFailed,
    StopAsked,
    TakeCut,
    Tick,
)
from ctr_pipeline.distributed.coordination.job import Job
from ctr_pipeline.distributed.coordination.task_plans import ScoredSplit
from tests.distributed.coordination.job_bench import Bench, restored_cuts


def scoring_bench(trained, cut, **changes):
    bench = Bench(final_splits=(ScoredSplit("test", 20, 10),), **changes)
    bench.cuts = {cut: trained.cuts[cut]}
    bench.job = Job.to_score(bench.settings, cut, trained.cuts[cut], 0.0)
    bench.register("ps", 0, "q")
    bench.register("worker", 0, "v")
    return bench


@pytest.mark.parametrize("most_tasks", [3, 6 + 1 + 2])
def test_a_job_that_scores_does_so_with_its_cut_and_touches_none(most_tasks):
    # The cut is one of a first epoch that is not over, or of the second one.
    trained = Bench(silence_seconds=1e9)
    trained.begin_training("w")
    trained.train_all(most_tasks=most_tasks)
    trained.tell(Tick(), after=31.0)
    cut = max(trained.cuts)
    bench = scoring_bench(trained, cut, silence_seconds=1e9)
    assert bench.job.phase == "scoring"
    assert restored_cuts(bench) == [cut]
    bench.tell(Tick(), after=100.0)
    bench.train_all(0, "v")
    assert bench.job.phase == "finished"
    assert [split.num_rows for split in bench.job.status().final_scores] == [20]
    assert not [action for action in bench.log if isinstance(action, TakeCut | DropCuts)]
    assert bench.job.phase == "finished"


def test_a_job_that_scores_outlives_its_members_and_its_master():
    trained = Bench(epochs=1)
    trained.begin_training("w")
    trained.train_all()
    (cut,) = trained.cuts
    bench = scoring_bench(trained, cut)
    bench.do(bench.job.handle(Tick(), bench.now))
    bench.replace_server("r")
    assert restored_cuts(bench) == [cut, cut]
    again = Bench(records=bench.disk, final_splits=bench.settings.final_splits)
    again.cuts = bench.cuts
    again.register("ps", 0, "s")
    again.register("worker", 0, "x")
    assert restored_cuts(again) == [cut]
    again.train_all(0, "x")
    assert again.job.phase == "finished"
    again.tell(StopAsked())
    assert not [action for action in again.log if isinstance(action, TakeCut)]


def test_a_job_that_scores_fails_rather_than_score_with_other_parameters():
    trained = Bench(epochs=1)
    trained.begin_training("w")
    trained.train_all()
    (cut,) = trained.cuts
    bench = Bench()
    bench.holds = {RestoreCut}
    bench.job = Job.to_score(bench.settings, cut, trained.cuts[cut], 0.0)
    bench.register("ps", 0, "q")
    bench.tell(RestoreFailed(bench.job.generation, cut, "a file is gone", "damage"))
    assert bench.job.phase == "failed"
    assert restored_cuts(bench) == [cut]
