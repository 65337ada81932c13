"""Encodes rows to ids and numbers on disk, and counts how often each training id occurs."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.encoded import (
    EncodedRecords,
    EncodedWriter,
    join_parts,
    load_meta,
    part_folder,
)
from ctr_pipeline.dataset.ingested import IngestedRows, SplitRows
from ctr_pipeline.dataset.parts import read_batches
from ctr_pipeline.dataset.sampling import NegativeSampling, sampling_of
from ctr_pipeline.distributed.coordination.preparation import (
    Phase,
    PreparationBoard,
    Unit,
    UnitLease,
    plan_units,
)
from ctr_pipeline.embeddings.counts import IdCounter, IdCounts, pack_counts, unpack_counts
from ctr_pipeline.errors import ConfigError, CtrPipelineError, DataError
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.ordered_map import map_in_order
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import Analysis
from ctr_pipeline.pipeline.stages.sharing import AttemptReport, ShareUnits
from ctr_pipeline.pipeline.stages.vocabulary_extension import grow_plan, num_new_values
from ctr_pipeline.pipeline.stages.warm_start import WarmStart
from ctr_pipeline.preprocessing.encode import ColumnEncoder, EncodedBatch
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.preprocessing.out_of_fold import OutOfFold, RowNumbers
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.statistics import Statistics

RowEncoder = Callable[[pa.RecordBatch], RowNumbers]


@dataclass(frozen=True)
class Encoding:
    """Encoded rows, and the transforms that encoded them.

    Attributes:
        plan: Fitted transforms.
        folders: Encoded rows by split.
        counts: Occurrences of the ids of each table in the training rows.
        fingerprint: Fingerprint of rows and transforms; equal ones mean equal encoded rows.
    """

    plan: PreprocessingPlan
    folders: dict[str, Path]
    counts: list[IdCounts]
    fingerprint: str


@dataclass(frozen=True)
class Targets:
    """The columns of label and weight.

    Attributes:
        label: Column with the labels 0 and 1.
        weight: Column of the weights; None without weights.
        mean_weight: Mean weight of the training rows. Encoded weights are divided by it, those of
            all splits, so that they fit float32 in any unit.
    """

    label: str
    weight: str | None = None
    mean_weight: float = 1.0

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [self.label, *([self.weight] if self.weight is not None else [])]


def _targets(config: Config, training_rows: SplitRows) -> Targets:
    weights = training_rows.weights
    if weights is None:
        return Targets(config.data.label)
    mean_weight = weights.total / training_rows.num_rows
    return Targets(config.data.label, config.data.weight, mean_weight)


@dataclass(frozen=True)
class SplitEncoder:
    """Encodes rows of splits, in this process or, as `SharedWork`, in a worker.

    Attributes:
        config: The config.
        run: The run folder, which holds the vocabularies.
        plan: Fitted transforms.
        ingested: The rows.
        threads: Threads that encode.
    """

    config: Config
    run: RunFolder
    plan: PreprocessingPlan
    ingested: IngestedRows
    threads: int
    phase: Phase = "encode"

    @property
    def folder(self) -> Path:
        """As of `SharedWork`."""
        return self.run.encoding

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the encoded rows."""
        return encoded_fingerprint(self.plan, self.ingested.fingerprint, self.config)

    @cached_property
    def _column_encoder(self) -> ColumnEncoder:
        return ColumnEncoder(self.plan, self.run.path, threads=self.threads)

    @cached_property
    def _out_of_fold(self) -> OutOfFold | None:
        """What encodes training rows from others; None if no feature wants it."""
        # The counts of an earlier run do not include the labels of these rows.
        if self.config.train.earlier_run is not None:
            return None
        found = OutOfFold(self.plan, self.run.path)
        return found if found.columns else None

    def units_of(self, split: str) -> list[Unit]:
        """The units of a split; one where each of its rows is encoded from others."""
        rows = self.ingested.splits[split]
        needs_all = split == "train" and self._out_of_fold is not None
        least = rows.num_rows if needs_all else self.config.runtime.rows_per_encoding_task
        return plan_units(split, rows.part_rows, least)

    def encode(
        self,
        split: str,
        folder: Path,
        *,
        on_rows: Callable[[int], None],
        unit: Unit | None = None,
    ) -> list[IdCounts] | None:
        """Encodes a split, or a unit of it.

        Args:
            split: Its name.
            folder: Where the records go.
            on_rows: Told of rows that are encoded.
            unit: The parts to encode, one of `units_of`; None: all.

        Returns:
            How often each id of each table occurs, of training rows.
        """
        rows = self.ingested.splits[split]
        files = rows.files
        if unit is not None:
            files = files[unit.first_part : unit.first_part + unit.num_parts]
        targets = _targets(self.config, self.ingested.splits["train"])
        counter = out_of_fold = None
        if split == "train":
            counter = new_counter(self.plan, self.threads)
            out_of_fold = _count_out_of_fold(self._out_of_fold, files, self.config)
        with EncodedWriter(
            folder,
            num_fields=self.plan.num_positions,
            num_numbers=self.plan.num_floats,
            fingerprint=self.fingerprint,
            has_weights=targets.weight is not None,
        ) as writer:
            for records in encode_in_order(
                self._column_encoder,
                writer,
                read_batches(files, [*targets.columns, *self.plan.inputs]),
                targets=targets,
                threads=self.threads,
                out_of_fold=out_of_fold,
                sampling=sampling_of(self.config) if split == "train" else None,
                first_row=0 if unit is None else unit.start,
            ):
                writer.write_records(records)
                if counter is not None:
                    counter.add(records.ids_BF)
                on_rows(len(records.labels_B))
        return None if counter is None else counter.per_table()

    def save_counts(self, folder: Path, counts: Sequence[IdCounts]) -> None:
        """Keeps the counts of encoded training rows in their folder."""
        with durable.durable_write(folder / _COUNTS) as file:
            np.savez(file, counts=pack_counts(counts), fingerprint=np.array(self.fingerprint))

    def work_on(self, lease: UnitLease, report: AttemptReport) -> None:
        """Encodes a unit into the part of its attempt, with the counts of its ids.

        As of `SharedWork`.
        """
        unit = lease.unit
        folder = part_folder(self.run.encoded / unit.split, lease.part)
        counts = self.encode(unit.split, folder, on_rows=report.add, unit=unit)
        if counts is not None:
            self.save_counts(folder, counts)

    def is_whole(self, lease: UnitLease) -> bool:
        """As of `SharedWork`."""
        meta = load_meta(part_folder(self.run.encoded / lease.unit.split, lease.part))
        return meta is not None and meta.fingerprint == self.fingerprint

    def is_final(self, error: CtrPipelineError) -> bool:
        """As of `SharedWork`: another host may read what this one cannot."""
        del error
        return False

    def look(self, board: PreparationBoard) -> None:
        """As of `SharedWork`: nothing is done before all units are."""


def plan_transforms(
    context: RunContext,
    features: Sequence[FeatureSpec],
    statistics: Statistics,
    warm_start: WarmStart | None,
) -> PreprocessingPlan:
    """Fits the transforms of all features, or extends those of an earlier run, and keeps them.

    Args:
        context: Context of the run.
        features: What becomes of each column.
        statistics: Statistics of the training rows.
        warm_start: What the run takes over from an earlier one; None if nothing.

    Raises:
        PreprocessingError: A chain asks for more than ids or numbers hold.
    """
    run = context.run
    with context.times.stage("transforms"):
        if warm_start is None:
            plan = plan_preprocessing(features, statistics, run.path)
        else:
            plan = grow_plan(warm_start, statistics, run)
            context.progress.log(_describe_growth(warm_start.plan, plan))
        plan.save(run.preprocessing)
    return plan


def run_encoding(
    context: RunContext,
    analysis: Analysis,
    share_units: ShareUnits | None = None,
    *,
    plan: PreprocessingPlan | None = None,
) -> Encoding:
    """Encodes all splits; splits that are encoded already are kept.

    Of the training rows, only those that `data.sample` draws are encoded, while statistics count
    all of them.

    Args:
        context: Context of the run.
        analysis: The rows and what is known of them.
        share_units: Has units encoded by workers; None: this process encodes all rows.
        plan: Fitted transforms; None: they are fitted here.

    Raises:
        ConfigError: No row of label 0 is drawn.
    """
    loaded, run = context.loaded, context.run
    progress, times = context.progress, context.times
    if plan is None:
        plan = plan_transforms(context, analysis.features, analysis.statistics, analysis.warm_start)
    with times.stage("transforms"):
        ingested = analysis.ingested
        encoder = SplitEncoder(
            loaded.config, run, plan, ingested, num_threads(loaded.config.runtime)
        )
        folders = {split: run.encoded / split for split in ingested.splits}
        counts = load_counts(run, plan, encoder.fingerprint)
        missing = [
            split
            for split, folder in folders.items()
            if not _is_encoded(folder, encoder.fingerprint) or (split == "train" and counts is None)
        ]
        units = [] if share_units is None else _units_of(encoder, missing)
        if share_units is not None and units:
            parts = share_units(encoder, units)
            if "train" in parts:
                counts = _join_counts(encoder, parts["train"])
            for split, names in parts.items():
                join_parts(folders[split], names)
            # Nothing is left of which it has to tell.
            shutil.rmtree(run.encoding, ignore_errors=True)
            missing = [split for split in missing if split not in parts]
        for split in missing:
            rows = ingested.splits[split]
            sampling = sampling_of(loaded.config) if split == "train" else None
            total = rows.num_rows
            if sampling is not None:
                total = sampling.expected_rows(rows.num_rows, rows.num_positive)
            with progress.task(f"Encoding {split}", total=total) as task:
                counted = encoder.encode(split, folders[split], on_rows=task.advance)
            if counted is not None:
                encoder.save_counts(folders[split], counted)
                counts = counted
        if sampling_of(loaded.config) is not None:
            _require_negatives(loaded, folders["train"])
    if counts is None:
        raise AssertionError("the training rows were encoded without counting their ids")
    return Encoding(plan, folders, counts, encoder.fingerprint)


def _is_encoded(folder: Path, fingerprint: str) -> bool:
    meta = load_meta(folder)
    return meta is not None and meta.fingerprint == fingerprint


def _units_of(encoder: SplitEncoder, splits: Sequence[str]) -> list[Unit]:
    """The units of some splits; none where fewer rows are left than one unit holds.

    This process encodes those sooner than workers would start.
    """
    units = [unit for split in splits for unit in encoder.units_of(split)]
    num_rows = sum(unit.size for unit in units)
    return units if num_rows > encoder.config.runtime.rows_per_encoding_task else []


def _describe_growth(earlier: PreprocessingPlan, grown: PreprocessingPlan) -> str:
    """Describes the new values in the vocabularies of an earlier run, for the log."""
    found = {name: count for name, count in num_new_values(earlier, grown).items() if count}
    if not found:
        return "No vocabulary of the earlier run has new values"
    shown = ", ".join(f"{name} {count:,}" for name, count in list(found.items())[:5])
    more = f" and {len(found) - 5} more fields" if len(found) > 5 else ""
    return f"New values in the vocabularies of the earlier run: {shown}{more}"


def _count_out_of_fold(
    out_of_fold: OutOfFold | None, files: Sequence[Path], config: Config
) -> RowEncoder | None:
    """The out-of-fold encodings of the training rows; None if the plan has none."""
    label = config.data.label
    if out_of_fold is None:
        return None
    if out_of_fold.needs_counting:
        out_of_fold.count(read_batches(files, [label, *out_of_fold.columns]), label)
    return out_of_fold.encoder(label)


def encoded_fingerprint(plan: PreprocessingPlan, rows_fingerprint: str, config: Config) -> str:
    """The fingerprint of encoded rows: of the rows, the transforms and the sampling."""
    facts = plan.fingerprint() + rows_fingerprint
    sampling = sampling_of(config)
    if sampling is not None:
        facts += sampling.model_dump_json()
    if config.data.weight is not None:
        facts += "weights over the mean of the training rows"
    return hashlib.sha256(facts.encode("ascii")).hexdigest()


def encode_in_order(
    encoder: ColumnEncoder,
    writer: EncodedWriter,
    batches: Iterable[pa.RecordBatch],
    *,
    targets: Targets | None,
    threads: int,
    out_of_fold: RowEncoder | None = None,
    sampling: NegativeSampling | None = None,
    first_row: int = 0,
) -> Iterator[EncodedRecords]:
    """Encodes batches in several threads; yields the records in the order of the rows.

    Args:
        writer: Defines the records; nothing is written here.
        batches: Rows.
        targets: Columns of labels and weights; None: labels are 0, and there are no weights.
        threads: Number of threads.
        out_of_fold: Called with each batch in order before it is encoded; for training rows only.
        sampling: Draws the rows that are encoded, by their label; None encodes all.
        first_row: Number of the first row in its split.
    """

    def encode(drawn: tuple[pa.RecordBatch, RowNumbers | None]) -> EncodedRecords:
        batch, numbers = drawn
        records = writer.new_records(batch.num_rows)
        if targets is None:
            records.labels_B[:] = 0
        else:
            records.labels_B[:] = batch.column(targets.label).to_numpy(zero_copy_only=False)
        if records.weights_B is not None and targets is not None and targets.weight is not None:
            records.weights_B[:] = batch.column(targets.weight).to_numpy() / targets.mean_weight
        encoder.encode(batch, EncodedBatch(records.ids_BF, records.numbers_BN), out_of_fold=numbers)
        return records

    def draw() -> Iterator[tuple[pa.RecordBatch, RowNumbers | None]]:
        row = first_row
        for batch in batches:
            # All rows count here: which rows are sampled must not change an encoding.
            numbers = out_of_fold(batch) if out_of_fold else None
            if sampling is not None and targets is not None:
                yield _drawn(batch, numbers, sampling, row, targets.label)
            else:
                yield batch, numbers
            row += batch.num_rows

    with ThreadPoolExecutor(threads, thread_name_prefix="encode") as pool:
        yield from map_in_order(pool, encode, draw(), ahead=threads)


def _drawn(
    batch: pa.RecordBatch,
    numbers: RowNumbers | None,
    sampling: NegativeSampling,
    first_row: int,
    label: str,
) -> tuple[pa.RecordBatch, RowNumbers | None]:
    """The sampled rows of a batch, with their out-of-fold encodings."""
    is_positive = batch.column(label).to_numpy(zero_copy_only=False) == 1
    is_drawn = sampling.is_drawn(first_row, is_positive)
    kept = None if numbers is None else {key: one[is_drawn] for key, one in numbers.items()}
    return batch.filter(pa.array(is_drawn)), kept


def _require_negatives(loaded: LoadedConfig, folder: Path) -> None:
    """Raises ConfigError if sampling left rows of label 1 alone."""
    meta = load_meta(folder)
    if meta is None or meta.num_rows > meta.num_positive:
        return
    (folder / "meta.json").unlink()
    key = "data.sample.negatives"
    message = (
        f"{loaded.config.data.sample.negatives:g} draws none of the training rows of label 0; "
        "give a greater share"
    )
    raise ConfigError([loaded.problem_at(key, message)])


_COUNTS = "id_counts.npz"


def new_counter(plan: PreprocessingPlan, threads: int) -> IdCounter:
    """Counts the ids of encoded rows of a plan."""
    return IdCounter(plan.table_sizes, plan.position_tables, threads=threads)


def _join_counts(encoder: SplitEncoder, parts: Sequence[str]) -> list[IdCounts]:
    """The sum of what the parts of the training rows count, which is kept for the next time."""
    train = encoder.run.encoded / "train"
    counter = new_counter(encoder.plan, encoder.threads)
    for part in parts:
        folder = part_folder(train, part)
        counts = _read_counts(folder, encoder.plan, encoder.fingerprint)
        if counts is None:
            raise DataError(
                "is missing or damaged",
                place=str(folder / _COUNTS),
                remedy="Run 'ctrpipe run' with --overwrite to encode all rows again",
            )
        counter.add_counted(counts)
    joined = counter.per_table()
    encoder.save_counts(train, joined)
    return joined


def load_counts(run: RunFolder, plan: PreprocessingPlan, fingerprint: str) -> list[IdCounts] | None:
    """How often each training id of each table occurs; None if nobody has counted these rows.

    Args:
        fingerprint: Fingerprint of the encoded rows.
    """
    return _read_counts(run.encoded / "train", plan, fingerprint)


def _read_counts(folder: Path, plan: PreprocessingPlan, fingerprint: str) -> list[IdCounts] | None:
    try:
        with np.load(folder / _COUNTS, allow_pickle=False) as file:
            if str(file["fingerprint"]) != fingerprint:
                return None
            return unpack_counts(file["counts"], plan.table_sizes)
    except (OSError, ValueError, KeyError):
        return None
