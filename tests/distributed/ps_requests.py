"""Requests as workers send them, written by hand."""

from dataclasses import replace

import numpy as np

from ctr_pipeline.distributed.coordination.messages import RestoreRequest
from ctr_pipeline.distributed.coordination.placement import balanced_placement
from ctr_pipeline.distributed.coordination.rounds import BatchId, worker_number
from ctr_pipeline.distributed.rpc.packed import DenseRequest, PullRequest, PushRequest
from ctr_pipeline.embeddings.partition import partitions_of
from ctr_pipeline.specs.initializer import ZEROS
from tests.distributed.network import Answered


def key(table, row_id):
    return (table << 44) | row_id


def all_keys(spec):
    """Keys of all ids of all tables."""
    return np.concatenate(
        [np.arange(table.num_ids) + (number << 44) for number, table in enumerate(spec.tables)]
    )


def owned_keys(spec, server):
    """Those of one server, ascending."""
    keys = all_keys(spec)
    owners = partitions_of(keys, spec.num_partitions) % spec.num_parameter_servers
    return keys[owners == server]


def counting(spec, make_optimizer, **changes):
    """A job whose values count: each applied batch adds 1 to the rows and dense values it names."""
    sgd = make_optimizer("sgd", 1.0)
    segments = tuple(
        replace(segment, optimizer=sgd, reduction="sum", l2_strength=0.0, initializer=ZEROS)
        for segment in spec.segments
    )
    return replace(spec, segments=segments, dense_optimizer=sgd, **changes)


class Caller:
    """Sends requests to one core."""

    def __init__(self, core, worker="me"):
        self.core = core
        self.spec = core.spec
        self.worker = worker_number(worker)
        self.first, self.last = balanced_placement(self.spec).range_of(core.index)
        self.width = sum(segment.dim for segment in self.spec.segments)

    def init(self, value=0.0, generation=0):
        values = np.full(self.last - self.first, value, np.float32)
        return self.core.updates.init_dense(DenseRequest(generation, self.first, values))

    def pull(self, keys, *, create=True, batch=None, dense_version=-1, generation=0):
        return self.core.updates.pull(
            PullRequest.decode(
                PullRequest(
                    generation=generation,
                    batch=batch,
                    worker=self.worker,
                    create=create,
                    dense_version=dense_version,
                    keys=np.asarray(keys, np.int64),
                ).encode()
            )
        )

    def request(self, keys, batch, *, version=0, generation=0, gradient=-1.0, **changes):
        """A push that counts: sgd with learning rate 1 adds 1 by it."""
        keys = np.asarray(keys, np.int64)
        facts = {
            "generation": generation,
            "batch": batch,
            "worker": self.worker,
            "step": 1 + batch.task * 64 + batch.batch,
            "learning_rate_factor": 1.0,
            "num_examples": 1,
            "version": version,
            "keys": keys,
            "num_occurrences": np.ones(len(keys), np.int32),
            "sums": np.full((len(keys), self.width), gradient, np.float32),
            "dense": np.full(self.last - self.first, gradient, np.float32),
            "fresh_keys": keys[:0],
        }
        return PushRequest.decode(PushRequest(**{**facts, **changes}).encode())

    def push(self, keys, batch, **changes):
        return Answered(self.core.updates.push(self.request(keys, batch, **changes))).reply

    def values(self, keys, generation=0):
        """First value of each row, and the dense values."""
        reply = self.pull(keys, create=False, generation=generation)
        return reply.values[:, 0].tolist(), ([] if reply.dense is None else reply.dense.tolist())


class Pushing:
    """A push that may have to wait for its round."""

    def __init__(self, caller, keys, batch, **changes):
        self.answer = Answered(caller.core.updates.push(caller.request(keys, batch, **changes)))

    def result(self):
        assert self.answer.has_come
        return self.answer.reply


def batch(number, task=0, attempt=1, epoch=0):
    return BatchId(epoch, task, attempt, number)


def nothing_trained(generation):
    return RestoreRequest(generation, 0, (), (), ())
