import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctr_pipeline.pipeline.timing import (
    FIRST_STEP,
    StageTimes,
    process_age_seconds,
    start_of_process,
    start_up_sentence,
)


class Hands:
    """A clock that stands where it is put."""

    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


def test_start_up_is_divided_up_to_the_first_step_and_no_further():
    hands = Hands()
    times = StageTimes(1.5, clock=hands)
    for name, seconds in (("command and config", 0.5), ("rows", 3), (FIRST_STEP, 4), ("late", 9)):
        hands.now += seconds
        times.reach(name)
    assert times.start_up == {"command and config": 2, "rows": 3, FIRST_STEP: 4}
    assert start_up_sentence(times.start_up) == (
        "The first step was done 9.0 s after the command: command and config 2.0 s, rows 3.0 s, "
        "first step 4.0 s"
    )


def test_start_up_sentence_is_empty_without_a_first_step():
    times = StageTimes()
    times.reach("rows")
    assert start_up_sentence(times.start_up) == ""


def test_stages_add_up():
    hands = Hands()
    times = StageTimes(clock=hands)
    for _ in range(2):
        with times.stage("ingest"):
            hands.now += 2
    assert times.seconds == {"ingest": 4}


@pytest.mark.slow
def test_the_age_of_a_process():
    program = (
        "import time; time.sleep(0.3)\n"
        "from ctr_pipeline.pipeline.timing import process_age_seconds\n"
        "print(process_age_seconds())"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    outside = time.monotonic() - started
    assert 0.28 < float(done.stdout) <= outside + 0.02
    assert process_age_seconds() > 0


@pytest.mark.parametrize("text", ["", "1 (a) S", "1 (odd ) name) S 1"])
def test_a_system_that_does_not_tell_gives_zero(text, monkeypatch):
    assert start_of_process(os.getpid()) > 0
    monkeypatch.setattr(Path, "read_text", lambda path, **options: text)
    assert start_of_process(os.getpid()) is None
    assert process_age_seconds() == 0
