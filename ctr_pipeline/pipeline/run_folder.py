"""The run folder: who may write into it, and whose config it belongs to."""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr_pipeline import durable
from ctr_pipeline.config.key_facts import keys_with
from ctr_pipeline.config.loader import LoadedConfig, load_config
from ctr_pipeline.config.models import Config, working_copy
from ctr_pipeline.config.resolved import (
    RESOLVED_CONFIG,
    RUN_LOCK,
    pinned_yaml,
    same_paths,
    with_paths,
)
from ctr_pipeline.embeddings.cut_storage import MARKER
from ctr_pipeline.errors import CtrPipelineError, FolderInUseError, RunFolderError, StorageError
from ctr_pipeline.pipeline.feature_file import load_features
from ctr_pipeline.pipeline.run_places import RunPlaces
from ctr_pipeline.pipeline.stored_run import CHECKPOINTS, StoredRun
from ctr_pipeline.specs.section import IsPath, MayChange, NotSearched, OfFiles
from ctr_pipeline.storage.opening import address_of

_LOGGER = logging.getLogger(__name__)
_LEFT_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_MAX_OWNER_BYTES = 1024
_OF_FILES = keys_with(Config, OfFiles).keys()
_MAY_CHANGE = keys_with(Config, MayChange)
"""Keys that may change between the start of a run and its resumption."""

_NOT_OF_RESULTS = {key for key, mark in _MAY_CHANGE.items() if not mark.from_step_on}
"""Keys that what has been trained to its end does not depend on."""

_COURSE = {
    key
    for key in _MAY_CHANGE.keys() - keys_with(Config, NotSearched).keys()
    if key.startswith("train.")
}
"""Keys that may change and that the steps, or their number, follow."""

_PATH_KEYS = keys_with(Config, IsPath).keys()

_LEFTOVERS = (
    "checkpoints",
    "refit",
    "members",
    "metrics.json",
    "history.csv",
    "profile.json",
    "predictions.parquet",
    "evaluations",
    "export",
    "job",
    "replicas",
    "scores",
    "logs",
)
"""What only training and the stages after it make."""


@dataclass(frozen=True)
class _Owner:
    """The process that holds, or held last, the lock of a folder, as the lock's file says.

    Attributes:
        series: As of `RunFolder.locked`.
    """

    process: str = ""
    host: str = ""
    series: str = ""

    @classmethod
    def read(cls, descriptor: int) -> "_Owner":
        text = os.pread(descriptor, _MAX_OWNER_BYTES, 0).decode("utf-8", "replace")
        return cls(*text.split("\n")[:3])

    @classmethod
    def of_this_process(cls, series: str) -> "_Owner":
        return cls(str(os.getpid()), socket.gethostname(), series)

    def write(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, "\n".join((self.process, self.host, self.series)).encode(), 0)


class RunFolder(RunPlaces):
    """The folder of a run: who may write into it, and whose config it belongs to."""

    @classmethod
    def of(cls, config: Config) -> "RunFolder":
        """The run folder of a config."""
        return cls(config.run_folder, config.checkpoints_at, StoredRun.of(config))

    @contextmanager
    def locked(
        self,
        *,
        sweeps: bool = True,
        series: str = "",
        on_wait: Callable[[str], None] = _LOGGER.warning,
    ) -> Iterator[None]:
        """Holds the folder's lock, which the system drops when the process ends.

        A run that is kept elsewhere is fetched first, and kept there from then on.

        Args:
            sweeps: Whether what a killed process left half-written is deleted first.
            series: Names processes of which each goes on with the work of the one before; this one
                waits until that has ended. Empty: it is on its own.
            on_wait: Takes whom it waits for.

        Raises:
            FolderInUseError: Another run holds it.
            RunFolderError: The folder cannot be made, or is none of ours.
            StorageError: The place that it is kept at cannot be used.
        """
        descriptor = self._acquire(series, on_wait)
        try:
            _Owner.of_this_process(series).write(descriptor)
            if sweeps:
                self._sweep()
            with nullcontext() if self.stored is None else self.stored.kept():
                yield
        finally:
            os.close(descriptor)

    def fetch(self) -> None:
        """Fetches a run that is kept elsewhere, unless a process of this machine works on it.

        Raises:
            StorageError: It is not there, or cannot be read at this moment.
            CheckpointError: Something in it is damaged.
        """
        if self.stored is not None:
            self.stored.fetch(is_used=lambda: self.user_process() is not None)

    def trouble(self) -> str:
        """Why what was done last is not where the run is kept; else empty."""
        return "" if self.stored is None else self.stored.trouble

    def require_unused(self) -> None:
        """Refuses a folder that another run has begun to use, and changes nothing in it.

        Raises:
            FolderInUseError: Another run holds the lock.
        """
        if (self.path / RUN_LOCK).exists():
            os.close(self._acquire())

    def user_process(self) -> int | None:
        """The process that holds the lock now; None if nobody does, 0 if it is not known which."""
        try:
            descriptor = os.open(self.path / RUN_LOCK, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _Owner.read(descriptor).process
            return int(owner) if owner.isdigit() else 0
        except OSError:
            return None
        else:
            return None
        finally:
            os.close(descriptor)

    def _acquire(self, series: str = "", on_wait: Callable[[str], None] = _LOGGER.warning) -> int:
        """A descriptor that holds the lock until it is closed; arguments as of `locked`."""
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(
                "is a file", place=str(self.path), remedy="Choose another 'output'"
            )
        if self.path.is_dir() and any(self.path.iterdir()) and not self._is_ours():
            raise RunFolderError(
                "holds other files and is not a run folder",
                place=str(self.path),
                remedy="Choose an 'output' that is new or empty",
            )
        with durable.os_errors_explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One that exists keeps its permissions: somebody may mean to share it.
            self.path.mkdir(mode=0o700, exist_ok=True)
            lock = str(self.path / RUN_LOCK)
            descriptor = durable.not_through_links(lock, os.O_RDWR | os.O_CREAT)
        told = _Owner()
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    owner = _Owner.read(descriptor)
                    if not series or owner.series != series:
                        raise FolderInUseError(
                            f"another run (process {owner.process or 'unknown'}) uses this folder",
                            place=str(self.path),
                            remedy="Wait for it, stop it, or choose another 'output'",
                        ) from error
                    if owner != told:
                        on_wait(
                            f"waits until process {owner.process} on {owner.host} has ended, to go "
                            "on with its work"
                        )
                        told = owner
                    time.sleep(_LOOK_SECONDS)
                else:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def _sweep(self) -> None:
        """Deletes what a killed process left half-written; nobody else writes under the lock.

        Who scores beside a training does not hold it, and writes in places of its own.
        """
        for path in list(self.path.rglob(".*.tmp")):
            if path.is_relative_to(self.scoring) or path.is_relative_to(self.evaluations):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        return (self.path / RUN_LOCK).exists() or self.config.exists()

    def claim(self, loaded: LoadedConfig, *, resume: bool, overwrite: bool) -> None:
        """Makes sure that a run of this config may write here; changes nothing yet.

        Raises:
            RunFolderError: It holds results, and they are neither to be resumed nor to be replaced;
                or they are of another config, and the message names the keys that differ.
            StorageError: The place of its checkpoints cannot be used, or holds something else.
        """
        is_stored = self._has_stored()
        if not (is_stored or self.has_results()) or (overwrite and not resume):
            return
        if resume:
            earlier = {self.place: self.kept_config()}
            if is_stored:
                earlier[self._stored_config_at] = self._stored_config()
            for place, config in earlier.items():
                _require_same(
                    differing_keys(config, loaded.config, resumes=True),
                    "cannot be resumed",
                    place=place,
                    remedy="Set the keys back, or give --overwrite instead to start anew",
                )
            return
        if is_stored and not self.has_results():
            raise RunFolderError(
                "holds the checkpoints of an earlier run",
                place=self.checkpoints_at,
                remedy="Give --resume to go on with it, --overwrite to replace it, or choose "
                "another 'runtime.checkpoints'",
            )
        can_resume = not differing_keys(self.kept_config(), loaded.config, resumes=True)
        self.require_same_model(
            loaded,
            "holds results of another config",
            "Choose another 'output', set the keys back, or give --overwrite to replace them"
            + (", or --resume to train on with the new values" if can_resume else ""),
        )
        raise RunFolderError(
            "holds the results of an earlier run",
            place=self.place,
            remedy="Give --resume to go on with it, --overwrite to replace it, or choose another "
            "'output'",
        )

    def require_same_model(
        self, loaded: LoadedConfig, what: str, remedy: str, *, for_new_rows: bool = False
    ) -> None:
        """Refuses a config that a trained model in this folder does not fit.

        Args:
            loaded: The config.
            what: Begins the message.
            remedy: Ends it.
            for_new_rows: The config's rows are not looked at, and it may say otherwise how files
                are read.

        Raises:
            RunFolderError: Keys that the model depends on differ from those of the run.
        """
        different = differing_keys(self.kept_config(), loaded.config, for_new_rows=for_new_rows)
        _require_same(different, what, place=self.place, remedy=remedy)

    def kept_config(self) -> Config | None:
        """The config of the results in the folder; None: it has none.

        Raises:
            RunFolderError: It cannot be read.
        """
        if not self.config.exists():
            return None
        try:
            return load_config(self.config).config
        except CtrPipelineError as error:
            raise RunFolderError(
                "holds results, but its config cannot be read",
                place=str(self.config),
                remedy="Choose another 'output', or give --overwrite",
            ) from error

    def earlier_config(self) -> Config | None:
        """The config that the checkpoints are of; None: there are none.

        Raises:
            CtrPipelineError: It cannot be read.
        """
        found = self.kept_config()
        return self._stored_config() if found is None and self._has_stored() else found

    def _has_stored(self) -> bool:
        """Whether checkpoints lie at an address.

        Raises:
            StorageError: Something else lies there, or it cannot be listed.
        """
        if self.checkpoints_at is None:
            return False
        found = [one.key for one in self.checkpoint_storage.list("")]
        if found and RESOLVED_CONFIG not in found:
            raise StorageError(
                f"holds other objects, such as '{found[0]}', and no checkpoints of a run",
                place=self.checkpoints_at,
                remedy="Choose a 'runtime.checkpoints' that is new or empty",
            )
        return bool(found)

    @property
    def _stored_config_at(self) -> str:
        return f"{self.checkpoints_at}/{RESOLVED_CONFIG}"

    def _stored_config(self) -> Config:
        """The config beside the checkpoints at an address."""
        text = self.checkpoint_storage.read(RESOLVED_CONFIG)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, RESOLVED_CONFIG)
            copy.write_bytes(text)
            try:
                return load_config(copy).config
            except CtrPipelineError as error:
                raise StorageError(
                    "the config of the checkpoints cannot be read",
                    place=self._stored_config_at,
                    remedy="Give --overwrite to start anew",
                ) from error

    def keep_config(self, loaded: LoadedConfig, features: Path | None = None) -> None:
        """Writes the config with all defaults; from now on the folder is this config's.

        Args:
            loaded: The config.
            features: Where the features lie that were decided; None: in this folder.
        """
        decided = features or self.features
        known = load_features(decided) if decided.exists() else ()
        text = pinned_yaml(loaded.config, known)
        durable.write_text(self.config, text)
        if self.checkpoints_at is not None:
            self.checkpoint_storage.write(RESOLVED_CONFIG, text.encode())

    def begin_training(self) -> None:
        """Makes the folder of checkpoints, by which others see that training has begun."""
        with durable.os_errors_explained(self.checkpoints):
            self.checkpoints.mkdir(parents=True, exist_ok=True)

    def leave_job(self) -> None:
        """Forgets the job that trained here: what it has trained is in its checkpoints."""
        with durable.os_errors_explained(self.job):
            if self.job.is_dir():
                shutil.rmtree(self.job)
        self.checkpoint_storage.delete([MARKER])

    def has_results(self) -> bool:
        """Whether training, or a stage after it, has begun here."""
        return any((self.path / name).exists() for name in _LEFTOVERS)

    def discard_results(self) -> None:
        """Deletes what training and later stages made; data and statistics stay."""
        discard_unlocked(self.scoring)
        for name in (*_LEFTOVERS, "tensorboard", "report.html", "report.json"):
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self.discard_stored()

    def discard_stored(self) -> None:
        """Deletes checkpoints that lie at an address."""
        if self.checkpoints_at is None:
            return
        storage = self.checkpoint_storage
        keys = [one.key for one in storage.list("")]
        storage.delete(key for key in keys if key != RESOLVED_CONFIG)
        # Last, since what lies there is known by it.
        storage.delete([RESOLVED_CONFIG])


def find_run(named: Path) -> RunFolder:
    """The run that is meant; one that is kept elsewhere is fetched.

    Args:
        named: A run folder, the address of a run, or a config whose `output` is one of them.

    Raises:
        CtrPipelineError: There is no such run; or the config has problems.
    """
    address = address_of(named)
    if address is not None:
        folder = working_copy(address, None)
        run = RunFolder(folder, f"{address}/{CHECKPOINTS}", StoredRun(address, folder))
    elif named.is_file():
        run = RunFolder.of(load_config(named).config)
    else:
        run = RunFolder(named)
    run.fetch()
    if not run.path.is_dir():
        # A config that does not exist is more likely meant than a folder of such a name.
        is_config = named.suffix in {".yaml", ".yml"} and not named.is_file()
        raise RunFolderError(
            f"there is no such {'config' if is_config else 'run folder'}",
            place=str(named if is_config else run.path),
            remedy="Name a run folder, or the config that it belongs to",
        )
    return run


def discard_unlocked(scoring: Path) -> None:
    """Deletes what scoring jobs left that were killed; one that lives holds its folder's lock."""
    for left in scoring.glob("*"):
        with contextlib.suppress(OSError, RunFolderError):
            # One that has just been made may not be locked yet.
            if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                with RunFolder(left).locked():
                    shutil.rmtree(left, ignore_errors=True)


def model_fingerprint(config: Config) -> str:
    """Names the keys that a trained model depends on; where it lies and runs is not among them."""
    # Members may see files at other places, so a path counts by its last name.
    by_name = with_paths(config, lambda path: Path(path).name)
    kept = _without_ignored(by_name.model_dump(mode="json"), "")
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode("utf-8")).hexdigest()


def _without_ignored(values: Any, key: str) -> Any:
    if not isinstance(values, dict):
        return values
    paths = {name: f"{key}.{name}" if key else name for name in values}
    return {
        name: _without_ignored(value, paths[name])
        for name, value in values.items()
        if paths[name] not in _MAY_CHANGE and paths[name] not in _OF_FILES
    }


def differing_keys(
    earlier: Config | None, later: Config, *, for_new_rows: bool = False, resumes: bool = False
) -> list[str]:
    """Dotted keys whose values differ and that a trained model, or its rows, depend on.

    Args:
        earlier: The config that it was trained with; None: there is none, and nothing differs.
        later: The other one.
        for_new_rows: Its rows are others, which may be read in another way.
        resumes: Training goes on, and its next steps may be others than the ones before.
    """
    ignored = _MAY_CHANGE.keys() if resumes else _NOT_OF_RESULTS
    if for_new_rows:
        ignored = ignored | _OF_FILES
    return [key for key, *_ in _compare(earlier, later, ignored)]


def changed_course(earlier: Config | None, later: Config) -> dict[str, tuple[Any, Any]]:
    """Keys of `train` that may change on resumption and that change what is trained.

    Returns:
        The earlier value and the later one, by dotted key.
    """
    return {
        key: (before, after)
        for key, before, after in _compare(earlier, later, ())
        if any(key == one or key.startswith(f"{one}.") for one in _COURSE)
    }


def _require_same(different: Sequence[str], what: str, *, place: str, remedy: str) -> None:
    if different:
        verb = "differs" if len(different) == 1 else "differ"
        raise RunFolderError(
            f"{what}: {', '.join(different[:5])} {verb}", place=place, remedy=remedy
        )


def _compare(
    earlier: Config | None, later: Config, ignored: Collection[str]
) -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys that differ, each with both values."""
    if earlier is not None:
        yield from _differences(
            earlier.model_dump(mode="json"), later.model_dump(mode="json"), "", ignored
        )


def _differences(
    earlier: Any, later: Any, key: str, ignored: Collection[str]
) -> Iterator[tuple[str, Any, Any]]:
    if key in ignored or earlier == later or (key in _PATH_KEYS and same_paths(earlier, later)):
        return
    if not (isinstance(earlier, dict) and isinstance(later, dict)):
        yield key, earlier, later
        return
    for name in earlier | later:
        inner = f"{key}.{name}" if key else name
        yield from _differences(earlier.get(name), later.get(name), inner, ignored)
