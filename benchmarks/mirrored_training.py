"""One worker of plain Keras under MultiWorkerMirroredStrategy, for `allreduce.py`.

Trains DeepFM on ids that are ready, each worker on every other batch of the same order, and prints
rows per second and the AUC on held-out rows as one line of JSON. `TF_CONFIG` names the workers.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Trains, and prints the figures of all workers together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="Folder with ids and labels, as .npy files.")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="Of each worker.")
    arguments = parser.parse_args()

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    import keras
    from plain_keras import build_plain_keras

    def load(name: str) -> Any:
        return np.load(arguments.rows / f"{name}.npy")

    ids, labels, valid_ids, valid_labels = map(load, ("ids", "labels", "valid_ids", "valid_labels"))
    sizes = (1 + np.maximum(ids.max(axis=0), valid_ids.max(axis=0))).tolist()
    with strategy.scope():
        model = build_plain_keras(
            "deepfm",
            num_tables=ids.shape[1],
            rows_per_table=sizes,
            embedding_dim=8,
            hidden_units=(128, 64),
            cross_layers=0,
            cin_layers=(),
            seed=1,
        )
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
    batch, resolver = arguments.batch_size, strategy.cluster_resolver
    rank = resolver.task_id
    world = batch * strategy.num_replicas_in_sync

    def train(ids_BF: Any, labels_B: Any) -> None:
        with tf.GradientTape() as tape:
            logits_B = model(ids_BF, training=True)[:, 0]
            losses_B = tf.nn.sigmoid_cross_entropy_with_logits(labels_B, logits_B)
            loss = tf.reduce_sum(losses_B) / world
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    @tf.function(
        input_signature=[
            tf.TensorSpec((batch, ids.shape[1]), tf.int32),
            tf.TensorSpec((batch,), tf.float32),
        ]
    )
    def step(ids_BF: Any, labels_B: Any) -> None:
        strategy.run(train, (ids_BF, labels_B))

    num_steps = len(labels) // world
    seconds = []
    for epoch in range(arguments.epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        began = time.perf_counter()
        for number in range(num_steps):
            first = number * world + rank * batch
            rows = order[first : first + batch]
            step(tf.constant(ids[rows]), tf.constant(labels[rows]))
        seconds.append(time.perf_counter() - began)
    if rank != 0:
        return
    logits = np.concatenate(
        [
            model(valid_ids[first : first + 8192], training=False).numpy()[:, 0]
            for first in range(0, len(valid_labels), 8192)
        ]
    )
    from sklearn.metrics import roc_auc_score

    # The first epoch traces the step.
    rate = num_steps * world * (len(seconds) - 1) / sum(seconds[1:])
    print(json.dumps({"rows_per_second": rate, "auc": roc_auc_score(valid_labels, logits)}))


if __name__ == "__main__":
    main()
