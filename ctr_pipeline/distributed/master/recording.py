"""What a job leaves for people to look at: `history.csv` and TensorBoard events."""

import threading
from collections.abc import Sequence
from pathlib import Path

from ctr_pipeline.training.events import EventLog
from ctr_pipeline.training.history import EpochRecord, save_history


class Recorder:
    """Writes history and events, and rolls both back with the job; for several threads.

    Args:
        history: The file of the history.
        events: The folder of TensorBoard.
    """

    def __init__(self, history: Path, events: Path) -> None:
        self._history = history
        self._lock = threading.Lock()
        self._events = EventLog(events)
        self._step = 0

    def note_progress(
        self, step: int, *, train_logloss: float | None, samples_per_second: float
    ) -> None:
        """Writes how training goes, once a step at most."""
        with self._lock:
            if train_logloss is None or step <= self._step:
                return
            self._step = step
            self._events.scalars(
                step, train_logloss=train_logloss, train_samples_per_second=samples_per_second
            )

    def end_epoch(self, history: Sequence[EpochRecord]) -> None:
        """Writes the epoch that ended, the last of the history."""
        record = history[-1]
        with self._lock:
            save_history(self._history, history)
            self._step = record.step
            self._events.scalars(
                record.step,
                valid_logloss=record.valid_logloss,
                valid_auc=record.valid_auc,
                valid_calibration=record.valid_calibration,
                train_learning_rate_factor=record.learning_rate_factor,
            )

    def roll_back(self, step: int, history: Sequence[EpochRecord]) -> None:
        """The job went back: what came after the step did not happen."""
        with self._lock:
            save_history(self._history, history)
            self._step = step
            self._events.roll_back(step)

    def close(self) -> None:
        """Puts everything on disk."""
        with self._lock:
            self._events.close()
