"""Settings of the peers of `criteo_peers.py`: what they publish, and a small search around it.

Published for Criteo are FuxiCTR's (BARS, `ranking/ctr/MODEL/MODEL_criteo_x1` and `_x4_001`, both
with the ids of the latter; for 33 and 37 million training rows), DeepCTR-Torch's
(`examples/run_classification_criteo.py`, with the 256 rows a batch that `fit` has by itself for the
example's 32, which are for a file of 200 rows, and with integers in buckets for its min-max
scaling), LightGBM's (Recommenders' `lightgbm_tinycriteo`, 100,000 rows) and Vowpal Wabbit's
(mlwave.com's tutorial for the challenge). Keras publishes none: those of its guide to wide, deep
and cross networks stand in, with embeddings of 16.

The search has what is known to matter on few rows: the L2 of embeddings, values seen twice or ten
times, the batch, the learning rate and the width. FuxiCTR and Keras add L2 to the mean of a batch's
losses, DeepCTR-Torch to their sum, so its figures are a thousand times as large.
"""

from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]

MODELS = ("deepfm", "wide_and_deep", "xdeepfm", "dcn", "dcnv2")
# Of peers that have no choice of model.
OWN_MODEL = {"lightgbm": "trees", "vowpal_wabbit": "linear"}
# Their result does not depend on a seed.
SEEDLESS = ("vowpal_wabbit",)

_FUXICTR: Settings = {
    "min_count": 10,
    "embedding_dim": 10,
    "hidden_units": [400, 400, 400],
    "dropout": 0.1,
    "batch_norm": True,
    "cross_layers": 3,
    "cin_layers": [16, 16],
    "embedding_regularizer": 1e-5,
    "learning_rate": 1e-3,
    "batch_size": 4096,
    "epochs": 100,
    "early_stop_patience": 2,
    "monitor": "AUC",
    "monitor_mode": "max",
}
_FUXICTR_X4: Settings = {
    "embedding_dim": 16,
    "hidden_units": [1000] * 5,
    "dropout": 0.2,
    "batch_norm": False,
    "batch_size": 10_000,
    "monitor": {"AUC": 1, "logloss": -1},
}
_FUXICTR_OF_MODEL: dict[str, Settings] = {
    "xdeepfm": {"batch_norm": False, "dropout": 0.2},
    "dcn": {"batch_norm": False},
    "dcnv2": {"batch_norm": False, "hidden_units": [500, 500, 500]},
}
_FUXICTR_X4_OF_MODEL: dict[str, Settings] = {
    "xdeepfm": {"embedding_regularizer": 1e-4, "cin_layers": [64, 64, 64]},
    "dcn": {"cross_layers": 4},
    "dcnv2": {"batch_norm": True, "dropout": 0.1},
}
_DEEPCTR_TORCH: Settings = {
    "min_count": 10,
    "embedding_dim": 4,
    "optimizer": "adagrad",
    "learning_rate": 0.01,
    "batch_size": 256,
    "epochs": 10,
    "patience": 2,
}
_KERAS: Settings = {
    "min_count": 10,
    "embedding_dim": 16,
    "hidden_units": [32, 32],
    "dropout": 0.1,
    "cross_layers": 2,
    "cin_layers": [16, 16],
    "embedding_l2": 0.0,
    "learning_rate": 1e-3,
    "batch_size": 265,
    "epochs": 50,
    "patience": 2,
}
_LIGHTGBM: Settings = {
    "min_count": 2,
    "categories": "ids",
    "num_leaves": 64,
    "min_data_in_leaf": 20,
    "feature_fraction": 0.8,
    "learning_rate": 0.15,
    "rounds": 100,
    "patience": 20,
}
_SLOW_TREES: Settings = {"learning_rate": 0.05, "rounds": 2000, "patience": 50}
_VOWPAL_WABBIT: Settings = {"passes": 1, "arguments": "--ignore b"}


@dataclass(frozen=True)
class Choice:
    """One of the search, as all networks can be given it.

    Attributes:
        l2: Of embeddings and linear weights, added to the mean loss of a batch.
        min_count: See `peer_inputs.write_ids`.
        batch_size: Rows.
        learning_rate: Of Adam.
        embedding_dim: Length of an embedding.
        widths: Of the deep part.
    """

    l2: float
    min_count: int = 2
    batch_size: int = 1024
    learning_rate: float = 1e-3
    embedding_dim: int = 16
    widths: tuple[int, ...] = (400, 400, 400)


_SEARCH = (
    Choice(0.0, min_count=10),
    Choice(1e-4, min_count=10, batch_size=256),
    Choice(1e-5),
    Choice(1e-5, min_count=10, batch_size=256),
    Choice(1e-4),
    Choice(1e-5, learning_rate=3e-4, embedding_dim=8, widths=(128, 64)),
)
_DROPOUT = 0.2


@dataclass(frozen=True)
class Candidates:
    """Settings of one peer's model: what is published, and what a search tries besides."""

    published: list[Settings]
    search: list[Settings]


def candidates(side: str, model: str) -> Candidates:
    """Candidates for a side and one of its models."""
    if side == "lightgbm":
        slow = {**_LIGHTGBM, **_SLOW_TREES, "num_leaves": 31}
        counts = {**slow, "categories": "counts"}
        return Candidates(
            [_LIGHTGBM],
            [
                slow,
                {**slow, "cat_smooth": 100, "min_count": 10},
                {**slow, "cat_smooth": 100, "cat_l2": 100, "num_leaves": 15},
                counts,
                {**counts, "num_leaves": 255, "min_data_in_leaf": 100},
                {**counts, "num_leaves": 64, "lambda_l2": 10, "feature_fraction": 0.4},
            ],
        )
    if side == "vowpal_wabbit":
        arguments = (
            "--ignore n",
            "--ignore n -l 0.1",
            "--ignore n -q :: -l 0.1",
            "--ignore n -q :: -l 0.1 --l2 1e-6",
            "--ignore n -q :: -l 0.05",
        )
        more = [{"passes": 1, "arguments": one} for one in arguments]
        return Candidates([_VOWPAL_WABBIT], [*more, {"passes": 3, "arguments": arguments[1]}])
    search = [_searched(side, model, choice) for choice in _SEARCH]
    if side == "deepctr_torch":
        return Candidates([_DEEPCTR_TORCH], search)
    if side == "keras":
        return Candidates([_KERAS], search)
    x1 = {**_FUXICTR, **_FUXICTR_OF_MODEL.get(model, {})}
    x4 = {**_FUXICTR, **_FUXICTR_X4, **_FUXICTR_X4_OF_MODEL.get(model, {})}
    return Candidates([x1, x4], search)


def _searched(side: str, model: str, choice: Choice) -> Settings:
    common: Settings = {
        "min_count": choice.min_count,
        "batch_size": choice.batch_size,
        "learning_rate": choice.learning_rate,
        "embedding_dim": choice.embedding_dim,
        "epochs": 15,
    }
    widths = list(choice.widths)
    if side == "deepctr_torch":
        more: Settings = {
            "optimizer": "adam",
            "l2_reg_embedding": choice.l2 * choice.batch_size,
            "l2_reg_linear": choice.l2 * choice.batch_size,
            "dnn_hidden_units": widths,
            "dnn_dropout": _DROPOUT,
        }
        if model == "xdeepfm":
            more |= {"cin_layer_size": [16, 16], "cin_split_half": False}
        return {**_DEEPCTR_TORCH, **common, **more}
    shapes: Settings = {"hidden_units": widths, "dropout": _DROPOUT}
    if side == "keras":
        return {**_KERAS, **common, **shapes, "embedding_l2": choice.l2}
    return {
        **_FUXICTR,
        **common,
        **shapes,
        "batch_norm": False,
        "embedding_regularizer": choice.l2,
        "monitor": {"AUC": 1, "logloss": -1},
    }
