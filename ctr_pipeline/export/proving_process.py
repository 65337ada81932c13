"""The process in which an export is proved: it has TensorFlow alone."""

import json
import subprocess
import sys
from pathlib import Path

from ctr_pipeline.errors import ExportError


class ProvingProcess:
    """A fresh process that has TensorFlow alone, and scores an export once it is asked to.

    Importing TensorFlow takes it seconds: started before an export is written, it is ready when
    that is. It ends with the block.

    Args:
        interpreter: The Python that it runs.
        timeout_seconds: It may score for so long.
    """

    def __init__(
        self, interpreter: str = sys.executable, *, timeout_seconds: float = 1800.0
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own script
            [interpreter, "-I", str(Path(__file__).with_name("parity_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def score(self, export: Path, request: Path, response: Path, num_rows: int) -> None:
        """Has the request scored by the export and the response written; can be called once.

        Raises:
            ExportError: The export cannot be loaded or run, or that takes too long.
        """
        names = json.dumps([str(export), str(request), str(response)])
        try:
            _, messages = self._process.communicate(f"{names}\n", timeout=self._timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                f"scoring {num_rows:,} rows took longer than {self._timeout_seconds:,.0f} seconds",
                place=str(export),
                remedy="Lower export.parity_rows",
            ) from error
        if self._process.returncode != 0:
            last_lines = "\n".join(messages.strip().splitlines()[-5:])
            raise ExportError(
                f"TensorFlow alone cannot run the export: {last_lines}",
                place=str(export),
                remedy="Read the last lines above; a custom model may use what only Keras has",
            )

    def __enter__(self) -> "ProvingProcess":
        return self

    def __exit__(self, *_error: object) -> None:
        with self._process:
            if self._process.poll() is None:
                self._process.kill()
