"""Builds and compiles the Keras model of a config."""

from ctr_pipeline.config.models import Config
from ctr_pipeline.dataset.sampling import sampling_of
from ctr_pipeline.errors import ModelError
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.pipeline.model.embedding_rows import field_dims
from ctr_pipeline.pipeline.model.precision import precision_of
from ctr_pipeline.pipeline.resources import find_huge_layers, thread_shares
from ctr_pipeline.pipeline.run_folder import RunFolder
from ctr_pipeline.preprocessing.plan import PreprocessingPlan
from ctr_pipeline.statistics import load_statistics
from ctr_pipeline.training.compiled import CompiledModel, configure_tensorflow
from ctr_pipeline.training.sequence_pooling import PooledField, SequencePooling


def compile_model(
    config: Config,
    run: RunFolder,
    plan: PreprocessingPlan,
    *,
    trains: bool,
    threads: int | None = None,
) -> CompiledModel:
    """Builds the model that a config names; its initial values are a function of the seed.

    Args:
        config: The whole config.
        run: Where the statistics are.
        plan: Fitted transforms, which determine the model's inputs.
        trains: Whether gradients will be computed, in the config's precision. Scores are always
            float32, so a model that only scores runs on any processor.
        threads: Threads of TensorFlow; None: TensorFlow's share of the config's threads.

    Raises:
        ModelError: The model cannot fit into the machine's memory, needs a target and sequences
            that the features do not give, or the user's own file is at fault.
    """
    if threads is None:
        threads = thread_shares(config.runtime).tensorflow
    configure_tensorflow(threads=threads, deterministic=config.train.deterministic)
    num_inputs = len(plan.fields) * config.model.embedding_dim + len(plan.numbers)
    huge = find_huge_layers(config.model, num_inputs=num_inputs) if trains else None
    if huge is not None:
        key, problem = huge
        raise ModelError(problem, place=f"model.{key}")
    target = config.model.compared_feature
    apart = target is not None
    signature = ModelSignature(
        num_fields=len(plan.fields),
        embedding_dim=config.model.embedding_dim,
        num_numbers=len(plan.numbers),
        base_rate=load_statistics(run.statistics).base_rate,
        sequences=tuple(field.num_positions for field in plan.sequences) if apart else (),
        target=None if target is None else _target_of(target, plan),
        field_dims=field_dims(config, plan),
    )
    sampling = sampling_of(config)
    seed, precision = config.train.seed, precision_of(config.train)
    training_model = None
    if trains and precision != "float32":
        training_model = build_model(config.model, signature, seed=seed, precision=precision)
    return CompiledModel(
        build_model(config.model, signature, seed=seed),
        training_model=training_model,
        batch_size=config.train.batch_size,
        training_offset=0.0 if sampling is None else sampling.training_offset,
        sequence_pooling=plan_pooling(plan, apart=apart),
        use_xla=config.model.use_xla,
        number_names=[number.name for number in plan.numbers],
        is_of_user=config.model.code_file is not None,
    )


def _target_of(target: str, plan: PreprocessingPlan) -> int:
    """The field of the target that a model compares sequences with.

    Raises:
        ModelError: There is no sequence, or the target is not one field of one value.
    """
    if not plan.sequences:
        raise ModelError(
            "the model looks into sequences, and no feature is one",
            place="model.name",
            remedy="Add one, such as {columns: viewed, sequence: {}, id: vocabulary}, or take "
            "another model",
        )
    plain = plan.fields[: len(plan.fields) - len(plan.sequences)]
    places = [place for place, field in enumerate(plain) if field.column == target]
    if len(places) == 1:
        return places[0]
    if places:
        problem = f"'{target}' has {len(places)} embedded fields, and a target has one"
    else:
        problem = f"'{target}' is no feature with an id of one value"
    known = dict.fromkeys(field.column for field in plain)
    single = [name for name in known if sum(field.column == name for field in plain) == 1]
    raise ModelError(
        problem,
        place="model.target",
        remedy=f"Name one of: {', '.join(single[:20])}"
        if single
        else "Give the item that is shown an id, such as {columns: item, id: vocabulary}",
    )


def plan_pooling(plan: PreprocessingPlan, *, apart: bool = False) -> SequencePooling | None:
    """How positions become fields; None without sequences.

    Args:
        plan: Fitted transforms.
        apart: Whether the model also reads the positions one by one.
    """
    if not plan.sequences:
        return None
    return SequencePooling(
        num_plain=len(plan.fields) - len(plan.sequences),
        pooled=tuple(
            PooledField(field.sequence.max_length, field.sequence.pooling == "max")
            for field in plan.sequences
            if field.sequence is not None
        ),
        num_numbers=len(plan.numbers),
        apart=apart,
    )
