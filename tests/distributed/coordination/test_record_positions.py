"""How far records are read, world by world."""

import pytest

from ctr_pipeline.distributed.coordination.record_positions import (
    OtherRecordsError,
    RecordPosition,
    RecordPositions,
)


@pytest.fixture
def positions():
    return RecordPositions()


def _position(positions):
    return positions.by_name["clicks"].position


def test_a_world_goes_on_after_the_finished_steps_of_the_last_one(positions):
    assert positions.take("clicks", "10 records", 1).position == 0
    assert positions.report("clicks", 1, 0, begins=True)
    assert positions.report("clicks", 1, 4, begins=False)
    # The step that another member had finished before.
    assert positions.report("clicks", 1, 2, begins=False)
    assert positions.take("clicks", "10 records", 2).position == 4


def test_reports_of_an_earlier_world_are_refused(positions):
    positions.take("clicks", "10 records", 1)
    positions.take("clicks", "10 records", 2)
    assert not positions.report("clicks", 1, 8, begins=False)
    assert not positions.report("views", 1, 8, begins=False)
    assert positions.take("clicks", "10 records", 1) is None
    assert _position(positions) == 0


def test_a_world_may_go_back_to_a_checkpoint_but_only_when_it_begins(positions):
    positions.take("clicks", "10 records", 1)
    positions.report("clicks", 1, 8, begins=False)
    positions.take("clicks", "10 records", 2)
    assert positions.report("clicks", 2, 6, begins=True)
    assert _position(positions) == 6
    positions.report("clicks", 2, 9, begins=False)
    assert positions.report("clicks", 2, 6, begins=True), "a member that is late to begin"
    assert _position(positions) == 9


def test_records_of_another_content_are_refused(positions):
    positions.take("clicks", "10 records", 1)
    with pytest.raises(OtherRecordsError, match="'clicks' are 11 records here, and 10 records"):
        positions.take("clicks", "11 records", 2)


def test_records_of_several_names_are_told_apart(positions):
    positions.take("clicks", "10 records", 1)
    positions.take("views", "20 records", 3)
    positions.report("clicks", 1, 5, begins=False)
    assert positions.by_name["views"] == RecordPosition("20 records", 3)
    assert positions.newest_world == 3
    assert RecordPositions().newest_world == 0
