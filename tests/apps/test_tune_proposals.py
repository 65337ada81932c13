import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr_pipeline.apps.tune.proposals import TrialRecord, best_of, propose
from ctr_pipeline.config.models import SearchValues, TuneConfig

SPACE = {
    "train.optimizer.learning_rate": SearchValues(low=1e-4, high=1e-1, log=True),
    "model.embedding_dim": SearchValues(low=4, high=16),
    "model.hidden_units": SearchValues(choices=((8,), (16, 8))),
}
START = {
    "train.optimizer.learning_rate": 1e-3,
    "model.embedding_dim": 8,
    "model.hidden_units": [8],
}


def loss_of(values):
    """Best at a rate of 0.01 and 12 dimensions."""
    rate = math.log10(values["train.optimizer.learning_rate"]) + 2
    return 0.4 + 0.02 * rate**2 + 0.001 * abs(values["model.embedding_dim"] - 12)


def search(tune, num_trials, records=(), start=START):
    records = list(records)
    while len(records) < num_trials:
        proposal = propose(tune, records, start)
        if proposal is None:
            break
        value = loss_of(proposal.values)
        stop = proposal.is_hopeless(0, value + 0.1)
        epochs = (value + 0.1,) if stop else (value + 0.1, value)
        records.append(
            TrialRecord(
                number=len(records),
                values=proposal.values,
                state="pruned" if stop else "complete",
                value=epochs[-1],
                best_epoch=len(epochs),
                epochs=epochs,
            )
        )
    return records


@given(seed=st.integers(0, 2**63 - 1), number=st.integers(0, 6))
def test_proposals_lie_in_the_space(seed, number):
    tune = TuneConfig(space=SPACE, seed=seed, startup_trials=2)
    values = search(tune, number + 1)[-1].values
    assert 1e-4 <= values["train.optimizer.learning_rate"] <= 1e-1
    assert values["model.embedding_dim"] in range(4, 17)
    assert values["model.hidden_units"] in ([8], [16, 8])


def test_the_same_seed_proposes_the_same_and_another_does_not():
    first, again = (search(TuneConfig(space=SPACE, seed=1), 12) for _ in range(2))
    other = search(TuneConfig(space=SPACE, seed=2), 12)
    assert first == again
    assert [one.values for one in first[1:]] != [one.values for one in other[1:]]


@pytest.mark.parametrize("kept", [0, 1, 5, 9])
def test_a_search_that_goes_on_is_one_that_was_not_stopped(kept):
    tune = TuneConfig(space=SPACE, seed=3, startup_trials=3)
    whole = search(tune, 14)
    assert any(one.state == "pruned" for one in whole)
    as_read = [TrialRecord.model_validate_json(one.model_dump_json()) for one in whole[:kept]]
    assert search(tune, 14, as_read) == whole


def test_the_config_itself_is_tried_first_if_the_space_holds_it():
    tune = TuneConfig(space=SPACE, seed=4)
    assert search(tune, 1)[0].values == START
    for outside in (
        {"model.embedding_dim": 3},
        {"model.hidden_units": [4]},
        {"train.optimizer.learning_rate": None},
    ):
        values = search(tune, 1, start=START | outside)[0].values
        assert values != START | outside
        assert 4 <= values["model.embedding_dim"] <= 16


def test_no_values_are_tried_twice_and_a_small_space_ends():
    space = {
        "model.embedding_dim": SearchValues(low=1, high=3),
        "model.hidden_units": SearchValues(choices=((8,), (16, 8))),
    }
    tune = TuneConfig(space=space, seed=5, startup_trials=100)

    def all_of(records=()):
        records = list(records)
        while (proposal := propose(tune, records, dict.fromkeys(space))) is not None:
            records.append(
                TrialRecord(
                    number=len(records),
                    values=proposal.values,
                    state="complete",
                    value=0.5,
                    best_epoch=1,
                    epochs=(0.5,),
                )
            )
        return records

    tried = [
        (one.values["model.embedding_dim"], *one.values["model.hidden_units"]) for one in all_of()
    ]
    assert len(tried) == len(set(tried)) == 6


def test_the_search_learns():
    tune = TuneConfig(space=SPACE, seed=6, startup_trials=8, pruner="none")
    records = search(tune, 40)
    best = best_of(records, "logloss")
    assert best.value < 0.403
    rates = [math.log10(one.values["train.optimizer.learning_rate"]) + 2 for one in records]
    drawn, learnt = (
        sum(abs(rate) for rate in part) / len(part) for part in (rates[1:8], rates[24:])
    )
    assert learnt < drawn


@pytest.mark.parametrize(("metric", "hopeless"), [("logloss", 0.9), ("auc", 0.1)])
def test_losers_are_stopped_and_only_after_the_startup(metric, hopeless):
    tune = TuneConfig(space=SPACE, metric=metric, startup_trials=2)

    def complete(number):
        values = START | {"model.embedding_dim": 4 + number}
        return TrialRecord(
            number=number, values=values, state="complete", value=0.5, best_epoch=1, epochs=(0.5,)
        )

    few, enough = [complete(0)], [complete(0), complete(1)]
    assert not propose(tune, few, START).is_hopeless(0, hopeless)
    assert propose(tune, enough, START).is_hopeless(0, hopeless)
    assert not propose(tune, enough, START).is_hopeless(0, 0.5)
    never = tune.model_copy(update={"pruner": "none"})
    assert not propose(never, enough, START).is_hopeless(0, hopeless)


def test_failed_trials_teach_nothing_but_are_not_tried_again():
    tune = TuneConfig(space=SPACE, seed=7)
    failed = TrialRecord(number=0, values=START, state="failed", reason="the loss is not finite")
    proposal = propose(tune, [failed], START)
    assert proposal.values != START
    assert best_of([failed], "logloss") is None


def test_the_best_is_complete_and_the_first_of_equals():
    def record(number, state, value):
        return TrialRecord(number=number, values={}, state=state, value=value)

    records = [
        record(0, "complete", 0.5),
        record(1, "complete", 0.4),
        record(2, "complete", 0.4),
        record(3, "pruned", 0.1),
        record(4, "failed", None),
    ]
    assert best_of(records, "logloss").number == 1
    assert best_of(records, "auc").number == 0
