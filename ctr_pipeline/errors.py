"""Errors of the product: what a user reads, and the exit code a shell sees.

Every error that the user can mend is a `CtrPipelineError`: one clear sentence that names the place
(file, line, column, key) and a remedy. Anything else that escapes is a bug.
"""

from collections.abc import Sequence
from dataclasses import dataclass

EXIT_TRY_AGAIN = 75
"""Exit code of an error that may pass by itself, such as a server that does not answer."""

_LONGEST = 2000
"""Characters of a part of a message: names of columns may have a million."""
_MOST_SHOWN = 30
"""Problems of a config in a message: one mistake may be repeated in thousands of entries."""


def printable(text: str) -> str:
    """A text on one line and of bounded length, as a terminal may show it.

    Names and values of data may hold line ends, and sequences that a terminal obeys.
    """
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}…{text[-half:]}"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class CtrPipelineError(Exception):
    """An error the user can mend.

    Args:
        message: What is wrong, one sentence without a full stop.
        place: Where: `file:line`, `file, row 7, column 'price'`, a config key.
        remedy: What to do about it, one sentence without a full stop.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, place: str | None = None, remedy: str | None = None
    ) -> None:
        self.message = message
        self.place = place
        self.remedy = remedy
        super().__init__(self._render())

    def _render(self) -> str:
        prefix = f"{printable(self.place)}: " if self.place else ""
        suffix = f". {printable(self.remedy)}" if self.remedy else ""
        return f"{prefix}{printable(self.message)}{suffix}"


class DataError(CtrPipelineError):
    """The data files are missing, unreadable, or hold something that cannot be used."""


class ReadingKeyError(DataError):
    """A file can be read with a key that the config does not set.

    Attributes:
        key: Key of the section `data`.
        value: What it would have to be.
    """

    def __init__(
        self, message: str, *, place: str, key: str, value: str | int, otherwise: str = ""
    ) -> None:
        self.key = key
        self.value = value
        written = f'"{value}"' if value == "'" else value
        super().__init__(message, place=place, remedy=f"Set data.{key}: {written}{otherwise}")


class NoSuchFileError(DataError):
    """A data file is not there, on this machine."""


class StatisticsError(CtrPipelineError):
    """A statistic is missing, stale, or cannot be computed."""


class PreprocessingError(CtrPipelineError):
    """A transform does not fit its column or its statistics."""


class ModelError(CtrPipelineError):
    """A model cannot be built from its configuration."""


class TrainingError(CtrPipelineError):
    """Training cannot go on: a NaN loss, one class only, nothing to train on."""


class CheckpointError(CtrPipelineError):
    """A checkpoint is damaged or belongs to another configuration."""


class StorageError(CtrPipelineError):
    """Files cannot be read or written at this moment; what they hold may be whole."""


class ExportError(CtrPipelineError):
    """The servable model cannot be written, or does not score as the trainer does."""


class RunFolderError(CtrPipelineError):
    """The run folder is locked, read-only, full, or belongs to another configuration."""


class FolderInUseError(RunFolderError):
    """Another process holds the lock of the run folder."""


@dataclass(frozen=True)
class ConfigProblem:
    """One thing wrong in a config.

    Attributes:
        place: `file:line` where it stands, or where its parent stands.
        key: Dotted key path, such as `train.epochs` or `features[2].id`; empty for the whole file.
        message: What was expected and what was found.
        suggestion: The nearest valid name, if there is one.
    """

    place: str
    key: str
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        hint = f" (did you mean '{self.suggestion}'?)" if self.suggestion else ""
        key = f"{self.key}: " if self.key else ""
        return printable(f"{self.place}: {key}{self.message}{hint}")


class ConfigError(CtrPipelineError):
    """Everything that is wrong in a config, at once."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        title = "1 problem in the config" if count == 1 else f"{count:,} problems in the config"
        lines = [f"{title}:", *(f"  {problem}" for problem in self.problems[:_MOST_SHOWN])]
        if count > _MOST_SHOWN:
            lines.append(f"  and {count - _MOST_SHOWN:,} more")
        super().__init__("\n".join(lines))

    def _render(self) -> str:
        # Lines of their own, each of which is printable.
        return self.message


@dataclass(frozen=True)
class CarriedError:
    """An error of another process, as that process would have shown it.

    Attributes:
        kind: Name of its class, or of the nearest one here that it is a subclass of.
        message: As of `CtrPipelineError`.
        place: The same.
        remedy: The same.
        exit_code: What a shell sees of it.
        problems: As of `ConfigError`.
    """

    kind: str
    message: str
    place: str | None = None
    remedy: str | None = None
    exit_code: int = 1
    problems: tuple[ConfigProblem, ...] = ()

    @classmethod
    def of(cls, error: CtrPipelineError) -> "CarriedError":
        """What is sent of an error to another process."""
        kind = next(one.__name__ for one in type(error).__mro__ if one.__name__ in _kinds())
        problems = error.problems if isinstance(error, ConfigError) else ()
        return cls(kind, error.message, error.place, error.remedy, error.exit_code, problems)

    def to_error(self) -> CtrPipelineError:
        """The error, to be raised here."""
        if self.problems:
            return ConfigError(self.problems)
        error = _kinds()[self.kind](self.message, place=self.place, remedy=self.remedy)
        error.exit_code = self.exit_code
        return error


def _kinds() -> dict[str, type[CtrPipelineError]]:
    """The classes of this module, by name."""
    return {
        name: one
        for name, one in globals().items()
        if isinstance(one, type) and issubclass(one, CtrPipelineError)
    }


class Interrupted(BaseException):  # like KeyboardInterrupt, an event and not a fault
    """The user or the system asked the program to stop; what was done is kept.

    Args:
        signal_number: The signal that asked, such as `signal.SIGINT`.
    """

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"stopped by signal {signal_number}")

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells expect."""
        return 128 + self.signal_number


class HandedOver(Interrupted):
    """This process was asked to end; another one goes on with the members that it has started."""
