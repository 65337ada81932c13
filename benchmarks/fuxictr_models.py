"""CTR models put together from the layers of FuxiCTR's wheel, in its own environment.

FuxiCTR 2.3.10 ships its layers and its training loop, but not these models: the parts are joined
as the models' papers have them. Its defaults hold where nothing else is asked for: Adam at 0.001,
gradients clipped at a norm of 10, no regularisation of embeddings, no dropout.
"""

from collections.abc import Sequence
from typing import Any

import torch
from fuxictr.pytorch.layers import (
    CompressedInteractionNet,
    CrossNet,
    CrossNetV2,
    FactorizationMachine,
    FeatureEmbedding,
    LogisticRegression,
    MLP_Block,
)
from fuxictr.pytorch.models import BaseModel
from torch import nn


class ClickModel(BaseModel):  # type: ignore[misc]
    """deepfm, wide_and_deep, xdeepfm, dcn or dcnv2, with a linear term each.

    Args:
        name: Which.
        feature_map: FuxiCTR's description of the columns.
        root: Folder of its checkpoints.
        embedding_dim: Length of an embedding.
        hidden_units: Widths of the deep part.
        cross_layers: Cross layers of dcn and dcnv2.
        cin_layers: Feature maps of xdeepfm's interaction layers.
        dropout: After each layer of the deep part.
        batch_norm: In each layer of the deep part.
        learning_rate: Of Adam.
        options: FuxiCTR's own, such as `embedding_regularizer` and `monitor`.
    """

    def __init__(
        self,
        name: str,
        feature_map: Any,
        root: str,
        *,
        embedding_dim: int,
        hidden_units: Sequence[int],
        cross_layers: int,
        cin_layers: Sequence[int],
        dropout: float = 0.0,
        batch_norm: bool = False,
        learning_rate: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(
            feature_map,
            model_id=name,
            verbose=0,
            model_root=root,
            metrics=["logloss", "AUC"],
            **options,
        )
        self.name = name
        width = feature_map.num_fields * embedding_dim
        self.crosses = name in ("dcn", "dcnv2")
        self.embedding_layer = FeatureEmbedding(feature_map, embedding_dim)
        self.mlp = MLP_Block(
            width,
            list(hidden_units),
            output_dim=None if self.crosses else 1,
            hidden_activations="ReLU",
            dropout_rates=dropout,
            batch_norm=batch_norm,
        )
        if name == "deepfm":
            self.linear = FactorizationMachine(feature_map)
        else:
            self.linear = LogisticRegression(feature_map, use_bias=True)
        if name == "xdeepfm":
            self.cin = CompressedInteractionNet(feature_map.num_fields, list(cin_layers))
        if self.crosses:
            cross = CrossNet if name == "dcn" else CrossNetV2
            self.cross = cross(width, cross_layers)
            self.head = nn.Linear(width + hidden_units[-1], 1)
        self.compile("adam", "binary_crossentropy", learning_rate)
        self.reset_parameters()
        self.model_to_device()

    def forward(self, inputs: Any) -> dict[str, Any]:
        """Probabilities, (batch, 1), as `y_pred`."""
        rows = self.get_inputs(inputs)
        embedded = self.embedding_layer(rows)
        flat = embedded.flatten(start_dim=1)
        if self.crosses:
            logit = self.head(torch.cat([self.cross(flat), self.mlp(flat)], dim=-1))
        else:
            logit = self.mlp(flat)
        if self.name == "deepfm":
            logit = logit + self.linear(rows, embedded)
        else:
            logit = logit + self.linear(rows)
        if self.name == "xdeepfm":
            logit = logit + self.cin(embedded)
        return {"y_pred": self.output_activation(logit)}
