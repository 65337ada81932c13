"""Encoded rows → trained parameters."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.embeddings.stored_rows import StoredRows, open_row_file
from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.pipeline.dense_model import compile_model
from ctr_pipeline.pipeline.earlier_parameters import fill_from_earlier
from ctr_pipeline.pipeline.earlier_run import Beginning
from ctr_pipeline.pipeline.encoding_stage import Encoding
from ctr_pipeline.pipeline.ensemble import JoinedRows, TrainedMember, member_configs
from ctr_pipeline.pipeline.refit import best_epoch, discard_refit, find_refit, load_refit
from ctr_pipeline.pipeline.resources import num_threads, thread_shares
from ctr_pipeline.pipeline.rows import (
    TrainedRows,
    build_store,
    describe_memory,
    lookup_of,
    memory_limit_of,
    optimizer_spec,
)
from ctr_pipeline.pipeline.score_files import ScoreFiles
from ctr_pipeline.pipeline.timing import FIRST_STEP, StageTimes, start_up_sentence
from ctr_pipeline.pipeline.workspace import RunFolder, require_mode
from ctr_pipeline.preprocessing.fitted import PreprocessingPlan, load_plan
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.checkpoint import Checkpoint, CheckpointFolder
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.joined import JoinedDense, JoinedNetwork, MeanScorer
from ctr_pipeline.training.lookup import DenseValues, RowReader, SavedRows
from ctr_pipeline.training.parameters import load_dense, load_parameters, open_rows
from ctr_pipeline.training.profile import (
    TrainingProfile,
    TrainingProfiler,
    profile_lines,
    save_profile,
)
from ctr_pipeline.training.scoring import Scorer
from ctr_pipeline.training.stopping import decide_stop
from ctr_pipeline.training.trainer import Trainer, TrainerFiles, TrainingState

_ROWS_COUNTED = 65_536


@dataclass(frozen=True)
class TrainedModel:
    """A model with its parameters, ready to score and to export.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        rows: Embedding rows; None without fields.
        dense: Dense parameters.
        scorer: Ids and numbers → logits.
        state: How training went; of an ensemble, how that of its first model went.
        row_width: Values of an embedding row.
        scores: Logits of the splits, where they are known already.
        runtime: How members of a job fared, for `metrics.json`.
        members: The models of an ensemble; empty for one model.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel | JoinedNetwork
    rows: TrainedRows | None
    dense: DenseValues
    scorer: Scorer | MeanScorer
    state: TrainingState
    row_width: int
    scores: ScoreFiles | None = None
    runtime: dict[str, Any] | None = None
    members: tuple[TrainedMember, ...] = ()


@dataclass(frozen=True)
class LocalModel:
    """A model whose parameters live in this process.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        store: Embedding rows; None without fields.
        dense: Dense parameters.
        lookup: The rows as trainer and scorer see them.
        row_width: Values of an embedding row: the linear weight and the vector.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel
    store: EmbeddingStore | None
    dense: DenseParameters
    lookup: SavedRows
    row_width: int

    def opened(self, state: TrainingState) -> "OpenedModel":
        """The model after training."""
        return OpenedModel(
            self.plan,
            self.compiled,
            self.store,
            self.lookup,
            self.dense,
            state,
            self.row_width,
        )

    def opened_with(self, rows: StoredRows, state: TrainingState) -> "OpenedModel":
        """The model with rows that are on the disk."""
        return replace(self.opened(state), rows=rows, lookup=rows)


@dataclass(frozen=True)
class OpenedModel:
    """One trained model, wherever its rows are.

    Attributes:
        plan: Fitted transforms.
        compiled: The dense part.
        rows: Embedding rows, to export; None without fields.
        lookup: The same, to score with.
        dense: Dense parameters.
        state: How training went.
        row_width: Values of an embedding row.
    """

    plan: PreprocessingPlan
    compiled: CompiledModel
    rows: TrainedRows | None
    lookup: RowReader
    dense: DenseParameters
    state: TrainingState
    row_width: int

    @property
    def scorer(self) -> Scorer:
        """Ids and numbers → logits."""
        return Scorer(self.compiled, self.lookup, self.dense)

    def trained(self) -> TrainedModel:
        """The model as the stages after training take it."""
        return TrainedModel(
            self.plan,
            self.compiled,
            self.rows,
            self.dense,
            self.scorer,
            self.state,
            self.row_width,
        )


def run_training(
    loaded: LoadedConfig,
    run: RunFolder,
    encoding: Encoding,
    *,
    resume: bool,
    beginning: Beginning | None = None,
    profile: bool = False,
    progress: Progress,
    times: StageTimes,
) -> TrainedModel:
    """Trains from the start or an earlier run, or goes on from the newest whole checkpoint.

    Args:
        loaded: The config.
        run: The run folder.
        encoding: The rows.
        resume: Go on from a checkpoint if there is one.
        beginning: What the run takes over from an earlier one.
        profile: See where the time goes, say it and keep it for the report; of an ensemble, beside
            each of its models.
        progress: Who is told.
        times: Of stages.
    """

    def claim() -> None:
        if not resume:
            run.discard_results()
        run.keep_config(loaded)

    job = _Training(run, encoding, claim, resume, beginning, profile, progress, times)
    with times.stage("training"):
        if resume:
            require_mode(run, processes=False)
        if loaded.config.train.ensemble > 1:
            _train_members(loaded, job)
            return open_trained(loaded, run, progress)
        model, state = _train(loaded, run, job)
    return model.opened(state).trained()


@dataclass(frozen=True)
class _Training:
    """What the training of one model, or of each model of an ensemble, rests on.

    Attributes:
        run: The run folder.
        encoding: Prepared rows.
        claim: Called before anything is written, once the first model is known to be one.
        resume: Go on from the newest whole checkpoints.
        beginning: What the run takes over from an earlier one.
        profile: See where the time goes.
        progress: Who is told.
        times: Of stages.
    """

    run: RunFolder
    encoding: Encoding
    claim: Callable[[], None]
    resume: bool
    beginning: Beginning | None
    profile: bool
    progress: Progress
    times: StageTimes


def _train_members(loaded: LoadedConfig, job: _Training) -> None:
    """Trains the models of an ensemble, one after another; only one is in memory at a time."""
    members, progress = member_configs(loaded.config), job.progress
    for number, config in enumerate(members):
        named = (
            f"Model {number + 1} of {len(members)} ({config.model.name}, seed {config.train.seed})"
        )
        folder = job.run.member(number)
        if job.resume and _has_finished(config, folder, job):
            progress.say(f"{named} is trained already")
            if number == 0:
                job.claim()
            continue
        progress.say(named)
        # What Keras and the compiler keep of the model before.
        keras.utils.clear_session()
        gc.collect()
        model, _ = _train(replace(loaded, config=config), folder, job)
        if model.store is not None:
            model.store.release()


def _has_finished(config: Config, folder: RunFolder, job: _Training) -> bool:
    """Whether a model of an ensemble needs no more training.

    Raises:
        CheckpointError: It was trained on other rows, or all of its checkpoints are damaged.
    """
    checkpoint = CheckpointFolder(folder.checkpoints).load_newest(job.progress.say)
    if checkpoint is None:
        return False
    state = TrainingState.from_json(checkpoint.state)
    require_same_rows(state, job.encoding.fingerprint, job.run)
    train = config.train
    if not state.history:
        return False
    # As `Trainer.restore`: the number of epochs and the stopping rule may have changed.
    decision = decide_stop(state.history, train.early_stopping, train.epochs)
    if not train.refit or not decision.stop:
        return decision.stop
    return find_refit(folder, checkpoint.state, job.progress, is_whole=True) is not None


def _train(
    loaded: LoadedConfig, folder: RunFolder, job: _Training
) -> tuple[LocalModel, TrainingState]:
    """Trains one model, and once more with the validation rows if the config says so.

    Args:
        loaded: The config of this model.
        folder: Where its checkpoints, history and events go; the run folder, or a member's.
        job: All else.
    """
    model, state = _choose(loaded, folder, job)
    if not loaded.config.train.refit:
        return model, state
    if model.store is not None:
        # There are rows of one training in memory at a time.
        model.store.release()
    return _refit(loaded, folder, model.compiled, state, job)


def _choose(
    loaded: LoadedConfig, folder: RunFolder, job: _Training
) -> tuple[LocalModel, TrainingState]:
    """Trains a model on the training rows, down to the epoch that validation rows like best."""
    config, run, encoding = loaded.config, job.run, job.encoding
    progress, times = job.progress, job.times
    with contextlib.ExitStack() as stack:
        model = assemble_local(loaded, run, encoding.plan, encoding.counts)
        times.reach("model")
        readers = {
            split: stack.enter_context(EncodedReader(encoding.folders[split]))
            for split in ("train", "valid")
        }

        def tell_start_up() -> None:
            if FIRST_STEP in times.start_up:
                # An ensemble's first model was the first to get there.
                return
            times.reach(FIRST_STEP)
            progress.say(start_up_sentence(times.start_up))

        profiler = _profiler_of(model, num_threads(config.runtime)) if job.profile else None
        trainer = Trainer(
            config=config.train,
            compiled=model.compiled,
            embeddings=model.lookup,
            dense=model.dense,
            train=readers["train"],
            valid=readers["valid"],
            files=TrainerFiles(folder.checkpoints, folder.history, folder.events),
            progress=progress,
            profiler=profiler,
            after_first_step=tell_start_up,
        )
        checkpoint = trainer.checkpoints.load_newest(progress.say) if job.resume else None
        if checkpoint is not None:
            trainer.restore(checkpoint)
            require_same_rows(trainer.state, encoding.fingerprint, run)
            trainer.checkpoints.discard_after(checkpoint.step)
            progress.say(f"Resuming after step {checkpoint.step:,}")
        else:
            _begin(loaded, trainer, model, job)
        if folder in (run, run.member(0)):
            job.claim()
        folder.path.mkdir(parents=True, exist_ok=True)
        trainer.state.rows_fingerprint = encoding.fingerprint
        trainer.state.plan_fingerprint = encoding.plan.fingerprint()
        state = trainer.fit()
        progress.say(f"Training ended: {state.finished}")
        if model.store is not None:
            progress.say(describe_memory(model.store))
        if profiler is not None:
            _tell_profile(profiler.profile(), folder, progress)
    return model, state


def _refit(
    loaded: LoadedConfig,
    folder: RunFolder,
    compiled: CompiledModel,
    chosen: TrainingState,
    job: _Training,
) -> tuple[LocalModel, TrainingState]:
    """Trains a model from the start on training and validation rows, for the best epochs.

    Args:
        loaded: The config of this model.
        folder: That of the training before.
        compiled: The dense part.
        chosen: How the training before went.
        job: All else.
    """
    config, run, encoding, progress = loaded.config, job.run, job.encoding, job.progress
    epochs = best_epoch(chosen.to_json())
    folders = [encoding.folders[split] for split in ("train", "valid")]
    with EncodedReader(*folders) as rows:
        counts = _counts_of_both(encoding)
        model = _with_initial_parameters(config, run, encoding.plan, counts, compiled)
        files = folder.refit
        trainer = Trainer(
            config=config.train.model_copy(update={"epochs": epochs}),
            compiled=compiled,
            embeddings=model.lookup,
            dense=model.dense,
            train=rows,
            valid=None,
            files=TrainerFiles(files.checkpoints, files.history, files.events),
            progress=progress,
        )
        checkpoint = None
        if job.resume:
            checkpoint = find_refit(folder, chosen.to_json(), progress, is_whole=False)
        if checkpoint is not None:
            trainer.restore(checkpoint)
            trainer.checkpoints.discard_after(checkpoint.step)
            progress.say(
                f"Resuming the training with validation rows after step {checkpoint.step:,}"
            )
        else:
            discard_refit(folder)
            progress.say(
                f"Epoch {epochs} was the best: training from the start with the validation rows, "
                f"{rows.meta.num_rows:,} in all, for as many epochs"
            )
            _begin(loaded, trainer, model, job)
        trainer.state.rows_fingerprint = encoding.fingerprint
        trainer.state.plan_fingerprint = encoding.plan.fingerprint()
        state = trainer.fit()
    return model, replace(chosen, refit=state.refit)


def _begin(loaded: LoadedConfig, trainer: Trainer, model: LocalModel, job: _Training) -> None:
    """Gives a model what an earlier run knew, if training begins from one."""
    if job.beginning is None:
        return
    fill_from_earlier(
        model.store,
        model.dense,
        model.plan,
        job.beginning,
        threads=num_threads(loaded.config.runtime),
        memory_limit=memory_limit_of(loaded.config, job.run.path),
        progress=job.progress,
    )
    trainer.state.earlier_steps = job.beginning.record.all_steps
    job.progress.say(f"Training begins from {job.beginning.record.describe()}")


def _counts_of_both(encoding: Encoding) -> list[NDArray[np.int64]]:
    """Occurrences of each id in the training and the validation rows, int64 per table."""
    plan = encoding.plan
    both = IdCounts([table.num_ids for table in plan.tables], plan.slot_tables)
    with EncodedReader(encoding.folders["valid"]) as rows:
        for batch in rows.read_in_order(_ROWS_COUNTED):
            both.add(batch.ids_BF)
    counts = both.per_table()
    for of_both, of_training in zip(counts, encoding.counts, strict=True):
        np.add(of_both, of_training, out=of_both)
    return counts


def _tell_profile(profile: TrainingProfile, run: RunFolder, progress: Progress) -> None:
    """Says where time went and keeps it; where all was trained before, so is what was seen then."""
    if not profile.num_steps:
        progress.say("Nothing was left to train, so there is nothing to profile")
        return
    save_profile(run.training_profile, profile)
    for line in profile_lines(profile):
        progress.say(line)


def _profiler_of(model: LocalModel, cores: int) -> TrainingProfiler:
    store = model.store
    return TrainingProfiler(
        cores=cores,
        lock_waits=(lambda: 0.0) if store is None else store.rows.lock_wait_seconds,
    )


def open_trained(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> TrainedModel:
    """Loads the best epoch of a training; the newest whole checkpoint if that one is damaged.

    Which checkpoints were passed over is said. All models of an ensemble are in memory then.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
    """
    if (run.job / "spec.json").exists():
        # With the words of members of a job, which others need not load.
        from ctr_pipeline.pipeline.job_model import open_job_model

        return open_job_model(loaded, run, progress)
    return _open_all(loaded, run, progress, _load)


@contextlib.contextmanager
def streamed_trained(
    loaded: LoadedConfig, run: RunFolder, progress: Progress
) -> Iterator[TrainedModel]:
    """As `open_trained`, but the rows stay on the disk: memory does not depend on their number.

    Raises:
        CheckpointError: Nothing was trained here, or training has not finished an epoch.
        RunFolderError: The disk has no room for the rows once more, sorted.
    """
    workspace = run.path / "cache"
    workspace.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:

        def stream(model: LocalModel, checkpoint: Checkpoint) -> StoredRows | None:
            load_dense(checkpoint, model.dense)
            if model.store is None:
                return None
            with open_rows(checkpoint) as file:
                rows = open_row_file(model.store, file, workspace)
            stack.callback(rows.release)
            return rows

        if (run.job / "spec.json").exists():
            from ctr_pipeline.pipeline.job_model import stream_job_model

            yield stream_job_model(loaded, run, progress, workspace, stack)
        else:
            yield _open_all(loaded, run, progress, stream)


_ReadRows = Callable[[LocalModel, Checkpoint], StoredRows | None]
"""Gives a model the dense parameters of a checkpoint, and its rows, or leaves them on the disk."""


def _load(model: LocalModel, checkpoint: Checkpoint) -> None:
    load_parameters(checkpoint, model.lookup, model.dense)


def _open_all(
    loaded: LoadedConfig, run: RunFolder, progress: Progress, read: _ReadRows
) -> TrainedModel:
    """The model of a config, or those of its ensemble as one."""
    configs = member_configs(loaded.config)
    if not configs:
        return _open(loaded, run, run, progress, read).trained()
    opened = [
        _open(replace(loaded, config=config), run, run.member(number), progress, read)
        for number, config in enumerate(configs)
    ]
    return _join(opened, configs, run)


def _open(
    loaded: LoadedConfig, run: RunFolder, folder: RunFolder, progress: Progress, read: _ReadRows
) -> OpenedModel:
    """One model with the parameters of its best epoch, or of its training with validation rows."""
    checkpoints = CheckpointFolder(folder.checkpoints)
    checkpoint = checkpoints.load_newest(progress.say)
    if checkpoint is None or checkpoint.state["best_step"] is None:
        is_member = folder != run and bool(run.trained_folders())
        raise CheckpointError(
            "holds no trained model",
            place=str(folder.path),
            remedy="Run 'ctrpipe run' with --resume to train the rest of the ensemble"
            if is_member
            else "Run 'ctrpipe train' (or 'ctrpipe run') with this config first",
        )
    state = TrainingState.from_json(checkpoint.state)
    if loaded.config.train.refit:
        checkpoint = load_refit(folder, checkpoint.state, progress)
        state = replace(state, refit=TrainingState.from_json(checkpoint.state).refit)
    elif checkpoint.step != state.best_step and state.best_step is not None:
        try:
            checkpoint = checkpoints.load(state.best_step)
        except CheckpointError as error:
            progress.say(f"The newest checkpoint is used instead of the best: {error}")
    plan = load_plan(run.preprocessing)
    require_same_plan(state, plan, run)
    model = assemble_local(loaded, run, plan, None)
    rows = read(model, checkpoint)
    return model.opened(state) if rows is None else model.opened_with(rows, state)


def _join(
    models: Sequence[OpenedModel],
    configs: Sequence[Config],
    run: RunFolder,
) -> TrainedModel:
    """The models of an ensemble as one.

    Raises:
        CheckpointError: They were trained on different rows.
    """
    first, state = models[0], models[0].state
    for other in models[1:]:
        require_same_rows(other.state, state.rows_fingerprint, run)
    rows = [model.rows for model in models if model.rows is not None]
    dim = configs[0].model.embedding_dim
    return TrainedModel(
        plan=first.plan,
        compiled=JoinedNetwork(tuple(model.compiled for model in models), dim),
        rows=JoinedRows(rows, first.row_width) if rows else None,
        dense=JoinedDense.of([model.dense for model in models]),
        scorer=MeanScorer([model.scorer for model in models], configs[0].train.batch_size),
        state=state,
        row_width=len(models) * first.row_width,
        members=tuple(
            TrainedMember(config.model.name, config.train.seed, model.state)
            for config, model in zip(configs, models, strict=True)
        ),
    )


def training_figures(model: TrainedModel) -> dict[str, Any]:
    """What training took and why it ended, for `metrics.json`; of an ensemble, in all and each."""
    if not model.members:
        return _figures(model.state)
    members = [
        {"model": one.model, "seed": one.seed, **_figures(one.state)} for one in model.members
    ]
    return {
        "epochs": sum(one["epochs"] for one in members),
        "best_epoch": None,
        "steps": sum(one["steps"] for one in members),
        "stopped_because": f"all {len(members)} models are trained",
        "members": members,
    }


def _figures(state: TrainingState) -> dict[str, Any]:
    best = next((record for record in state.history if record.step == state.best_step), None)
    figures: dict[str, Any] = {
        "epochs": len(state.history),
        "best_epoch": None if best is None else best.epoch + 1,
        "steps": state.history[-1].step if state.history else 0,
        "stopped_because": state.finished,
    }
    if state.refit is not None:
        figures["refit"] = asdict(state.refit)
    return figures


def require_same_plan(state: TrainingState, plan: PreprocessingPlan, run: RunFolder) -> None:
    """Refuses parameters that were trained with other transforms.

    Raises:
        CheckpointError: They were.
    """
    if state.plan_fingerprint != plan.fingerprint():
        raise CheckpointError(
            "was trained with other transforms than those that lie beside it now",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --overwrite: data or config changed since then",
        )


def require_same_rows(state: TrainingState, fingerprint: str, run: RunFolder) -> None:
    """Refuses parameters that were trained on other rows or with other transforms.

    Raises:
        CheckpointError: The data changed since.
    """
    if state.rows_fingerprint != fingerprint:
        raise CheckpointError(
            "the data changed since the model was trained",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --overwrite to train on it from the start",
        )


def assemble_local(
    loaded: LoadedConfig,
    run: RunFolder,
    plan: PreprocessingPlan,
    counts: Sequence[NDArray[np.int64]] | None,
) -> LocalModel:
    """The model of a config with initial parameters.

    Args:
        loaded: The config.
        run: The run folder.
        plan: Fitted transforms.
        counts: Occurrences of each id in the training rows; None where nothing is trained.
    """
    config = loaded.config
    threads = thread_shares(config.runtime).tensorflow
    compiled = compile_model(config, run, plan, threads=threads, trains=counts is not None)
    return _with_initial_parameters(config, run, plan, counts, compiled)


def _with_initial_parameters(
    config: Config,
    run: RunFolder,
    plan: PreprocessingPlan,
    counts: Sequence[NDArray[np.int64]] | None,
    compiled: CompiledModel,
) -> LocalModel:
    store = build_store(
        plan,
        counts,
        config=config,
        threads=thread_shares(config.runtime).rows,
        memory_limit=memory_limit_of(config, run.path),
    )
    dense = DenseParameters(compiled.initial_parameters(), optimizer_spec(config.train.optimizer))
    lookup = lookup_of(store, config.model)
    return LocalModel(plan, compiled, store, dense, lookup, 1 + config.model.embedding_dim)
