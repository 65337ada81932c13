"""Encodes rows to ids and numbers on disk, and counts how often each training id occurs."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.encoded import EncodedRecords, EncodedWriter, load_meta
from ctr_pipeline.dataset.ingested import SplitRows
from ctr_pipeline.dataset.parts import read_batches
from ctr_pipeline.dataset.sampling import NegativeSampling, sampling_of
from ctr_pipeline.embeddings.counts import IdCounts
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.ordered_map import map_in_order
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.resources import num_threads
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.analyze import Analysis
from ctr_pipeline.pipeline.stages.vocabulary_extension import grow_plan, num_new_values
from ctr_pipeline.preprocessing.encode import ColumnEncoder, EncodedBatch
from ctr_pipeline.preprocessing.fit import plan_preprocessing
from ctr_pipeline.preprocessing.out_of_fold import OutOfFold, RowNumbers
from ctr_pipeline.preprocessing.plan import PreprocessingPlan

RowEncoder = Callable[[pa.RecordBatch], RowNumbers]


@dataclass(frozen=True)
class Encoding:
    """Encoded rows, and the transforms that encoded them.

    Attributes:
        plan: Fitted transforms.
        folders: Encoded rows by split.
        counts: Occurrences of each id in the training rows, int64 per table.
        fingerprint: Fingerprint of rows and transforms; equal ones mean equal encoded rows.
    """

    plan: PreprocessingPlan
    folders: dict[str, Path]
    counts: list[NDArray[np.int64]]
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


def run_encoding(context: RunContext, analysis: Analysis) -> Encoding:
    """Encodes all splits; splits that are encoded already are kept.

    Of the training rows, only those that `data.sample` draws are encoded, while statistics count
    all of them.

    Raises:
        ConfigError: No row of label 0 is drawn.
    """
    loaded, run = context.loaded, context.run
    progress, times = context.progress, context.times
    with times.stage("transforms"):
        warm_start = analysis.warm_start
        if warm_start is None:
            plan = plan_preprocessing(analysis.features, analysis.statistics, run.path)
        else:
            plan = grow_plan(warm_start, analysis.statistics, run)
            progress.log(_describe_growth(warm_start.plan, plan))
        plan.save(run.preprocessing)
        fingerprint = encoded_fingerprint(plan, analysis.ingested.fingerprint, loaded.config)
        threads = num_threads(loaded.config.runtime)
        encoder = ColumnEncoder(plan, run.path, threads=threads)
        folders = {split: run.encoded / split for split in analysis.ingested.splits}
        num_ids = [table.num_ids for table in plan.tables]
        counts = _load_counts(run, num_ids, plan.slot_tables, fingerprint)
        for split, folder in folders.items():
            meta = load_meta(folder)
            done = meta is not None and meta.fingerprint == fingerprint
            if done and (split != "train" or counts is not None):
                continue
            rows = analysis.ingested.splits[split]
            targets = _targets(loaded.config, analysis.ingested.splits["train"])
            counted = IdCounts(num_ids, plan.slot_tables) if split == "train" else None
            sampling = sampling_of(loaded.config) if split == "train" else None
            total = rows.num_rows
            if sampling is not None:
                total = sampling.expected_rows(rows.num_rows, rows.num_positive)
            with (
                progress.task(f"Encoding {split}", total=total) as task,
                EncodedWriter(
                    folder,
                    num_fields=plan.num_slots,
                    num_numbers=plan.num_floats,
                    fingerprint=fingerprint,
                    has_weights=targets.weight is not None,
                ) as writer,
            ):
                batches = read_batches(rows.files, [*targets.columns, *plan.inputs])
                out_of_fold = None
                # The counts of an earlier run do not include the labels of these rows.
                if split == "train" and warm_start is None:
                    out_of_fold = _out_of_fold_encoder(plan, run, rows.files, targets.label)
                for records in encode_in_order(
                    encoder,
                    writer,
                    batches,
                    targets=targets,
                    threads=threads,
                    out_of_fold=out_of_fold,
                    sampling=sampling,
                ):
                    writer.write_records(records)
                    if counted is not None:
                        counted.add(records.ids_BF)
                    task.advance(len(records.labels_B))
            if sampling is not None:
                _require_negatives(loaded, folder)
            if counted is not None:
                _save_counts(run, counted, fingerprint)
                counts = counted
    if counts is None:
        raise AssertionError("the training rows were encoded without counting their ids")
    return Encoding(plan, folders, counts.per_table(), fingerprint)


def _describe_growth(earlier: PreprocessingPlan, grown: PreprocessingPlan) -> str:
    """Describes the new values in the vocabularies of an earlier run, for the log."""
    found = {name: count for name, count in num_new_values(earlier, grown).items() if count}
    if not found:
        return "No vocabulary of the earlier run has new values"
    shown = ", ".join(f"{name} {count:,}" for name, count in list(found.items())[:5])
    more = f" and {len(found) - 5} more fields" if len(found) > 5 else ""
    return f"New values in the vocabularies of the earlier run: {shown}{more}"


def _out_of_fold_encoder(
    plan: PreprocessingPlan, run: RunFolder, files: Sequence[Path], label: str
) -> RowEncoder | None:
    """The out-of-fold encodings of the training rows; None if the plan has none."""
    out_of_fold = OutOfFold(plan, run.path)
    if not out_of_fold.columns:
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
) -> Iterator[EncodedRecords]:
    """Encodes batches in several threads; yields the records in the order of the rows.

    Args:
        writer: Defines the records; nothing is written here.
        batches: Rows.
        targets: Columns of labels and weights; None: labels are 0, and there are no weights.
        threads: Number of threads.
        out_of_fold: Called with each batch in order before it is encoded; for training rows only.
        sampling: Draws the rows that are encoded, by their label; None encodes all.
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
        first_row = 0
        for batch in batches:
            # All rows count here: which rows are sampled must not change an encoding.
            numbers = out_of_fold(batch) if out_of_fold else None
            if sampling is not None and targets is not None:
                yield _drawn(batch, numbers, sampling, first_row, targets.label)
            else:
                yield batch, numbers
            first_row += batch.num_rows

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


def _counts_path(run: RunFolder) -> Path:
    return run.encoded / "train" / "id_counts.npz"


def _save_counts(run: RunFolder, counts: IdCounts, fingerprint: str) -> None:
    with durable.durable_write(_counts_path(run)) as file:
        np.savez(file, counts=counts.flat, fingerprint=np.array(fingerprint))


def _load_counts(
    run: RunFolder, num_ids: list[int], slot_tables: tuple[int, ...], fingerprint: str
) -> IdCounts | None:
    try:
        with np.load(_counts_path(run), allow_pickle=False) as file:
            if str(file["fingerprint"]) != fingerprint:
                return None
            counts = IdCounts(num_ids, slot_tables)
            counts.flat[:] = file["counts"]
            return counts
    except (OSError, ValueError, KeyError):
        return None
