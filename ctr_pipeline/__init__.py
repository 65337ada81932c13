"""One YAML file takes raw click logs to a trained, explained and servable CTR model.

The whole of it from a notebook:

    import ctr_pipeline
    result = ctr_pipeline.run("config.yaml", overrides=["train.epochs=2"])
    result.metrics["test"]["auc"]
    trained = ctr_pipeline.load("runs/criteo-deepfm")
    trained.predict(dataframe)
    trained.evaluate(labelled, by=["country"])
    trained.importance
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctr_pipeline.notebook import load, run

__version__ = "0.1.0"
__all__ = ["__version__", "load", "run"]


def __dir__() -> list[str]:
    # What is imported when it is asked for is there for `help` as well.
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Imported when first asked for: the version alone should not cost a second.
    if name not in {"load", "run"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ctr_pipeline import notebook

    return getattr(notebook, name)
