"""Elastic runs of TensorFlow's collectives, on nodes with TLS that join and are killed."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.elastic_nodes import Cluster

EXAMPLE = Path(__file__).parents[2] / "configs" / "examples" / "elastic_training.py"

SCRIPT = """
import json, os, pathlib, sys
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
import keras

folder = pathlib.Path(sys.argv[1])
version = int(os.environ["CTRPIPE_WORLD_VERSION"])
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
size = strategy.num_replicas_in_sync
batch = 32

with strategy.scope():
    model = keras.Sequential([
        keras.layers.Input((28, 28)),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(10),
    ])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    num_replica_steps = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

saved, first = folder / "checkpoint.npz", 0
if saved.exists():
    with np.load(saved) as arrays:
        first = int(arrays["step"])
        num_replica_steps.assign(float(arrays["num_replica_steps"]))
        model.set_weights([arrays[str(i)] for i in range(len(model.weights))])


def train(images, labels, wants_end):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loss_of(labels, model(images, training=True))) / (batch * size)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    num_replica_steps.assign_add(1.0)
    return loss, wants_end


@tf.function
def step(images, labels, wants_end):
    results = strategy.run(train, (images, labels, wants_end))
    return [strategy.reduce("SUM", one, axis=None) for one in results]


before, number, loss = float(num_replica_steps.numpy()), first, 0.0
while True:
    random = np.random.default_rng([number, rank])
    images = random.random((batch, 28, 28), np.float32)
    labels = (images.mean((1, 2)) > 0.5).astype(np.int32)
    wants_end = np.float32((folder / "done").exists())
    loss, votes = step(tf.constant(images), tf.constant(labels), tf.constant(wants_end))
    number += 1
    if rank == 0:
        weights = {str(i): one for i, one in enumerate(model.get_weights())}
        total = float(num_replica_steps.numpy())
        with open(folder / "next.npz", "wb") as file:
            np.savez(file, step=number, num_replica_steps=total, **weights)
        (folder / "next.npz").rename(saved)
    if number == first + 3:
        facts = {
            "size": size,
            "first": first,
            "added": float(num_replica_steps.numpy()) - before,
            "before": before,
            "weights": [float(np.abs(one).sum()) for one in model.get_weights()],
            "loss": float(loss),
        }
        own = folder / f"{version}.{rank}"
        own.with_suffix(f".{rank}.new").write_text(json.dumps(facts))
        own.with_suffix(f".{rank}.new").rename(own)
    if float(votes) > 0.0 and number >= first + 3:
        sys.exit(0)
"""


class TrainingCluster(Cluster):
    """Nodes that run `SCRIPT`."""

    def expect_world(self, size):
        """The facts of a world of that many nodes once all have trained in it."""

        def versions():
            paths = [path.name.split(".") for path in self.folder.glob("[0-9]*.[0-9]")]
            return [int(v) for v, rank in paths if rank == "0"]

        def facts_of(version):
            paths = sorted(self.folder.glob(f"{version}.[0-9]"))
            return [json.loads(path.read_text()) for path in paths]

        def newest():
            return facts_of(max(versions(), default=0))

        facts = []

        def is_it():
            facts[:] = newest()
            return len(facts) == size and facts[0]["size"] == size

        self.wait(is_it)
        assert all(one == {**facts[0], "loss": one["loss"]} for one in facts)
        assert facts[0]["added"] == 3 * size
        return facts[0]


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_a_keras_model_and_a_collective_variable_over_growth_and_shrink(tmp_path):
    with ExitStack() as stack:
        cluster = TrainingCluster(tmp_path, stack)
        (tmp_path / "script.py").write_text(SCRIPT)
        script = ("2:3", "3", tmp_path / "script.py", tmp_path)
        nodes = [cluster.start_node(f"node-{n}", *script) for n in range(2)]
        first = cluster.expect_world(2)
        assert first["first"] == first["before"] == 0

        third = cluster.start_node("node-2", *script)
        second = cluster.expect_world(3)
        assert second["before"] == 2 * second["first"] > 0, "every step was one of two nodes"

        third.send_signal(signal.SIGKILL)
        last = cluster.expect_world(2)
        assert last["before"] - second["before"] == 3 * (last["first"] - second["first"])
        assert "a member was lost" in cluster.log("node-0") + cluster.log("node-1")
        (tmp_path / "done").touch()
        cluster.expect_end(nodes)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_the_example_that_loses_a_node_ends_with_the_weights_of_one_that_does_not(tmp_path):
    random = np.random.default_rng(0)
    features = random.normal(size=(48_000, 8))
    rows = np.column_stack([features, features.sum(1) > 0])
    np.savetxt(tmp_path / "rows.csv", rows, fmt="%.4f", delimiter=",")

    def run(name, *, kills):
        folder = tmp_path / name
        folder.mkdir()
        with ExitStack() as stack:
            cluster = Cluster(folder, stack)
            script = ("1:2", "3", EXAMPLE, tmp_path / "rows.csv", folder)
            nodes = [cluster.start_node(f"node-{n}", *script) for n in range(2)]
            if kills:
                cluster.wait(lambda: "record 2," in cluster.log("node-0"))
                nodes.pop().send_signal(signal.SIGKILL)
                cluster.wait(lambda: "formed: 1 node" in cluster.log("node-0"))
            cluster.expect_end(nodes)
        with np.load(folder / "checkpoint.npz") as arrays:
            return dict(arrays)

    whole, killed = run("whole", kills=False), run("killed", kills=True)
    assert whole.keys() == killed.keys()
    assert whole["position"] == killed["position"] == 96_000
    for name, values in whole.items():
        np.testing.assert_allclose(killed[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
