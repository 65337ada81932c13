"""TensorBoard events, written without TensorFlow."""

import os
import socket
import time
from pathlib import Path
from typing import Any, Protocol


class ScalarLog(Protocol):
    """Takes figures of steps."""

    def scalars(self, step: int, **values: float) -> None:
        """Takes the values of one step; the first `_` of each keyword becomes `/`."""


class EventLog:
    """TensorBoard events of one run.

    Args:
        folder: TensorBoard's log folder.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._messages = event_pb2
        # TensorBoard reads a folder's files in the order of their names.
        started = time.time_ns()
        name = f"events.out.tfevents.{started // 10**9}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((folder / f"{name}.{started % 10**9:09d}").open("xb"))
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, step: int, **values: float) -> None:
        """Writes the values of one step; the first `_` of each keyword becomes `/`."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = []
        for name, value in values.items():
            group, _, rest = name.partition("_")
            found.append(Summary.Value(tag=f"{group}/{rest}", simple_value=value))
        self._write(
            self._messages.Event(wall_time=time.time(), step=step, summary=Summary(value=found))
        )

    def roll_back(self, step: int) -> None:
        """Tells TensorBoard to drop what was written for later steps."""
        start = self._messages.SessionLog(status=self._messages.SessionLog.START)
        self._write(self._messages.Event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self) -> None:
        """Flushes everything to disk."""
        self._records.close()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()
