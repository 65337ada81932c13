"""Trains variants of a config on the same rows and finds the best one on the validation rows.

Each trial is a folder `trials/NNN` of the run folder. Its record is written, whole or not at all,
when it has ended: a killed search loses the trial that was running, and tries its values again. No
trial opens the test rows.
"""

import csv
import gc
import io
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ctr_pipeline import durable, interruption
from ctr_pipeline.apps.tune.proposals import (
    Proposal,
    TrialRecord,
    best_of,
    propose,
    require_optuna,
)
from ctr_pipeline.config.loader import LoadedConfig, config_from_mapping, load_config
from ctr_pipeline.config.models import SearchValues, TuneConfig
from ctr_pipeline.config.search_space import (
    choices_of,
    current_values,
    values_with,
    yaml_with,
)
from ctr_pipeline.config.yaml_source import flow_yaml
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.errors import (
    ConfigError,
    ConfigProblem,
    ModelError,
    RunFolderError,
    TrainingError,
)
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.model.precision import check_precision
from ctr_pipeline.pipeline.run import check_splits, prepare_rows
from ctr_pipeline.pipeline.run_folder import RunFolder, differing_keys
from ctr_pipeline.pipeline.stages.encode import Encoding
from ctr_pipeline.pipeline.stages.resumption import same_rows_as_before
from ctr_pipeline.pipeline.trained_run import logged
from ctr_pipeline.progress import Progress
from ctr_pipeline.reporting.render import render_search
from ctr_pipeline.reporting.search_data import SearchData, SearchedKey, SearchTrial

if TYPE_CHECKING:
    from ctr_pipeline.training.history import EpochRecord

_EXAMPLE = (
    "needs a section such as tune: {trials: 30, space: {train.optimizer.learning_rate: "
    "{low: 1e-4, high: 1e-2, log: true}, model.dropout: {low: 0, high: 0.5}}}"
)
_PRUNED = "worse than the median of the other trials at this epoch"
_RECORD = "trial.json"


@dataclass(frozen=True)
class TuneResult:
    """The result of a search.

    Attributes:
        folder: The run folder.
        metric: `logloss` or `auc` of the validation rows.
        trials: All trials, in their order.
        best: The best trial that was trained to its end.
        paths: Files for the user, by description.
    """

    folder: Path
    metric: str
    trials: tuple[TrialRecord, ...]
    best: TrialRecord
    paths: dict[str, Path]

    def to_payload(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "run_folder": str(self.folder),
            "metric": self.metric,
            "best": self.best.model_dump(mode="json"),
            "trials": [record.model_dump(mode="json") for record in self.trials],
            "paths": {name: str(path) for name, path in self.paths.items()},
        }


@dataclass(frozen=True)
class SearchFolder:
    """Files and folders of a search in its run folder."""

    run: RunFolder

    @property
    def trials(self) -> Path:
        """Parent of the trials' folders."""
        return self.run.path / "trials"

    @property
    def search(self) -> Path:
        """What defines the search; only the same one resumes it."""
        return self.trials / "search.json"

    @property
    def table(self) -> Path:
        """One line per trial."""
        return self.run.path / "trials.csv"

    @property
    def page(self) -> Path:
        """The page of the search."""
        return self.run.path / "tune.html"

    @property
    def best(self) -> Path:
        """The config with the best values, for `ctrpipe run`."""
        return self.run.path / "config.best.yaml"

    def trial(self, number: int) -> RunFolder:
        """The folder of one trial."""
        return RunFolder(self.trials / f"{number:03d}")

    def paths(self) -> dict[str, Path]:
        """Files for the user that exist, by description."""
        wanted = {
            "best config": self.best,
            "picture": self.page,
            "table": self.table,
            "log": self.run.log,
        }
        return {name: path for name, path in wanted.items() if path.exists()}

    def discard(self) -> None:
        """Deletes the search, but nothing that `ctrpipe run` wrote."""
        for path in (self.table, self.page, self.best):
            path.unlink(missing_ok=True)
        for trial in self.trials.glob("[0-9]*"):
            shutil.rmtree(trial, ignore_errors=True)
        # Last, so that what a kill leaves counts as a search.
        self.search.unlink(missing_ok=True)


def tune(
    loaded: LoadedConfig, *, resume: bool = False, overwrite: bool = False, progress: Progress
) -> TuneResult:
    """Trains variants of the config that `tune:` declares, on the same prepared rows.

    What is best is decided on the validation rows; no trial opens the test rows.

    Raises:
        CtrPipelineError: Something the user can mend; trials that have ended are kept.
        Interrupted: By Ctrl-C or SIGTERM; `resume` goes on with the trial that it stopped.
    """
    section = require_search(loaded)
    check_splits(loaded)
    context = RunContext.create(loaded, progress)
    run, progress = context.run, context.progress
    with run.locked(), logged(run), interruption.handle_signals():
        claim_search(loaded, run, resume=resume, overwrite=overwrite)
        check_precision(loaded, progress)
        accept = same_rows_as_before(loaded.config, run)
        encoding = prepare_rows(context, accept=accept).encoding
        progress.log("Starting TensorFlow")
        return run_search(loaded, run, encoding, tune=section, resume=resume, progress=progress)


def require_search(loaded: LoadedConfig) -> TuneConfig:
    """The section `tune` of a config that can be searched.

    Raises:
        ConfigError: There is none, or the config trains several processes or models.
        CtrPipelineError: Optuna is not installed.
    """
    config = loaded.config
    if config.tune is None:
        place = loaded.place_of("tune") if loaded.path is None else str(loaded.path)
        raise ConfigError([ConfigProblem(place, "tune", _EXAMPLE)])
    if config.train.init_from is not None:
        message = "a search trains each of its trials from the start; leave it out"
        raise ConfigError([loaded.problem_at("train.init_from", message)])
    if config.runtime.mode != "local":
        message = "a search trains in one process; give --set runtime.mode=local"
        raise ConfigError([loaded.problem_at("runtime.mode", message)])
    if config.train.ensemble > 1:
        message = "a search trains one model a trial; give --set train.ensemble=1, and make an "
        message += "ensemble of what it finds"
        raise ConfigError([loaded.problem_at("train.ensemble", message)])
    if config.stored_at is not None:
        message = "the trials of a search lie in a folder; give --set output=runs/search"
        raise ConfigError([loaded.problem_at("output", message)])
    require_optuna()
    return config.tune


def claim_search(loaded: LoadedConfig, run: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Checks that a search may write here; changes nothing.

    Raises:
        RunFolderError: The folder holds a search that is to be neither resumed nor replaced, or a
            model of other rows or features.
    """
    if SearchFolder(run).search.exists() and not (resume or overwrite):
        raise RunFolderError(
            "holds an earlier search",
            place=str(run.path),
            remedy="Give --resume to go on with it, --overwrite to replace it, or choose another "
            "'output'",
        )
    if run.trained_folders() and run.config.exists():
        different = [
            key
            for key in differing_keys(load_config(run.config).config, loaded.config)
            if key.startswith(("data", "features"))
        ]
        if different:
            raise RunFolderError(
                f"holds a model of other rows or features: {', '.join(different[:5])} differ",
                place=str(run.path),
                remedy="Choose another 'output'",
            )


def run_search(
    loaded: LoadedConfig,
    run: RunFolder,
    encoding: Encoding,
    *,
    tune: TuneConfig,
    resume: bool,
    progress: Progress,
    train: "TrialTraining | None" = None,
) -> TuneResult:
    """Trains trial after trial and keeps table, picture and best config up to date.

    Args:
        train: Trains one trial; `train_trial` if None.

    Raises:
        RunFolderError: The search that is to be resumed is another one.
        TrainingError: No trial was trained to its end.
    """
    folder = SearchFolder(run)
    search = Search(loaded, folder, encoding, tune, loaded.resolved_yaml(), progress)
    records = search.open(resume=resume)
    start = current_values(search.resolved, list(tune.space))
    while len(records) < tune.trials:
        proposal = propose(tune, records, start)
        if proposal is None:
            progress.log("The search ends early: all proposed values have been tried")
            break
        number = len(records)
        place = f"{number + 1} of {tune.trials}"
        progress.log(f"Trial {number} ({place}): {values_text(proposal.values)}")
        with quiet_tracing():
            record = search.try_values(proposal, number, train or train_trial)
        durable.write_text(folder.trial(number).path / _RECORD, record.model_dump_json() + "\n")
        records.append(record)
        search.write_results(records)
        progress.log(_describe_trial(record, best_of(records, tune.metric), tune.metric))
    best = best_of(records, tune.metric)
    if best is None:
        reasons = "; ".join(dict.fromkeys(record.reason for record in records))
        raise TrainingError(
            f"none of {len(records)} trials was trained to its end: {reasons}",
            place=str(folder.trials),
            remedy="Narrow tune.space, then give --overwrite",
        )
    search.write_results(records)
    return TuneResult(run.path, tune.metric, tuple(records), best, folder.paths())


def ranked(records: Sequence[TrialRecord], metric: str) -> list[TrialRecord]:
    """Trials that were trained to their end, best first, then the others."""
    sign = -1.0 if metric == "auc" else 1.0
    states = ("complete", "pruned", "failed")
    return sorted(
        records,
        key=lambda one: (
            states.index(one.state),
            math.inf if one.value is None else sign * one.value,
            one.number,
        ),
    )


def values_text(values: dict[str, Any]) -> str:
    """Values for people: the last part of each key, numbers to four digits."""
    last = [key.rpartition(".")[2] for key in values]
    return ", ".join(
        f"{short if last.count(short) == 1 else key} {value_text(value)}"
        for (key, value), short in zip(values.items(), last, strict=True)
    )


def value_text(value: Any) -> str:
    """One value, on one line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return flow_yaml(value)


@dataclass(frozen=True)
class Search:
    """A running search.

    Attributes:
        encoding: Prepared rows, which all trials share.
        resolved: The config as YAML, into which each trial puts its values.
    """

    loaded: LoadedConfig
    folder: SearchFolder
    encoding: Encoding
    tune: TuneConfig
    resolved: str
    progress: Progress

    def open(self, *, resume: bool) -> list[TrialRecord]:
        """Claims the folder for this search; returns the trials that have ended."""
        folder = self.folder
        facts = _facts(self.loaded, self.encoding, self.tune)
        if not (resume and folder.search.exists()):
            folder.discard()
            folder.trials.mkdir(parents=True, exist_ok=True)
            durable.write_text(folder.search, json.dumps(facts, indent=2) + "\n")
            return []
        if different := _differing(_load_json(folder.search), facts, ""):
            verb = "differs" if len(different) == 1 else "differ"
            raise RunFolderError(
                f"the search cannot be resumed: {', '.join(different[:5])} {verb}",
                place=str(folder.run.path),
                remedy="Set the keys back, or give --overwrite to start anew",
            )
        records: list[TrialRecord] = []
        while len(records) < self.tune.trials:
            path = folder.trial(len(records)).path / _RECORD
            if not path.exists():
                break
            try:
                records.append(TrialRecord.model_validate_json(path.read_text(encoding="utf-8")))
            except (ValidationError, UnicodeDecodeError) as error:
                raise _damaged(path) from error
        self.progress.log(f"Resuming after {len(records)} trials")
        return records

    def try_values(self, proposal: Proposal, number: int, train: "TrialTraining") -> TrialRecord:
        """Runs one trial; values that cannot be trained make it a failed one, not the search."""
        started = time.monotonic()
        run = self.folder.trial(number)
        shutil.rmtree(run.path, ignore_errors=True)
        run.path.mkdir(parents=True)
        failed = TrialRecord(number=number, values=proposal.values, state="failed")
        try:
            trial = config_from_mapping(
                values_with(self.resolved, {**proposal.values, "output": str(run.path)})
            )
            run.keep_config(trial, self.folder.run.features)
            record = train(self, trial, run, proposal, number)
        except ConfigError as error:
            reason = "; ".join(f"{problem.key}: {problem.message}" for problem in error.problems)
            record = failed.model_copy(update={"reason": f"no config: {reason}"})
        except (TrainingError, ModelError) as error:
            record = failed.model_copy(update={"reason": error.message})
        # Tables of many trials would fill the disk; the best config trains its model again.
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        return record.model_copy(update={"seconds": round(time.monotonic() - started, 3)})

    def write_results(self, records: list[TrialRecord]) -> None:
        """Writes table, page and best config of the trials so far."""
        folder, tune = self.folder, self.tune
        best = best_of(records, tune.metric)
        durable.write_text(folder.table, _table(records, tune))
        page = render_search(_shown(self.loaded.config.name, records, tune, best))
        durable.write_text(folder.page, page)
        if best is None:
            return
        about = (
            f"# Trial {best.number} of a search of {len(records)}: {tune.metric} {best.value:.5f} "
            "on the validation rows.\n"
            f"# Train and evaluate it: ctrpipe run {folder.best}\n"
        )
        durable.write_text(folder.best, about + yaml_with(self.resolved, best.values))


TrialTraining = Callable[[Search, LoadedConfig, RunFolder, Proposal, int], TrialRecord]
"""Trains one trial."""


def train_trial(
    search: Search, trial: LoadedConfig, run: RunFolder, proposal: Proposal, number: int
) -> TrialRecord:
    """Trains one trial in its folder and says how it ended.

    Args:
        trial: The config with the values that are tried.

    Raises:
        TrainingError, ModelError: The values cannot be trained.
    """
    import keras

    from ctr_pipeline.pipeline.model.dense_model import compile_model
    from ctr_pipeline.pipeline.model.trained_model import initial_parameters
    from ctr_pipeline.training.trainer import Trainer, TrainerFiles

    values: list[float] = []

    def judge(record: "EpochRecord") -> str:
        value = record.valid_auc if search.tune.metric == "auc" else record.valid_logloss
        if not math.isfinite(value):
            raise TrainingError(
                f"the {search.tune.metric} after epoch {record.epoch + 1} is no number"
            )
        values.append(value)
        return _PRUNED if proposal.is_hopeless(record.epoch, value) else ""

    # Frees what Keras and the compiler keep of the trial before.
    keras.utils.clear_session()
    gc.collect()
    with ExitStack() as stack:
        config, shared, plan = trial.config, search.folder.run, search.encoding.plan
        compiled = compile_model(config, shared, plan, trains=True)
        parameters = initial_parameters(config, shared, plan, search.encoding.counts, compiled)
        train, valid = (
            stack.enter_context(EncodedReader(search.encoding.folders[split]))
            for split in ("train", "valid")
        )
        trainer = Trainer(
            config=config.train,
            compiled=compiled,
            embeddings=parameters.rows,
            dense=parameters.dense,
            train=train,
            valid=valid,
            files=TrainerFiles(run.checkpoint_storage, run.history, run.events),
            progress=search.progress,
            after_epoch=judge,
        )
        state = trainer.fit()
    best = next(record.epoch for record in state.history if record.step == state.best_step)
    is_pruned = state.finished == _PRUNED
    return TrialRecord(
        number=number,
        values=proposal.values,
        state="pruned" if is_pruned else "complete",
        value=values[best],
        best_epoch=best + 1,
        epochs=tuple(values),
        reason=_PRUNED if is_pruned else "",
    )


@contextmanager
def quiet_tracing() -> Iterator[None]:
    """Drops TensorFlow's warnings of retracing: each trial is another model, traced once."""

    def is_other(record: logging.LogRecord) -> bool:
        return "tf.function retracing" not in record.getMessage()

    logger = logging.getLogger("tensorflow")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def _load_json(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path) from error
    if not isinstance(facts, dict):
        raise _damaged(path)
    return facts


def _damaged(path: Path) -> RunFolderError:
    return RunFolderError(
        "is damaged", place=str(path), remedy="Give --overwrite to start the search anew"
    )


def _facts(loaded: LoadedConfig, encoding: Encoding, tune: TuneConfig) -> dict[str, Any]:
    """Everything that the trials depend on; their number is left out, as it may grow."""
    config = loaded.config.model_dump(mode="json")
    facts = {
        "tune": tune.model_dump(mode="json", exclude={"trials"}),
        "model": config["model"],
        "train": config["train"],
        "rows": encoding.fingerprint,
    }
    # As it will be read back.
    plain: dict[str, Any] = json.loads(json.dumps(facts))
    return plain


def _differing(earlier: Any, later: Any, key: str) -> list[str]:
    if earlier == later:
        return []
    if not (isinstance(earlier, dict) and isinstance(later, dict)):
        return [key]
    return [
        found
        for name in earlier | later
        for found in _differing(
            earlier.get(name), later.get(name), f"{key}.{name}" if key else name
        )
    ]


def _describe_trial(record: TrialRecord, best: TrialRecord | None, metric: str) -> str:
    name = "AUC" if metric == "auc" else metric
    shown = "" if record.value is None else f", {name} {record.value:.5f}"
    text = f"Trial {record.number}: {record.state}{shown}"
    if record.state == "failed":
        text += f" ({record.reason})"
    if best is None or best.value is None:
        return text
    if best.number == record.number:
        return f"{text}, the best so far"
    return f"{text}; the best so far is trial {best.number}, {name} {best.value:.5f}"


def _table(records: list[TrialRecord], tune: TuneConfig) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = list(tune.space)
    facts = ("trial", "state", tune.metric, "best_epoch", "epochs", "seconds")
    writer.writerow([*facts, *keys, "reason"])
    for one in records:
        cells = [one.value, one.best_epoch, len(one.epochs), one.seconds]
        values = [_cell(one.values[key]) for key in keys]
        writer.writerow([one.number, one.state, *cells, *values, one.reason])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return value if isinstance(value, int | float) else flow_yaml(value)


def _shown(
    name: str,
    records: list[TrialRecord],
    tune: TuneConfig,
    best: TrialRecord | None,
) -> SearchData:
    return SearchData(
        name=name,
        created=datetime.now().astimezone(),
        metric=tune.metric,
        num_planned=tune.trials,
        keys=tuple(
            SearchedKey(
                name=key,
                is_log=entry.log,
                is_range=entry.choices is None,
                choices=tuple(value_text(value) for value in entry.choices or ()),
            )
            for key, entry in tune.space.items()
        ),
        trials=tuple(
            SearchTrial(
                number=one.number,
                state=one.state,
                value=one.value,
                best_epoch=one.best_epoch,
                num_epochs=len(one.epochs),
                seconds=one.seconds,
                reason=one.reason,
                is_best=best is not None and best.number == one.number,
                values=tuple(
                    _position(entry, one.values[key]) for key, entry in tune.space.items()
                ),
                texts=tuple(value_text(one.values[key]) for key in tune.space),
            )
            for one in records
        ),
    )


def _position(entry: SearchValues, value: Any) -> float:
    """Where a value stands on the axis of its key."""
    if entry.choices is None:
        return float(value)
    return float(choices_of(entry).index(value))
