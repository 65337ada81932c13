"""Proposes the next values of a search, and judges which trials to prune.

This is the only module that talks to Optuna. Proposals depend on the seed, the number of the trial
and the results of earlier trials alone, so a search that was killed resumes as if it had not been.
"""

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from ctr_pipeline.config.models import SearchValues, TuneConfig
from ctr_pipeline.config.search_space import choices_of, is_whole
from ctr_pipeline.errors import CtrPipelineError

if TYPE_CHECKING:
    import optuna

_MAX_DRAWS = 50
"""Draws of values that none of the trials has had, before the search counts as exhausted."""


class TrialRecord(BaseModel):
    """The result of one trial.

    Attributes:
        number: Number of the trial, from 0.
        values: Values of the keys that are searched.
        state: complete: trained to its end; pruned: stopped for being worse than others; failed:
            its values make no config, or training with them broke down.
        value: The metric of the best epoch on the validation rows; None if none was finished.
        best_epoch: Number of the best epoch, from 1.
        epochs: The metric after each epoch.
        seconds: From the start of the trial to its end.
        reason: Why it was stopped or failed; empty for one that was trained to its end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    values: dict[str, Any]
    state: Literal["complete", "pruned", "failed"]
    value: float | None = None
    best_epoch: int | None = None
    epochs: tuple[float, ...] = ()
    seconds: float = 0.0
    reason: str = ""


class Proposal:
    """Values to try in one trial, and whether to prune it.

    Args:
        values: Values by dotted key.
        trial: The trial of Optuna.
    """

    def __init__(self, values: dict[str, Any], trial: "optuna.Trial") -> None:
        self.values = values
        self._trial = trial

    def is_hopeless(self, epoch: int, value: float) -> bool:
        """Whether the trial is to be pruned.

        Args:
            epoch: The epoch that has ended, from 0.
            value: The metric after it.
        """
        self._trial.report(value, epoch)
        return self._trial.should_prune()


def require_optuna() -> None:
    """Refuses to search without Optuna.

    Raises:
        CtrPipelineError: It is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise CtrPipelineError(
            "Optuna, which chooses what a search tries, is not installed",
            place="tune",
            remedy="Run: pip install 'ctrpipe[tune]'",
        )


def propose(
    tune: TuneConfig, records: Sequence[TrialRecord], start: Mapping[str, Any]
) -> Proposal | None:
    """Proposes the values of the next trial; None if all proposals have been tried.

    Tree-structured Parzen estimators (Bergstra et al., "Algorithms for Hyper-Parameter
    Optimization", NIPS 2011) propose, after `startup_trials` that are drawn at random. The first
    trial has the values of the config itself, if the space holds them all.

    Args:
        tune: The `tune:` section.
        records: Records of all earlier trials, in order.
        start: Values of the config itself for the keys that are searched.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {key: _distribution_of(key, entry) for key, entry in tune.space.items()}
    study = optuna.create_study(
        direction="maximize" if tune.metric == "auc" else "minimize",
        pruner=_pruner_of(tune),
    )
    for record in records:
        if record.state != "failed" and record.epochs:
            study.add_trial(_as_optuna(record, tune, distributions))
    number = len(records)
    if number == 0 and _holds(tune, start):
        study.enqueue_trial({key: _stored(tune.space[key], start[key]) for key in tune.space})
    tried = {_identity(record.values) for record in records}
    for draw in range(_MAX_DRAWS):
        study.sampler = optuna.samplers.TPESampler(
            seed=_seed_of(tune.seed, number, draw), n_startup_trials=tune.startup_trials
        )
        trial = study.ask(distributions)
        values = {key: _meant(tune.space[key], trial.params[key]) for key in tune.space}
        if _identity(values) not in tried:
            return Proposal(values, trial)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return None


def best_of(records: Sequence[TrialRecord], metric: str) -> TrialRecord | None:
    """The best trial that was trained to its end, the first of equals; None if there is none."""
    sign = -1.0 if metric == "auc" else 1.0
    found = [
        (sign * record.value, record.number, record)
        for record in records
        if record.state == "complete" and record.value is not None
    ]
    return min(found)[2] if found else None


def _pruner_of(tune: TuneConfig) -> "optuna.pruners.BasePruner":
    import optuna

    if tune.pruner == "none":
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=tune.startup_trials)


def _distribution_of(key: str, entry: SearchValues) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if entry.low is None or entry.high is None:
        # By index: Optuna stores neither lists nor mappings.
        return CategoricalDistribution(list(range(len(choices_of(entry)))))
    if is_whole(key):
        return IntDistribution(int(entry.low), int(entry.high), log=entry.log)
    return FloatDistribution(entry.low, entry.high, log=entry.log)


def _stored(entry: SearchValues, value: Any) -> Any:
    return value if entry.choices is None else choices_of(entry).index(value)


def _meant(entry: SearchValues, stored: Any) -> Any:
    return stored if entry.choices is None else choices_of(entry)[stored]


def _holds(tune: TuneConfig, values: Mapping[str, Any]) -> bool:
    return all(_is_inside(entry, values[key]) for key, entry in tune.space.items())


def _is_inside(entry: SearchValues, value: Any) -> bool:
    if entry.low is None or entry.high is None:
        return value in choices_of(entry)
    return isinstance(value, int | float) and entry.low <= value <= entry.high


def _as_optuna(
    record: TrialRecord,
    tune: TuneConfig,
    distributions: "dict[str, optuna.distributions.BaseDistribution]",
) -> "optuna.trial.FrozenTrial":
    from optuna.trial import TrialState, create_trial

    is_pruned = record.state == "pruned"
    return create_trial(
        state=TrialState.PRUNED if is_pruned else TrialState.COMPLETE,
        value=record.epochs[-1] if is_pruned else record.value,
        params={key: _stored(tune.space[key], record.values[key]) for key in tune.space},
        distributions=distributions,
        intermediate_values=dict(enumerate(record.epochs)),
    )


def _identity(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def _seed_of(seed: int, number: int, draw: int) -> int:
    """The seed of one draw: a sampler is created for each, and must not repeat itself."""
    digest = hashlib.sha256(f"{seed} {number} {draw}".encode("ascii")).digest()
    return int.from_bytes(digest[:4], "little")
