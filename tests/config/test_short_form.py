"""The short form: what it stands for, and what is said of one that stands for nothing."""

import pytest

from ctr_pipeline.config import config_from_mapping, load_config
from ctr_pipeline.errors import ConfigError

DATA = {"table": "rows.csv", "label": "click"}


def loaded(**keys):
    return config_from_mapping({**DATA, **keys}).config


def problems(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return [str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


def test_actions_become_chains_by_column():
    short = loaded(
        standardize=["age", "price"],
        log=["price"],
        bucketize=["age", "price"],
        hash="user",
        model="dcnv2",
    )
    full = config_from_mapping(
        {
            "data": {"train": "rows.csv", "label": "click"},
            "features": [
                {"columns": ["age"], "number": "standardize",
                 "id": {"bucketize": {"quantiles": 30}}},
                {"columns": ["price"], "number": ["log", "standardize"],
                 "id": {"bucketize": {"quantiles": 30}}},
                {"columns": ["user"], "id": {"hash": {"buckets": 1_000_000}}},
            ],
            "model": {"name": "dcnv2"},
        }
    ).config  # fmt: skip
    assert short == full


def test_neighbours_of_equal_chains_are_one_entry():
    entries = loaded(standardize="I1..I3", bucketize="I1..I2", hash=["C1", "C2"]).features
    assert [entry.columns for entry in entries] == [("I1", "I2"), ("I3",), ("C1", "C2")]


def test_options_take_the_place_of_the_defaults():
    short = loaded(
        bucketize={"columns": ["a"], "boundaries": [1.0, 2.0]},
        hash=[{"columns": "b", "buckets": 10}, {"columns": "c"}],
    )
    bucketize, ten, default = (entry.id[0] for entry in short.features)
    assert bucketize.quantiles is None
    assert bucketize.boundaries == (1.0, 2.0)
    assert ten.buckets == 10
    assert default.buckets == 1_000_000


def test_crosses_are_hashed_and_texts_become_numbers():
    entries = loaded(
        cross=[["city", "device"], ["user", "hour"]], target_encode=["city"], hash=["city"]
    ).features
    assert [entry.cross for entry in entries] == [None, ("city", "device"), ("user", "hour")]
    assert entries[0].number[0].name == "target_encode"
    assert entries[1].id[0].buckets == 1_000_000


def test_sequences_have_a_vocabulary_unless_they_are_hashed():
    viewed, bought = loaded(sequence=["viewed", "bought"], hash=["bought"]).features
    assert viewed.sequence is not None
    assert viewed.id[0].name == "vocabulary"
    assert bought.sequence == viewed.sequence
    assert bought.id[0].name == "hash"
    (short,) = loaded(sequence={"columns": "viewed", "max_length": 3, "pooling": "max"}).features
    assert (short.sequence.max_length, short.sequence.pooling) == (3, "max")


def test_points_in_time():
    (seen,) = loaded(
        datetime=["seen_at"], age={"columns": "seen_at", "at": "2024-06-01"}, log=["seen_at"]
    ).features
    assert seen.id[0].parts == ("hour", "weekday")
    assert [step.name for step in seen.number] == ["age", "log"]


def test_resources_are_processes():
    runtime = loaded(hash=["a"], resources={"parameter_servers": 2, "workers": 4}).runtime
    assert (runtime.mode, runtime.parameter_servers) == ("processes", 2)
    assert (runtime.workers.min, runtime.workers.max) == (1, 4)
    assert loaded(hash=["a"], resources={"workers": "auto"}).runtime.workers == "auto"
    more = loaded(hash=["a"], resources={"workers": 2}, runtime={"update": "sync"}).runtime
    assert (more.mode, more.update, more.workers.max) == ("processes", "sync", 2)


def test_sections_and_overrides_of_the_full_form_work_beside_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("table: a.csv\nlabel: y\nhash: [u]\nmodel: dcn\ntrain: {epochs: 3}\n")
    config = load_config(path, ["train.epochs=2", "model.dropout=0.1"]).config
    assert (config.train.epochs, config.model.name, config.model.dropout) == (2, "dcn", 0.1)
    assert load_config(path).place_of("features[0].id").endswith("c.yaml:3")
    assert load_config(path).place_of("data.train").endswith("c.yaml:1")


def test_auto_decides_what_the_actions_leave_open():
    first, second = loaded(hash=["C1"], features="auto").features
    assert first.names_all
    assert second.columns == ("C1",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "hash: [a]\nbucketize: [a]\n",
            "c.yaml:1: hash: column 'a' is named by bucketize and",
        ),
        ("standardize: [a]\nnormalize: [a]\n", "c.yaml:1: standardize: column 'a' is named by"),
        ("count_encode: [a]\ntarget_encode: [a]\n", "c.yaml:2: target_encode: column 'a' is named"),
        ("cross: [city, device]\n", "c.yaml:1: cross[0]: expected lists of columns"),
        ("hash: [a, a]\n", "hash: names column 'a' twice"),
        ("hash: [{columns: a, buckets: 3}, {columns: a}]\n", "hash: names column 'a' twice"),
        ("hash: {buckets: 3}\n", "c.yaml:1: hash: expected columns"),
        ("hash: [1, 2]\n", "c.yaml:1: hash: expected columns"),
        ("hash: [C3..C1]\n", "c.yaml:1: hash"),
        ("hash: [a]\nfeatures: []\n", "c.yaml:2: features: the short form names"),
        ("hash: [a]\nresources: 4\n", "c.yaml:2: resources: expected {parameter_servers"),
        ("hash: [a]\nresources: {cpus: 4}\n", "c.yaml:2: resources: expected"),
        (
            "hash: [a]\nresources: {workers: 2}\nruntime: {workers: auto}\n",
            "c.yaml:2: resources.workers: is given here and as runtime.workers",
        ),
        (
            "hash: [a]\nresources: {workers: 2}\nruntime: {mode: local}\n",
            "c.yaml:3: runtime.mode: resources are those of several processes",
        ),
        ("hash: [a]\ndata: {train: b.csv}\n", "c.yaml:3: table: is given here and as data.train"),
        ("hash: [a]\nmodel: deepmf\nlog_round: [b]\n", "c.yaml:3: features[1]"),
    ],
)
def test_config_problem_is_named_where_it_stands(tmp_path, text, expected):
    found = problems(tmp_path, f"{text}table: rows.csv\nlabel: click\n")
    assert any(expected in problem for problem in found), found
