"""A job small enough to follow, its servers without and with a network."""

from contextlib import ExitStack

import numpy as np
import pytest

from ctr_pipeline.distributed.coordination.messages import RestoreRequest
from ctr_pipeline.distributed.ps.core import PsCore
from ctr_pipeline.distributed.ps.service import SERVICE, ps_methods
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.distributed.rpc.client import RpcClient
from ctr_pipeline.distributed.rpc.server import RpcServer
from ctr_pipeline.embeddings.counts import IdCounts, pack_counts
from ctr_pipeline.embeddings.cut_storage import CutStorage
from ctr_pipeline.specs.course import UpdateRule
from ctr_pipeline.specs.initializer import ZEROS, InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from tests.distributed.job_specs import job_spec

ACCESS = Access(token="token-of-the-tests", tls=None)  # noqa: S106
ASYNC = UpdateRule()


def spec_with_tables(folder, **changes):
    """Three tables, rows of 1 + 4 values, 37 dense parameters."""
    sizes = (7, 400, 3000)
    counts = folder / "counts.npy"
    if not counts.exists():
        counts.parent.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(5)
        tables = [IdCounts.of_all(generator.integers(0, 50, size)) for size in sizes]
        np.save(counts, pack_counts(tables))
    CutStorage.at(folder / "checkpoints").begin("job-1")
    facts = {
        "seed": 3,
        "tables": tuple(TableSpec(name, size) for name, size in zip("abc", sizes, strict=True)),
        "segments": (
            SegmentSpec(
                "linear", 1, OptimizerSpec(name="adagrad", learning_rate=0.05), "sum", 2.0, 1, ZEROS
            ),
            SegmentSpec(
                "vector",
                4,
                OptimizerSpec(name="adam", learning_rate=0.01),
                "mean",
                3.0,
                2,
                InitializerSpec(scale=0.1),
            ),
        ),
        "counts_file": str(counts),
        "num_dense": 37,
        "dense_optimizer": OptimizerSpec(name="adam", learning_rate=0.02),
        "num_partitions": 16,
        "update_rule": ASYNC,
        "batch_size": 32,
        "epochs": 100,
        "checkpoints_folder": str(folder / "checkpoints"),
    }
    return job_spec(**{**facts, **changes})


def fresh_core(spec, index=0, *, generation=0, **options):
    """A server that holds nothing yet and serves a generation."""
    core = PsCore(spec, index, **options)
    reply = core.checkpoints.restore(RestoreRequest(generation, 0, (), (), ()))
    assert not reply.refused
    return core


class Served:
    """Cores behind real sockets of the loopback device."""

    def __init__(self, cores, num_threads=16):
        self.cores = cores
        self.servers = [
            RpcServer(
                SERVICE,
                ps_methods(core, lambda: None, lambda peer: RpcClient(SERVICE, peer, ACCESS)),
                address="127.0.0.1:0",
                access=ACCESS,
                num_threads=num_threads,
            )
            for core in cores
        ]
        self.addresses = tuple(server.start() for server in self.servers)

    def stop(self):
        for server in self.servers:
            server.stop(0)


@pytest.fixture
def make_spec(tmp_path):
    return lambda **changes: spec_with_tables(tmp_path, **changes)


@pytest.fixture
def make_core():
    return fresh_core


@pytest.fixture
def make_optimizer():
    return lambda name, rate: OptimizerSpec(name=name, learning_rate=rate)


@pytest.fixture
def access():
    return ACCESS


@pytest.fixture
def serve():
    with ExitStack() as stack:

        def start(cores, **options):
            served = Served(cores, **options)
            stack.callback(served.stop)
            return served

        yield start
