"""What `train_speed.py` runs in the peers' own environment: FuxiCTR and DeepCTR-Torch on ready ids.

FuxiCTR 2.3.10 ships no CTR models in its wheel, so they are put together here from the wheel's own
embedding, MLP and interaction layers, as the models' papers have them. DeepCTR-Torch's are its
own. Both train with their own loops, their own loaders and their defaults; only widths, batch size
and the order of rows are given, so that they are those of the other sides. Nothing of ours is
imported.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE = 4096


def train_fuxictr(options: argparse.Namespace, ids: np.ndarray, labels: np.ndarray) -> Any:
    """The moments at which steps ended, and the held-out probabilities."""
    import torch
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
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

    name, dim = options.model, options.embedding_dim
    names = [f"table{table}" for table in range(ids.shape[1])]
    times: list[float] = []

    class Model(BaseModel):  # type: ignore[misc]
        def __init__(self, feature_map: FeatureMap, root: str) -> None:
            super().__init__(
                feature_map, model_id=name, verbose=0, model_root=root, metrics=["logloss"]
            )
            num_fields = feature_map.num_fields
            width = num_fields * dim
            hidden = list(options.hidden_units)
            self.embedding_layer = FeatureEmbedding(feature_map, dim)
            crosses = name in ("dcn", "dcnv2")
            self.mlp = MLP_Block(
                width, hidden, output_dim=None if crosses else 1, hidden_activations="ReLU"
            )
            if name == "deepfm":
                self.fm = FactorizationMachine(feature_map)
            else:
                self.linear = LogisticRegression(feature_map, use_bias=True)
            if name == "xdeepfm":
                self.cin = CompressedInteractionNet(num_fields, list(options.cin_layers))
            if crosses:
                cross = CrossNet if name == "dcn" else CrossNetV2
                self.cross = cross(width, options.cross_layers)
                self.head = nn.Linear(width + hidden[-1], 1)
            self.compile("adam", "binary_crossentropy", 1e-3)
            self.reset_parameters()
            self.model_to_device()

        def forward(self, inputs: Any) -> dict[str, Any]:
            rows = self.get_inputs(inputs)
            embedded = self.embedding_layer(rows)
            flat = embedded.flatten(start_dim=1)
            if name in ("dcn", "dcnv2"):
                logit = self.head(torch.cat([self.cross(flat), self.mlp(flat)], dim=-1))
            else:
                logit = self.mlp(flat)
            if name == "deepfm":
                logit = logit + self.fm(rows, embedded)
            else:
                logit = logit + self.linear(rows)
            if name == "xdeepfm":
                logit = logit + self.cin(embedded)
            return {"y_pred": self.output_activation(logit)}

        def train_step(self, batch: Any) -> Any:
            loss = super().train_step(batch)
            times.append(time.perf_counter())
            return loss

        def eval_step(self) -> None:
            """Nothing: the held-out rows are scored once, after the clock."""

        def load_weights(self, checkpoint: str) -> None:
            """Nothing: `fit` would go back to the best of several evaluations."""

    torch.manual_seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="fuxictr-training-") as folder:
        feature_map = FeatureMap("speed", folder)
        feature_map.features.update(
            (column, {"source": "", "type": "categorical", "vocab_size": options.rows_per_table})
            for column in names
        )
        feature_map.labels = ["label"]
        feature_map.num_fields = feature_map.get_num_fields()
        feature_map.set_column_index()
        cut = options.train_rows
        loaders = []
        for part, rows in (("train", slice(0, cut)), ("test", slice(cut, None))):
            columns = {column: ids[rows, table] for table, column in enumerate(names)}
            path = Path(folder) / f"{part}.npz"
            np.savez(path, label=labels[rows], **columns)
            loaders.append(NpzDataLoader(feature_map, str(path), batch_size=BATCH_SIZE))
        model = Model(feature_map, folder)
        model.fit(loaders[0], epochs=1)
        return times, model.predict(loaders[1])


def train_deepctr_torch(options: argparse.Namespace, ids: np.ndarray, labels: np.ndarray) -> Any:
    """The moments at which steps ended, and the held-out probabilities."""
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models import DCN, WDL, DeepFM, xDeepFM

    names = [f"table{table}" for table in range(ids.shape[1])]
    columns = [
        SparseFeat(column, options.rows_per_table, embedding_dim=options.embedding_dim)
        for column in names
    ]
    hidden = tuple(options.hidden_units)
    shared = {"dnn_hidden_units": hidden, "device": "cpu", "seed": options.seed}
    if options.model == "deepfm":
        model = DeepFM(columns, columns, **shared)
    elif options.model == "wide_and_deep":
        model = WDL(columns, columns, **shared)
    elif options.model == "xdeepfm":
        model = xDeepFM(
            columns,
            columns,
            cin_layer_size=tuple(options.cin_layers),
            cin_split_half=False,
            cin_activation="linear",
            **shared,
        )
    else:
        kind = "vector" if options.model == "dcn" else "matrix"
        model = DCN(
            columns,
            columns,
            cross_num=options.cross_layers,
            cross_parameterization=kind,
            **shared,
        )
    model.compile("adam", "binary_crossentropy")
    times: list[float] = []
    step = model.optim.step

    def timed_step(*arguments: Any, **more: Any) -> Any:
        done = step(*arguments, **more)
        times.append(time.perf_counter())
        return done

    model.optim.step = timed_step
    cut = options.train_rows

    def inputs(rows: slice) -> dict[str, np.ndarray]:
        return {column: ids[rows, table] for table, column in enumerate(names)}

    model.fit(
        inputs(slice(0, cut)),
        labels[:cut],
        batch_size=BATCH_SIZE,
        epochs=1,
        verbose=0,
        shuffle=False,
    )
    return times, model.predict(inputs(slice(cut, None)), batch_size=BATCH_SIZE)[:, 0]


SIDES = {"fuxictr": train_fuxictr, "deepctr_torch": train_deepctr_torch}


def main() -> None:
    """Trains one peer's model over the first rows and writes its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("model")
    parser.add_argument("rows", type=Path, help="Folder of ids.npy and labels.npy.")
    parser.add_argument("output", type=Path, help="Figures, as JSON.")
    parser.add_argument("--train-rows", type=int, required=True)
    parser.add_argument("--rows-per-table", type=int, required=True)
    parser.add_argument("--embedding-dim", type=int, required=True)
    parser.add_argument("--hidden-units", type=int, nargs="+", required=True)
    parser.add_argument("--cross-layers", type=int, required=True)
    parser.add_argument("--cin-layers", type=int, nargs="+", required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ids = np.load(options.rows / "ids.npy")
    labels = np.load(options.rows / "labels.npy")
    times, probabilities = SIDES[options.side](options, ids, labels)
    clipped = np.clip(np.asarray(probabilities, np.float64), 1e-7, 1 - 1e-7)
    held_out = labels[options.train_rows :].astype(np.float64)
    losses = -(held_out * np.log(clipped) + (1 - held_out) * np.log1p(-clipped))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {
        "step_times": times,
        "held_out_logloss": float(losses.mean()),
        "peak_bytes": peak if sys.platform == "darwin" else peak * 1024,
    }
    options.output.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
