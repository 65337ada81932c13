"""Trained parameters → a servable model, proved to score as the trainer does."""

import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.ingested import IngestedRows, joint_label_rate
from ctr_pipeline.dataset.parts import plain_batch, read_batches
from ctr_pipeline.export.edge_rows import edge_rows
from ctr_pipeline.export.model_card import ModelCardInfo
from ctr_pipeline.export.parity import ProvingProcess, prove_parity
from ctr_pipeline.export.rows import RowBlock
from ctr_pipeline.export.servable import discard_export, export_servable, publish_export
from ctr_pipeline.features import FeatureSpec
from ctr_pipeline.pipeline.model.embedding_rows import TrainedRows
from ctr_pipeline.pipeline.model.trained_model import TrainedModel, score_table
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.timing import StageTimes
from ctr_pipeline.preprocessing.build import build_preprocessing
from ctr_pipeline.preprocessing.fitted import raw_signature
from ctr_pipeline.progress import Progress
from ctr_pipeline.specs.parity import ParityProof
from ctr_pipeline.statistics import Statistics

_BLOCK_ROWS = 65_536


def run_export(
    loaded: LoadedConfig,
    run: RunFolder,
    model: TrainedModel,
    *,
    ingested: IngestedRows,
    features: tuple[FeatureSpec, ...],
    statistics: Statistics,
    metrics: Mapping[str, Any],
    progress: Progress,
    times: StageTimes,
) -> tuple[Path, ParityProof]:
    """Writes, proves and publishes the export; releases the rows on the way.

    Returns:
        The version folder and the proof, which also lies in it.

    Raises:
        ExportError: The export scores a row otherwise than the trainer; nothing is published.
    """
    config, refit = loaded.config, model.state.refit
    signature = raw_signature(model.plan)
    split = "test" if "test" in ingested.splits else "valid"
    ordinary = _first_rows(ingested.splits[split].files, list(signature), config.export.parity_rows)
    version_folder = run.export / str(config.export.model_version)
    with ProvingProcess() as process:
        with times.stage("export"):
            progress.log("Writing the servable model")
            exported = export_servable(
                model=model.compiled.assign(model.dense.values),
                preprocessing=build_preprocessing(model.plan, run.path),
                column_types=signature,
                row_blocks=_blocks(model.rows),
                num_rows=model.rows.num_rows if model.rows is not None else 0,
                width=model.row_width,
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
                slot_tables=None if model.plan.has_table_a_slot else model.plan.slot_tables,
                slots=model.compiled.slots,
            )
        with times.stage("parity"):
            progress.log("Proving that it scores like the trainer")
            hard = edge_rows(
                signature,
                ordinary=ordinary,
                missing_values=config.data.missing_values,
                lists=model.plan.list_columns,
            )
            rows = pa.concat_tables([ordinary, hard])
            try:
                scores = score_table(rows, run, model)
                if model.rows is not None:
                    # The process that proves holds the exported rows, and these are needed no more.
                    model.rows.release()
                with tempfile.TemporaryDirectory(
                    dir=run.path / "cache", prefix=".parity.", suffix=".tmp"
                ) as workspace:
                    proof = prove_parity(
                        exported,
                        rows,
                        scores,
                        process=process,
                        workspace=Path(workspace),
                        num_edge_rows=hard.num_rows,
                        sensitive={
                            part.column
                            for feature in features
                            if feature.sensitive
                            for part in feature.parts
                        },
                    )
            except BaseException:
                discard_export(exported)
                raise
            return publish_export(exported), proof


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


def _blocks(rows: TrainedRows | None) -> Iterator[RowBlock]:
    if rows is not None:
        for block in rows.iterate_rows(_BLOCK_ROWS):
            yield RowBlock(block.keys, block.values)


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
