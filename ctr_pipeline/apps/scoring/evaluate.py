"""Metrics of a trained model on the test rows or on new files: `ctrpipe evaluate`."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_pipeline import interruption
from ctr_pipeline.apps.scoring.files import (
    FileScorer,
    report_unknown,
    scores_by_job,
)
from ctr_pipeline.apps.scoring.opening import file_scorer
from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.dataset.bad_rows import BadRowLedger
from ctr_pipeline.errors import ConfigError, DataError, FolderInUseError
from ctr_pipeline.evaluation.metrics import EvaluationResult
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.run import prepare_as_trained
from ctr_pipeline.pipeline.stages.column_problems import GROUP_BY, group_problems
from ctr_pipeline.pipeline.stages.evaluate import (
    findings_on,
    held_out,
    measure,
    not_trained_on,
    run_evaluation,
    split_scorer,
)
from ctr_pipeline.pipeline.trained_run import logged, opened_trained
from ctr_pipeline.progress import Progress
from ctr_pipeline.training.scoring import ScoredRows


def evaluate(
    loaded: LoadedConfig,
    *,
    data: str | None = None,
    by: Sequence[str] = (),
    strict: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Metrics of the trained model on the test rows, or on the labelled rows of `data`.

    With `strict`, columns of `data` of which the model knows far fewer values than of rows that
    training held out are an error.

    With `by`, also metrics by the values of these columns, in place of `evaluation.group_by`.

    While the model still trains in several processes, rows of `data` are scored with the best
    epoch until then, and the test rows with the newest checkpoint; `checkpoint` and `folder`
    among the metrics then tell which it was and where its results are kept.
    """
    if by:
        loaded = loaded.with_option("--by", GROUP_BY, tuple(dict.fromkeys(by)))
    if problems := group_problems(loaded):
        raise ConfigError(problems)
    context = RunContext.create(loaded, progress)
    with ExitStack() as stack:
        try:
            stack.enter_context(opened_trained(context, beside_training=data is not None))
        except FolderInUseError:
            # It loads gRPC, which an evaluation in one process does not need.
            from ctr_pipeline.apps.scoring.cut import (
                decide_beside,
                evaluate_newest_cut,
                find_job_state,
            )

            state = find_job_state(context.run)
            if data is not None or not decide_beside(loaded.config.runtime, state):
                raise
            # Without the lock, which the training has.
            with logged(context.run), interruption.handle_signals():
                return evaluate_newest_cut(context)
        if data is not None:
            scorer = file_scorer(loaded, context.run, context.progress)
            result = evaluate_file(loaded, scorer, data=data, progress=context.progress)
            report_unknown(context.run, scorer.unknown, context.progress, place=data, strict=strict)
            return result.to_metrics() | {"findings": findings_on(result, "given")}
        return _evaluate_trained(context)


def _evaluate_trained(context: RunContext) -> dict[str, Any]:
    """Evaluates the best epoch, under the lock; the predictions become those of the run."""
    loaded, run, progress = context.loaded, context.run, context.progress
    if scores_by_job(loaded, run):
        from ctr_pipeline.apps.scoring.job import scored_in_processes
        from ctr_pipeline.pipeline.job.trained_cut import find_trained_cut

        cut = find_trained_cut(loaded, run, progress)
        prepared = prepare_as_trained(context, cut.plan, cut.state)
        splits = held_out(prepared.encoding.folders)
        with scored_in_processes(
            loaded,
            run,
            cut,
            splits,
            find_another=partial(find_trained_cut, loaded, run, progress),
            progress=progress,
        ) as scores:
            results = run_evaluation(
                context,
                prepared.analysis.ingested,
                splits,
                scores.files.load,
                predictions=run.predictions,
            )
    else:
        from ctr_pipeline.pipeline.model.loading import open_trained

        model = open_trained(loaded, run, progress)
        prepared = prepare_as_trained(context, model.plan, model.state)
        results = run_evaluation(
            context,
            prepared.analysis.ingested,
            not_trained_on(loaded.config, prepared.encoding.folders),
            split_scorer(model, progress),
            predictions=run.predictions,
        )
    split = "test" if "test" in results else "valid"
    return results[split].to_metrics() | {"findings": findings_on(results[split], split)}


def evaluate_file(
    loaded: LoadedConfig, scorer: FileScorer, *, data: str, progress: Progress
) -> EvaluationResult:
    """Exact metrics of a new file that has labels."""
    config = loaded.config
    ledger = BadRowLedger(config.data.bad_rows, config.data.max_bad_fraction)
    weight = [] if config.data.weight is None else [config.data.weight]
    carried, logits = [], []
    batches = scorer.score_file(data, label_required=True, ledger=ledger)
    with progress.task("Evaluating", total=None) as task:
        for scored in batches:
            columns = dict.fromkeys([config.data.label, *weight, *config.evaluation.columns])
            carried.append(scored.rows.select(list(columns)))
            logits.append(scored.logits)
            task.advance(len(scored.logits))
    if not logits:
        raise DataError("holds no good row", place=data)
    rows = pa.Table.from_batches(carried)
    labels = rows.column(config.data.label).to_numpy().astype(np.float32)
    return measure(config, ScoredRows(labels, np.concatenate(logits)), rows, place=data)
