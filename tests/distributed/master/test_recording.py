import csv

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ctr_pipeline.distributed.master.recording import Recorder
from ctr_pipeline.training.history import EpochRecord

FIRST = EpochRecord(0, 94, 0.6, 0.55, 0.71, 1.01, 1.0, 1500, 2.5)
SECOND = EpochRecord(1, 188, 0.5, 0.52, 0.75, 0.99, 0.5, 1500, 2.0)


def scalars(folder, tag):
    events = EventAccumulator(str(folder))
    events.Reload()
    return [event.step for event in events.Scalars(tag)]


def epochs(path):
    with path.open() as file:
        return [int(line["epoch"]) for line in csv.DictReader(file)]


def test_history_and_events_roll_back_with_the_job(tmp_path):
    recorder = Recorder(tmp_path / "history.csv", tmp_path / "events")
    recorder.note_progress(50, train_logloss=0.7, samples_per_second=10.0)
    recorder.end_epoch([FIRST])
    recorder.note_progress(120, train_logloss=0.6, samples_per_second=10.0)
    recorder.end_epoch([FIRST, SECOND])
    assert epochs(tmp_path / "history.csv") == [1, 2]
    recorder.roll_back(100, [FIRST])
    assert epochs(tmp_path / "history.csv") == [1]
    recorder.note_progress(110, train_logloss=0.65, samples_per_second=10.0)
    recorder.close()
    assert scalars(tmp_path / "events", "valid/auc") == [94]
    assert scalars(tmp_path / "events", "train/logloss") == [50, 110]


def test_a_step_is_written_once_and_nothing_before_the_first_batch(tmp_path):
    recorder = Recorder(tmp_path / "history.csv", tmp_path / "events")
    recorder.note_progress(0, train_logloss=None, samples_per_second=0.0)
    recorder.note_progress(10, train_logloss=0.7, samples_per_second=10.0)
    recorder.note_progress(10, train_logloss=0.7, samples_per_second=10.0)
    recorder.close()
    assert scalars(tmp_path / "events", "train/logloss") == [10]


def test_metrics_that_cannot_be_written_are_told_and_left_out(tmp_path, monkeypatch, caplog):
    recorder = Recorder(tmp_path / "history.csv", tmp_path / "events")
    recorder.note_progress(10, train_logloss=0.7, samples_per_second=10.0)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("ctr_pipeline.training.events.EventLog.scalars", full)
        broken.setattr("ctr_pipeline.distributed.master.recording.save_history", full)
        recorder.note_progress(20, train_logloss=0.6, samples_per_second=10.0)
        recorder.note_progress(30, train_logloss=0.6, samples_per_second=10.0)
        recorder.end_epoch([FIRST])
    assert caplog.text.count("No space left on device") == 1
    recorder.note_progress(120, train_logloss=0.5, samples_per_second=10.0)
    recorder.roll_back(120, [FIRST])
    recorder.close()
    assert epochs(tmp_path / "history.csv") == [1]
    assert scalars(tmp_path / "events", "train/logloss") == [10, 120]
