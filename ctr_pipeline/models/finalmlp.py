"""FinalMLP.

Mao et al. 2023, "FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction"
(arXiv:2304.00902).
"""

from typing import Any

import keras

from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.layers.bilinear_fusion import BilinearFusion
from ctr_pipeline.models.layers.feature_gate import FeatureGate
from ctr_pipeline.models.layers.linear import Linear
from ctr_pipeline.models.layers.mlp import MLP
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import FinalMLPConfig


def build(inputs: ModelInputs, config: FinalMLPConfig, seed: int) -> Any:
    """Two gated networks over the same input, Section 3.1 and 3.2, and their fusion, Eq. (6).

    The linear term comes on top of the paper's two streams.

    Returns:
        Logits, (batch,).
    """
    linear_B = Linear(inputs.signature.base_logit, name="linear_logit")(
        inputs.linear_BF, inputs.numbers_BN
    )
    first_seed, second_seed, fusion_seed = derive_seeds(seed, 3)
    streams = []
    for index, (units, stream_seed) in enumerate(
        [
            (config.hidden_units, first_seed),
            (config.second_hidden_units or config.hidden_units, second_seed),
        ]
    ):
        gated_BK = FeatureGate(name=f"gate_{index}")(inputs.flat_BK)
        streams.append(MLP(units, config.dropout, stream_seed, name=f"mlp_{index}")(gated_BK))
    fused_B = BilinearFusion(config.fusion_heads, fusion_seed, name="fusion")(*streams)
    return keras.layers.Add(dtype="float32", name="logit")([linear_B, fused_B])
