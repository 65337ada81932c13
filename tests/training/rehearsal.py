"""A rendezvous, and replicas in threads of this process that meet there, over real calls."""

from contextlib import closing

from ctr_pipeline.config.models import TrainConfig
from ctr_pipeline.dataset.encoded import EncodedReader
from ctr_pipeline.distributed.coordination.rendezvous import RendezvousTimes
from ctr_pipeline.distributed.elastic.service import RendezvousServer
from ctr_pipeline.distributed.replicas.row_server import RowServer
from ctr_pipeline.distributed.replicas.served_rows import ServedRows
from ctr_pipeline.distributed.replicas.world import ReplicaWorld
from ctr_pipeline.distributed.rpc.access import Access
from ctr_pipeline.embeddings.dense import DenseParameters
from ctr_pipeline.embeddings.store import EmbeddingStore
from ctr_pipeline.models.build import build_model
from ctr_pipeline.models.inputs import ModelSignature
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.model_kinds import DeepFMConfig
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from ctr_pipeline.storage.opening import open_storage
from ctr_pipeline.training.compiled import CompiledModel
from ctr_pipeline.training.replica_trainer import ReplicaTrainer
from ctr_pipeline.training.trainer import Trainer, TrainerFiles
from tests.training.training_problem import DIM, NUM_IDS, NUM_NUMBERS, RecordingProgress

TIMES = RendezvousTimes(gather_seconds=0.05, lease_seconds=5.0)
HALF_BATCH, WHOLE_BATCH = 8, 16
# No multiple of either batch.
FEW_ROWS = 603
ADAM = OptimizerSpec(name="adam", learning_rate=0.02)


class LostError(Exception):
    """Ends a replica as a kill would."""


def build_models():
    """The same model without dropout, for either size of batch."""
    config = DeepFMConfig(embedding_dim=DIM, hidden_units=(6,), dropout=0.0)
    signature = ModelSignature(len(NUM_IDS), DIM, NUM_NUMBERS, 0.4)
    return {
        size: CompiledModel(build_model(config, signature, seed=0), batch_size=size)
        for size in (HALF_BATCH, WHOLE_BATCH)
    }


def files_in(folder):
    folder.mkdir()
    return TrainerFiles(
        open_storage(str(folder / "checkpoints")), folder / "history.csv", folder / "events"
    )


class Rehearsal:
    """A rendezvous, and replicas that meet there."""

    def __init__(self, models, rows, folder):
        self.models = models
        self.initial = models[WHOLE_BATCH].initial_parameters()
        self.rows = rows
        self.folder = folder
        self.files = files_in(folder / "together")
        self.access = Access.within_process()
        self.server = RendezvousServer("127.0.0.1:0", self.access, TIMES)

    def store(self, optimizer):
        return EmbeddingStore(
            [TableSpec(f"C{place}", count) for place, count in enumerate(NUM_IDS)],
            [
                SegmentSpec("linear", 1, optimizer, "sum"),
                SegmentSpec(
                    "vector",
                    DIM,
                    optimizer,
                    "mean",
                    initializer=InitializerSpec(name="uniform", scale=0.02),
                ),
            ],
            seed=0,
            threads=1,
        )

    def parts(self, batch_size, optimizer, **train):
        config = {
            "batch_size": batch_size,
            "epochs": 1,
            "checkpoint_seconds": 1e9,
            "early_stopping": None,
            **train,
        }
        return {
            "config": TrainConfig(**config),
            "compiled": self.models[batch_size],
            "embeddings": self.store(optimizer),
            "dense": DenseParameters(self.initial.copy(), optimizer),
            "train": EncodedReader(self.rows / "train"),
            "valid": EncodedReader(self.rows / "valid"),
            "files": self.files,
        }

    def train_alone(self, batch_size, optimizer, **train):
        parts = self.parts(batch_size, optimizer, **train)
        parts["files"] = files_in(self.folder / "alone")
        Trainer(**parts, progress=RecordingProgress()).fit()
        return parts

    def train_replica(
        self,
        parts,
        nodes,
        *,
        on_advance=None,
        on_world=None,
        fixed_batches=None,
        rendezvous=None,
    ):
        """Trains one replica to the end; returns its state."""
        rows = parts["embeddings"]
        world = ReplicaWorld(
            rendezvous or (lambda: self.server.address),
            self.access,
            nodes=nodes,
            num_dense=len(self.initial),
            width=rows.width,
            rows=rows if isinstance(rows, ServedRows) else None,
        )
        with closing(world):
            if on_world is not None:
                on_world(world)
            trainer = ReplicaTrainer(
                **parts,
                progress=RecordingProgress(on_advance),
                replicas=world,
                fixed_batches=fixed_batches,
            )
            return trainer.fit()


class Servers:
    """Servers of the rows of a rehearsal; a context manager."""

    def __init__(self, rehearsal, num_servers, optimizer):
        self.rehearsal = rehearsal
        self.optimizer = optimizer
        self.running = [None] * num_servers
        for index in range(num_servers):
            self.start(index)

    def start(self, index):
        """Begins one with no rows."""
        self.running[index] = RowServer(
            "127.0.0.1:0",
            self.rehearsal.access,
            self.rehearsal.store(self.optimizer),
            index=index,
            num_servers=len(self.running),
            checkpoints=self.rehearsal.files.checkpoints,
        )

    def replace(self, index):
        """Loses one, and all that it holds; another one begins in its place."""
        self.running[index].close()
        self.start(index)

    def rows(self, addresses=None):
        """The rows as one replica sees them."""
        store = self.rehearsal.store(self.optimizer)
        return ServedRows(
            lambda: addresses or [one.address for one in self.running],
            self.rehearsal.access,
            tables=store.tables,
            position_tables=range(len(store.tables)),
            layout=store.layout,
            seed=0,
        )

    def parts(self, batch_size, **train):
        parts = self.rehearsal.parts(batch_size, self.optimizer, **train)
        return {**parts, "embeddings": self.rows()}

    def close(self):
        for one in self.running:
            one.close()
