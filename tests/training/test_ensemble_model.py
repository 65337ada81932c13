from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.progress import SilentTask
from ctr_pipeline.specs.model_kinds import MODELS, DeepFMConfig, DINConfig
from ctr_pipeline.training.compiled import CompiledModel, model_inputs
from ctr_pipeline.training.ensemble import (
    EnsembleDense,
    EnsembleModel,
    EnsembleNetwork,
    EnsembleScorer,
)
from ctr_pipeline.training.scoring import Scorer
from ctr_pipeline.training.sequence_pooling import PooledField, SequencePooling
from tests.training.training_problem import (
    BATCH_SIZE,
    DIM,
    NUM_IDS,
    NUM_NUMBERS,
    NUM_ROWS,
    draw_rows,
)

SIGNATURE = ModelSignature(len(NUM_IDS), DIM, NUM_NUMBERS, 0.4)
KINDS = ("deepfm", "dcnv2", "wide_and_deep")


def new_model(kind, seed):
    config = MODELS[kind](embedding_dim=DIM, hidden_units=(4,))
    return build_model(config, SIGNATURE, seed=seed)


@pytest.fixture(scope="module")
def network():
    models = [
        CompiledModel(new_model(kind, seed), batch_size=8, use_xla=False)
        for seed, kind in enumerate(KINDS)
    ]
    return EnsembleNetwork(tuple(models), DIM)


class Values:
    def __init__(self, values):
        self.values = values


def test_logits_are_the_mean_of_those_of_the_members(network):
    chance = np.random.default_rng(0)
    parameters = [
        chance.normal(size=member.num_parameters).astype(np.float32) for member in network.members
    ]
    rows = chance.normal(size=(8, len(NUM_IDS), len(KINDS) * (1 + DIM))).astype(np.float32)
    numbers = chance.normal(size=(8, NUM_NUMBERS)).astype(np.float32)
    expected = [
        member.logits(
            parameters_P=values,
            linear_BF1=rows[:, :, first : first + 1],
            embeddings_BFD=rows[:, :, first + 1 : first + 1 + DIM],
            numbers_BN=numbers,
        )
        for member, values, first in zip(
            network.members, parameters, range(0, rows.shape[2], 1 + DIM), strict=True
        )
    ]
    assert np.std(expected, axis=0).min() > 0.01
    dense = EnsembleDense.of([Values(values) for values in parameters])
    assert len(dense.values) == network.num_parameters
    model = network.assign(dense.values)
    inputs = {"linear": rows[:, :, 0], "embeddings": rows[:, :, 1:], "numbers": numbers}
    found, states = model.stateless_call(
        [tf.constant(variable.value) for variable in model.trainable_variables],
        [tf.constant(variable.value) for variable in model.non_trainable_variables],
        inputs,
        training=False,
    )
    np.testing.assert_allclose(found, np.mean(expected, axis=0), rtol=1e-5, atol=1e-6)
    assert len(states) == len(model.non_trainable_variables) > len(KINDS) - 1


def test_another_number_of_parameters_is_refused(network):
    with pytest.raises(ValueError, match="the members have"):
        network.assign(np.zeros(network.num_parameters + 1, np.float32))


def test_one_member_is_itself():
    model = new_model("deepfm", 0)
    ensemble = EnsembleModel([model], DIM)
    chance = np.random.default_rng(1)
    inputs = {
        "linear": chance.normal(size=(5, len(NUM_IDS))).astype(np.float32),
        "embeddings": chance.normal(size=(5, len(NUM_IDS), DIM)).astype(np.float32),
        "numbers": chance.normal(size=(5, NUM_NUMBERS)).astype(np.float32),
    }
    values = [variable.value for variable in ensemble.trainable_variables]
    states = [variable.value for variable in ensemble.non_trainable_variables]
    found, _ = ensemble.stateless_call(values, states, inputs, training=False)
    np.testing.assert_allclose(found, model(inputs, training=False), rtol=1e-6)


def test_scores_are_means_and_a_split_is_read_once(make_rig, compiled, learnable):
    rigs = [make_rig("a", epochs=1), make_rig("b", epochs=1, learning_rate=0.2)]
    for rig in rigs:
        rig.trainer.fit()
    members = [Scorer(compiled, rig.store, rig.dense) for rig in rigs]
    scorer = EnsembleScorer(members, BATCH_SIZE)
    ids, numbers, labels = draw_rows(NUM_ROWS, 1)
    apart = [member.score(ids, numbers) for member in members]
    assert np.abs(apart[0] - apart[1]).max() > 0.01
    found = scorer.score(ids, numbers)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.mean(apart, axis=0), rtol=1e-5, atol=1e-6)
    done = []
    task = SilentTask()
    task.advance = done.append
    with EncodedReader(learnable / "train") as reader:
        scored = scorer.score_split(reader, task)
    assert np.array_equal(scored.labels, labels)
    assert np.array_equal(scored.logits, found)
    assert sum(done) == NUM_ROWS


def test_a_member_that_looks_into_sequences_is_given_their_elements():
    """Fields 0 and 1, and a sequence of 3 positions; rows of members side by side."""
    sequence_pooling = SequencePooling(
        num_plain=2, pooled=[PooledField(3, False)], num_numbers=1, apart=True
    )
    plain = build_model(
        DeepFMConfig(embedding_dim=DIM, hidden_units=(4,)), ModelSignature(3, DIM, 1, 0.4), seed=0
    )
    din = build_model(
        DINConfig(embedding_dim=DIM, hidden_units=(4,), target="item"),
        ModelSignature(3, DIM, 1, 0.4, sequences=(3,), target=1),
        seed=1,
    )
    chance = np.random.default_rng(2)
    rows = chance.normal(size=(6, 5, 2 * (1 + DIM))).astype(np.float32)
    floats = np.concatenate([chance.normal(size=(6, 1)), chance.random((6, 3)) < 0.5], axis=1)
    rows, floats = tf.constant(rows), tf.constant(floats, tf.float32)
    expected = []
    for model, apart, first in ((plain, False, 0), (din, True, 1 + DIM)):
        own = rows[:, :, first : first + 1 + DIM]
        inputs = model_inputs(
            own[:, :, :1], own[:, :, 1:], floats, replace(sequence_pooling, apart=apart)
        )
        expected.append(model(inputs, training=False).numpy())
    ensemble = EnsembleModel([plain, din], DIM)
    found, _ = ensemble.stateless_call(
        [variable.value for variable in ensemble.trainable_variables],
        [variable.value for variable in ensemble.non_trainable_variables],
        model_inputs(rows[:, :, :1], rows[:, :, 1:], floats, sequence_pooling),
        training=False,
    )
    np.testing.assert_allclose(found, np.mean(expected, axis=0), rtol=1e-5, atol=1e-6)
    network = EnsembleNetwork(
        (
            CompiledModel(
                plain, batch_size=6, sequence_pooling=replace(sequence_pooling, apart=False)
            ),
            CompiledModel(din, batch_size=6, sequence_pooling=sequence_pooling),
        ),
        DIM,
    )
    assert network.sequence_pooling == sequence_pooling
