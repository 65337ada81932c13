"""Cuts of a job as files: read into this process, or written for members to begin with."""

import time
from collections.abc import Sequence
from pathlib import Path

from ctr_pipeline.distributed.coordination.ledger import frozen_before_training
from ctr_pipeline.distributed.coordination.messages import PartitionFiles
from ctr_pipeline.distributed.coordination.spec import JobSpec
from ctr_pipeline.distributed.master.manifests import (
    CutFacts,
    CutFiles,
    CutManifest,
    Cuts,
)
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.dense_log import restore_range, save_range
from ctr_pipeline.embeddings.log_chain import CutFile
from ctr_pipeline.embeddings.row_log import restore_rows
from ctr_pipeline.embeddings.snapshot import RowSnapshot
from ctr_pipeline.embeddings.stored_rows import StoredRows, open_row_log
from ctr_pipeline.pipeline.model.parameters import Parameters
from ctr_pipeline.progress import Progress

FIRST_CUT = 1


def find_cuts(cuts: Cuts, progress: Progress) -> list[CutManifest]:
    """Cuts whose bytes are all as they were written, newest first; says why others are not."""
    found, damages = cuts.sound(read=True)
    for damage in damages:
        progress.log(f"Skipping a checkpoint: {damage}")
    return found


def last_of_epoch(cuts: Sequence[CutManifest], epoch: int) -> CutManifest | None:
    """The last cut of an epoch, of cuts from the newest on; None if there is none of it."""
    return next((cut for cut in cuts if cut.facts.epoch == epoch), None)


def restore_cut(parameters: Parameters, storage: CutStorage, manifest: CutManifest) -> None:
    """Replaces parameters by those of a cut.

    Args:
        parameters: Have the tables, segments and seed of the job.
        storage: Checkpoints of the job.
        manifest: The cut.

    Raises:
        CheckpointError: A file is missing or damaged, or of another make.
    """
    facts = manifest.facts
    restore_rows(
        parameters.rows,
        storage,
        _chains(manifest),
        num_partitions=facts.num_partitions,
        cut=facts.cut,
    )
    _restore_dense(parameters.dense, storage, manifest)


def open_cut(
    parameters: Parameters, storage: CutStorage, manifest: CutManifest, workspace: Path
) -> StoredRows:
    """Reads the dense parameters of a cut; its rows stay on disk.

    Args:
        parameters: Have the tables, segments and seed of the job; the dense ones are replaced.
        storage: Checkpoints of the job.
        manifest: The cut.
        workspace: Folder on whose disk rows are sorted.

    Raises:
        CheckpointError: A file is missing or damaged, or of another make.
        RunFolderError: The disk is full.
    """
    _restore_dense(parameters.dense, storage, manifest)
    return open_row_log(
        parameters.rows,
        storage,
        _chains(manifest),
        num_partitions=manifest.facts.num_partitions,
        trained_by=manifest.facts.num_parameter_servers,
        workspace=workspace,
    )


def _restore_dense(dense: DenseParameters, storage: CutStorage, manifest: CutManifest) -> None:
    files = manifest.files.dense
    restore_range(dense, storage, files, first=0, num_dense=len(dense.values))


def _chains(manifest: CutManifest) -> list[Sequence[CutFile]]:
    """Files of each partition."""
    return [chain.files for chain in manifest.files.partitions]


def write_first_cut(spec: JobSpec, parameters: Parameters) -> None:
    """Writes parameters as the cut that a new job finds and begins with.

    Raises:
        RunFolderError: The disk is full or the folder cannot be written.
    """
    storage = CutStorage.at(spec.checkpoints_folder)
    storage.begin(spec.job)
    servers, dense = spec.num_parameter_servers, parameters.dense
    snapshot = RowSnapshot(parameters.rows, cut=FIRST_CUT)
    snapshot.begin(full=True)
    row_files = snapshot.write(
        storage, num_partitions=spec.num_partitions, partitions=range(spec.num_partitions)
    )
    dense_files: tuple[CutFile, ...] = ()
    if spec.num_dense:
        dense_files = (
            save_range(
                storage,
                dense.values,
                dense.slots,
                dense.optimizer,
                cut=FIRST_CUT,
                first=0,
                num_dense=spec.num_dense,
            ),
        )
    by_partition = {file.partition: (file,) for file in row_files}
    facts = CutFacts(
        cut=FIRST_CUT,
        parent=0,
        generation=0,
        job=spec.job,
        config_fingerprint=spec.config_fingerprint,
        rows_fingerprint=spec.rows_fingerprint,
        plan_fingerprint=spec.plan_fingerprint,
        num_partitions=spec.num_partitions,
        num_parameter_servers=servers,
        epoch=0,
        step=0,
        best_cut=0,
        taken_at=time.time(),
    )
    files = CutFiles(
        partitions=tuple(
            PartitionFiles(partition, by_partition.get(partition, ()), owner)
            for partition, owner in enumerate(facts.owners)
        ),
        dense=dense_files,
        bitmaps=((),) * servers,
        versions=(0,) * servers,
    )
    Cuts(storage, spec.job).save(CutManifest(facts, files, frozen_before_training(FIRST_CUT), ()))
