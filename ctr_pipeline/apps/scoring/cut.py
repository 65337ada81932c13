"""The run's own test rows scored with its newest cut while the run goes on.

A training holds the lock of its folder, and its results are its own to write. So an evaluation
beside it only reads the rows that training has, and keeps what it finds in a folder of its own:
`evaluations/checkpoint-000012/metrics.json` and `predictions.parquet`.
"""

import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr_pipeline import durable
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.config.models import RuntimeConfig
from ctr_pipeline.dataset.encoded import load_meta
from ctr_pipeline.dataset.ingested import IngestedRows, load_ingested
from ctr_pipeline.dataset.parts import column_names
from ctr_pipeline.distributed.master.manifests import CutFacts, Cuts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.errors import CheckpointError, DataError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.job.control import ENDED_STATES, Job, find_state
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.pipeline.stages.encode import encoded_fingerprint

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.job.trained_cut import TrainedCut


def decide_beside(runtime: RuntimeConfig, job_state: str | None) -> bool:
    """Whether a cut is scored beside whoever holds the folder's lock; if not, he is waited for.

    Args:
        runtime: The `runtime` section of the config.
        job_state: State of the job in the folder; None: there is no job yet, or it does not say. A
            job that has ended does not train: its best epoch is the model, and the lock is soon
            free.
    """
    return runtime.has_members and job_state not in ENDED_STATES


def find_job_state(run: RunFolder) -> str | None:
    """The state of the job in a folder; None: there is none yet, or it does not say."""
    return find_state(Job(run.path)) if (run.job / "spec.json").exists() else None


def evaluate_newest_cut(context: RunContext) -> dict[str, Any]:
    """Metrics of the test rows, or of the validation rows if there are none, with the newest cut.

    Returns:
        The metrics, and beside them `checkpoint`, which says what was scored with, and `folder`,
        where they are kept.

    Raises:
        CheckpointError: There is no cut yet.
        DataError: The rows are no longer those that the cut was trained on.
        TrainingError: The job that scores failed; its logs are kept.
        Interrupted: It was stopped.
    """
    loaded, run, progress = context.loaded, context.run, context.progress
    _require_cut(run)
    # They know TensorFlow, which a refusal need not wait for.
    from ctr_pipeline.apps.scoring.job import scored_in_processes
    from ctr_pipeline.pipeline.job.trained_cut import find_newest_cut
    from ctr_pipeline.pipeline.stages.evaluate import findings_on, run_evaluation

    cut = find_newest_cut(run, progress)
    run.require_same_model(
        loaded,
        "trains with another config",
        "Use the config it trains with, or set the keys back",
    )
    ingested = _require_own_rows(loaded, run, cut)
    split = "test" if "test" in ingested.splits else "valid"
    folders = {split: run.encoded / split}
    with scored_in_processes(
        loaded,
        run,
        cut,
        folders,
        find_another=partial(find_newest_cut, run, progress),
        progress=progress,
    ) as scores:
        kept = _make_place(run, scores.facts)
        result = run_evaluation(
            context,
            ingested,
            folders,
            scores.files.load,
            predictions=kept / "predictions.parquet",
        )[split]
    try:
        # Whoever holds the lock may have begun anew with other rows meanwhile.
        _require_own_rows(loaded, run, cut)
    except DataError:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    checkpoint = describe_cut(scores.facts)
    found, findings = result.to_metrics(), findings_on(result, split)
    content = {"checkpoint": checkpoint, split: found, "findings": findings}
    durable.write_text(kept / "metrics.json", json.dumps(content, indent=2, allow_nan=False) + "\n")
    return found | {"findings": findings, "checkpoint": checkpoint, "folder": str(kept)}


def _require_cut(run: RunFolder) -> None:
    has_job = (run.job / "spec.json").exists() and run.checkpoints.is_dir()
    if not has_job or not Cuts(CutStorage(run.checkpoint_storage)).numbers():
        raise CheckpointError(
            "the run that uses this folder has taken no checkpoint yet that could be scored",
            place=str(run.path),
            remedy="Wait for the first one, at most train.checkpoint_seconds after training has "
            "begun; 'ctrpipe status' shows it",
        )


def _make_place(run: RunFolder, facts: CutFacts) -> Path:
    """Where the results of a cut are kept; training never looks there."""
    place = run.evaluations / f"checkpoint-{facts.cut:06d}"
    with durable.os_errors_explained(place):
        place.mkdir(parents=True, exist_ok=True)
    return place


def describe_cut(facts: CutFacts) -> dict[str, Any]:
    """What was scored with, as JSON; epochs count from 1."""
    taken_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(facts.taken_at))
    return {
        "number": facts.cut,
        "epoch": facts.epoch + 1,
        "step": facts.step,
        "taken_at": taken_at,
    }


def _require_own_rows(loaded: LoadedConfig, run: RunFolder, cut: "TrainedCut") -> IngestedRows:
    """The rows as they were read; they and the encoded ones are those of the cut."""
    ingested = load_ingested(run.ingested)
    wanted = cut.state.rows_fingerprint
    if (
        ingested is None
        or encoded_fingerprint(cut.plan, ingested.fingerprint, loaded.config) != wanted
    ):
        raise _other_rows(run)
    for split in ingested.splits:
        meta = load_meta(run.encoded / split)
        if meta is None or meta.fingerprint != wanted:
            raise _other_rows(run)
    kept = column_names(ingested.splits["train"].files)
    for column in loaded.config.evaluation.columns:
        if column not in kept:
            raise DataError(
                f"column '{column}' was not kept when the rows were read",
                place=loaded.place_of("evaluation.group_by"),
                remedy="Group by columns that the run was started with, or wait until it has ended",
            )
    return ingested


def _other_rows(run: RunFolder) -> DataError:
    return DataError(
        "the rows in the cache are not those that the newest checkpoint was trained on",
        place=str(run.path),
        remedy="Run the command again when the run in this folder has taken a checkpoint",
    )
