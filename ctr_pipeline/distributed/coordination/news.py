"""How a job does, in a few figures and lines, for people who look where its members run."""

from dataclasses import dataclass
from typing import Literal

Topic = Literal["job", "member", "recovery", "scaling", "checkpoint", "cut", "waiting"]
"""What a line is about; `cut` and `waiting` are in no event log: others show them."""


@dataclass(frozen=True)
class NewsLine:
    """One line of the event log.

    Attributes:
        time: Unix time, seconds.
        text: What happened and what was done about it, one sentence.
    """

    time: float
    topic: Topic
    text: str


@dataclass(frozen=True)
class JobNews:
    """How a job does, for people who look where its members run.

    Attributes:
        phase: State of the job; `trained` once nothing is left to train.
        fraction: Share of all records that are counted, 0 to 1.
        num_workers: Workers that train now.
        samples_per_second: Counted over the last seconds.
        auc: AUC of the last validation; None before it.
        checkpoint_at: When the last checkpoint was taken, Unix time in seconds; None before it.
        lines: New lines of the event log.
    """

    phase: str
    fraction: float
    num_workers: int
    samples_per_second: float
    auc: float | None
    checkpoint_at: float | None
    lines: tuple[NewsLine, ...]
