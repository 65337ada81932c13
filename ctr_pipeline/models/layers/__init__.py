"""The layers that the models are built of; each is a registered Keras 3 layer of its own use."""

from ctr_pipeline.models.layers.bilinear_fusion import BilinearFusion
from ctr_pipeline.models.layers.bilinear_interaction import BilinearInteraction
from ctr_pipeline.models.layers.compressed_interaction import CompressedInteraction
from ctr_pipeline.models.layers.cross import Cross
from ctr_pipeline.models.layers.dot_interaction import DotInteraction
from ctr_pipeline.models.layers.factorization_machine import FactorizationMachine
from ctr_pipeline.models.layers.feature_gate import FeatureGate
from ctr_pipeline.models.layers.field_projection import FieldProjection
from ctr_pipeline.models.layers.interacting_attention import InteractingAttention
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.local_activation import LocalActivation
from ctr_pipeline.models.layers.logit_head import LogitHead
from ctr_pipeline.models.layers.mask_block import MaskBlock
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.layers.seeded_dropout import SeededDropout
from ctr_pipeline.models.layers.squeeze_excitation import SqueezeExcitation

__all__ = [
    "MLP",
    "BilinearFusion",
    "BilinearInteraction",
    "CompressedInteraction",
    "Cross",
    "DotInteraction",
    "FactorizationMachine",
    "FeatureGate",
    "FieldProjection",
    "InteractingAttention",
    "Linear",
    "LocalActivation",
    "LogitHead",
    "MaskBlock",
    "SeededDropout",
    "SqueezeExcitation",
]
