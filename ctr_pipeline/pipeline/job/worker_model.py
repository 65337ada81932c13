"""The model of a config as a worker computes with it."""

from ctr_pipeline.config.loader import LoadedConfig
from ctr_pipeline.distributed.worker.program import WorkerModel
from ctr_pipeline.pipeline.model.dense_model import compile_model
from ctr_pipeline.pipeline.resources import threads_of_worker
from ctr_pipeline.pipeline.run_folder import RunFolder, model_fingerprint
from ctr_pipeline.preprocessing.plan import load_plan


def build_worker_model(loaded: LoadedConfig) -> WorkerModel:
    """Builds and compiles the model, so that the first batch does not wait for it.

    Raises:
        ModelError: It cannot be built.
    """
    config, run = loaded.config, RunFolder(loaded.config.run_folder)
    plan = load_plan(run.preprocessing)
    compiled = compile_model(
        config, run, plan, threads=threads_of_worker(config.runtime), trains=True
    )
    compiled.warm_up(
        num_fields=plan.num_positions,
        embedding_dim=config.model.embedding_dim,
        num_numbers=plan.num_floats,
    )
    return WorkerModel(compiled, config.train.deterministic, model_fingerprint(config))
