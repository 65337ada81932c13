"""Importing a package whose native code writes to stderr before it can be told not to.

TensorFlow's libraries log about their build while they load, whatever TF_CPP_MIN_LOG_LEVEL says.
What they write during the import is kept back, and shown only if the import fails.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType


def import_quietly(package: str) -> None:
    """From now on, the first import of `package` keeps what native code writes to itself."""
    waiting = any(
        isinstance(finder, _QuietFinder) and finder.package == package for finder in sys.meta_path
    )
    if package not in sys.modules and not waiting:
        sys.meta_path.insert(0, _QuietFinder(package))


class _QuietFinder(importlib.abc.MetaPathFinder):
    """Finds one package where it is, and has it loaded quietly, once."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The package's own spec with a quiet loader; None for every other module."""
        if fullname != self.package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuietLoader(spec.loader)
        return spec


class _QuietLoader(importlib.abc.Loader):
    """Another loader, with stderr's descriptor turned aside while the module runs."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the real loader does, quietly."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        with _native_stderr_aside():
            self._loader.exec_module(module)


@contextmanager
def _native_stderr_aside() -> Iterator[None]:
    """Descriptor 2 leads to a temporary file; Python's own `sys.stderr` still reaches the user."""
    sys.stderr.flush()
    python_stderr = sys.stderr
    kept = os.dup(2)
    with tempfile.TemporaryFile() as aside, os.fdopen(os.dup(kept), "w", buffering=1) as user:
        os.dup2(aside.fileno(), 2)
        if python_stderr is sys.__stderr__:
            sys.stderr = user
        try:
            yield
        except BaseException:
            aside.seek(0)
            os.write(kept, aside.read())
            raise
        finally:
            sys.stderr = python_stderr
            os.dup2(kept, 2)
            os.close(kept)
