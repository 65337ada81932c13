"""What `train_speed.py` runs in the peers' own environment: FuxiCTR and DeepCTR-Torch on ready ids.

FuxiCTR's models are those of `fuxictr_models.py`, DeepCTR-Torch's are its own. Both train with
their own loops, loaders and defaults; only widths, batch size, the order of rows and the
number of threads are given, so that they are those of the other sides. Nothing of ours is imported.
"""

import argparse
import json
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
    from fuxictr_models import ClickModel

    times: list[float] = []

    class TimedModel(ClickModel):
        def train_step(self, batch: Any) -> Any:
            loss = super().train_step(batch)
            times.append(time.perf_counter())
            return loss

        def eval_step(self) -> None:
            """Nothing: the held-out rows are scored once, after the clock."""

        def load_weights(self, checkpoint: str) -> None:
            """Nothing: `fit` would go back to the best of several evaluations."""

    torch.manual_seed(options.seed)
    names = [f"table{table}" for table in range(ids.shape[1])]
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
        model = TimedModel(
            options.model,
            feature_map,
            folder,
            embedding_dim=options.embedding_dim,
            hidden_units=options.hidden_units,
            cross_layers=options.cross_layers,
            cin_layers=options.cin_layers,
        )
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
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()

    import torch

    # By itself PyTorch takes one a physical core, which may be half of what the other sides take.
    torch.set_num_threads(options.threads)
    ids = np.load(options.rows / "ids.npy")
    labels = np.load(options.rows / "labels.npy")
    times, probabilities = SIDES[options.side](options, ids, labels)
    clipped = np.clip(np.asarray(probabilities, np.float64), 1e-7, 1 - 1e-7)
    held_out = labels[options.train_rows :].astype(np.float64)
    losses = -(held_out * np.log(clipped) + (1 - held_out) * np.log1p(-clipped))
    figures = {"step_times": times, "held_out_logloss": float(losses.mean())}
    options.output.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
