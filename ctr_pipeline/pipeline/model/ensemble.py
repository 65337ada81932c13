"""Who the members of an ensemble are, and their embedding rows as one table.

All members are trained on the same encoded rows, one after another, each in a folder of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ctr_pipeline.config.models import Config
from ctr_pipeline.embeddings.row_merge import take_together
from ctr_pipeline.embeddings.store import RowBlock
from ctr_pipeline.models.registry import member_model
from ctr_pipeline.pipeline.model.embedding_rows import TrainedRows
from ctr_pipeline.training.trainer import TrainingState

_SEEDS = 2**63


@dataclass(frozen=True)
class TrainedMember:
    """One model of an ensemble, for reports.

    Attributes:
        model: Its kind, as in the config.
        seed: Seed of its initial values, of the order of rows and of dropout.
        state: How its training went.
    """

    model: str
    seed: int
    state: TrainingState


def member_configs(config: Config) -> tuple[Config, ...]:
    """The config of each member; empty where one model alone is trained.

    Member i has the seed `train.seed` + i, and the i-th of `train.ensemble_models`, over and over;
    so the first one is the model that is trained without an ensemble.
    """
    train = config.train
    if train.ensemble == 1:
        return ()
    kinds = train.ensemble_models or (config.model.name,)
    return tuple(
        config.model_copy(
            update={
                "model": member_model(config.model, kinds[number % len(kinds)]),
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
    """Rows that training made; of an ensemble, those of all its models, as their parameters are."""
    if isinstance(rows, EnsembleRows):
        return sum(member.num_rows for member in rows.members)
    return rows.num_rows


class EnsembleRows:
    """Rows of the members as rows of one table: values side by side, zeros where one has no row.

    Args:
        members: Their rows.
        width: Values of a row of each: the linear weight and the embedding.
    """

    def __init__(self, members: Sequence[TrainedRows], width: int) -> None:
        self.members = tuple(members)
        self._width = width

    @cached_property
    def num_rows(self) -> int:
        """Keys that some member has a row of."""
        return sum(len(block.keys) for block in self.iterate_rows(1 << 16))

    def memory_bytes(self) -> int:
        """Memory that the members' rows take."""
        return sum(member.memory_bytes() for member in self.members)

    def spilled_bytes(self) -> int:
        """What of them lies in files."""
        return sum(member.spilled_bytes() for member in self.members)

    def iterate_rows(self, block_rows: int) -> Iterator[RowBlock]:
        """All rows by ascending key, in blocks of at most `block_rows` (or one row a member)."""
        share = max(1, block_rows // len(self.members))
        for taken in take_together([member.iterate_rows(share) for member in self.members]):
            keys = np.unique(np.concatenate([rows.keys for _, rows in taken]))
            values = np.zeros((len(keys), self._width * len(self.members)), np.float32)
            for number, rows in taken:
                first = number * self._width
                places = np.searchsorted(keys, rows.keys)
                values[places, first : first + self._width] = rows.values
            yield RowBlock(keys, values)

    def release(self) -> None:
        """Forgets the rows of all members."""
        for member in self.members:
            member.release()
