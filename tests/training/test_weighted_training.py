"""Weights in training: 1 changes no bit, whole ones are repeated rows, only their ratios matter."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ctr_pipeline.dataset.encoded import EncodedWriter
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.specs.model_kinds import DeepFMConfig
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.scoring import Scorer
from tests.training.training_problem import (
    BATCH_SIZE,
    DIM,
    NUM_IDS,
    NUM_ROWS,
    draw_rows,
    write_rows,
)

NUM_VALID_ROWS = 500


def write_weighted(root, weigh):
    """The learnable problem with weights; `weigh` gives them for a number of rows and a seed."""
    for name, num_rows, seed in (("train", NUM_ROWS, 1), ("valid", NUM_VALID_ROWS, 2)):
        ids, numbers, labels = draw_rows(num_rows, seed)
        with EncodedWriter(
            root / name, num_fields=3, num_numbers=2, fingerprint="test", has_weights=True
        ) as writer:
            writer.write(ids, numbers, labels, weigh(num_rows, seed).astype(np.float32))
    return root


def drawn_weights(num_rows, seed):
    return np.random.default_rng(seed).exponential(size=num_rows)


def trained(make_rig, name, rows=None):
    rig = make_rig(name, **({} if rows is None else {"rows": rows}))
    state = rig.trainer.fit()
    blocks = list(rig.store.iterate_rows(1000))
    values = np.concatenate([block.values for block in blocks])
    history = [replace(record, seconds=0.0) for record in state.history]
    return rig, history, rig.dense.values.tobytes() + values.tobytes()


@pytest.mark.parametrize("weight", [1.0, 2.0, 3.5])
def test_equal_weights_are_no_weights_to_the_bit(make_rig, tmp_path, weight):
    rows = write_weighted(tmp_path / "rows", lambda num_rows, _: np.full(num_rows, weight))
    _, history, parameters = trained(make_rig, "weighted", rows)
    _, plain_history, plain_parameters = trained(make_rig, "plain")
    assert parameters == plain_parameters
    assert history == plain_history


def test_history_is_weighted_and_the_training_loss_a_weighted_mean(make_rig, compiled, tmp_path):
    rows = write_weighted(tmp_path / "rows", drawn_weights)
    rig, history, _ = trained(make_rig, "weighted", rows)
    ids, numbers, labels = draw_rows(NUM_VALID_ROWS, 2)
    weights = drawn_weights(NUM_VALID_ROWS, 2)
    logits = Scorer(compiled, rig.store, rig.dense).score(ids, numbers).astype(np.float64)
    probabilities = 1 / (1 + np.exp(-logits))
    last = history[-1]
    expected = log_loss(labels, probabilities, sample_weight=weights)
    assert last.valid_logloss == pytest.approx(expected, abs=1e-5)
    assert last.valid_logloss != pytest.approx(log_loss(labels, probabilities), abs=1e-3)
    expected = roc_auc_score(labels, logits, sample_weight=weights)
    assert last.valid_auc == pytest.approx(expected, abs=1e-3)
    expected = (weights * probabilities).sum() / (weights * labels).sum()
    assert last.valid_calibration == pytest.approx(expected, rel=1e-4)
    assert last.num_rows == NUM_ROWS


def test_rows_of_weight_0_teach_nothing(make_rig, tmp_path):
    """Only clicks weigh: the model learns that everything is one."""

    def clicks_only(num_rows, seed):
        return draw_rows(num_rows, seed)[2] if seed == 1 else np.ones(num_rows)

    _, history, _ = trained(make_rig, "clicks", write_weighted(tmp_path / "rows", clicks_only))
    _, _, labels = draw_rows(NUM_VALID_ROWS, 2)
    assert history[-1].train_logloss < 0.2
    # Nearly 1 is predicted for each row.
    assert history[-1].valid_calibration * labels.mean() > 0.8


def still_model():
    """Without dropout, whose masks depend on the place in the batch."""
    config = DeepFMConfig(embedding_dim=DIM, hidden_units=(5,), dropout=0.0)
    return build_model(config, ModelSignature(len(NUM_IDS), DIM, 2, 0.4), seed=0)


def test_gradients_of_whole_weights_are_those_of_repeated_rows():
    compiled = CompiledModel(still_model(), batch_size=BATCH_SIZE)
    times = np.array([3, 0, 1, 2, 1, 4])
    places = np.repeat(np.arange(len(times)), times)
    chance = np.random.default_rng(1)
    rows_BFW = chance.normal(size=(len(times), len(NUM_IDS), 1 + DIM)).astype(np.float32)
    _, numbers, labels = draw_rows(len(times), 9)

    def gradients(chosen, weights):
        missing = BATCH_SIZE - len(chosen)
        fill = np.concatenate([chosen, np.full(missing, 5)])
        found = compiled.gradients(
            parameters_P=compiled.initial_parameters(),
            linear_BF1=rows_BFW[fill][:, :, :1].copy(),
            embeddings_BFD=rows_BFW[fill][:, :, 1:].copy(),
            numbers_BN=numbers[fill],
            labels_B=labels[fill],
            # Padding of any weight counts nothing.
            weights_B=None
            if weights is None
            else np.append(weights, [9.0] * missing).astype(np.float32),
            num_valid=len(chosen),
            dropout_seed=0,
        )
        by_row = np.zeros((len(times), len(NUM_IDS), DIM))
        np.add.at(by_row, chosen, found.embeddings_BFD[: len(chosen)])
        return found.loss_sum, found.parameters_P * len(chosen), by_row

    weighted = gradients(np.arange(len(times)), times.astype(np.float32))
    repeated = gradients(places, None)
    for mine, theirs in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_rows_written_without_weights_have_none(tmp_path):
    assert not (write_rows(tmp_path, *draw_rows(5, 0)) / "meta.json").read_text().count("weight")
