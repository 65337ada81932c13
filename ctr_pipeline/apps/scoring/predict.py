"""Probabilities of rows that are not part of the run: `ctrpipe predict`.

What loads slowly is imported once the run folder is known to hold a model.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.errors import DataError
from ctr_pipeline.pipeline.context import RunContext
from ctr_pipeline.pipeline.results import PredictResult
from ctr_pipeline.pipeline.trained_run import opened_trained
from ctr_pipeline.progress import Progress

if TYPE_CHECKING:
    from ctr_pipeline.apps.scoring.files import FileScorer

_PROBABILITY = "probability"


def predict(
    loaded: LoadedConfig,
    *,
    data: str,
    output: str,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    strict: bool = False,
    progress: Progress,
) -> PredictResult:
    """Probabilities of the rows of `data`, which need no label.

    They may be computed while the model still trains in several processes. The key columns of the
    config, and those of `keep`, stand beside them as texts. With `strict`, columns of which the
    model knows far fewer values than of rows that training held out are an error.
    """
    context = RunContext.create(loaded, progress)
    progress = context.progress
    with opened_trained(context, beside_training=True):
        from ctr_pipeline.apps.scoring.files import report_unknown
        from ctr_pipeline.apps.scoring.opening import file_scorer

        scorer = file_scorer(loaded, context.run, progress)
        return predict_file(
            loaded,
            scorer,
            data=data,
            output=output,
            keep=keep,
            overwrite=overwrite,
            on_scored=partial(
                report_unknown, context.run, scorer.unknown, progress, place=data, strict=strict
            ),
            progress=progress,
        )


def predict_file(
    loaded: LoadedConfig,
    scorer: "FileScorer",
    *,
    data: str,
    output: str,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    on_scored: Callable[[], None],
    progress: Progress,
) -> PredictResult:
    """Writes `probability` beside the carried columns of every good row, in the order of the rows.

    Args:
        loaded: The config, whose key columns are carried.
        scorer: Scores rows with the trained model.
        data: File or glob.
        output: Where they are written, as in `open_target`.
        keep: More columns to carry.
        overwrite: Replace predictions that are at `output`.
        on_scored: Called when all rows are scored; nothing is written if it raises.

    Raises:
        DataError: The output cannot be, or a column to carry is not there.
    """
    import numpy as np
    import pyarrow as pa

    from ctr_pipeline.apps.results.target import ResultPlan, open_target
    from ctr_pipeline.dataset.bad_rows import BadRowLedger
    from ctr_pipeline.dataset.paths import paths_of_splits
    from ctr_pipeline.evaluation.likelihood import probabilities_of

    started = time.perf_counter()
    _check_kept(keep)
    keys = list(dict.fromkeys([*loaded.config.data.key_columns, *keep]))
    schema = pa.schema([*((key, pa.string()) for key in keys), (_PROBABILITY, pa.float32())])
    place = open_target(output)
    spares = paths_of_splits(loaded.config.data)
    place.check(ResultPlan(schema, overwrite=overwrite, reads=(data,), spares=spares))
    ledger = BadRowLedger(loaded.config.data.bad_rows, loaded.config.data.max_bad_fraction)
    num_rows, total = 0, 0.0

    def predictions() -> Iterator[pa.RecordBatch]:
        nonlocal num_rows, total
        for scored in scorer.score_file(data, label_required=False, ledger=ledger, keep=keep):
            probabilities = probabilities_of(scored.logits).astype(np.float32)
            columns = [scored.rows.column(key).cast(pa.string()) for key in keys]
            yield pa.record_batch([*columns, pa.array(probabilities)], schema=schema)
            num_rows += len(probabilities)
            total += float(probabilities.sum(dtype=np.float64))
            task.advance(len(probabilities))
        on_scored()

    with progress.task("Predicting", total=None) as task:
        place.write(schema, predictions())
    return PredictResult(
        output=output,
        num_rows=num_rows,
        num_bad_rows=ledger.close().total,
        mean_probability=total / num_rows if num_rows else 0.0,
        seconds=time.perf_counter() - started,
    )


def _check_kept(keep: Sequence[str]) -> None:
    for name in keep:
        if not name:
            raise DataError(
                "an empty name is among the columns",
                place="--keep",
                remedy="Write names with commas between, such as --keep user,day",
            )
        if name == _PROBABILITY:
            raise DataError(
                f"'{name}' is what predictions are called in the output",
                place="--keep",
                remedy="Give the column of the data another name",
            )
