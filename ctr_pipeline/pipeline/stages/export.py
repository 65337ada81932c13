"""Trained parameters → a servable model, proved to score as the trainer does."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.dataset.ingested import joint_label_rate
from ctr_pipeline.dataset.parts import plain_batch, read_batches
from ctr_pipeline.dataset.value_texts import missing_texts
from ctr_pipeline.export.edge_rows import edge_rows
from ctr_pipeline.export.model_card import ModelCardInfo
from ctr_pipeline.export.parity import prove_parity
from ctr_pipeline.export.proving_process import ProvingProcess
from ctr_pipeline.export.servable import (
    ExportedModel,
    discard_export,
    export_servable,
    publish_export,
)
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.model.trained_model import TrainedModel, score_table
from ctr_pipeline.pipeline.stages.analyze import Analysis
from ctr_pipeline.preprocessing.build import build_preprocessing
from ctr_pipeline.preprocessing.plan import raw_signature
from ctr_pipeline.specs.parity import ParityProof

_BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class WrittenExport:
    """A servable model that is not published yet, and what to prove it by.

    Attributes:
        exported: The files.
        rows: Ordinary and difficult rows, as they are read.
        scores: The trainer's logits of them, float32.
        num_edge_rows: How many of the rows, the last ones, are difficult.
    """

    exported: ExportedModel
    rows: pa.Table
    scores: NDArray[np.float32]
    num_edge_rows: int


@contextmanager
def written_export(
    context: RunContext, model: TrainedModel, analysis: Analysis, *, metrics: Mapping[str, Any]
) -> Iterator[WrittenExport]:
    """Writes a servable model and scores the rows to prove it by; an error inside discards it.

    `prove_export` publishes it. The trainer's rows are not needed inside.
    """
    config, run, refit = context.config, context.run, model.state.refit
    ingested, statistics, features = analysis.ingested, analysis.statistics, analysis.features
    signature = raw_signature(model.plan)
    split = "test" if "test" in ingested.splits else "valid"
    ordinary = _first_rows(ingested.splits[split].files, list(signature), config.export.parity_rows)
    version_folder = run.export / str(config.export.model_version)
    with context.times.stage("export"):
        context.progress.log("Writing the servable model")
        exported = export_servable(
            model=model.compiled.assign(model.dense.values),
            preprocessing=build_preprocessing(model.plan, run.path),
            column_types=signature,
            row_blocks=model.rows.iterate_rows(_BLOCK_ROWS),
            num_rows=model.rows.num_rows,
            width=model.rows.width,
            version_folder=version_folder,
            info=ModelCardInfo(
                name=config.name,
                architecture=_architecture_of(model, config.model.name),
                created=datetime.now(UTC),
                training_rows=statistics.num_rows if refit is None else refit.num_rows,
                base_rate=statistics.base_rate
                if refit is None
                else joint_label_rate([ingested.splits[one] for one in ("train", "valid")]),
                metrics=metrics,
                features=[_describe(feature) for feature in features],
                missing_values=config.data.missing_values,
                extra=_describe_members(model, config.model.embedding_dim),
            ),
            list_columns=model.plan.list_columns,
            position_tables=None if model.plan.has_table_a_position else model.plan.position_tables,
            sequence_pooling=model.compiled.sequence_pooling,
        )
    try:
        with context.times.stage("parity"):
            hard = edge_rows(
                signature,
                ordinary=ordinary,
                missing_values=missing_texts(config.data.missing_values),
                lists=model.plan.list_columns,
            )
            rows = pa.concat_tables([ordinary, hard])
            scores = score_table(rows, run, model)
        yield WrittenExport(exported, rows, scores, hard.num_rows)
    except BaseException:
        discard_export(exported)
        raise


def prove_export(
    context: RunContext, written: WrittenExport, analysis: Analysis, process: ProvingProcess
) -> tuple[Path, ParityProof]:
    """Proves that an export scores as the trainer does, and publishes it.

    Args:
        context: Context of the run.
        written: What `written_export` gives.
        analysis: Analysis of the same run.
        process: Loads the export; it holds the exported rows, beside which the trainer's should
            not take memory.

    Returns:
        The version folder and the proof, which also lies in it.

    Raises:
        ExportError: The export scores a row otherwise than the trainer; nothing is published.
    """
    sensitive = {
        part.column for feature in analysis.features if feature.sensitive for part in feature.parts
    }
    with context.times.stage("parity"):
        context.progress.log("Proving that it scores like the trainer")
        with tempfile.TemporaryDirectory(
            dir=context.run.path / "cache", prefix=".parity.", suffix=".tmp"
        ) as workspace:
            proof = prove_parity(
                written.exported,
                written.rows,
                written.scores,
                process=process,
                workspace=Path(workspace),
                num_edge_rows=written.num_edge_rows,
                sensitive=sensitive,
            )
        return publish_export(written.exported), proof


def _architecture_of(model: TrainedModel, name: str) -> str:
    """The model's kind, or those of an ensemble's models."""
    if not model.members:
        return name
    return f"ensemble of {', '.join(member.model for member in model.members)}"


def _describe_members(model: TrainedModel, embedding_dim: int) -> dict[str, Any] | None:
    """What the card says of an ensemble: its rows hold those of its models side by side."""
    if not model.members:
        return None
    return {
        "embedding_dim": embedding_dim,
        "members": [{"model": one.model, "seed": one.seed} for one in model.members],
    }


def _first_rows(files: tuple[Path, ...], columns: list[str], num_rows: int) -> pa.Table:
    """The first rows of some parts, without dictionaries."""
    found: list[pa.RecordBatch] = []
    count = 0
    for batch in read_batches(files, columns, num_rows):
        found.append(plain_batch(batch.slice(0, num_rows - count)))
        count += found[-1].num_rows
        if count >= num_rows:
            break
    return pa.Table.from_batches(found).combine_chunks()


def _describe(feature: FeatureSpec) -> dict[str, Any]:
    return {
        "column": feature.column,
        "type": feature.column_type.value,
        "number": _chain(feature.number),
        "id": _chain(feature.id),
        "reason": feature.reason,
        **({"cross": [part.column for part in feature.cross]} if feature.cross is not None else {}),
        **({"table": feature.table} if feature.table is not None else {}),
        **({"vector": feature.vector.model_dump()} if feature.vector is not None else {}),
    }


def _chain(chain: tuple[Any, ...] | None) -> list[dict[str, Any]] | None:
    return None if chain is None else [step.model_dump(mode="json") for step in chain]
