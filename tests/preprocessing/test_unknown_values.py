import numpy as np
import pyarrow as pa
import pytest

from ctr_pipeline.features import SequenceSpec
from ctr_pipeline.preprocessing.plan import FieldPlan, NumberPlan, PreprocessingPlan
from ctr_pipeline.preprocessing.unknown_values import UnknownCounter, UnknownValues
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.age import AgeStep
from ctr_pipeline.transforms.datetime import DatetimePartStep
from ctr_pipeline.transforms.hash import HashStep
from ctr_pipeline.transforms.vocabulary import VocabularyStep


@pytest.mark.parametrize(
    ("held_out", "unknown", "values", "are_more"),
    [
        (0.0, 100, 100, True),
        (0.02, 100, 100, True),
        (0.02, 13, 100, True),
        (0.02, 11, 100, False),  # Fewer than 10 points more.
        (0.0, 19, 19, False),  # Too few values to tell.
        (0.3, 25, 50, False),  # Neither twice as many unknown, nor half as many known.
        (0.3, 60, 100, True),
        (0.8, 97, 100, True),  # A seventh as many known.
        (0.8, 88, 100, False),
        (0.9, 100, 100, False),
    ],
)
def test_far_more_is_another_kind_of_values(held_out, unknown, values, are_more):
    assert UnknownValues(values, unknown).are_far_more_than(held_out) == are_more


def field_of(name, step, **more):
    return FieldPlan(
        name=name,
        column=name,
        column_type=ColumnType.TEXT,
        transforms=(step.name,),
        num_ids=9,
        step=step,
        **more,
    )


# Known are 0 to 4, unknown 5 and 6, missing is 7; 8 pads sequences.
WORDS = VocabularyStep(file="v", size=5, oov_buckets=2, missing_id=7)
PLAN = PreprocessingPlan(
    fields=(
        field_of("hashed", HashStep(num_bins=7, missing_id=7)),
        field_of("city", WORDS),
        field_of("bought", WORDS, sequence=SequenceSpec(delimiter="|", max_length=3)),
    ),
    numbers=(),
)
NUMBERS = np.empty((4, 0), np.float32)
IDS = np.array([[5, 5, 0, 6, 8], [5, 7, 8, 8, 8], [5, 4, 5, 5, 1], [5, 6, 7, 8, 8]], np.int32)
ROWS = pa.record_batch(
    {
        "hashed": ["a", "b", None, "d"],
        "city": ["Oslo " * 20, None, "Rome", "Bern"],
        "bought": ["a|?", None, "?|?|b", None],
    }
)


def test_values_are_counted_that_are_there_and_in_no_vocabulary():
    counter = UnknownCounter(PLAN, show=True)
    counter.add(IDS, NUMBERS, ROWS)
    counter.add(IDS[:1], NUMBERS[:1], ROWS.slice(0, 1))
    assert counter.unknown == {
        "city": UnknownValues(4, 3, ["Oslo " * 8 + "…", "Bern"]),
        "bought": UnknownValues(7, 4, ["a|?", "?|?|b"]),
    }
    assert counter.shares() == {
        "unknown_values": {"city": 0.75, "bought": pytest.approx(4 / 7)},
        "missing_values": {"hashed": 0.0, "city": 0.2},
    }


def test_times_that_cannot_be_read_tell_nothing():
    hour = DatetimePartStep(part="hour", format="iso", utc_offset_minutes=0, missing_id=24)
    plan = PreprocessingPlan(
        fields=(field_of("seen", hour),),
        numbers=(
            NumberPlan(name="price", column="price", steps=()),
            NumberPlan(
                name="joined", column="joined", steps=(), first=AgeStep(format="iso", at_seconds=0)
            ),
        ),
    )
    held_out, counter = UnknownCounter(plan, show=False), UnknownCounter(plan, show=True)
    times = ["1970-01-01", "01.01.1970 00:00", None, "1970-01-01 00:00:00"]
    rows = pa.record_batch(
        {
            "seen": times,
            "price": pa.array([0.0, np.nan, None, 1.0]),
            "joined": pa.array(times).dictionary_encode(),
        }
    )
    ids = np.array([[0], [24], [24], [0]], np.int32)
    numbers = np.array([[0, 0], [0, 0], [0, 0], [1, 0]], np.float32)
    for _ in range(10):
        counter.add(ids, numbers, rows)
    held_out.add(ids[:1], numbers[3:] + 1)
    held_out.add(ids[:1], numbers[:1])
    assert held_out.shares()["missing_values"] == {"seen": 0.0, "price": 0.5, "joined": 0.5}
    half = {"missing_values": {"seen": 0.5, "price": 0.5, "joined": 0.0}}
    assert counter.compare(half) == [
        "50.0% of the values of 'joined' are missing or tell nothing, and 0.0% of those that "
        "training held out, such as '01.01.1970 00:00'"
    ]


def test_a_sentence_tells_both_shares_and_examples():
    for show, examples in ((True, f", such as '{'Oslo ' * 8}…' and 'Bern'"), (False, "")):
        counter = UnknownCounter(PLAN, show=show)
        for _ in range(10):
            counter.add(IDS, NUMBERS, ROWS)
        held_out = {"unknown_values": {"city": 0.01, "bought": 0.5, "gone": 0.0}}
        assert counter.compare(held_out) == [
            "66.7% of the values of 'city' are unknown to the model, and 1.0% of those that "
            f"training held out{examples}"
        ]
        assert counter.compare({}) == []
