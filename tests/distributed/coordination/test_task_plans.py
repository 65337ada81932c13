from ctr_pipeline.distributed.coordination.messages import TaskKey
from ctr_pipeline.distributed.coordination.task_plans import EpochPlan, ScoredSplit, ScorePlan

PLAN = EpochPlan(epoch=2, num_tasks=3, rows_per_task=8, batch_size=2, other_rows=((2, 5),))


def test_a_plan_knows_its_uneven_tasks():
    assert [PLAN.rows_of(task) for task in range(3)] == [8, 8, 5]
    assert [PLAN.batches_of(task) for task in range(3)] == [4, 4, 3]
    assert PLAN.num_rows == 21


def test_a_split_is_cut_into_ranges_with_a_short_last_one():
    split = ScoredSplit("valid", num_rows=10, rows_per_task=4)
    assert [(split.first_row_of(task), split.rows_of(task)) for task in range(3)] == [
        (0, 4),
        (4, 4),
        (8, 2),
    ]
    assert split.num_tasks == 3


def test_the_plan_of_splits_names_their_ranges_one_after_another():
    plan = ScorePlan((ScoredSplit("valid", 10, 4), ScoredSplit("test", 3, 4)), epoch=1)
    keys = [plan.key_of(number) for number in range(plan.num_tasks)]
    assert [(key.split, key.task) for key in keys] == [
        ("valid", 0), ("valid", 1), ("valid", 2), ("test", 0),
    ]  # fmt: skip
    assert [plan.number_of(key) for key in keys] == [0, 1, 2, 3]
    assert [plan.make_task(number).num_rows for number in range(4)] == [4, 4, 2, 3]
    strangers = (
        TaskKey("score", 1, 3, "valid"),
        TaskKey("score", 0, 0, "valid"),
        TaskKey("score", 1, 0, "train"),
        TaskKey("train", 1, 0, "valid"),
    )
    assert [plan.number_of(key) for key in strangers] == [None] * 4
