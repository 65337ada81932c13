"""What `criteo_peers.py` runs for one peer in its own environment: trains, stops early, scores.

Every peer trains with its own loop and its own way to stop early; only the settings of the job are
given. Nothing of ours is imported. Written are the probabilities of validation and test rows, the
seconds of training and scoring, and the epochs (trees, passes) done.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Job:
    """What to train.

    Attributes:
        model: Such as deepfm.
        settings: Of the peer.
        inputs: File of arrays, or folder of lines for Vowpal Wabbit.
        seed: Of weights and of the order of rows.
        threads: To compute with.
    """

    model: str
    settings: dict[str, Any]
    inputs: Path
    seed: int
    threads: int

    def arrays(self) -> dict[str, np.ndarray]:
        """See `peer_inputs.write_ids`."""
        with np.load(self.inputs, allow_pickle=False) as arrays:
            return dict(arrays)


@dataclass(frozen=True)
class Scores:
    """Probabilities of validation and test rows, and how many epochs were done."""

    valid: Any
    test: Any
    epochs: int


def train_fuxictr(job: Job) -> Scores:
    """A model of `fuxictr_models.py` with FuxiCTR's loop, loader, plateau rule and early stop."""
    import torch
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
    from fuxictr.pytorch.torch_utils import seed_everything
    from fuxictr_models import ClickModel

    torch.set_num_threads(job.threads)
    seed_everything(job.seed)
    settings = dict(job.settings)
    batch_size, epochs = settings.pop("batch_size"), settings.pop("epochs")
    arrays = job.arrays()
    names = [f"field{field}" for field in range(len(arrays["sizes"]))]
    with tempfile.TemporaryDirectory(prefix="fuxictr-quality-") as folder:
        feature_map = FeatureMap("quality", folder)
        feature_map.features.update(
            (column, {"source": "", "type": "categorical", "vocab_size": int(size)})
            for column, size in zip(names, arrays["sizes"], strict=True)
        )
        feature_map.labels = ["label"]
        feature_map.num_fields = feature_map.get_num_fields()
        feature_map.set_column_index()
        (Path(folder) / "quality").mkdir()
        loaders = {}
        for part in PARTS:
            path = Path(folder) / f"{part}.npz"
            columns = dict(zip(names, arrays[f"{part}_ids"].T, strict=True))
            np.savez(path, label=arrays[f"{part}_labels"], **columns)
            loaders[part] = NpzDataLoader(
                feature_map, str(path), batch_size=batch_size, shuffle=part == "train"
            )
        model = ClickModel(job.model, feature_map, folder, **settings)
        model.fit(loaders["train"], epochs=epochs, validation_data=loaders["valid"])
        done = model._epoch_index + 1
        return Scores(model.predict(loaders["valid"]), model.predict(loaders["test"]), done)


def train_deepctr_torch(job: Job) -> Scores:
    """A model of its own with its `fit` and its `EarlyStopping`."""
    import torch
    from deepctr_torch.callbacks import Callback, EarlyStopping
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models import DCN, WDL, DeepFM, xDeepFM

    torch.set_num_threads(job.threads)
    settings = dict(job.settings)
    batch_size, epochs = settings.pop("batch_size"), settings.pop("epochs")
    optimizer, learning_rate = settings.pop("optimizer"), settings.pop("learning_rate")
    patience, dim = settings.pop("patience"), settings.pop("embedding_dim")
    arrays = job.arrays()
    names = [f"field{field}" for field in range(len(arrays["sizes"]))]
    columns = [
        SparseFeat(column, int(size), embedding_dim=dim)
        for column, size in zip(names, arrays["sizes"], strict=True)
    ]
    kinds = {"deepfm": DeepFM, "wide_and_deep": WDL, "xdeepfm": xDeepFM, "dcn": DCN, "dcnv2": DCN}
    if job.model == "dcnv2":
        settings["cross_parameterization"] = "matrix"
    model = kinds[job.model](columns, columns, device="cpu", seed=job.seed, **settings)
    optimizers = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    model.compile(
        optimizers[optimizer](model.parameters(), lr=learning_rate),
        "binary_crossentropy",
        metrics=["binary_crossentropy"],
    )

    class BackToTraining(Callback):
        """Goes back to training: the evaluation after an epoch leaves the model without dropout."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.train()

    early = EarlyStopping(
        monitor="val_binary_crossentropy",
        patience=patience,
        mode="min",
        restore_best_weights=True,
    )
    inputs = {part: dict(zip(names, arrays[f"{part}_ids"].T.copy(), strict=True)) for part in PARTS}
    history = model.fit(
        inputs["train"],
        arrays["train_labels"],
        batch_size=batch_size,
        epochs=epochs,
        # Otherwise it takes a metric of each batch, and fails at a last one without a click.
        verbose=0,
        validation_data=(inputs["valid"], arrays["valid_labels"]),
        callbacks=[BackToTraining(), early],
    )
    # It goes back to the best epoch by itself only where it stops early.
    model.load_state_dict(early.best_weights)
    valid, test = (model.predict(inputs[part], 4096)[:, 0] for part in ("valid", "test"))
    return Scores(valid, test, len(history.epoch))


def train_keras(job: Job) -> Scores:
    """A model of `plain_keras.py` with Keras' `fit` and `EarlyStopping`."""
    import keras
    import tensorflow as tf
    from plain_keras import build_plain_keras

    tf.config.threading.set_intra_op_parallelism_threads(job.threads)
    settings = dict(job.settings)
    batch_size, epochs = settings.pop("batch_size"), settings.pop("epochs")
    patience = settings.pop("patience")
    arrays = job.arrays()
    model = build_plain_keras(
        job.model,
        num_tables=len(arrays["sizes"]),
        rows_per_table=[int(size) for size in arrays["sizes"]],
        seed=job.seed,
        watch_logloss=True,
        **settings,
    )
    early = keras.callbacks.EarlyStopping(
        monitor="val_logloss", mode="min", patience=patience, restore_best_weights=True
    )
    history = model.fit(
        arrays["train_ids"],
        arrays["train_labels"][:, None],
        batch_size=batch_size,
        epochs=epochs,
        verbose=0,
        validation_data=(arrays["valid_ids"], arrays["valid_labels"][:, None]),
        validation_batch_size=4096,
        callbacks=[early],
    )
    valid, test = (
        1 / (1 + np.exp(-model.predict(arrays[f"{part}_ids"], batch_size=4096, verbose=0)[:, 0]))
        for part in ("valid", "test")
    )
    return Scores(valid, test, len(history.epoch))


def train_lightgbm(job: Job) -> Scores:
    """`lightgbm.train` with its early stop; numbers as they are.

    Categories are their ids, their counts, or counts and click rates.
    """
    import lightgbm

    settings = dict(job.settings)
    rounds, patience = settings.pop("rounds"), settings.pop("patience")
    categories = settings.pop("categories")
    arrays = job.arrays()
    width, num_categories = arrays["train_numbers"].shape[1], arrays["train_counts"].shape[1]
    inputs = {part: _tree_inputs(arrays, part, categories) for part in PARTS}
    categorical = list(range(width, width + num_categories)) if categories == "ids" else []
    train = lightgbm.Dataset(
        inputs["train"], arrays["train_labels"], categorical_feature=categorical
    )
    valid = lightgbm.Dataset(inputs["valid"], arrays["valid_labels"], reference=train)
    booster = lightgbm.train(
        {
            "objective": "binary",
            "metric": "binary_logloss",
            "num_threads": job.threads,
            "seed": job.seed,
            "verbosity": -1,
            **settings,
        },
        train,
        num_boost_round=rounds,
        valid_sets=[valid],
        callbacks=[lightgbm.early_stopping(patience, verbose=False)],
    )
    scored = (booster.predict(inputs[part]) for part in ("valid", "test"))
    return Scores(*scored, booster.best_iteration)


def train_scikit_learn(job: Job) -> Scores:
    """Trains `HistGradientBoostingClassifier` with LightGBM's settings, scored by its best trees.

    It is made after LightGBM, and stands in for it where that cannot be installed. It takes no
    categorical column of over 255 values, so categories are their counts, or counts and rates.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import log_loss

    settings, arrays = job.settings, job.arrays()
    inputs = {part: _tree_inputs(arrays, part, settings["categories"]) for part in PARTS}
    model = HistGradientBoostingClassifier(
        learning_rate=settings["learning_rate"],
        max_leaf_nodes=settings["num_leaves"],
        max_iter=settings["rounds"],
        early_stopping=True,
        n_iter_no_change=settings["patience"],
        tol=0.0,
        random_state=job.seed,
    )
    clicks = arrays["valid_labels"]
    model.fit(inputs["train"], arrays["train_labels"], X_val=inputs["valid"], y_val=clicks)
    best, least, valid = 0, np.inf, np.empty(0)
    for trees, scores in enumerate(model.staged_predict_proba(inputs["valid"]), start=1):
        loss = log_loss(clicks, scores[:, 1])
        if loss < least:
            best, least, valid = trees, loss, scores[:, 1]
    staged = model.staged_predict_proba(inputs["test"])
    return Scores(valid, next(islice(staged, best - 1, None))[:, 1], best)


def _tree_inputs(arrays: dict[str, np.ndarray], part: str, categories: str) -> np.ndarray:
    """Numbers, and what categories are to be: ids, counts, or counts and rates."""
    told = [arrays[f"{part}_numbers"]]
    num_categories = arrays["train_counts"].shape[1]
    if categories == "ids":
        ids = arrays[f"{part}_ids"]
        # Networks have ids of the numbers, too, which come first.
        told.append(ids[:, ids.shape[1] - num_categories :])
    else:
        told.append(arrays[f"{part}_counts"])
    if categories == "rates":
        told.append(arrays[f"{part}_rates"])
    return np.column_stack(told).astype(np.float64)


def train_vowpal_wabbit(job: Job) -> Scores:
    """Trains by its own driver over a file of lines; validation and test rows are scored only."""
    from vowpalwabbit import Workspace

    settings = job.settings
    passes = settings["passes"]
    with tempfile.TemporaryDirectory(prefix="vw-quality-") as folder:
        kept = f"{folder}/model"
        command = f"--loss_function logistic --link logistic -b 22 {settings['arguments']} "
        command += f"--random_seed {job.seed} --quiet "
        # All rows learn in every pass: by itself it would hold every tenth out.
        command += f"--passes {passes} --cache_file {folder}/cache -k --holdout_off "
        Workspace(f"{command} -d {job.inputs / 'train.vw'} -f {kept}").finish()
        scored = []
        for part in ("valid", "test"):
            out = f"{folder}/{part}.txt"
            Workspace(f"-t -i {kept} -d {job.inputs / f'{part}.vw'} -p {out} --quiet").finish()
            scored.append(np.loadtxt(out))
        return Scores(*scored, passes)


SIDES = {
    "fuxictr": train_fuxictr,
    "deepctr_torch": train_deepctr_torch,
    "keras": train_keras,
    "lightgbm": train_lightgbm,
    "scikit_learn": train_scikit_learn,
    "vowpal_wabbit": train_vowpal_wabbit,
}


def main() -> None:
    """Trains the job of a file and writes its probabilities."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("model")
    parser.add_argument("inputs", type=Path, help="See peer_inputs.py.")
    parser.add_argument("output", type=Path, help="Probabilities, as .npz.")
    parser.add_argument("--settings", type=json.loads, required=True, help="As JSON.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    job = Job(options.model, options.settings, options.inputs, options.seed, options.threads)
    started = time.perf_counter()
    scores = SIDES[options.side](job)
    np.savez(
        options.output,
        valid=np.asarray(scores.valid, np.float64),
        test=np.asarray(scores.test, np.float64),
        epochs=scores.epochs,
        seconds=time.perf_counter() - started,
    )


if __name__ == "__main__":
    main()
