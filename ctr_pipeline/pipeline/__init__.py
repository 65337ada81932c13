"""Where the siblings meet: config → statistics → preprocessing → model → training → artefacts.

Stages hand each other saved artefacts of the run folder. Importing this package imports neither
TensorFlow nor DuckDB; the stages that need them do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctr_pipeline.pipeline.init import init_config
    from ctr_pipeline.pipeline.preview import check_config
    from ctr_pipeline.pipeline.run import (
        analyze,
        evaluate,
        export_model,
        prepare_job,
        run_pipeline,
        train,
        tune,
    )
    from ctr_pipeline.pipeline.tables import measure_drift, profile_table
    from ctr_pipeline.pipeline.trained_run import predict

__all__ = [
    "analyze",
    "check_config",
    "evaluate",
    "export_model",
    "init_config",
    "measure_drift",
    "predict",
    "prepare_job",
    "profile_table",
    "run_pipeline",
    "train",
    "tune",
]

_MODULES = {
    "check_config": "preview",
    "init_config": "init",
    "measure_drift": "tables",
    "predict": "trained_run",
    "profile_table": "tables",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"ctr_pipeline.pipeline.{_MODULES.get(name, 'run')}")
    return getattr(module, name)
