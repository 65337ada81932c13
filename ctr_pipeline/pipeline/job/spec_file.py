"""A config and its encoded rows as the facts that the members of a job agree on."""

import os
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.coordination.spec import (
    PROTOCOL_VERSION,
    EncodedSplit,
    JobSpec,
    RunFence,
)
from ctr_pipeline.distributed.rpc.spec_file import load_spec
from ctr_pipeline.embeddings.counts import pack_counts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import CheckpointError, RunFolderError
from ctr_pipeline.pipeline.model.embedding_rows import segment_specs, table_specs
from ctr_pipeline.pipeline.run_folder import RunFolder, model_fingerprint
from ctr_pipeline.pipeline.stages.encode import Encoding
from ctr_pipeline.specs.course import RowLifecycle, Supervision, TrainingCourse, UpdateRule


def prepare_spec(
    loaded: LoadedConfig,
    run: RunFolder,
    encoding: Encoding,
    *,
    num_dense: int,
    earlier_steps: int = 0,
) -> JobSpec:
    """The spec of a new job, its training counts written beside it.

    Args:
        loaded: The config.
        run: Its folder.
        num_dense: Dense parameters of the model.
        earlier_steps: Steps of the runs that this one goes on from.
    """
    config = loaded.config
    counts_file = run.job / "counts.npy"
    with durable.durable_write(counts_file) as file:
        np.save(file, pack_counts(encoding.counts))
    return JobSpec(
        job=f"{config.name}-{secrets.token_hex(4)}",
        protocol=PROTOCOL_VERSION,
        config_fingerprint=model_fingerprint(config),
        rows_fingerprint=encoding.fingerprint,
        plan_fingerprint=encoding.plan.fingerprint(),
        tables=tuple(table_specs(config, encoding.plan)),
        table_features=encoding.plan.table_features,
        position_tables=() if encoding.plan.has_table_a_position else encoding.plan.position_tables,
        segments=segment_specs(config.model, config.train),
        counts_file=relative_to(run, counts_file),
        num_dense=num_dense,
        dense_optimizer=config.train.optimizer,
        num_partitions=config.runtime.partitions,
        num_parameter_servers=config.runtime.parameter_servers,
        update_rule=config.runtime.part(UpdateRule),
        supervision=config.runtime.part(Supervision),
        splits=tuple(
            EncodedSplit(name, relative_to(run, folder), _num_rows(folder))
            for name, folder in encoding.folders.items()
        ),
        course=config.train.part(TrainingCourse),
        rows=config.train.embeddings.part(RowLifecycle),
        checkpoints_folder=run.checkpoints_at or relative_to(run, run.checkpoints),
        spill_folder=relative_to(run, run.checkpoints),
        earlier_steps=earlier_steps,
        fence=None if run.stored is None else RunFence(run.stored.address, run.stored.generation),
    )


def relative_to(run: RunFolder, path: Path) -> str:
    """A path as the spec of a job names it."""
    return Path(os.path.relpath(path.resolve(), run.path.resolve())).as_posix()


def continue_spec(fresh: JobSpec, run: RunFolder) -> JobSpec:
    """The spec of a job that is resumed: what its model rests on is kept, the rest is as asked.

    Args:
        fresh: As a new job would have it.
        run: The run folder.

    Raises:
        CtrPipelineError: There is no job to resume, or it is of another model or of other rows.
    """
    if not (run.job / "spec.json").exists():
        # On another machine its cuts are all there is of the job; the master compares them with the
        # spec.
        return replace(fresh, job=CutStorage(run.checkpoint_storage).job() or fresh.job)
    earlier = load_spec(run.job)
    if earlier.config_fingerprint != fresh.config_fingerprint:
        raise RunFolderError(
            "the job in it was started with another config",
            place=str(run.path),
            remedy="Set the keys of features, model and train back, or give --overwrite",
        )
    if (earlier.rows_fingerprint, earlier.plan_fingerprint) != (
        fresh.rows_fingerprint,
        fresh.plan_fingerprint,
    ):
        raise CheckpointError(
            "the data changed since the model was trained",
            place=str(run.path),
            remedy="Run 'ctrpipe run' with --overwrite to train on it from the start",
        )
    if earlier.num_dense != fresh.num_dense:
        raise RunFolderError(
            f"the model has {fresh.num_dense} dense parameters now and {earlier.num_dense} in the "
            "job",
            place=str(run.path),
            remedy="Set model.file back, or give --overwrite",
        )
    return replace(fresh, job=earlier.job)


def require_same_partitions(config: Config, run: RunFolder) -> None:
    """Refuses to resume a job whose rows lie in another number of partitions.

    Also one that is finished: its export reads the rows from where they lie.

    Raises:
        CtrPipelineError: It is another number, or what the job was told cannot be read.
    """
    asked, kept = config.runtime.partitions, load_spec(run.job).num_partitions
    if asked != kept:
        raise RunFolderError(
            f"runtime.partitions is {asked} now and was {kept} when the job began, and its "
            "checkpoints keep that",
            place=str(run.path),
            remedy=f"Set it back with --set runtime.partitions={kept}, or give --overwrite to "
            "start anew",
        )


def _num_rows(folder: Path) -> int:
    with EncodedReader(folder) as reader:
        return reader.meta.num_rows
