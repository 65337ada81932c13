"""The layers that the models are built of; each is a registered Keras 3 layer of its own use."""

from ctr_pipeline.models.layers.compressed_interaction import CompressedInteraction
from ctr_pipeline.models.layers.cross import Cross
from ctr_pipeline.models.layers.factorization_machine import FactorizationMachine
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.layers.seeded_dropout import SeededDropout

__all__ = [
    "MLP",
    "CompressedInteraction",
    "Cross",
    "FactorizationMachine",
    "Linear",
    "LogitHead",
    "SeededDropout",
]
