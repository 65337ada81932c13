"""What surrounds the first import of a package.

TensorFlow's libraries log about their build while they load, whatever TF_CPP_MIN_LOG_LEVEL says.
What they write during the import can be kept back, and is shown only if the import fails.

Keras looks for scikit-learn, matplotlib and pandas when it loads, for wrappers, plots and tables
that nothing here gives it, and goes on without them where they are not installed. Loading them
takes more than a third of the time until TensorFlow is there.

A sixth of what remains goes to Python's cyclic collector, which looks through hundreds of thousands
of new objects, all of them modules' own, again and again; and later once more whenever a quarter
has come to them, a tenth to a fifth of a second each time.
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

Surrounding = Callable[[], AbstractContextManager[None]]


def on_first_import(package: str, *surroundings: Surrounding) -> None:
    """From now on, the first import of `package` runs inside these, the first the outermost."""
    waiting = any(
        isinstance(finder, _FirstImportFinder) and finder.package == package
        for finder in sys.meta_path
    )
    if package not in sys.modules and not waiting:
        sys.meta_path.insert(0, _FirstImportFinder(package, surroundings))


class _FirstImportFinder(importlib.abc.MetaPathFinder):
    """Finds one package where it is, and has it loaded inside the surroundings, once."""

    def __init__(self, package: str, surroundings: Sequence[Surrounding]) -> None:
        self.package = package
        self._surroundings = surroundings

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The package's own spec with another loader; None for every other module."""
        if fullname != self.package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _SurroundedLoader(spec.loader, self._surroundings)
        return spec


class _SurroundedLoader(importlib.abc.Loader):
    """Another loader, the module running inside the surroundings."""

    def __init__(self, loader: importlib.abc.Loader, surroundings: Sequence[Surrounding]) -> None:
        self._loader = loader
        self._surroundings = surroundings

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the real loader does, surrounded."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        with ExitStack() as stack:
            for surrounding in self._surroundings:
                stack.enter_context(surrounding())
            self._loader.exec_module(module)


@contextmanager
def without_extras() -> Iterator[None]:
    """What Keras looks for and does not need reads as not installed; afterwards all is as before.

    A package that is loaded already stays.
    """
    # Nothing is imported under these names while None stands for them.
    absent = [name for name in ("matplotlib", "pandas", "sklearn") if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def without_collections() -> Iterator[None]:
    """Python's cyclic collector rests, and never looks at what is there afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            # What is not collected in the end either, DuckDB reports as leaked.
            atexit.register(gc.unfreeze)
            gc.enable()


class _Stream:
    """Stands for a stream, which may be another one later."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def close(self) -> None:
        """Nothing: loggers close every stream but the process's own, which this one stands for."""


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """What native code writes to stderr is kept back; shown if an error passes.

    Descriptor 2 leads to a temporary file; Python's own `sys.stderr` still reaches the user.
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
            # Loggers that were made meanwhile have it for good.
            handed_out.stream = python_stderr
            os.dup2(kept, 2)
            os.close(kept)
