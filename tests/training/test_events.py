import subprocess
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ctr_pipeline.training.events import EventLog


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_the_events(tmp_path):
    log = EventLog(tmp_path)
    log.scalars(7, valid_auc=0.75, train_samples_per_second=100.0)
    log.close()
    assert read(tmp_path) == {"valid/auc": [(7, 0.75)], "train/samples_per_second": [(7, 100.0)]}


def test_rolled_back_steps_are_gone_and_written_again(tmp_path):
    log = EventLog(tmp_path)
    for step in (10, 20, 30):
        log.scalars(step, train_logloss=step / 4)
    log.roll_back(15)
    log.scalars(20, train_logloss=0.5)
    log.close()
    assert read(tmp_path) == {"train/logloss": [(10, 2.5), (20, 0.5)]}


def test_a_new_process_rolls_back_what_another_wrote(tmp_path):
    first = EventLog(tmp_path)
    first.scalars(10, train_logloss=1.0)
    first.scalars(20, train_logloss=2.0)
    second = EventLog(tmp_path)
    second.roll_back(10)
    second.scalars(12, train_logloss=3.0)
    second.close()
    first.close()
    assert read(tmp_path) == {"train/logloss": [(10, 1.0), (12, 3.0)]}


def test_event_log_can_be_read_before_it_is_closed(tmp_path):
    log = EventLog(tmp_path)
    log.scalars(1, train_logloss=1.0)
    assert read(tmp_path) == {"train/logloss": [(1, 1.0)]}
    log.close()


def test_neither_events_nor_history_nor_stopping_import_tensorflow(tmp_path):
    program = f"""
import sys
from pathlib import Path
import ctr_pipeline.training.history, ctr_pipeline.training.stopping
from ctr_pipeline.training.events import EventLog
log = EventLog(Path({str(tmp_path)!r}))
log.scalars(1, train_logloss=1.0)
log.close()
heavy = {{"tensorflow", "keras", "numba", "pyarrow", "pandas", "duckdb", "sklearn"}}
print(sorted(heavy & set(sys.modules)))
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
