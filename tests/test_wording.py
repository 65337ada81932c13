import subprocess
import sys
from pathlib import Path

import pytest

from tools.wording import find_faults

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Of the newest."""\n', [1]),
        ('"""Age of the newest."""\n', []),
        ('X = 1\n"""For a person."""\n', [2]),
        ('class A:\n    """A thing.\n\n    Args:\n        x: Of it.\n    """\n', [5]),
        ('class A:\n    """A thing.\n\n    Args:\n        x: Size of it.\n    """\n', []),
        ('f(1, help="That of a run.")\n', [1]),
        # A condition may come first.
        ('f(1, help="With --quiet: nothing.")\n', []),
        ('GaugeMetricFamily("x", "Of the newest", 1)\n', [1]),
        ('print("Of course")\n', []),
    ],
)
def test_a_description_names_its_thing_first(tmp_path, text, lines):
    path = tmp_path / "one.py"
    path.write_text(text)
    assert [fault.line for fault in find_faults(path)] == lines


def test_the_check_fails_where_a_file_does(tmp_path):
    (tmp_path / "one.py").write_text('"""Those that are left."""\n')
    command = [sys.executable, "-m", "tools.wording", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "one.py:1: name the thing first: Those that are left." in done.stdout
