import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from ctr_pipeline.cli.first_import import hide_optional_packages, hold_native_stderr
from ctr_pipeline.cli.first_import import on_first_import
on_first_import("noisy", hide_optional_packages, hold_native_stderr)
import noisy
import noisy.part
print("python", file=sys.stderr)
print(noisy.VALUE, noisy.part.VALUE, type(noisy.__spec__.loader).__name__, len(
    [finder for finder in sys.meta_path if "FirstImport" in type(finder).__name__]))
"""
NOISY = "import os, sys\nos.write(2, b'native\\n')\nprint('inside', file=sys.stderr)\nVALUE = 7\n"


def run(tmp_path, code, *, before="", after="", program=PROGRAM):
    package = tmp_path / "noisy"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    (package / "part.py").write_text("VALUE = 8\n")
    return subprocess.run(
        [sys.executable, "-c", f"{before}\n{program.format(folder=str(tmp_path))}\n{after}"],
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


LOOKS = """
try:
    import pandas
except ImportError:
    pandas = None
VALUE = 7
"""


def test_extras_are_missing_while_the_package_loads_and_there_afterwards(tmp_path):
    done = run(tmp_path, LOOKS, after="import pandas\nprint(noisy.pandas, pandas.__name__)")
    assert done.stdout.split()[-2:] == ["None", "pandas"]


def test_extras_that_are_loaded_already_stay(tmp_path):
    done = run(tmp_path, LOOKS, before="import pandas", after="print(noisy.pandas is pandas)")
    assert done.stdout.split()[-1] == "True"


COLLECTED = """
import gc, weakref
class Cycle:
    def __init__(self):
        self.itself = self
def is_collected():
    watched = weakref.ref(Cycle())
    gc.collect()
    return watched() is None
print(noisy.WAS_ENABLED, gc.isenabled(), gc.get_freeze_count() > 1000, is_collected())
print(any(one is noisy.VALUES for one in gc.get_objects()), gc.unfreeze(), gc.get_freeze_count())
"""


def test_the_collector_rests_meanwhile_and_later_looks_at_what_is_new(tmp_path):
    surrounded = PROGRAM.replace("hide_optional_packages", "pause_garbage_collection")
    code = "import gc\nVALUE = 7\nVALUES = [[]]\nWAS_ENABLED = gc.isenabled()\n"
    done = run(tmp_path, code, program=surrounded, after=COLLECTED)
    assert done.stdout.splitlines()[-2:] == ["False True True True", "False None 0"]


@pytest.mark.slow
def test_the_command_line_loads_tensorflow_without_optional_packages():
    code = (
        "import sys\n"
        "from ctr_pipeline.cli.session import CommandSession\n"
        "CommandSession(verbosity=0).start_logging()\n"
        "import duckdb\n"
        "import ctr_pipeline.training.compiled\n"
        "print(sorted({'tensorflow', 'matplotlib', 'pandas', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["['tensorflow']"]
    # Nothing is said as it ends.
    assert done.stderr == ""


def test_loggers_that_are_made_meanwhile_keep_their_stream(tmp_path):
    code = "import logging\nLOGGER = logging.getLogger('noisy')\n"
    code += "LOGGER.addHandler(logging.StreamHandler())\nVALUE = 7\n"
    done = run(tmp_path, code, after="noisy.LOGGER.warning('said later')")
    assert done.returncode == 0
    assert "said later" in done.stderr.splitlines()
    assert "Logging error" not in done.stderr


def test_a_logger_that_closes_its_stream_does_not_close_the_process_s(tmp_path):
    code = "import logging\nHANDLER = logging.StreamHandler()\nVALUE = 7\n"
    after = "noisy.HANDLER.stream.close()\nprint('said later', file=sys.stderr)"
    done = run(tmp_path, code, after=after)
    assert done.stderr.splitlines() == ["python", "said later"]
