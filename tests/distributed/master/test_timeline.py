from itertools import pairwise

from ctr_pipeline.distributed.master.timeline import JobMoment, Timeline


def moment(time, workers=2, servers=1):
    return JobMoment(time, workers, servers, trained=int(time), samples_per_second=1.0)


def test_a_long_job_has_few_moments_from_its_beginning_to_its_end():
    timeline = Timeline()
    for second in range(0, 100_000, 2):
        timeline.note(moment(float(second)))
    times = [one.time for one in timeline.moments]
    assert len(times) <= 240
    assert times[0] == 0.0
    assert times[-1] >= 99_000
    assert times == sorted(times)
    # No part of the course is left out.
    assert max(later - earlier for earlier, later in pairwise(times)) < 2_000


def test_another_number_of_members_is_kept_at_once():
    timeline = Timeline([moment(0.0), moment(3600.0)])
    assert not timeline.note(moment(3602.0))
    assert timeline.note(moment(3604.0, workers=1))
    assert timeline.note(moment(3606.0, servers=0))
    assert [one.workers for one in timeline.moments] == [2, 2, 1, 2]


def test_time_that_goes_back_is_left_out():
    timeline = Timeline([moment(10.0)])
    assert not timeline.note(moment(9.0, workers=5))
