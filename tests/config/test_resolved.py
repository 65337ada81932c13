"""What a run folder keeps as its config."""

import pytest
import yaml

from ctr_pipeline.config import config_from_mapping, load_config
from ctr_pipeline.config.resolved import (
    GIVEN_FEATURES,
    RESOLVED_CONFIG,
    RUN_LOCK,
    absolute_path,
    pinned_yaml,
)
from ctr_pipeline.features import FeatureSpec, SequenceSpec, VectorSpec
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.transforms.bucketize import Bucketize
from ctr_pipeline.transforms.hash import Hash
from ctr_pipeline.transforms.standardize import Standardize
from ctr_pipeline.transforms.vocabulary import Vocabulary

DECIDED = (
    FeatureSpec(column="city", column_type=ColumnType.TEXT, id=(Vocabulary(min_count=3),)),
    FeatureSpec(
        column="price",
        column_type=ColumnType.NUMBER,
        number=(Standardize(clip=5.0),),
        id=(Bucketize(quantiles=30),),
        sensitive=True,
    ),
    FeatureSpec(
        column="viewed",
        column_type=ColumnType.TEXT,
        id=(Vocabulary(),),
        sequence=SequenceSpec(delimiter="|"),
    ),
    FeatureSpec(
        column="picture", column_type=ColumnType.TEXT, number=(), vector=VectorSpec(length=3)
    ),
    FeatureSpec(
        column="city_x_user",
        column_type=ColumnType.TEXT,
        id=(Hash(buckets=9),),
        cross=(
            FeatureSpec(column="city", column_type=ColumnType.TEXT),
            FeatureSpec(column="user", column_type=ColumnType.TEXT),
        ),
    ),
)
GIVEN = [
    "auto",
    {"columns": "price", "sensitive": True, "embedding": {"dimension": 4}},
    {"columns": "picture", "vector": {"length": 3}},
    {"cross": ["city", "user"], "name": "city_x_user", "id": {"hash": {"buckets": 9}}},
]


def config_of(**values):
    return config_from_mapping({"data": {"train": "rows.csv"}, "features": GIVEN, **values}).config


def test_pinned_config_spells_out_what_was_decided(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(pinned_yaml(config_of(), DECIDED))
    entries = {entry.features[0]: entry for entry in load_config(path).config.features}
    assert list(entries) == [spec.column for spec in DECIDED]
    for spec in DECIDED:
        entry = entries[spec.column]
        assert entry.id == spec.id
        assert (entry.number or ()) == (spec.number or ())
        assert (entry.sequence, entry.vector) == (spec.sequence, spec.vector)
        assert entry.sensitive is spec.sensitive
    assert entries["price"].embedding.dimension == 4
    assert entries["city_x_user"].cross == ("city", "user")


def test_features_are_open_in_a_run_folder_as_they_were_for_the_run_alone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / RUN_LOCK).touch()
    path = folder / RESOLVED_CONFIG
    path.write_text(pinned_yaml(config_of(output=str(folder)), DECIDED))
    assert load_config(folder).config.features == config_of().features
    assert load_config(path, ["train.epochs=3"]).config.features == config_of().features
    other = load_config(folder, ["output=other"]).config
    assert other.output == "other"
    assert [entry.features[0] for entry in other.features] == [spec.column for spec in DECIDED]


@pytest.mark.parametrize("features", [(), DECIDED])
def test_features_that_a_config_gives_stay_as_they_are(features):
    given = config_of(features=[{"columns": "city", "id": "vocabulary"}])
    kept = yaml.safe_load(pinned_yaml(given, features[:1]))
    assert GIVEN_FEATURES not in kept
    assert kept["features"] == [
        {
            "columns": "city",
            "id": [{"vocabulary": {"min_count": 2, "max_size": None, "oov_buckets": 1}}],
            "type": "auto",
            "sensitive": False,
        }
    ]


def test_paths_are_told_from_the_root(tmp_path, monkeypatch):
    odd = tmp_path / "a [1] *"
    odd.mkdir()
    (odd / "b[2].csv").touch()
    (odd / "c3.csv").touch()
    monkeypatch.chdir(odd)
    assert absolute_path("c3.csv") == str(odd / "c3.csv")
    assert absolute_path(str(odd / "c3.csv")) == str(odd / "c3.csv")
    assert absolute_path("b[2].csv") == str(odd / "b[2].csv")
    assert absolute_path("file://c3.csv") == f"file://{odd}/c3.csv"
    assert absolute_path("s3://bucket/*.csv") == "s3://bucket/*.csv"
    assert absolute_path("odps://project/table") == "odps://project/table"
    # What is a glob matches here what it matched before.
    from ctr_pipeline.dataset.paths import resolve_files

    assert resolve_files(absolute_path("c?.csv"), "data.train") == (odd / "c3.csv",)


def test_all_paths_of_a_config_are_told_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_of(
        data={"train": ["a.csv", "/b.csv"], "test": "t/*.csv"},
        model={"name": "custom", "file": "m.py"},
        train={"init_from": {"run": "runs/yesterday", "checkpoint": "last"}},
        output="runs/today",
    )
    kept = yaml.safe_load(pinned_yaml(config, ()))
    assert kept["data"]["train"] == [str(tmp_path / "a.csv"), "/b.csv"]
    assert kept["data"]["valid"] is None
    assert kept["data"]["test"] == str(tmp_path / "t/*.csv")
    assert kept["model"]["file"] == str(tmp_path / "m.py")
    assert kept["train"]["init_from"]["run"] == str(tmp_path / "runs/yesterday")
    assert kept["output"] == str(tmp_path / "runs/today")


def test_a_spelled_out_default_of_spark_is_no_setting_of_spark():
    loaded = config_from_mapping({"data": {"train": "a"}, "analysis": {"engine": "auto"}})
    again = config_from_mapping(yaml.safe_load(loaded.resolved_yaml()))
    assert again.config == loaded.config
