"""One worker and any number of servers train exactly as one process does, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.rounds import BatchId
from ctr_pipeline.distributed.worker.ps_client import PsClient
from ctr_pipeline.embeddings.counts import unpack_counts
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.specs.course import UpdateRule

NUM_STEPS = 25
BATCH = 64


def local_process(spec):
    store = EmbeddingStore(
        spec.tables,
        spec.segments,
        seed=spec.course.seed,
        threads=1,
        admit_after=spec.rows.admit_after,
    )
    counts = np.load(spec.counts_file)
    store.set_training_counts(unpack_counts(counts, [table.num_ids for table in spec.tables]))
    return store


def batches(spec, seed=0):
    """Skewed ids, so that batches have keys in common; the last rows may be padding."""
    rng = np.random.default_rng(seed)
    sizes = np.array([table.num_ids for table in spec.tables])
    for step in range(NUM_STEPS):
        ids = (sizes * rng.random((BATCH, len(sizes))) ** 4).astype(np.int32)
        num_valid = BATCH if step % 3 else BATCH - 5
        ids[num_valid:] = -7
        yield ids, num_valid


def gradients(linear, embeddings, dense, num_valid):
    """Any function that lets a wrong value show: of rows and dense parameters together."""
    scale = np.float32(np.abs(dense).mean())
    linear_gradient = np.sin(linear * 3 + embeddings.sum(axis=2, keepdims=True) + scale)
    embeddings_gradient = embeddings * scale + np.cos(linear)
    linear_gradient[num_valid:] = np.nan
    embeddings_gradient[num_valid:] = np.nan
    total = np.float32(linear[:num_valid].sum() + embeddings[:num_valid].sum())
    return linear_gradient, embeddings_gradient, np.cos(dense * 5 + total)


def factor_of(step):
    return 1.0 / (1 + 0.01 * step)


def train_locally(spec, initial):
    store, dense = local_process(spec), DenseParameters(initial, spec.dense_optimizer)
    for step, (ids, num_valid) in enumerate(batches(spec), 1):
        prepared = store.prepare(ids, num_valid)
        store.locate(prepared, create=True)
        linear, embeddings = store.gather_parts(prepared, 1)
        by_linear, by_embeddings, by_dense = gradients(linear, embeddings, dense.values, num_valid)
        dense.update(by_dense, step=step, learning_rate_factor=factor_of(step))
        store.update(
            prepared,
            (by_linear, by_embeddings),
            step=step,
            learning_rate_factor=factor_of(step),
            num_examples=num_valid,
        )
    return store, dense.values


def train_on_servers(client, spec, initial, *, ahead):
    """As the worker does; with `ahead`, the next pull is on its way while a step is computed."""
    client.init_dense(initial)
    todo = [(client.prepare(ids, num_valid), num_valid) for ids, num_valid in batches(spec)]
    ids = [BatchId(0, number // 8, 1, number % 8) for number in range(len(todo))]
    pull = client.start_pull(todo[0][0], create=True, batch=ids[0])
    for number, (_, num_valid) in enumerate(todo):
        following = None
        if ahead and number + 1 < len(todo):
            following = client.start_pull(
                todo[number + 1][0], create=True, batch=ids[number + 1], dense=False
            )
        linear, embeddings = client.gather_parts(pull, 1)
        dense = client.dense(pull)
        by_linear, by_embeddings, by_dense = gradients(linear, embeddings, dense, num_valid)
        outcome = client.start_push(
            pull,
            (by_linear, by_embeddings),
            by_dense,
            ids[number],
            step=number + 1,
            learning_rate_factor=factor_of(number + 1),
            num_examples=num_valid,
            refresh=following,
        ).wait()
        assert (outcome.verdict, outcome.repeated) == ("applied", False)
        if not ahead and number + 1 < len(todo):
            following = client.start_pull(todo[number + 1][0], create=True, batch=ids[number + 1])
        pull = following or pull
    return client.dense(pull)


@pytest.mark.parametrize(
    ("num_servers", "ahead", "rule", "admit_after"),
    [
        (1, False, UpdateRule(), 1),
        (1, True, UpdateRule(), 1),
        (3, True, UpdateRule(scale_learning_rate_by_staleness=True), 1),
        (3, True, UpdateRule(), 20),
        (1, True, UpdateRule(update="sync"), 1),
        (3, True, UpdateRule(update="sync"), 1),
        (3, True, UpdateRule(update="sync", grads_to_wait=4), 20),
        (2, True, UpdateRule(update="bounded", max_staleness=0), 1),
    ],
)
def test_servers_train_the_bits_of_one_process(
    make_spec, make_core, serve, access, num_servers, ahead, rule, admit_after
):
    spec = make_spec(
        batch_size=BATCH,
        num_parameter_servers=num_servers,
        update_rule=rule,
        admit_after=admit_after,
        # Where there are three, all but a page of each lies in a file.
        memory_limit_gb=4096e-9 if num_servers == 3 else None,
    )
    initial = np.random.default_rng(1).standard_normal(spec.num_dense).astype(np.float32)
    store, dense = train_locally(replace(spec, num_parameter_servers=1), initial)

    cores = [make_core(spec, index) for index in range(num_servers)]
    for core in cores:
        core.updates.set_active_workers(["me"])
    served = serve(cores)
    client = PsClient(spec, access, incarnation="me")
    client.route(0, served.addresses)
    try:
        found_dense = train_on_servers(client, spec, initial, ahead=ahead)
    finally:
        client.close()

    np.testing.assert_array_equal(found_dense, dense)
    expected = next(store.iterate_rows(10**6))
    blocks = [next(core.state.store.iterate_rows(10**6)) for core in cores]
    keys = np.concatenate([block.keys for block in blocks])
    order = np.argsort(keys)
    np.testing.assert_array_equal(keys[order], expected.keys)
    values = np.concatenate([block.values for block in blocks])
    np.testing.assert_array_equal(values[order], expected.values)
    # Nothing above would fail if the servers had been passed by.
    assert min(core.state.num_rows for core in cores) > 0
    assert all(core.serving.version == NUM_STEPS for core in cores)
    record_bytes = 64
    spilled = [
        core.state.num_rows * record_bytes - 4096 if num_servers == 3 else 0 for core in cores
    ]
    assert [core.state.spilled_bytes for core in cores] == spilled
    assert num_servers < 3 or min(spilled) > 4096
    assert min(server.bytes_received for server in served.servers) > 10_000
