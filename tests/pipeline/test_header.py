import pytest

from ctr_pipeline.config import config_from_mapping, load_config
from ctr_pipeline.errors import ConfigError, DataError
from ctr_pipeline.pipeline.stages.header import find_header, inspect_named

ROWS = "click,city,price\n" + "1,a,2\n0,b,3\n" * 20


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    return path


def test_a_header_is_found_whatever_else_is_wrong(rows):
    section = {"train": "rows.csv", "label": 7, "split": "no", "colour": "red", "weight": None}
    assert find_header(section) == ("click", "city", "price")


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"train": 5},
        {"train": "gone.csv"},
        {"train": "rows.csv", "delimiter": [1]},
        {"train": "rows.csv", "columns": ["a", "b", "c"]},
        {"train": ["rows.csv", "s3://bucket/rows.csv"]},
        {"train": "odps://project/tables/rows"},
    ],
)
def test_header_is_empty_when_it_cannot_be_told(rows, section):
    assert find_header(section) == ()


def test_wrong_keys_and_wrong_columns_are_told_in_one_round(rows, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "data: {train: rows.csv, label: clik, key_columns: [day], weight: price}\n"
        "output: run\n"
        "features:\n"
        "  - {columns: [city, prize], id: vocabulary}\n"
        "  - {cross: [city, user], id: {hash: {buckets: 9}}}\n"
        "train: {epochs: two}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, find_header=find_header)
    assert [(one.place.rpartition("/")[2], one.key) for one in caught.value.problems] == [
        ("c.yaml:1", "data.label"),
        ("c.yaml:1", "data.key_columns"),
        ("c.yaml:4", "features[0].columns"),
        ("c.yaml:5", "features[1].cross"),
        ("c.yaml:6", "train.epochs"),
    ]
    assert caught.value.problems[0].suggestion == "click"
    assert "the data has no column 'prize'" in caught.value.problems[2].message
    with pytest.raises(ConfigError) as without:
        load_config(path)
    assert [one.key for one in without.value.problems] == ["train.epochs"]


def test_all_columns_that_are_not_there_are_told_at_once(rows):
    def named(**data):
        features = [{"columns": "prize", "number": "standardize"}]
        mapping = {"data": {"train": "rows.csv", **data}, "features": features, "output": "run"}
        return config_from_mapping(mapping)

    with pytest.raises(ConfigError) as caught:
        inspect_named(named(label="clik"))
    assert [one.key for one in caught.value.problems] == ["data.label", "features[0].columns"]
    with pytest.raises(ConfigError, match="is not given, and the data has no column 'label'"):
        inspect_named(named())
    # Another kind of error is told as it is.
    with pytest.raises(DataError, match="no such file"):
        inspect_named(named(train="gone.csv", label="clik"))
    assert inspect_named(named(label="click")).column_names == ("click", "city", "price")


def test_rows_that_lie_beside_the_config_are_pointed_to(rows, tmp_path, monkeypatch):
    path = tmp_path / "c.yaml"
    path.write_text("data: {train: rows.csv, label: click}\noutput: run\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(DataError) as caught:
        inspect_named(load_config(path))
    assert caught.value.place == "data.train"
    assert str(elsewhere) in caught.value.remedy
    assert f"in {tmp_path}, where the config is" in caught.value.remedy
    rows.unlink()
    with pytest.raises(DataError, match="no such file") as caught:
        inspect_named(load_config(path))
    assert caught.value.remedy.endswith(str(elsewhere))
