"""Run folders as finished runs leave them, without a training."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.evaluation.likelihood import probabilities_of
from ctr_pipeline.evaluation.metrics import evaluate_predictions
from ctr_pipeline.training.history import EpochRecord, save_history


def scored_rows(noise=0.5, *, num_rows=2000, rows_seed=1, model_seed=2):
    """Labels, the same for the same `rows_seed`, and logits that know as much as noise leaves."""
    random = np.random.default_rng(rows_seed)
    truth = random.normal(-1.0, 1.2, num_rows)
    labels = (random.random(num_rows) < 1 / (1 + np.exp(-truth))).astype(np.uint8)
    disturbed = truth + np.random.default_rng(model_seed).normal(0, noise, num_rows)
    return labels, disturbed.astype(np.float32)


def write_run(folder, labels, logits, *, keys=None, weights=None, valid=None, **settings):
    """Writes what `ctrpipe compare` reads; `settings` are dotted keys with two underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {"data": {"train": "rows.csv", "label": "click"}, "output": str(folder)}
    for key, value in settings.items():
        *parents, last = key.split("__")
        node = mapping
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    text = config_from_mapping(mapping).resolved_yaml()
    (folder / "config.resolved.yaml").write_text(text)
    columns = dict(keys or {})
    columns["label"] = pa.array(labels.astype(np.int8))
    columns["probability"] = pa.array(probabilities_of(logits))
    pq.write_table(pa.table(columns), folder / "predictions.parquet")
    valid_labels, valid_logits = scored_rows(rows_seed=9) if valid is None else valid
    metrics = {
        "test": evaluate_predictions(labels, logits, weights=weights).to_metrics(),
        "valid": evaluate_predictions(valid_labels, valid_logits).to_metrics(),
        "training": {
            "epochs": 3,
            "best_epoch": 2,
            "steps": 300,
            "stopped_because": "epochs",
            "embedding_rows": 1234,
            "embedding_bytes": 98_765,
            "dense_parameters": 567,
        },
        "num_rows": {"train": 16_000, "valid": 2000, "test": len(labels)},
        "timings_seconds": {"ingest": 0.5, "training": 75.0},
        "peak_memory_bytes": 1 << 30,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    save_history(
        folder / "history.csv",
        [
            EpochRecord(
                epoch=epoch,
                step=100 * (epoch + 1),
                train_logloss=0.5 - 0.02 * epoch,
                valid_logloss=0.52 - 0.01 * epoch,
                valid_auc=0.70 + 0.01 * epoch,
                valid_calibration=1.0,
                learning_rate_factor=1.0,
                num_rows=16_000,
                seconds=25.0,
            )
            for epoch in range(3)
        ],
    )
    return folder
