"""bfloat16 trains what float32 trains: same rows, same order, a model as good."""

import pytest

from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.specs.model_kinds import DeepFMConfig
from ctr_pipeline.training.compiled import CompiledModel
from tests.training.training_problem import BATCH_SIZE, DIM, NUM_IDS, NUM_NUMBERS

pytestmark = pytest.mark.slow


def model_in(precision):
    config = DeepFMConfig(embedding_dim=DIM, hidden_units=(6,), dropout=0.2)
    signature = ModelSignature(len(NUM_IDS), DIM, NUM_NUMBERS, 0.4)
    return build_model(config, signature, seed=0, precision=precision)


def test_quality_is_unchanged(make_rig):
    mixed = CompiledModel(
        model_in("float32"), training_model=model_in("bfloat16"), batch_size=BATCH_SIZE
    )
    exact = make_rig("float32", epochs=3).trainer.fit()
    rounded = make_rig("bfloat16", epochs=3, compiled=mixed).trainer.fit()
    for left, right in zip(exact.history, rounded.history, strict=True):
        assert left.train_logloss != right.train_logloss
        assert right.train_logloss == pytest.approx(left.train_logloss, abs=0.003)
        assert right.valid_logloss == pytest.approx(left.valid_logloss, abs=0.003)
        assert right.valid_auc == pytest.approx(left.valid_auc, abs=0.003)
    assert rounded.history[-1].valid_auc > 0.75
