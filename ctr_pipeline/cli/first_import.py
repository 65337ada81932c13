"""Makes the first import of TensorFlow faster and quiet.

`on_first_import` puts a finder in front of `sys.meta_path`. When the package is imported for the
first time, the finder lets Python find it as usual, runs its module inside the given context
managers, and is gone. There are three of them:

- `hide_optional_packages` hides matplotlib, pandas and scikit-learn, which Keras imports if they
  are installed, for plots, tables and wrappers that nothing here uses. Saves 0.54 s until the first
  training step.
- `pause_garbage_collection` turns off Python's cyclic collector, which would search the new modules
  again and again, and keeps it from searching them later. Saves 0.68 s.
- `hold_native_stderr` holds back what the libraries log about their build while they load, whatever
  TF_CPP_MIN_LOG_LEVEL says. It is shown if the import fails.

The times are those of `ctrpipe run configs/quickstart.yaml` on two cores, whose first training step
ends 3.1 s after the command with both and 4.6 s without (medians of five runs each, alternating).
"""

import atexit
import gc
import importlib.abc
import importlib.machinery
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any, TextIO

_Context = Callable[[], AbstractContextManager[None]]


def on_first_import(package: str, *contexts: _Context) -> None:
    """Runs the module of `package` inside the contexts, the first the outermost, when imported."""
    waiting = any(
        isinstance(finder, _FirstImportFinder) and finder.package == package
        for finder in sys.meta_path
    )
    if package not in sys.modules and not waiting:
        sys.meta_path.insert(0, _FirstImportFinder(package, contexts))


class _FirstImportFinder(importlib.abc.MetaPathFinder):
    """Finds one package like Python does, once, and gives it another loader."""

    def __init__(self, package: str, contexts: Sequence[_Context]) -> None:
        self.package = package
        self._contexts = contexts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The package's own spec with another loader; None for every other module."""
        if fullname != self.package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ContextLoader(spec.loader, self._contexts)
        return spec


class _ContextLoader(importlib.abc.Loader):
    """Loads a module with another loader, inside the contexts."""

    def __init__(self, loader: importlib.abc.Loader, contexts: Sequence[_Context]) -> None:
        self._loader = loader
        self._contexts = contexts

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Like the real loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Like the real loader, inside the contexts."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context())
            self._loader.exec_module(module)


@contextmanager
def hide_optional_packages() -> Iterator[None]:
    """Hides packages that Keras imports if installed; those loaded already stay."""
    # Python raises ImportError for a name that is None in sys.modules.
    absent = [name for name in ("matplotlib", "pandas", "sklearn") if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Turns off the cyclic collector, which afterwards never searches what exists then."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            # Otherwise DuckDB reports objects that are never collected as leaked.
            atexit.register(gc.unfreeze)
            gc.enable()


class _Stream:
    """A stream that passes everything to another stream, which may change."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def close(self) -> None:
        """Does nothing: loggers would close the stream of the process."""


@contextmanager
def hold_native_stderr() -> Iterator[None]:
    """Sends file descriptor 2 to a temporary file, which is shown if an error is raised.

    Python's own `sys.stderr` still reaches the user.
    """
    sys.stderr.flush()
    python_stderr = sys.stderr
    kept = os.dup(2)
    with tempfile.TemporaryFile() as aside, os.fdopen(os.dup(kept), "w", buffering=1) as user:
        os.dup2(aside.fileno(), 2)
        handed_out = _Stream(user)
        if python_stderr is sys.__stderr__:
            sys.stderr = handed_out  # type: ignore[assignment]
        try:
            yield
        except BaseException:
            aside.seek(0)
            os.write(kept, aside.read())
            raise
        finally:
            sys.stderr = python_stderr
            # Loggers that were made meanwhile keep this stream.
            handed_out.stream = python_stderr
            os.dup2(kept, 2)
            os.close(kept)
