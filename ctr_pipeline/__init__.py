"""One YAML file takes raw click logs to a trained, explained and servable CTR model.

The whole of it from a notebook:

    import ctr_pipeline
    result = ctr_pipeline.run("config.yaml", overrides=["train.epochs=2"])
    result.metrics["test"]["auc"]
    trained = ctr_pipeline.load("runs/criteo-deepfm")
    trained.predict(dataframe)
    trained.evaluate(labelled, by=["country"])
    trained.importance

Records for a script of your own under `ctrpipe elastic-run`:

    records = ctr_pipeline.ElasticRecords("train-*.tfrecord", batch_size=64, epochs=3)
    for batch in records.steps(records.dataset().map(parse)):
        step(batch)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctr_pipeline.distributed.records.elastic import ElasticRecords
    from ctr_pipeline.notebook import load, run

__version__ = "0.1.0"
__all__ = ["ElasticRecords", "__version__", "load", "run"]

_MODULES = {
    "ElasticRecords": "ctr_pipeline.distributed.records.elastic",
    "load": "ctr_pipeline.notebook",
    "run": "ctr_pipeline.notebook",
}


def __dir__() -> list[str]:
    # What is imported when it is asked for is there for `help` as well.
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Imported when first asked for: the version alone should not cost a second.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
