from pathlib import Path

import pytest

from ctr_pipeline.apps.outputs import require_output
from ctr_pipeline.errors import RunFolderError


def test_a_new_file_may_be_written(tmp_path):
    page = tmp_path / "page.html"
    require_output(page, overwrite=False, reads=[str(tmp_path / "absent.csv")])
    assert not page.exists()
    page.write_text("")
    with pytest.raises(RunFolderError, match=r"page\.html"):
        require_output(page, overwrite=False, reads=[])


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("through", ["its name", "a glob", "a symbolic link"])
def test_input_file_is_never_overwritten(tmp_path, overwrite, through):
    rows = tmp_path / "rows.csv"
    rows.write_text("label,x\n1,2\n")
    output = rows
    if through == "a symbolic link":
        output = tmp_path / "link.csv"
        output.symlink_to(rows)
    data = str(tmp_path / "*.csv") if through == "a glob" else str(rows)
    with pytest.raises(RunFolderError, match="is a file that this command reads"):
        require_output(output, overwrite=overwrite, reads=[data])
    assert rows.read_text() == "label,x\n1,2\n"


@pytest.mark.parametrize("overwrite", [False, True])
def test_file_that_a_run_made_is_never_overwritten(tmp_path, overwrite):
    for name in (".lock", "config.resolved.yaml", "predictions.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(RunFolderError, match=f"belongs to the run {tmp_path}"):
        require_output(tmp_path / "predictions.parquet", overwrite=overwrite)
    require_output(tmp_path / "profile.html", overwrite=overwrite)


def test_another_file_is_replaced_if_that_is_asked_for(tmp_path):
    output = tmp_path / "page.html"
    output.touch()
    with pytest.raises(RunFolderError, match="exists already"):
        require_output(output, overwrite=False)
    require_output(output, overwrite=True)


def test_a_folder_is_no_output(tmp_path):
    with pytest.raises(RunFolderError, match="is a folder"):
        require_output(tmp_path, overwrite=True)
    absent = tmp_path / "absent" / "page.html"
    with pytest.raises(RunFolderError, match="its folder does not exist"):
        require_output(absent, overwrite=True)
    require_output(absent, overwrite=False, makes_folder=True)
    assert not Path(absent).exists()


@pytest.mark.parametrize("address", ["s3://bucket/c.yaml", "gs://bucket/p.csv", "hdfs://n/p.html"])
def test_an_address_is_no_output_and_makes_no_folder(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match=f"{address}: is an address"):
        require_output(Path(address), overwrite=True, makes_folder=True)
    assert list(tmp_path.iterdir()) == []


def test_training_rows_of_a_model_are_never_overwritten_and_may_be_gone(tmp_path):
    rows, output = tmp_path / "rows.csv", tmp_path / "p.csv"
    rows.touch()
    output.touch()
    spares = [str(rows), str(tmp_path / "gone.csv"), "s3://bucket/rows.csv"]
    with pytest.raises(RunFolderError, match="the model was trained with"):
        require_output(rows, overwrite=True, spares=spares)
    require_output(output, overwrite=True, spares=spares)
