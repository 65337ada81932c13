"""Going on from an earlier run: what is taken over, and what keeps it from being taken over.

Features and fitted transforms of the earlier run stay as they are; its files of values are copied
below the new run, which then stands alone. Vocabularies are grown by `vocabulary_extension`.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ctr_pipeline import durable
from ctr_pipeline.analysis import ColumnDecision
from ctr_pipeline.config.loader import LoadedConfig, load_config
from ctr_pipeline.config.models import Config, EarlierRun
from ctr_pipeline.config.resolved import absolute_path, same_paths, with_paths
from ctr_pipeline.errors import (
    CheckpointError,
    ConfigError,
    CtrPipelineError,
    PreprocessingError,
    RunFolderError,
)
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.pipeline.feature_file import load_features, save_features
from ctr_pipeline.pipeline.refit import load_refit
from ctr_pipeline.pipeline.run_folder import RunFolder, find_run
from ctr_pipeline.pipeline.stages.columns import FeatureColumns
from ctr_pipeline.preprocessing.plan import PLAN_FILE, PreprocessingPlan, load_plan
from ctr_pipeline.progress import Progress
from ctr_pipeline.storage.opening import address_of
from ctr_pipeline.training.checkpoint import Checkpoint, Checkpoints
from ctr_pipeline.training.history import EpochRecord, judged_history
from ctr_pipeline.training.stopping import decide_stop

KEY = "train.init_from"
NOT_THERE = "the run that training begins from has no such feature"

_RECORD = "warm_start.json"
_FEATURES_FILE = "features.json"
_SHOWN = 5


class WarmStartRecord(BaseModel):
    """The checkpoint of an earlier run that a run starts from, `warm_start.json`.

    Attributes:
        run: The folder of the earlier run, as the config names it.
        checkpoint: The checkpoint that the run begins from.
        epoch: The epoch that it is of, from 1; 0 before the end of the first one.
        step: Its steps.
        earlier_steps: Steps of the runs that the earlier one went on from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: str
    checkpoint: Literal["best", "last"]
    epoch: int
    step: int
    earlier_steps: int
    plan_fingerprint: str

    @property
    def all_steps(self) -> int:
        """Steps that the parameters were trained with, of all runs until then."""
        return self.earlier_steps + self.step

    def describe(self) -> str:
        """The record for people."""
        return f"{self.run}, {self.checkpoint} checkpoint, epoch {self.epoch}, step {self.step:,}"


@dataclass(frozen=True)
class EarlierCheckpoint:
    """A whole checkpoint of an earlier run, in whichever mode it was trained.

    Attributes:
        step: Its steps.
        epoch: Epochs that it has finished.
        earlier_steps: Steps of the runs that it went on from.
    """

    config: Config
    checkpoint: Checkpoint
    step: int
    epoch: int
    earlier_steps: int
    plan_fingerprint: str


@dataclass(frozen=True)
class WarmStart:
    """What a run takes over from an earlier one.

    Attributes:
        features: Its features, in their order.
        plan: Its fitted transforms, whose files lie below the new run.
    """

    record: WarmStartRecord
    features: tuple[FeatureSpec, ...]
    plan: PreprocessingPlan


def find_warm_start(
    loaded: LoadedConfig, run: RunFolder, *, keep: bool, progress: Progress
) -> WarmStart | None:
    """What the run of a config begins with; None if it begins from the start.

    Args:
        loaded: The config.
        run: Its folder.
        keep: What was taken over when the run began is kept, if anything was.

    Raises:
        ConfigError: The earlier run has another model, or is none to go on from.
        CheckpointError: It has no whole checkpoint.
    """
    wanted = loaded.config.train.earlier_run
    if wanted is None:
        return None
    if keep:
        stored = _load_warm_start(run)
        if (
            stored is not None
            and stored.record.checkpoint == wanted.checkpoint
            and same_paths(stored.record.run, wanted.run)
        ):
            return stored
    return _take_over(loaded, run, wanted, progress)


def reopen(record: WarmStartRecord, progress: Progress) -> "EarlierCheckpoint":
    """The checkpoint that a run begins with.

    Raises:
        CheckpointError: The earlier run has changed since, or its checkpoint is gone.
    """
    config = load_config(RunFolder(Path(record.run)).config).config
    earlier = RunFolder.of(config)
    found = _find_checkpoint(earlier, config, record.checkpoint, progress)
    if (found.step, found.plan_fingerprint) != (record.step, record.plan_fingerprint):
        raise CheckpointError(
            "has changed since this run began from it",
            place=str(earlier.path),
            remedy="Give --overwrite to begin anew from what it is now",
        )
    return found


def freeze_features(
    loaded: LoadedConfig, columns: FeatureColumns, warm_start: WarmStart
) -> tuple[FeatureColumns, tuple[FeatureSpec, ...], tuple[ColumnDecision, ...]]:
    """The features of the earlier run, if the config asks for the same or leaves them open.

    Args:
        loaded: The config.
        columns: What it says of the new data.

    Returns:
        Which columns are read, as the earlier run read them; its features, in its order; and the
        columns without one.

    Raises:
        ConfigError: With every feature that differs.
    """
    known = {spec.column: spec for spec in warm_start.features}
    problems = [
        message
        for name in columns.names
        if (message := _difference(name, known.get(name), columns)) is not None
    ]
    problems += [
        f"'{name}' is a feature there, and not here" for name in known if name not in columns.names
    ]
    if problems:
        raise _refusal(loaded, warm_start.record.run, "other features", problems)
    features = tuple(
        spec.model_copy(update={"sensitive": spec.column in columns.sensitive})
        for spec in warm_start.features
    )
    types = {part.column: part.column_type for spec in features for part in spec.parts}
    left_out = tuple(
        ColumnDecision(name, used=False, reason=NOT_THERE)
        for name in columns.names
        if name not in known
    )
    cuts = {spec.column: spec.sequence or spec.vector for spec in features}
    found_lists = {
        name: cut for name, cut in cuts.items() if cut is not None and name not in columns.explicit
    }
    frozen = replace(columns, types=types, found_lists=found_lists)
    return frozen, features, (*left_out, *columns.unfit)


def _difference(name: str, known: FeatureSpec | None, columns: FeatureColumns) -> str | None:
    """Why a feature of the config is not the earlier run's; what is decided is taken as it was."""
    explicit = columns.explicit.get(name)
    if explicit is None:
        return None
    if known is None:
        return f"'{name}' is a feature here, and not there"
    is_open = name in columns.automatic
    for key in ("number", "id", "sequence", "vector", "cross", "table"):
        there = getattr(known, key)
        here = _as_old_as(getattr(explicit, key), there)
        if here != there and not (is_open and here is None):
            return f"'{name}' has another {key} there"
    if explicit.column_type is not known.column_type and not is_open:
        return f"'{name}' is read as a {known.column_type.value} there"
    return None


def _as_old_as(here: Any, there: Any) -> Any:
    """A chain whose ages are counted to the newest time, counted to that of the earlier run."""
    if not (isinstance(here, tuple) and isinstance(there, tuple) and here and there):
        return here
    first, other = here[0], there[0]
    if first.needs.newest_time is None or other.counted_to is None:
        return here
    return (first.with_newest_time(other.counted_to), *here[1:])


def _take_over(
    loaded: LoadedConfig, run: RunFolder, wanted: EarlierRun, progress: Progress
) -> WarmStart:
    is_stored = address_of(Path(wanted.run)) is not None
    earlier = find_run(Path(wanted.run)) if is_stored else RunFolder(Path(wanted.run))
    if earlier.path.resolve() == run.path.resolve():
        raise ConfigError(
            [loaded.problem_at(KEY, f"'{wanted.run}' is the 'output' of this run itself")]
        )
    if not earlier.config.exists():
        is_folder = earlier.path.is_dir()
        message = f"'{wanted.run}' holds no run" if is_folder else f"there is no '{wanted.run}'"
        raise ConfigError([loaded.problem_at(KEY, message)])
    config = _require_same_model(loaded, earlier, wanted.run)
    earlier = RunFolder.of(config)
    found = _find_checkpoint(earlier, config, wanted.checkpoint, progress)
    plan = load_plan(earlier.preprocessing)
    if found.plan_fingerprint != plan.fingerprint():
        raise CheckpointError(
            "was trained with other transforms than those that lie beside it now",
            place=str(earlier.path),
            remedy="Run 'ctrpipe run' with its config and --overwrite",
        )
    record = WarmStartRecord(
        run=absolute_path(wanted.run),
        checkpoint=wanted.checkpoint,
        epoch=found.epoch,
        step=found.step,
        earlier_steps=found.earlier_steps,
        plan_fingerprint=found.plan_fingerprint,
    )
    features = load_features(earlier.features)
    return _store(WarmStart(record, features, plan), earlier, run)


def _require_same_model(loaded: LoadedConfig, earlier: RunFolder, name: str) -> Config:
    """The earlier run's config; raises ConfigError with every key in which the models differ."""
    try:
        other = load_config(earlier.config).config
    except CtrPipelineError as error:
        message = f"the config of '{name}' cannot be read: {error.message}"
        raise ConfigError([loaded.problem_at(KEY, message)]) from error
    here, there = _model_facts(loaded.config), _model_facts(other)
    different = [
        f"{key} is {_shown(there[key])} there and {_shown(value)} here"
        for key, value in here.items()
        if key in there and there[key] != value
    ]
    if different:
        raise _refusal(loaded, name, "another model", different)
    return other


def _model_facts(config: Config) -> dict[str, Any]:
    """What parameters and their optimizer state depend on, by key."""
    # A run folder has the path of a model's file from the root, its config need not.
    config = with_paths(config, lambda path: Path(path).name)
    train = config.train
    return {
        **{f"model.{key}": value for key, value in config.model.model_dump(mode="json").items()},
        "train.ensemble": train.ensemble,
        "train.optimizer.name": train.optimizer.name,
        "train.embeddings.linear.optimizer.name": train.embeddings.linear.optimizer.name,
        "train.embeddings.vector.optimizer.name": train.embeddings.vector.optimizer.name,
    }


def _shown(value: Any) -> str:
    return json.dumps(value)


def _refusal(loaded: LoadedConfig, run: str, what: str, differences: Sequence[str]) -> ConfigError:
    more = len(differences) - _SHOWN
    listed = "; ".join(differences[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return ConfigError([loaded.problem_at(KEY, f"'{run}' has {what}: {listed}")])


def _find_checkpoint(
    earlier: RunFolder, config: Config, which: Literal["best", "last"], progress: Progress
) -> EarlierCheckpoint:
    """Raises CheckpointError if there is none, or the best is damaged."""
    checkpoints = Checkpoints(earlier.checkpoint_storage)
    found = checkpoints.load_newest(progress.log)
    if found is None:
        raise _not_trained(earlier, "no trained model")
    history = judged_history(found.state, earlier.history)
    if config.train.refit:
        if found.state["best_step"] is None:
            raise _not_trained(earlier, None)
        # What is tested and exported is what a new run goes on from.
        found = load_refit(earlier, found.state, progress)
    elif which == "best":
        if not history:
            raise _not_trained(earlier, None)
        best = decide_stop(history, config.train.early_stopping, config.train.epochs).best_epoch
        found = checkpoints.load_epoch(best, newest=found)
    state = found.state
    return EarlierCheckpoint(
        config=config,
        checkpoint=found,
        step=found.step,
        epoch=state["position"]["epoch"]
        if config.train.refit
        else _epochs_until(found.step, history),
        earlier_steps=state.get("earlier_steps", 0),
        plan_fingerprint=state["plan_fingerprint"],
    )


def _epochs_until(step: int, history: Sequence[EpochRecord]) -> int:
    return max((one.epoch + 1 for one in history if one.step <= step), default=0)


def _not_trained(earlier: RunFolder, what: str | None) -> CheckpointError:
    return CheckpointError(
        "has not finished an epoch" if what is None else f"holds {what}",
        place=str(earlier.path),
        remedy="Train it to its end first: 'ctrpipe train' with its config and --resume",
    )


def _store(warm_start: WarmStart, earlier: RunFolder, run: RunFolder) -> WarmStart:
    """Copies what the run rests on, so that the earlier one may go."""
    temporary = run.path / f".{run.warm_start.name}.tmp"
    with durable.os_errors_explained(run.warm_start):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        names = {
            file: f"{run.warm_start.name}/earlier-{number:04d}.parquet"
            for number, file in enumerate(dict.fromkeys(_files_of(warm_start.plan)))
        }
        for file, name in names.items():
            if not (earlier.path / file).is_file():
                raise PreprocessingError(
                    "a file of values is gone",
                    place=str(earlier.path / file),
                    remedy="Run 'ctrpipe train --resume' with the config of that run",
                )
            durable.link_or_copy(earlier.path / file, temporary / Path(name).name)
        stored = replace(warm_start, plan=_with_files(warm_start.plan, names))
        stored.plan.save(temporary / PLAN_FILE)
        save_features(temporary / _FEATURES_FILE, warm_start.features)
        durable.write_text(temporary / _RECORD, warm_start.record.model_dump_json(indent=1) + "\n")
        shutil.rmtree(run.warm_start, ignore_errors=True)
        temporary.rename(run.warm_start)
    return stored


def _load_warm_start(run: RunFolder) -> WarmStart | None:
    """What was taken over before; None if nothing was, or a kill came before it was whole.

    Raises:
        RunFolderError: It is damaged.
    """
    if not (run.warm_start / _RECORD).exists():
        return None
    try:
        record = WarmStartRecord.model_validate_json((run.warm_start / _RECORD).read_bytes())
        features = load_features(run.warm_start / _FEATURES_FILE)
        return WarmStart(record, features, load_plan(run.warm_start / PLAN_FILE))
    except (OSError, ValueError, CtrPipelineError) as error:
        raise RunFolderError(
            "what the run took over from an earlier one cannot be read",
            place=str(run.warm_start),
            remedy="Give --overwrite to begin anew",
        ) from error


def _files_of(plan: PreprocessingPlan) -> Iterator[str]:
    for step in (*(field.step for field in plan.fields), *(step for _, step in plan.text_steps)):
        yield from step.files


def _with_files(plan: PreprocessingPlan, names: Mapping[str, str]) -> PreprocessingPlan:
    """The plan with its files under other names."""

    def renamed(step: Any) -> Any:
        file = getattr(step, "file", None)
        return step if file is None else step.model_copy(update={"file": names[file]})

    return plan.model_copy(
        update={
            "fields": tuple(
                one.model_copy(update={"step": renamed(one.step), "first": renamed(one.first)})
                for one in plan.fields
            ),
            "numbers": tuple(
                one.model_copy(update={"first": renamed(one.first)}) for one in plan.numbers
            ),
        }
    )
