"""Parts of a model are compiled by themselves only where the whole is not."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.specs.model_kinds import MODELS
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.fusion import compiled_parts, fused

BATCH, FIELDS, DIM = 16, 3, 4


def squares(x):
    return tf.reduce_sum(tf.square(x), axis=-1)


def compiled_calls(function):
    """Names of the operations of a traced graph that XLA has to compile."""
    return [
        one.name
        for one in function.graph.get_operations()
        if "_XlaMustCompile" in one.node_def.attr and one.get_attr("_XlaMustCompile")
    ]


def trace(function):
    return tf.function(function).get_concrete_function(tf.TensorSpec((BATCH, DIM)))


def test_a_part_is_the_call_alone_by_default():
    assert compiled_calls(trace(lambda x: fused(squares, x))) == []


def test_a_part_is_compiled_where_it_is_asked_for():
    with compiled_parts():
        traced = trace(lambda x: fused(squares, x))
    assert len(compiled_calls(traced)) == 1
    x = np.random.default_rng(0).normal(size=(BATCH, DIM)).astype(np.float32)
    np.testing.assert_allclose(traced(tf.constant(x)), (x**2).sum(-1), rtol=1e-5)
    assert compiled_calls(trace(lambda x: fused(squares, x))) == []


def model_of(name, precision="float32"):
    config = MODELS[name](embedding_dim=DIM, hidden_units=(8,), dropout=0.0)
    return build_model(config, ModelSignature(FIELDS, DIM, 2, 0.3), seed=1, precision=precision)


def gradients_of(compiled):
    random = np.random.default_rng(2)
    return compiled.gradients(
        parameters_P=compiled.initial_parameters(),
        linear_BF1=random.normal(size=(BATCH, FIELDS, 1)).astype(np.float32),
        embeddings_BFD=random.normal(size=(BATCH, FIELDS, DIM)).astype(np.float32),
        numbers_BN=random.normal(size=(BATCH, 2)).astype(np.float32),
        labels_B=(random.random(BATCH) < 0.3).astype(np.float32),
        num_valid=BATCH,
        dropout_seed=0,
    )


@pytest.mark.parametrize("name", ["deepfm", "xdeepfm"])
def test_gradients_pass_through_the_parts(name):
    whole = gradients_of(CompiledModel(model_of(name), batch_size=BATCH))
    parts = gradients_of(CompiledModel(model_of(name), batch_size=BATCH, use_xla=False))
    assert parts.loss_sum == pytest.approx(whole.loss_sum, rel=1e-5)
    np.testing.assert_allclose(parts.parameters_P, whole.parameters_P, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(parts.embeddings_BFD, whole.embeddings_BFD, rtol=1e-3, atol=1e-5)


def test_products_of_bfloat16_are_left_to_the_processor():
    mixed = CompiledModel(
        model_of("deepfm"), training_model=model_of("deepfm", "bfloat16"), batch_size=BATCH
    )
    gradients_of(mixed)
    (traced,) = mixed._gradients._list_all_concrete_functions()
    products = [one for one in traced.graph.get_operations() if one.type == "MatMul"]
    assert tf.bfloat16 in {one.inputs[0].dtype for one in products}
    assert compiled_calls(traced)
    assert not traced.function_def.attr["_XlaMustCompile"].b


def test_saved_model_has_no_compiled_part(tmp_path):
    model = model_of("deepfm")
    gradients_of(CompiledModel(model, batch_size=BATCH, use_xla=False))
    model.export(tmp_path / "saved", verbose=False)
    saved = SavedModel.FromString((tmp_path / "saved" / "saved_model.pb").read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    assert functions
    assert not [one.signature.name for one in functions if one.attr["_XlaMustCompile"].b]
