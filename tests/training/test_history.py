import pandas as pd
import pytest

from ctr_pipeline.errors import CheckpointError
from ctr_pipeline.training.history import EpochRecord, load_history, save_history

FIRST = EpochRecord(0, 94, 0.6, 0.55, 0.71, 1.01, 1.0, 1500, 2.5)
SECOND = EpochRecord(1, 188, 0.5, 0.52, 0.75, 0.99, 0.5, 1500, 2.0)


def test_one_line_an_epoch(tmp_path):
    path = tmp_path / "history.csv"
    save_history(path, [FIRST, SECOND])
    table = pd.read_csv(path)
    assert list(table["epoch"]) == [1, 2]
    table["epoch"] -= 1
    assert [EpochRecord(**row) for row in table.to_dict("records")] == [FIRST, SECOND]


def test_rolls_back_with_the_checkpoint(tmp_path):
    path = tmp_path / "history.csv"
    save_history(path, [FIRST, SECOND])
    save_history(path, [FIRST])
    assert list(pd.read_csv(path)["epoch"]) == [1]
    assert [file.name for file in tmp_path.iterdir()] == ["history.csv"]


def test_no_epoch_is_a_header_alone(tmp_path):
    save_history(tmp_path / "history.csv", [])
    assert (tmp_path / "history.csv").read_text().splitlines()[0].startswith("epoch,step,")
    assert pd.read_csv(tmp_path / "history.csv").empty


def test_history_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "history.csv"
    assert load_history(path) == []
    save_history(path, [FIRST, SECOND])
    assert load_history(path) == [FIRST, SECOND]
    assert isinstance(load_history(path)[0].num_rows, int)


def test_history_is_read_where_it_counts_from_0_too(tmp_path):
    path = tmp_path / "history.csv"
    save_history(path, [FIRST, SECOND])
    table = pd.read_csv(path)
    table["epoch"] -= 1
    table.to_csv(path, index=False)
    assert load_history(path) == [FIRST, SECOND]


def test_a_damaged_file_is_told(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("epoch,step\n1,x\n")
    with pytest.raises(CheckpointError, match="damaged"):
        load_history(path)
