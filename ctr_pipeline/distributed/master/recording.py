"""What a job leaves for people to look at: `history.csv` and TensorBoard events."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ctr_pipeline.errors import CtrPipelineError
from ctr_pipeline.training.events import EventLog
from ctr_pipeline.training.history import EpochRecord, save_history

_LOGGER = logging.getLogger(__name__)


class Recorder:
    """Writes history and events, and rolls both back with the job; for several threads.

    What cannot be written is said once and left out: a full disk is no reason to stop training.

    Args:
        history: The file of the history.
        events: The folder of TensorBoard.
    """

    def __init__(self, history: Path, events: Path) -> None:
        self._history = history
        self._folder = events
        self._lock = threading.Lock()
        self._events: EventLog | None = None
        self._is_failing = False
        self._step = 0

    def note_progress(
        self, step: int, *, train_logloss: float | None, samples_per_second: float
    ) -> None:
        """Writes how training goes, once a step at most."""
        with self._lock:
            if train_logloss is None or step <= self._step:
                return
            self._step = step
            self._log(
                lambda events: events.scalars(
                    step, train_logloss=train_logloss, train_samples_per_second=samples_per_second
                )
            )

    def end_epoch(self, history: Sequence[EpochRecord]) -> None:
        """Writes the epoch that ended, the last of the history."""
        record = history[-1]
        with self._lock:
            self._step = record.step
            self._attempt(lambda: save_history(self._history, history))
            self._log(
                lambda events: events.scalars(
                    record.step,
                    valid_logloss=record.valid_logloss,
                    valid_auc=record.valid_auc,
                    valid_calibration=record.valid_calibration,
                    train_learning_rate_factor=record.learning_rate_factor,
                )
            )

    def roll_back(self, step: int, history: Sequence[EpochRecord]) -> None:
        """The job went back: what came after the step did not happen."""
        with self._lock:
            self._step = step
            self._attempt(lambda: save_history(self._history, history))
            self._log(lambda events: events.roll_back(step))

    def close(self) -> None:
        """Puts everything on disk."""
        with self._lock:
            self._close_events()

    def _log(self, write: Callable[[EventLog], None]) -> None:
        def open_and_write() -> None:
            if self._events is None:
                self._events = EventLog(self._folder)
            write(self._events)

        if not self._attempt(open_and_write):
            # A record may be torn, and what follows one is not read: the next goes to a new file.
            self._close_events()

    def _close_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with suppress(OSError):
                events.close()

    def _attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except (OSError, CtrPipelineError) as error:
            if not self._is_failing:
                _LOGGER.warning("history and TensorBoard are not up to date: %s", error)
            self._is_failing = True
            return False
        self._is_failing = False
        return True
