"""The members of an ensemble, and their embedding rows as one table.

All members are trained on the same encoded rows, one after another, each in a folder of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ctr_pipeline.config.models import Config
from ctr_pipeline.embeddings.row_merge import take_together
from ctr_pipeline.embeddings.store import RowBlock
from ctr_pipeline.pipeline.model.embedding_rows import TrainedRows
from ctr_pipeline.training.history import ModelSummary
from ctr_pipeline.training.trainer import TrainingState

_SEEDS = 2**63


@dataclass(frozen=True)
class TrainedMember:
    """One model, alone or of an ensemble, for reports.

    Attributes:
        model: Its kind, as in the config.
        seed: Seed of its initial values, of the order of rows and of dropout.
        state: How its training went.
    """

    model: str
    seed: int
    state: TrainingState

    def summary(self) -> ModelSummary:
        """How its training went, in a few figures."""
        history = self.state.history
        best = next((record for record in history if record.step == self.state.best_step), None)
        return ModelSummary(
            model=self.model,
            seed=self.seed,
            epochs=len(history),
            best_epoch=None if best is None else best.epoch + 1,
            steps=history[-1].step if history else 0,
            valid_logloss=None if best is None else best.valid_logloss,
            valid_auc=None if best is None else best.valid_auc,
            stopped_because=self.state.finished,
            refit=self.state.refit,
        )


def member_configs(config: Config) -> tuple[Config, ...]:
    """The config of each member; empty where one model alone is trained.

    Member i has the seed `train.seed` + i, and the i-th of `train.ensemble_models`, over and over;
    so the first one is the model that is trained without an ensemble.
    """
    train = config.train
    if train.ensemble == 1:
        return ()
    models = config.member_models
    return tuple(
        config.model_copy(
            update={
                "model": models[number % len(models)],
                "train": train.model_copy(
                    update={
                        "seed": (train.seed + number) % _SEEDS,
                        "ensemble": 1,
                        "ensemble_models": None,
                    }
                ),
            }
        )
        for number in range(train.ensemble)
    )


def num_rows_made(rows: TrainedRows) -> int:
    """Counts the rows that training made: of an ensemble, the sum over its models."""
    if isinstance(rows, EnsembleRows):
        return sum(member.num_rows for member in rows.members)
    return rows.num_rows


class EnsembleRows:
    """Embedding rows of an ensemble: those of its members side by side, zeros where one has none.

    Args:
        members: Their rows, all of one width.
    """

    def __init__(self, members: Sequence[TrainedRows]) -> None:
        self.members = tuple(members)

    @property
    def width(self) -> int:
        """Values in a row: those of all members."""
        return sum(member.width for member in self.members)

    @cached_property
    def num_rows(self) -> int:
        """Keys of which at least one member has a row."""
        return sum(len(block.keys) for block in self.iterate_rows(1 << 16))

    def memory_bytes(self) -> int:
        """Memory that the members' training needed for them."""
        return sum(member.memory_bytes() for member in self.members)

    def spilled_bytes(self) -> int:
        """Bytes that the members' training kept in files."""
        return sum(member.spilled_bytes() for member in self.members)

    def iterate_rows(self, block_rows: int) -> Iterator[RowBlock]:
        """Yields all rows by ascending key, in blocks of at most `block_rows` or a row a member."""
        share = max(1, block_rows // len(self.members))
        for taken in take_together([member.iterate_rows(share) for member in self.members]):
            keys = np.unique(np.concatenate([rows.keys for _, rows in taken]))
            values = np.zeros((len(keys), self.width), np.float32)
            for number, rows in taken:
                width = self.members[number].width
                first = number * width
                places = np.searchsorted(keys, rows.keys)
                values[places, first : first + width] = rows.values
            yield RowBlock(keys, values)

    def release(self) -> None:
        """Frees the memory or the files of all members' rows."""
        for member in self.members:
            member.release()
