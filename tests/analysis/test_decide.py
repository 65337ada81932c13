"""The automatic choice for columns of known shape."""

import math

import numpy as np
import pytest

from ctr_pipeline.analysis import decide as decide_module
from ctr_pipeline.analysis import decide_features
from ctr_pipeline.analysis.leaks import describe_suspicion
from ctr_pipeline.analysis.whole_numbers import WholeNumbers
from ctr_pipeline.features import SequenceSpec, VectorSpec
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.statistics import (
    ColumnStatistics,
    Moments,
    Statistics,
    ValueCount,
)
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.datetime import Datetime
from ctr_pipeline.transforms.log import Log
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.target_encode import TargetEncode
from ctr_pipeline.transforms.vocabulary import Vocabulary

ROWS = 1000
LABELS = [index % 4 == 0 for index in range(ROWS)]


@pytest.fixture(scope="module")
def decide(collect):
    """Features and reasons by column, for columns given as values."""

    def run(columns, labels=None, **found):
        statistics = collect(columns, labels or LABELS)
        types = {name: column.column_type for name, column in statistics.columns.items()}
        features, decisions = decide_features(types, statistics, label="label", **found)
        return (
            {feature.column: feature for feature in features},
            {decision.column: decision for decision in decisions},
        )

    return run


def numbers(draw):
    return draw(np.random.default_rng(0)).tolist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (numbers(lambda rng: rng.normal(5, 1, ROWS)), (Standardize(),)),
        (numbers(lambda rng: np.floor(rng.lognormal(3, 2, ROWS))), (Log(), Standardize())),
        # A few counts below 0 that mean "unknown" do not stand in the way of log.
        (
            numbers(lambda rng: np.floor(rng.lognormal(5, 2, ROWS)) - 2),
            (Log(), Standardize()),
        ),
        # log would make all negative numbers 0.
        (numbers(lambda rng: rng.standard_t(1, ROWS)), (Standardize(),)),
        # log(1 + x) is a straight line here.
        (numbers(lambda rng: rng.lognormal(3, 2, ROWS) * 1e-6), (Standardize(),)),
        (numbers(lambda rng: -rng.lognormal(3, 2, ROWS)), (Standardize(),)),
    ],
    ids=["normal", "skewed", "skewed, few negative", "both tails", "tiny", "negative"],
)
def test_number_chain_by_shape(decide, values, expected):
    features, decisions = decide({"x": values})
    assert features["x"].number == expected
    assert features["x"].id == (Bucketize(quantiles=30),)
    assert decisions["x"].reason == features["x"].reason
    assert ("log" in decisions["x"].reason) == (Log() in expected)


def test_reason_has_the_numbers(decide):
    values = [1.0] * 600 + [2.0] * 200 + [500.0] + [None] * 199
    _, decisions = decide({"x": values})
    assert decisions["x"].used
    assert decisions["x"].reason == (
        "number with 3 different values and 19.9% missing, skew 28.2, "
        "the largest 500 times the median: log, then standardized, "
        "and an id for each of its values, as they are few and whole"
    )


def test_points_in_time_give_their_parts(decide):
    features, decisions = decide(
        {
            "seen_at": [f"2024-03-{index % 28 + 1:02}T{index % 24:02}:30" for index in range(ROWS)],
            "joined": [f"2024-03-{index % 28 + 1:02}" for index in range(ROWS)],
            "not_all": [
                "soon" if index % 3 == 0 else f"2024-03-{index % 28 + 1:02}"
                for index in range(ROWS)
            ],
            # Each row at another second, which is no reason to leave it out.
            "unique": [
                f"2024-03-01T{index // 3600:02}:{index // 60 % 60:02}:{index % 60:02}"
                for index in range(ROWS)
            ],
        }
    )
    assert features["seen_at"].id == (Datetime(parts=("hour", "weekday")),)
    assert features["joined"].id == (Datetime(parts=("weekday",)),)
    assert features["not_all"].id == (Vocabulary(min_count=2),)
    assert features["unique"].id == (Datetime(parts=("hour", "weekday")),)
    assert "hour and weekday" in decisions["seen_at"].reason


def test_epochs_give_their_parts(decide):
    seconds = [1_700_000_000 + 977 * index for index in range(ROWS)]
    midnights = [1000 * 86_400 * (19_000 + index % 40) for index in range(ROWS)]
    features, decisions = decide(
        {
            "seen": [str(second) for second in seconds],
            "as_number": [float(second) for second in seconds],
            "joined": [str(one) for one in midnights],
            "empty": [None] * ROWS,
        },
        times={
            "seen": "epoch_seconds",
            "as_number": "epoch_seconds",
            "joined": "epoch_milliseconds",
            "empty": "iso",
        },
    )
    by_second = Datetime(parts=("hour", "weekday"), format="epoch_seconds")
    assert features["seen"].id == features["as_number"].id == (by_second,)
    assert features["as_number"].column_type is ColumnType.TEXT
    assert features["joined"].id == (Datetime(parts=("weekday",), format="epoch_milliseconds"),)
    assert "points in time, written as epoch seconds, with 1,000" in decisions["seen"].reason
    assert decisions["empty"].reason == "all its 1,000 rows are missing"


def test_vectors_are_standardized_together(decide):
    values = [f"{index}|0.5" for index in range(ROWS)]
    vector = VectorSpec(length=2)
    features, decisions = decide({"taste": values}, lists={"taste": vector})
    assert features["taste"].vector == vector
    assert (features["taste"].number, features["taste"].id) == ((Standardize(),), None)
    assert decisions["taste"].reason.startswith("lists of 2 numbers each: a vector")


def test_lists_are_sequences_though_each_occurs_once(decide):
    sequence = SequenceSpec(delimiter=";", weights=True)
    values = [f"a:1;b:{index}" for index in range(ROWS)]
    features, decisions = decide({"bought": values}, lists={"bought": sequence})
    assert features["bought"].sequence == sequence
    assert features["bought"].id == (Vocabulary(min_count=2),)
    assert "lists of elements between ';', each with a weight" in decisions["bought"].reason


def test_few_whole_numbers_are_categories(decide):
    features, _ = decide(
        {
            "kind": [float((0, 3, 7)[index % 3]) for index in range(ROWS)],
            "half": [(0.5, 1.0)[index % 2] for index in range(ROWS)],
            "many": [float(index % 300) for index in range(ROWS)],
            # As many as there are floats from the smallest to the largest.
            "huge": [1e17 + 16.0 * (index % 5) for index in range(ROWS)],
        }
    )
    assert features["kind"].id == (Bucketize(boundaries=(1.5, 5.0)),)
    huge = features["huge"].id[0].boundaries
    assert [sum(one >= cut for cut in huge) for one in 1e17 + 16.0 * np.arange(5)] == [*range(5)]
    for column in ("half", "many"):
        assert features[column].id == (Bucketize(quantiles=30),)


def judged(**found):
    shares = {"by_value": 0.03, "by_interval": 0.002, "by_others": 0.0, "lead": 0.028}
    errors = {"others_error": 0.004, "lead_error": 0.004}
    return WholeNumbers(num_rows=900, num_values=300, **(shares | errors | found))


@pytest.mark.parametrize(
    ("is_text", "found", "number", "ids", "reason"),
    [
        (
            True,
            {},
            (TargetEncode(smoothing=1.0), Standardize()),
            Vocabulary(min_count=2),
            "whole numbers with 300 different values; in the first 900 rows with a value, each "
            "value by itself explains 3.00% of the log loss, intervals of neighbouring ones 0.20%, "
            "and other values nearby 0.00%, so they are ids: a vocabulary of those seen at least 2 "
            "times",
        ),
        (
            False,
            {"by_interval": 0.05, "lead": -0.02},
            (Standardize(),),
            Bucketize(quantiles=30),
            "intervals of neighbouring ones 5.00%, so they are a measure; skew 0.0: standardized",
        ),
        (
            False,
            {"by_interval": 0.029, "by_others": 0.028, "lead": 0.001},
            (Standardize(),),
            Bucketize(quantiles=30),
            "intervals of neighbouring ones 2.90%, so they are taken as both ids and a measure; ",
        ),
        (
            False,
            {"by_interval": 0.015, "by_others": 0.014, "lead": 0.015},
            (Standardize(),),
            Bucketize(quantiles=300),
            "so they are taken as both ids and a measure; skew 0.0: standardized, and an id for "
            "each of up to 300 equally full intervals",
        ),
        (
            False,
            {"by_value": 0.0, "by_interval": 0.0, "lead": 0.0},
            (Standardize(),),
            Bucketize(quantiles=30),
            "in the first 900 rows with a value, no value tells more of the click than others do; ",
        ),
        (
            False,
            {"by_value": 0.0, "by_interval": 0.0, "lead": 0.0, "is_uneven": True},
            (Standardize(),),
            Bucketize(quantiles=10_000),
            "but neighbouring ones occur unlike often, as ids do, so they are taken as both ids "
            "and a measure; skew 0.0: standardized, and an id for each of up to 10,000",
        ),
    ],
    ids=["ids", "measure", "close", "both", "neither", "uneven"],
)
def test_whole_numbers_are_what_they_were_judged_to_be(decide, is_text, found, number, ids, reason):
    values = [float(index % 300) for index in range(900)]
    columns = {"c": [f"{value:.0f}" for value in values] if is_text else values}
    features, decisions = decide(columns, LABELS[:900], whole_numbers={"c": judged(**found)})
    assert (features["c"].number, features["c"].id) == (number, (ids,))
    assert reason in decisions["c"].reason


def test_texts_of_many_values_have_their_click_rate_as_a_number(decide):
    random = np.random.default_rng(0)
    clicked = random.random(2 * ROWS)
    codes = {name: random.integers(0, num, 2 * ROWS) for name, num in (("few", 20), ("many", 21))}
    for name, values in codes.items():
        labels = (clicked < random.choice([0.1, 0.5], 21)[values]).tolist()
        texts = [f"v{value}" for value in values]
        features, decisions = decide({name: texts, "other": random.permutation(texts)}, labels)
        assert features[name].id == features["other"].id == (Vocabulary(min_count=2),)
        assert features["other"].number is None
        assert "click rate" not in decisions["other"].reason
        if name == "few":
            assert features[name].number is None
            continue
        # p (1 - p) is some five times the variance of the values' rates.
        assert features[name].number == (TargetEncode(smoothing=4.0), Standardize())
        assert decisions[name].reason.endswith(
            "; and as a number each value's click rate, that of a training row by other rows, "
            "with 4 rows of the overall rate, as foretells clicks best"
        )


def test_texts_of_many_rows_have_no_click_rate(decide, monkeypatch):
    texts = [f"v{index % 40}" for index in range(ROWS)]
    for most, has_rate in ((ROWS, True), (ROWS - 1, False)):
        monkeypatch.setattr(decide_module, "MOST_ROWS_FOR_RATES", most)
        features, _ = decide({"c": texts})
        assert (features["c"].number is not None) is has_rate


def test_text_has_a_vocabulary(decide):
    features, decisions = decide({"c": [f"v{index % 37}" for index in range(ROWS - 1)] + [None]})
    assert features["c"].id == (Vocabulary(min_count=2),)
    assert features["c"].number is None
    assert decisions["c"].reason == (
        "text with 37 different values and 0.1% missing: "
        "a vocabulary of those seen at least 2 times"
    )


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None] * ROWS, "all its 1,000 rows are missing"),
        ([""] * ROWS, "all its 1,000 rows are missing"),
        ([math.nan] * ROWS, "all its 1,000 rows are missing"),
        ([3.0] * ROWS, "it has the same value in all 1,000 rows"),
        (["a"] * ROWS, "it has the same value in all 1,000 rows"),
        (
            [f"id{index}" for index in range(ROWS)],
            "each of its 1,000 values occurs once, so nothing can be learned about any of them",
        ),
        (
            [f"id{index}" if index % 2 else "" for index in range(ROWS)],
            "each of its 500 values occurs once, so nothing can be learned about any of them",
        ),
        (
            ["yes" if label else "no" for label in LABELS],
            "each of its 2 values occurs with one label only, so it gives the label away",
        ),
        (
            [float(not label) for label in LABELS],
            "each of its 2 values occurs with one label only, so it gives the label away",
        ),
        (
            [float(index % 5 * 2 + label) for index, label in enumerate(LABELS)],
            "each of its 10 values occurs with one label only, so it gives the label away",
        ),
        (
            [float(label or index == 1) for index, label in enumerate(LABELS)],
            "it alone ranks the rows with an AUC of 0.9993, so it gives the label away",
        ),
        (
            [index / 7 + 900 * label for index, label in enumerate(LABELS)],
            "it alone ranks the rows with an AUC of 1.0000, so it gives the label away",
        ),
        (
            [float(index) if label else None for index, label in enumerate(LABELS)],
            "it has a value exactly where the row is clicked, so it gives the label away",
        ),
        (
            [None if label else f"t{index % 300}" for index, label in enumerate(LABELS)],
            "it has a value exactly where the row is not clicked, so it gives the label away",
        ),
    ],
)
def test_left_out(decide, values, reason):
    useful = [float(index % 7) for index in range(ROWS)]
    features, decisions = decide({"column": values, "useful": useful})
    assert list(features) == ["useful"]
    assert not decisions["column"].used
    assert decisions["column"].reason == reason


def test_kept_although_it_looks_like_a_leak(decide):
    # A number that never repeats has one label a value, like any other such number.
    features, _ = decide({"x": [float(index) for index in range(ROWS)]})
    assert "x" in features
    # One row in forty disagrees.
    almost = [float(label != (index % 40 == 1)) for index, label in enumerate(LABELS)]
    features, _ = decide({"x": almost})
    assert "x" in features
    # Few rows a value: chance.
    features, _ = decide({"x": [1.0, 2.0, 3.0, 4.0]}, [0, 1, 1, 0])
    assert "x" in features
    # Nothing can leak a label that is always the same.
    features, _ = decide({"x": [0.0, 1.0, None]}, [0, 0, 0])
    assert "x" in features


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            [float(label != (index % 40 == 1)) for index, label in enumerate(LABELS)],
            "alone ranks the rows with an AUC of 0.983",
        ),
        (
            numbers(lambda rng: rng.normal(2.66 * np.array(LABELS), 1.0)),
            "alone ranks the rows with an AUC of 0.97",
        ),
        (
            [f"{'bought' if label else 'left'} {index % 90}" for index, label in enumerate(LABELS)],
            "alone explains ",
        ),
        (numbers(lambda rng: rng.normal(np.array(LABELS), 1.0)), None),
        ([f"u{index % 90}" for index in range(ROWS)], None),
    ],
    ids=["flag", "number", "text of many values", "honest number", "honest text"],
)
def test_a_column_that_alone_says_too_much_is_suspected(collect, values, said):
    statistics = collect({"column": values}, LABELS)
    column = statistics.columns["column"]
    found = describe_suspicion(column, statistics.label_rate)
    assert found is None if said is None else found.startswith(said)


def test_one_value_and_missing_tells_by_being_there(decide):
    one = [1.0 if index % 3 else None for index in range(ROWS)]
    text = ["a" if index % 3 else None for index in range(ROWS)]
    features, _ = decide({"x": one, "c": text})
    assert features["x"].number is None
    assert features["x"].id == (Bucketize(quantiles=30),)
    assert features["c"].id == (Vocabulary(min_count=2),)


def known(column_type: ColumnType, **options: object) -> Statistics:
    column = ColumnStatistics(column="c", column_type=column_type, count=10_000_000, **options)
    return Statistics(fingerprint="", num_rows=10_000_000, label_rate=0.1, columns={"c": column})


def test_huge_vocabulary_is_bounded():
    statistics = known(ColumnType.TEXT, num_missing=0, num_distinct=3_000_000)
    (feature,), (decision,) = decide_features(
        {"c": ColumnType.TEXT, "label": ColumnType.NUMBER}, statistics, label="label"
    )
    assert feature.id == (Vocabulary(min_count=2, max_size=2_000_000),)
    assert "the 2,000,000 most frequent" in decision.reason


def test_reasons_hold_no_values():
    statistics = known(
        ColumnType.NUMBER,
        num_missing=0,
        num_distinct=5,
        moments=Moments(
            count=10, mean=77.0, standard_deviation=78.0, minimum=71.0, maximum=73737.0
        ),
        summary={"skew": 4.0},
        quantiles={"0.05": 71.0, "0.25": 72.0, "0.5": 74.0, "0.75": 75.0, "0.95": 76.0},
        top_values=(ValueCount(value="71", count=5, label_rate=0.3),),
    )
    _, (decision,) = decide_features({"c": ColumnType.NUMBER}, statistics, label="label")
    assert "the largest 996 times the median" in decision.reason
    assert not any(text in decision.reason for text in ("71", "72", "74", "73737"))


def test_decision_refuses_statistics_that_do_not_fit():
    statistics = known(ColumnType.TEXT, num_missing=0, num_distinct=5)
    with pytest.raises(ValueError, match="no statistics for column 'other'"):
        decide_features({"other": ColumnType.TEXT}, statistics, label="label")
    with pytest.raises(ValueError, match="those of a text column"):
        decide_features({"c": ColumnType.NUMBER}, statistics, label="label")
    without_profile = known(ColumnType.NUMBER, num_missing=0, num_distinct=5)
    with pytest.raises(ValueError, match="no profile"):
        decide_features({"c": ColumnType.NUMBER}, without_profile, label="label")


def test_whole_numbers_beyond_floats_are_called_so(decide):
    columns = {
        "big": [str(10**17 + row % 40) for row in range(ROWS)],
        "coded": [f"{row % 40:020}" for row in range(ROWS)],
        "small": [str(row % 40) for row in range(ROWS)],
        "long": ["9" * 5000 if row % 2 else "x" for row in range(ROWS)],
    }
    _, decisions = decide(columns)
    words = {column: decision.reason.split(" with ")[0] for column, decision in decisions.items()}
    assert words.pop("big") == "whole numbers beyond 2^53, read as text,"
    assert set(words.values()) == {"text"}
