"""A Keras model on nodes that come and go, which trains every record once an epoch.

ctrpipe elastic-run --standalone --nodes 1:2 -- python elastic_training.py rows.csv folder

The rows are eight numbers and a label of 0 or 1. The checkpoint in the folder has the weights, the
state of the optimizer, and how far the records are read.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
import keras  # noqa: E402

from ctr_pipeline import ElasticRecords  # noqa: E402

NUM_FEATURES = 8
CHECKPOINT_STEPS = 20

data, saved = sys.argv[1], Path(sys.argv[2]) / "checkpoint.npz"
records = ElasticRecords(data, global_batch_size=64, epochs=2, seed=1)

keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((NUM_FEATURES,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
variables = [*model.variables, *optimizer.variables]

position = 0
if saved.exists():
    with np.load(saved) as kept:
        position = int(kept["position"])
        for number, variable in enumerate(variables):
            variable.assign(kept[str(number)])
records.go_on_from(position)


def save() -> None:
    """Writes a checkpoint, whole or not at all."""
    if records.rank == 0:
        values = {str(number): variable.numpy() for number, variable in enumerate(variables)}
        with saved.with_suffix(".new").open("wb") as file:
            np.savez(file, position=records.position, **values)
        saved.with_suffix(".new").replace(saved)


def parse(lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Features [B, 8] and labels [B]."""
    columns = tf.io.decode_csv(lines, [0.0] * (NUM_FEATURES + 1))
    return tf.stack(columns[:-1], axis=1), columns[-1]


def train(features: tf.Tensor, labels: tf.Tensor, step_records: tf.Tensor) -> tf.Tensor:
    """One step on this node; the optimizer adds the gradients of all."""
    with tf.GradientTape() as tape:
        logits = model(features, training=True)[:, 0]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        # By the records of all nodes, so that unequal batches count as they should.
        loss = tf.reduce_sum(losses) / step_records
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss


@tf.function(
    input_signature=[
        tf.TensorSpec((None, NUM_FEATURES)),
        tf.TensorSpec((None,)),
        tf.TensorSpec(()),
    ]
)
def step(features: tf.Tensor, labels: tf.Tensor, step_records: tf.Tensor) -> tf.Tensor:
    """One step on all nodes; the mean loss of its records."""
    losses = strategy.run(train, (features, labels, step_records))
    return strategy.reduce("SUM", losses, axis=None)


batches = records.steps(records.dataset().map(parse).prefetch(2))
for number, (features, labels) in enumerate(batches, start=1):
    loss = step(features, labels, tf.constant(records.step_records, tf.float32))
    if number % CHECKPOINT_STEPS == 0:
        save()
        print(f"record {records.position:,}: loss {float(loss):.4f}", flush=True)
save()
