"""Scores with a job of its own: parameter servers load a cut, workers score with it.

The job has a folder of its own inside the run folder and changes nothing of the run, so that it may
run while the run still trains. The folder is deleted once the scores are read; that of a job that
failed keeps its logs.
"""

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline import durable
from ctr_pipeline.apps.scoring.files import ScoredBatch, look_at_new, stream_file
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.resolved import resolved_yaml
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.dataset.encoded import EncodedWriter, load_meta
from ctr_pipeline.dataset.source import Source
from ctr_pipeline.dataset.versions import SourceVersions
from ctr_pipeline.distributed.coordination.spec import EncodedSplit
from ctr_pipeline.distributed.master.manifests import CutFacts, CutManifest, Cuts
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.spec_file import load_spec, save_spec
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import CheckpointError, DataError
from ctr_pipeline.pipeline.job.following import follow_job
from ctr_pipeline.pipeline.job.launchers import launch
from ctr_pipeline.pipeline.job.spec_file import relative_to
from ctr_pipeline.pipeline.job.trained_cut import TrainedCut, find_trained_cut
from ctr_pipeline.pipeline.model.score_files import ScoreFiles
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.run_folder import RunFolder, discard_unlocked
from ctr_pipeline.pipeline.stages.encode import encode_in_order
from ctr_pipeline.preprocessing.encode import ColumnEncoder
from ctr_pipeline.preprocessing.unknown_values import ROWS_OF_BATCH, UnknownCounter
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.course import Supervision

_KEEP_ATTEMPTS = 5
_NEW_ROWS = "test"
"""Rows of a new file are scored as if they were this split."""


@dataclass(frozen=True)
class CutScores:
    """The scores of a job.

    Attributes:
        facts: Facts of the cut that it scored with.
        files: Files of the rows' logits.
    """

    facts: CutFacts
    files: ScoreFiles


@contextmanager
def scored_in_processes(
    loaded: LoadedConfig,
    run: RunFolder,
    cut: TrainedCut,
    splits: Mapping[str, Path],
    *,
    find_another: Callable[[], TrainedCut],
    progress: Progress,
) -> Iterator[CutScores]:
    """Scores splits with the parameters of a cut; the scores are deleted afterwards.

    Args:
        splits: Folders of encoded rows of `valid` and `test`, which are only read.
        find_another: Finds the cut to take if training has deleted this one.

    Raises:
        CheckpointError: Training deletes each cut before it can be used, or there is none.
        TrainingError: The job failed; its logs are kept.
        Interrupted: It was stopped.
    """
    with _own_folder(run) as folder:
        yield score_splits(
            loaded, run, folder, cut, splits, find_another=find_another, progress=progress
        )


@contextmanager
def _own_folder(run: RunFolder) -> Iterator[RunFolder]:
    """A folder for one job, deleted unless something fails; so are those that killed jobs left."""
    discard_unlocked(run.scoring)
    folder = RunFolder(run.scoring / secrets.token_hex(4))
    with folder.locked():
        yield folder
        shutil.rmtree(folder.path, ignore_errors=True)


def score_splits(
    loaded: LoadedConfig,
    run: RunFolder,
    folder: RunFolder,
    cut: TrainedCut,
    splits: Mapping[str, Path],
    *,
    find_another: Callable[[], TrainedCut],
    progress: Progress,
) -> CutScores:
    """Scores splits in a job of that folder; the other arguments are of `scored_in_processes`."""
    kept = _keep_cut(run, folder, cut, find_another)
    facts = kept.facts
    access = _prepare(loaded, run, folder, kept, splits)
    progress.log(
        f"Scoring with checkpoint {facts.cut}, epoch {facts.epoch + 1}, step {facts.step:,}"
    )
    with launch(loaded.config, folder, access) as launcher:
        launcher.start("master", 0)
        follow_job(folder, launcher, progress, resumable=False)
    return CutScores(facts, ScoreFiles(folder.scores))


def _keep_cut(
    run: RunFolder, folder: RunFolder, cut: TrainedCut, find_another: Callable[[], TrainedCut]
) -> CutManifest:
    """Links the files of a cut into the job's folder, so that training may delete its own."""
    for _ in range(_KEEP_ATTEMPTS):
        manifest = cut.manifest
        cuts = Cuts(CutStorage(run.checkpoint_storage))
        try:
            with cuts.pinned(manifest):
                for key in cuts.keys_of(manifest):
                    _keep_file(run, key, folder.checkpoints / key)
        except (FileNotFoundError, CheckpointError):
            # Training went on meanwhile, and deleted this one.
            shutil.rmtree(folder.checkpoints, ignore_errors=True)
            cut = find_another()
        else:
            return manifest
    raise CheckpointError(
        "no checkpoint stays long enough to be used",
        place=run.checkpoints_address,
        remedy="Wait until training is over, or raise train.keep_checkpoints",
    )


def _keep_file(run: RunFolder, key: str, target: Path) -> None:
    """Links a file of the run's checkpoints, or copies it from where they lie."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if run.checkpoints_at is None:
        durable.link_or_copy(run.checkpoints / key, target)
    else:
        CutStorage(run.checkpoint_storage).fetch(key, target)


def _prepare(
    loaded: LoadedConfig,
    run: RunFolder,
    folder: RunFolder,
    cut: CutManifest,
    splits: Mapping[str, Path],
) -> Access:
    """Fills a folder that the members take for a run folder."""
    config = loaded.config
    runtime = config.runtime.model_copy(update={"ledger": "sqlite"})
    own = config.model_copy(update={"output": str(folder.path.resolve()), "runtime": runtime})
    access = Access.create(folder.job, tls=runtime.needs_tls)
    durable.write_text(folder.config, resolved_yaml(own))
    shutil.copyfile(run.statistics, folder.statistics)
    shutil.copyfile(run.preprocessing, folder.preprocessing)
    spec = load_spec(run.job).within(run.path)
    shapes = [
        replace(split, folder=relative_to(folder, Path(split.folder)))
        for split in spec.splits
        if split.name == "train"
    ]
    for name, rows in splits.items():
        meta = load_meta(rows)
        if meta is None:
            raise DataError("holds no encoded rows", place=str(rows))
        shapes.append(EncodedSplit(name, relative_to(folder, rows), meta.num_rows))
    save_spec(
        folder.job,
        replace(
            spec,
            counts_file=relative_to(folder, Path(spec.counts_file)),
            splits=tuple(shapes),
            num_parameter_servers=min(runtime.parameter_servers, spec.num_partitions),
            supervision=runtime.part(Supervision),
            checkpoints_folder=relative_to(folder, folder.checkpoints),
            spill_folder=relative_to(folder, folder.checkpoints),
            scores_cut=cut.facts.cut,
            # Where it runs beside a training, that goes on being the one that writes the run.
            fence=None,
        ),
    )
    return access


@dataclass(frozen=True)
class JobScorer:
    """Scores rows of new files with a job.

    Attributes:
        cut: The cut of the best epoch.
        unknown: As of `FileScorer`.
        score: Scores splits, as `score_splits` does.
    """

    loaded: LoadedConfig
    run: RunFolder
    cut: TrainedCut
    progress: Progress
    unknown: UnknownCounter
    score: Callable[..., CutScores] = score_splits

    def score_file(
        self,
        data: str,
        *,
        label_required: bool,
        ledger: BadRowLedger,
        keep: Sequence[str] = (),
    ) -> Iterator[ScoredBatch]:
        """As `FileScorer.score_file`; the job is over when it returns.

        The files are read twice: to score the rows, and for the rows that go with the scores.

        Raises:
            DataError: The files changed between; raised while the result is read.
        """
        source = look_at_new(self.loaded, data, self.progress)
        versions = SourceVersions.of(source)
        read = partial(
            stream_file,
            self.loaded,
            self.cut.plan,
            data,
            label_required=label_required,
            keep=keep,
            # Of a database, which may give other rows each time, they are fetched once.
            source=source,
        )
        with _own_folder(self.run) as folder:
            rows = folder.encoded / _NEW_ROWS
            num_rows = self._encode(rows, read)
            if not num_rows:
                return iter(())
            splits = {_NEW_ROWS: rows}
            scores = self.score(
                self.loaded,
                self.run,
                folder,
                self.cut,
                splits,
                find_another=partial(find_trained_cut, self.loaded, self.run, self.progress),
                progress=self.progress,
            )
            logits = scores.files.load(_NEW_ROWS, rows).logits
        return _with_scores(read(ledger=ledger), logits, source, versions)

    def _encode(self, folder: Path, read: Callable[..., Iterator[pa.RecordBatch]]) -> int:
        """Encodes the rows that `read` gives for workers; returns their number.

        Columns to keep are not written, but an error names missing ones before a job is started.
        """
        plan, config = self.cut.plan, self.loaded.config
        threads = num_threads(config.runtime)
        encoder = ColumnEncoder(plan, self.run.path, threads=threads)
        ledger = BadRowLedger(config.data.bad_rows, config.data.max_bad_fraction)
        num_rows = 0
        with (
            self.progress.task("Encoding rows", total=None) as task,
            EncodedWriter(
                folder,
                num_fields=plan.num_positions,
                num_numbers=plan.num_floats,
                fingerprint=self.cut.state.rows_fingerprint,
            ) as writer,
        ):
            batches = self._watched(encoder, read(ledger=ledger))
            for records in encode_in_order(encoder, writer, batches, targets=None, threads=threads):
                writer.write_records(records)
                num_rows += len(records.labels_B)
                task.advance(len(records.labels_B))
        return num_rows

    def _watched(
        self, encoder: ColumnEncoder, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The batches, a few rows of each looked at."""
        for batch in batches:
            first = batch.slice(0, ROWS_OF_BATCH)
            encoded = encoder.encode(first)
            self.unknown.add(encoded.ids, encoded.numbers, first)
            yield batch


def _with_scores(
    batches: Iterator[pa.RecordBatch],
    logits: NDArray[np.float32],
    source: Source,
    versions: SourceVersions,
) -> Iterator[ScoredBatch]:
    begin = 0
    for batch in batches:
        end = begin + batch.num_rows
        if end > len(logits):
            break
        yield ScoredBatch(batch, logits[begin:end])
        begin = end
    versions.require_same(source, "while its rows were scored")
    if begin != len(logits):
        raise DataError(
            "gave other rows when they were read again",
            place=str(next(iter(source.opened))),
            remedy="Write the rows to a file, and score that",
        )
