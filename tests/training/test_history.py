import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from ctr_pipeline.training.history import EpochRecord, EventLog, save_history

FIRST = EpochRecord(0, 94, 0.6, 0.55, 0.71, 1.01, 1.0, 1500, 2.5)
SECOND = EpochRecord(1, 188, 0.5, 0.52, 0.75, 0.99, 0.5, 1500, 2.0)


def test_one_line_an_epoch(tmp_path):
    path = tmp_path / "history.csv"
    save_history(path, [FIRST, SECOND])
    table = pd.read_csv(path)
    assert list(table["epoch"]) == [0, 1]
    assert [EpochRecord(**row) for row in table.to_dict("records")] == [FIRST, SECOND]


def test_rolls_back_with_the_checkpoint(tmp_path):
    path = tmp_path / "history.csv"
    save_history(path, [FIRST, SECOND])
    save_history(path, [FIRST])
    assert list(pd.read_csv(path)["epoch"]) == [0]
    assert [file.name for file in tmp_path.iterdir()] == ["history.csv"]


def test_no_epoch_is_a_header_alone(tmp_path):
    save_history(tmp_path / "history.csv", [])
    assert (tmp_path / "history.csv").read_text().splitlines()[0].startswith("epoch,step,")
    assert pd.read_csv(tmp_path / "history.csv").empty


def test_tensorboard_reads_the_events(tmp_path):
    log = EventLog(tmp_path)
    log.scalars(7, valid_auc=0.75, train_samples_per_second=100.0)
    log.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    events.Reload()
    assert set(events.Tags()["tensors"]) == {"valid/auc", "train/samples_per_second"}
    (event,) = events.Tensors("valid/auc")
    assert event.step == 7
    assert float(make_ndarray(event.tensor_proto)) == 0.75
