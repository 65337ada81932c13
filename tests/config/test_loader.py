from pathlib import Path

import pytest
import yaml

from ctr_pipeline.config import config_from_mapping, load_config, merge_entries
from ctr_pipeline.config.models import Config, TrainConfig
from ctr_pipeline.errors import ConfigError

MINIMAL = "data:\n  train: rows.csv\n"
CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        data = text if isinstance(text, bytes) else text.encode()
        Path("c.yaml").write_bytes(data)
        return Path("c.yaml")

    return write


def problems(call, *arguments, **keywords):
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **keywords)
    text = "\n".join(str(problem) for problem in caught.value.problems)
    for jargon in ("pydantic", "Input should", "https://", "type=", "loc", "validation error"):
        assert jargon not in text
    return text


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_example_config_loads_and_is_short(path):
    loaded = load_config(path)
    assert loaded.config.output == f"runs/{loaded.config.name}"
    assert len(path.read_text().splitlines()) <= 25


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_resolved_config_loads_to_an_equal_one(path, tmp_path):

    loaded = load_config(path)
    resolved = tmp_path / "config.resolved.yaml"
    resolved.write_text(loaded.resolved_yaml())
    again = load_config(resolved)
    assert again.config == loaded.config
    assert again.resolved_yaml() == loaded.resolved_yaml()


def test_criteo_ranges_are_expanded():
    loaded = load_config(next(path for path in CONFIGS if path.name == "criteo_deepfm.yaml"))
    columns = loaded.config.data.columns
    assert columns is not None
    assert columns[:3] == ("label", "I1", "I2")
    assert columns[-1] == "C26"
    assert len(columns) == 40
    assert loaded.config.features[1].columns[25] == "C26"


def test_places_lead_back_to_the_file(write):
    loaded = load_config(write(MINIMAL + "train:\n  epochs: 3\n"), ["model.dropout=0.5"])
    assert loaded.place_of("train.epochs") == "c.yaml:4"
    assert loaded.place_of("train.batch_size") == "c.yaml:3"
    assert loaded.place_of("model.dropout") == "--set model.dropout=0.5"
    assert loaded.place_of("output") == "c.yaml"
    problem = loaded.problem_at("train.epochs", "is odd", "train.epoch")
    assert str(problem) == "c.yaml:4: train.epochs: is odd (did you mean 'train.epoch'?)"


class TestFiles:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "c.yaml: the file is empty"),
            ("# nothing\n", "c.yaml: the file is empty"),
            ("- a\n", "c.yaml: expected keys such as data: and output:, found a list of 1"),
            ("just text", "found the text 'just text'"),
            ("a: [1, 2\nb: 3", "c.yaml:2:2: not valid YAML: a list"),
            ("a: {b: 1\nc", "a mapping { … } that is not closed"),
            ("data:\n\ttrain: x\n", "c.yaml:2:1: not valid YAML: a tab"),
            ("a: b: c", "c.yaml:1:5: not valid YAML: a ':' that starts no key"),
            ("data:\n   a: 1\n  b: 2\n", "indentation does not fit"),
            ('a: "open\n', "a quote that is not closed"),
            ("a: 1\n---\nb: 2\n", "a second document"),
            ("a: *nowhere", "an alias (*name)"),
            ("a: @x", "a character that cannot stand here"),
            ('a: "\\q"', "a backslash that YAML does not know"),
            ("a\nb: 1", "a ':' that starts no key"),
            (b"a: \xff\xfe", "c.yaml:1: is not UTF-8 text"),
            (b"PAR1\x00\x00", "is a binary file"),
            (b"a: \x07", "a control character"),
            (b"a: 1\n" * 2_100_000, "is too large for a config"),
            ("[" * 5000, "nested too deep"),
        ],
        ids=range(20),
    )
    def test_unusable_file_is_one_clear_error(self, write, text, message):
        found = problems(load_config, write(text))
        assert message in found
        assert "\n" not in found

    def test_missing_file_names_its_neighbours(self, write):
        write(MINIMAL)
        found = problems(load_config, Path("d.yaml"))
        assert found == "d.yaml: there is no such file; in . there are c.yaml"

    def test_folder_is_no_config(self, tmp_path):
        assert "is a folder" in problems(load_config, tmp_path)

    def test_byte_order_mark_and_windows_lines_are_fine(self, write):
        loaded = load_config(write(b"\xef\xbb\xbfdata:\r\n  train: rows.csv\r\n"))
        assert loaded.config.data.train == "rows.csv"


class TestOverrides:
    def test_any_key_can_be_set(self):
        loaded = config_from_mapping(
            {"data": {"train": "a"}, "features": [{"columns": "x"}, {"columns": "y"}]},
            [
                "train.epochs=2",
                "features[0].id=hash",
                "features[0].id={hash: {buckets: 10}}",
                "data.train=[a, b]",
                "train.early_stopping=null",
                "train.optimizer={name: adam, learning_rate: 1e-3}",
                "name='7'",
            ],
        ).config
        assert loaded.train.epochs == 2
        assert loaded.features[0].id[0].buckets == 10
        assert loaded.data.train == ("a", "b")
        assert loaded.train.early_stopping is None
        assert loaded.train.optimizer.learning_rate == 1e-3
        assert loaded.name == "7"

    def test_later_override_wins_and_text_may_hold_equal_signs(self):
        loaded = config_from_mapping({"data": {"train": "a"}}, ["name=a", "name=b=c"])
        assert loaded.config.name == "b=c"

    @pytest.mark.parametrize(
        ("written", "expected"),
        [*((mark, mark) for mark in ",|:'#\\"), ("\\t", "\t"), ("tab", "\t"), ("~", None)],
    )
    def test_a_mark_that_stands_alone_is_a_text(self, written, expected):
        loaded = config_from_mapping({"data": {"train": "a"}}, [f"data.delimiter={written}"])
        assert loaded.config.data.delimiter == expected

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("train.epochs", "--set train.epochs: train.epochs: expected KEY=VALUE"),
            ("=3", "expected KEY=VALUE"),
            ("train..epochs=3", "not a key path"),
            ("train.epochs=zero", "--set train.epochs=zero: train.epochs: expected a whole number"),
            ("train.epoch=3", "did you mean 'epochs'"),
            ("trian.epochs=3", "--set trian.epochs=3: trian: unknown key (did you mean 'train'?)"),
            ("features[0].id=hash", "features is not a list"),
            ("name.x=1", "name is not a mapping"),
            ("train={epochs: 1, epochs: 2}", "given twice"),
            ("train.epochs=[1", "the value is not YAML"),
        ],
    )
    def test_bad_override_is_named(self, override, message):
        mapping = {"data": {"train": "a"}, "features": "auto", "name": "x"}
        assert message in problems(config_from_mapping, mapping, [override])


def test_mapping_is_left_as_it_was():
    mapping = {"data": {"train": "a", "columns": ["label", "I1..I3"]}}
    config_from_mapping(mapping, ["train.epochs=3"])
    assert mapping == {"data": {"train": "a", "columns": ["label", "I1..I3"]}}


def test_custom_model_options_stay_as_written():
    mapping = {
        "data": {"train": "a"},
        "model": {"name": "custom", "file": "m.py", "options": {"sizes": [1, [2]]}},
    }
    assert config_from_mapping(mapping).config.model.options == {"sizes": [1, [2]]}


def test_later_keys_of_a_column_count():
    loaded = config_from_mapping(
        {
            "data": {"train": "a"},
            "features": [
                {"columns": "I1..I3", "number": "log"},
                {"columns": ["I2", "C1"], "sensitive": True},
            ],
        }
    ).config
    chosen = {name: merged.entry for name, merged in merge_entries(loaded.features).items()}
    assert list(chosen) == ["I1", "I2", "I3", "C1"]
    assert chosen["I2"].sensitive
    assert chosen["I2"].number == chosen["I1"].number
    assert not chosen["I3"].sensitive


def test_entries_that_contradict_each_other_are_refused(write):
    path = write(
        """\
data: {train: rows.csv}
features:
  - {columns: [a, b], number: log}
  - {columns: b, sequence: {}, id: {hash: {buckets: 9}}}
  - {columns: c, sequence: {max_length: 5}}
"""
    )
    first, second = problems(load_config, path).splitlines()
    assert first.startswith("c.yaml:4: features[1]: 'b', together with features[0]: a sequence has")
    assert "null takes" in first
    assert second.startswith("c.yaml:5: features[2]: a sequence needs one id transform")
    # What auto decides makes it whole.
    config_from_mapping(
        {"data": {"train": "a"}, "features": ["auto", {"columns": "c", "sequence": {}}]}
    )


def test_entry_for_all_columns_says_nothing_of_crosses():
    cross = {"cross": ["a", "b"], "id": {"hash": {"buckets": 9}}}
    loaded = config_from_mapping(
        {
            "data": {"train": "a"},
            "features": [{"columns": "*", "type": "categorical"}, {"columns": "c"}, cross],
        }
    )
    found = merge_entries(loaded.config.features, ["a", "c", "a × b"])
    assert {name: one.named_by for name, one in found.items()} == {
        "a": (0,),
        "c": (0, 1),
        "a × b": (2,),
    }
    assert found["a"].decided
    assert found["c"].entry.type == "categorical"
    assert found["a × b"].entry == loaded.config.features[2]
    assert not found["a × b"].decided


@pytest.mark.parametrize(
    "features",
    [
        ["auto", {"columns": "a", "number": "log"}],
        [{"columns": ["a", "b"], "sensitive": True}, {"columns": "a", "id": "vocabulary"}],
        [{"columns": "a", "sequence": {}, "id": "vocabulary"}, {"columns": "a", "sequence": None}],
        [{"columns": "*", "type": "categorical"}, {"columns": "a", "number": None}],
    ],
)
def test_feature_entries_merge_alike_after_they_are_written_back(features):
    loaded = config_from_mapping({"data": {"train": "a"}, "features": features})
    again = config_from_mapping(yaml.safe_load(loaded.resolved_yaml()))
    assert merge_entries(again.config.features, "abc") == merge_entries(
        loaded.config.features, "abc"
    )
    assert again.resolved_yaml() == loaded.resolved_yaml()


def test_all_problems_come_at_once_in_the_order_of_the_file(write):
    path = write(
        """\
name: 3
data:
  train: rows.csv
  labl: click
  columns: [label, I1..I3, A1..B3]
  split: {valid: 0.6, test: 0.6}
features:
  - {columns: I4, id: {bucketise: {quantiles: 30}}}
  - {columns: I1, id: {bucketize: {quantils: 30}}}
train: {epochs: 1.0, shuffle: yes}
epochs: 3
"""
    )
    found = problems(load_config, path, ["train.batch_size=0"])
    assert [line.split(": ")[0:2] for line in found.splitlines()] == [
        ["c.yaml:1", "name"],
        ["c.yaml:4", "data.labl"],
        ["c.yaml:5", "data.columns"],
        ["c.yaml:6", "data.split"],
        ["c.yaml:8", "features[0].id"],
        ["c.yaml:8", "features[0].columns"],
        ["c.yaml:9", "features[1].id.bucketize.quantils"],
        ["c.yaml:10", "train.epochs"],
        ["c.yaml:10", "train.shuffle"],
        ["c.yaml:11", "epochs"],
        ["--set train.batch_size=0", "train.batch_size"],
    ]
    for hint in (
        "'label'",
        "'bucketize'",
        "'quantiles'",
        "'1'",
        "'true'",
        "'train.epochs'",
    ):
        assert f"did you mean {hint}?" in found


def at(path, value):
    """A config that is fine but for `value` at `path`."""
    return config_from_mapping, {"data": {"train": "a"}}, [f"{path}={value}"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("features", "autoo", "expected auto or a list of entries, found the text 'autoo'"),
        ("features", "3", "expected auto or a list of entries, found the number 3"),
        ("features", "[I1]", "features[0]: expected an entry such as {columns: I1..I13}"),
        ("features", "[{columns: 3}]", "features[0].columns: expected text or a list of texts"),
        ("features", "[{columns: [3]}]", "features[0].columns[0]: expected text, found the number"),
        ("features", "[{id: vocabulary}]", "features[0]: needs columns, or the columns of a cross"),
        ("features", "[{columns: a, id: hash}]", "id.buckets: is required"),
        ("features", "[{columns: a, id: {hash: 9}}]", "the options of hash must be a mapping"),
        ("features", "[{columns: a, id: {datetime: [hour]}}]", "{datetime: {parts: [hour"),
        ("features", "[{columns: a, id: {bucketise: 3}}]", "did you mean 'bucketize'?"),
        (
            "features",
            "[{columns: a, id: {hash: {buckets: 9}, log: {}}}]",
            "found 2 names (hash, log)",
        ),
        ("features", "[{columns: a, id: [3]}]", "found the number 3"),
        ("features", "[{columns: a, id: []}]", "an empty chain; leave the key out"),
        ("features", "[{columns: a, number: [{hash: {buckets: 3}}]}]", "it belongs under id:"),
        ("features", "[{columns: a, id: [log]}]", "must end in a transform that makes an id"),
        (
            "features",
            "[{columns: a, id: [log, {hash: {buckets: 3}}]}]",
            "hash takes the text of the column; log gives a number",
        ),
        (
            "features",
            "[{columns: a, id: [{bucketize: {quantiles: 3}}, log]}]",
            "nothing can follow it; log does",
        ),
        ("features", "[{columns: a, id: [{bucketize: {}}]}]", "exactly one of boundaries"),
        ("features", "[{columns: label}]", "is the label; as a feature it would give"),
        ("features", "[{columns: I3..I1}]", "runs backwards"),
        ("data", "null", "data: expected a mapping (key: value), found nothing"),
        ("data.train", "null", "data: `train` or `query` is missing: name the rows to train on"),
        ("data.columns", "[label]", "at least 2 entries, found a list of 1"),
        ("data.columns", "[label, I1, I1]", "named twice: I1"),
        ("data.columns", "[a, b]", "no column is called 'label'"),
        ("data.split.by", "hash", "by: hash needs it"),
        ("data.split", "{by: hash, column: u}", None),
        ("data.missing_values", "[NULL]", "found nothing; write null or NULL in quotes"),
        ("data.missing_values", "[7]", "data.missing_values[0]: expected text, found the number 7"),
        ("train.optimizer", "{name: adm, learning_rate: 1}", "did you mean 'adam'?"),
        ("train.seed", "99999999999999999999", "expected"),
        ("train.gradient_clip_norm", ".inf", "expected a finite number"),
        ("evaluation", "3", "expected a mapping (key: value), found the number 3"),
        ("model.name", "custom", "model.file: is required"),
        ("train.learning_rate", "0.1", "did you mean 'train.optimizer.learning_rate'?"),
        ("train.zzz", "1", "unknown key; known here: epochs, batch_size"),
    ],
)
def test_wrong_value_is_explained(path, value, message):
    call, mapping, overrides = at(path, value)
    if message is None:
        call(mapping, overrides)
    else:
        assert message in problems(call, mapping, overrides)


def test_columns_named_elsewhere_must_exist():
    mapping = {
        "data": {
            "train": "a",
            "columns": ["label", "I1..I3"],
            "key_columns": ["I9"],
            "split": {"by": "hash", "column": "user"},
        },
        "features": [{"columns": ["I1", "i2"]}],
        "evaluation": {"gauc_column": "I4"},
    }
    found = problems(config_from_mapping, mapping)
    assert "data.split.column: data.columns has no column 'user'" in found
    assert "data.key_columns: data.columns has no column 'I9'" in found
    assert "evaluation.gauc_column: data.columns has no column 'I4'" in found
    assert "features[0].columns: data.columns has no column 'i2' (did you mean 'I2'?)" in found


def test_rows_to_validate_come_from_one_place():
    mapping = {"data": {"train": "a", "valid": "b", "split": {"valid": 0.2}}}
    assert "leave out one of the two" in problems(config_from_mapping, mapping)
    mapping["data"]["split"]["valid"] = 0
    config_from_mapping(mapping)


class TestKindsOfSections:
    def test_unknown_kind_is_told_with_the_other_problems(self):
        mapping = {"data": {"train": "a"}, "model": {"name": "x"}, "zz": 1}
        found = problems(config_from_mapping, mapping)
        assert "model.name: unknown model 'x'; known: deepfm, wide_and_deep" in found
        assert "zz: unknown key" in found

    def test_key_of_other_kinds_names_them(self):
        mapping = {"data": {"train": "a"}, "model": {"cross_layers": 5}}
        found = problems(config_from_mapping, mapping)
        expected = "'deepfm' has no key 'cross_layers'; it belongs to dcn, dcnv2"
        assert f"model.cross_layers: {expected}" in found

    def test_key_of_another_kind_at_its_default_says_nothing(self):
        mapping = {"data": {"train": "a"}, "model": {"cross_layers": 2}}
        assert not hasattr(config_from_mapping(mapping).config.model, "cross_layers")

    def test_resolved_config_may_be_given_another_model(self, tmp_path):
        mapping = {"data": {"train": "a"}, "model": {"name": "dcn", "dropout": 0.5}}
        path = tmp_path / "c.yaml"
        path.write_text(config_from_mapping(mapping).resolved_yaml())
        model = load_config(path, ["model.name=xdeepfm"]).config.model
        assert (model.name, model.dropout) == ("xdeepfm", 0.5)

    def test_section_that_is_no_mapping_is_refused(self):
        found = problems(config_from_mapping, {"data": {"train": "a"}, "model": "dcn"})
        assert "model: expected a mapping such as {name: deepfm}, found the text 'dcn'" in found


def test_resolved_yaml_holds_every_key_of_the_models():
    written = yaml.safe_load(config_from_mapping({"data": {"train": "a"}}).resolved_yaml())
    assert list(written) == list(Config.model_fields)
    assert list(written["train"]) == list(TrainConfig.model_fields)


def small(**sections):
    return {"data": {"train": "rows.csv"}, "output": "runs/x", **sections}


def test_a_part_of_a_default_section_changes_that_part_alone():
    default = config_from_mapping(small()).config.train
    set_by_option = config_from_mapping(
        small(),
        ["train.optimizer.learning_rate=0.003", "train.embeddings.vector.l2.strength=7.0"],
    ).config.train
    assert set_by_option.optimizer == default.optimizer.model_copy(update={"learning_rate": 0.003})
    assert set_by_option.embeddings.linear == default.embeddings.linear
    vector = default.embeddings.vector
    assert set_by_option.embeddings.vector == vector.model_copy(
        update={"l2": vector.l2.model_copy(update={"strength": 7.0})}
    )
    in_file = config_from_mapping(small(train={"optimizer": {"beta_1": 0.8}})).config.train
    assert in_file.optimizer == default.optimizer.model_copy(update={"beta_1": 0.8})


def test_another_optimizer_does_not_take_the_default_ones_learning_rate():
    with pytest.raises(ConfigError, match=r"train\.optimizer\.learning_rate: is required"):
        config_from_mapping(small(train={"optimizer": {"name": "ftrl"}}))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "train.optimizer.learning_rate"),
        ("layers", "model.hidden_units"),
        ("sep", "data.delimiter"),
        ("negative_sampling", "data.sample.negatives"),
    ],
)
def test_keys_of_other_tools_are_understood(key, meant):
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(small(model={key: 1}))
    assert f"did you mean '{meant}'?" in str(caught.value)


@pytest.mark.parametrize("address", ["s3://bucket/run", "gs://bucket/run", "az://box/run"])
def test_a_run_at_an_address_has_a_working_copy_and_its_checkpoints_there(address):
    mapping = {**small(), "output": address}
    config = config_from_mapping(mapping, ["runtime.scratch=/scratch"]).config
    assert config.stored_at == address
    assert config.run_folder.parent == Path("/scratch")
    assert config.checkpoints_at == f"{address}/checkpoints"
    own = config_from_mapping(mapping, ["runtime.checkpoints=/mnt/checkpoints"]).config
    assert own.checkpoints_at == "/mnt/checkpoints"
    other = config_from_mapping({**mapping, "output": f"{address}s"}).config
    assert other.run_folder.name != config.run_folder.name


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hdfs://host/run", "'hdfs://' is no storage of runs"),
        ("s3://key:secret@bucket/run", "credentials come from the environment"),
        ("s3://", "names no place"),
    ],
)
def test_an_output_that_is_no_place_for_a_run_is_refused(address, message):
    with pytest.raises(ConfigError, match=message):
        config_from_mapping({**small(), "output": address})


@pytest.mark.parametrize("names_folder", [True, False])
def test_the_config_in_a_run_folder_means_that_folder(tmp_path, names_folder):
    copied = tmp_path / "champion"
    copied.mkdir()
    (copied / ".lock").touch()
    resolved = copied / "config.resolved.yaml"
    resolved.write_text("data: {train: rows.csv}\noutput: runs/original\n")
    config = load_config(copied if names_folder else resolved).config
    assert config.run_folder == copied


def test_a_config_of_that_name_elsewhere_keeps_its_output(tmp_path):
    resolved = tmp_path / "config.resolved.yaml"
    resolved.write_text("data: {train: rows.csv}\noutput: runs/original\n")
    assert load_config(resolved).config.output == "runs/original"


def test_keys_that_begin_with_x_are_a_place_for_anchors(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "x-fast: &fast {name: adam, learning_rate: 0.01}\n"
        "data: {train: a.csv}\noutput: run\n"
        "train: {optimizer: *fast}\n"
    )
    loaded = load_config(path)
    assert loaded.config.train.optimizer.learning_rate == 0.01
    assert "x-fast" not in loaded.resolved_yaml()
    with pytest.raises(ConfigError, match="x-other"):
        load_config(path, ["train.x-other=1"])


@pytest.mark.slow
def test_config_error_shows_some_of_thousands_of_problems_and_counts_the_rest():
    entries = [{"columns": f"c{index}", "foo": 1} for index in range(3000)]
    with pytest.raises(ConfigError) as caught:
        config_from_mapping({"data": {"train": "a.csv"}, "output": "run", "features": entries})
    lines = str(caught.value).splitlines()
    assert lines[0] == "3,000 problems in the config:"
    assert len(lines) == 32
    assert "features[29].foo" in lines[30]
    assert lines[31] == "  and 2,970 more"
    assert len(caught.value.problems) == 3000
