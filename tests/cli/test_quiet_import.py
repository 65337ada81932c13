import subprocess
import sys

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from ctr_pipeline.cli.quiet_import import import_quietly
import_quietly("noisy")
import noisy
import noisy.part
print("python", file=sys.stderr)
print(noisy.VALUE, noisy.part.VALUE, type(noisy.__spec__.loader).__name__, len(
    [finder for finder in sys.meta_path if "Quiet" in type(finder).__name__]))
"""
NOISY = "import os, sys\nos.write(2, b'native\\n')\nprint('inside', file=sys.stderr)\nVALUE = 7\n"


def run(tmp_path, code):
    package = tmp_path / "noisy"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    (package / "part.py").write_text("VALUE = 8\n")
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=str(tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )


def test_native_chatter_is_kept_back_and_all_else_is_as_ever(tmp_path):
    done = run(tmp_path, NOISY)
    assert done.stdout.split() == ["7", "8", "SourceFileLoader", "0"]
    assert done.stderr.split() == ["inside", "python"]


def test_chatter_is_shown_if_the_import_fails(tmp_path):
    done = run(tmp_path, NOISY + "raise ImportError('no library')\n")
    assert done.returncode == 1
    assert "native" in done.stderr
    assert "ImportError: no library" in done.stderr
