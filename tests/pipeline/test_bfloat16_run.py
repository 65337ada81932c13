import pytest

from ctr_pipeline.apps.scoring.evaluate import evaluate
from ctr_pipeline.config.loader import config_from_mapping
from ctr_pipeline.errors import ConfigError
from ctr_pipeline.pipeline.model.precision import check_precision, decide_precision
from ctr_pipeline.pipeline.run import run_pipeline, train
from ctr_pipeline.progress import SilentProgress
from tests.pipeline.clicks import settings_of, write_clicks


class Listening(SilentProgress):
    """Remembers what was said."""

    def __init__(self):
        self.said = []

    def log(self, text):
        self.said.append(text)


@pytest.fixture
def processor(monkeypatch):
    def have(*flags):
        monkeypatch.setattr(
            "ctr_pipeline.pipeline.model.precision.processor_flags", lambda: frozenset(flags)
        )

    return have


def wanting(precision, tmp_path):
    settings = settings_of(tmp_path / "rows.tsv", tmp_path / "out")
    return config_from_mapping(settings, [f"train.precision={precision}"])


@pytest.mark.parametrize(
    ("wanted", "has", "taken"),
    [
        ("float32", True, "float32"),
        ("float32", False, "float32"),
        ("bfloat16", True, "bfloat16"),
        ("auto", True, "bfloat16"),
        ("auto", False, "float32"),
    ],
)
def test_precision_taken(wanted, has, taken):
    assert decide_precision(wanted, has=has) == taken


def test_precision_is_refused_if_unsupported_and_said_if_chosen_by_auto(tmp_path, processor):
    processor("avx512f", "amx_tile")
    with pytest.raises(ConfigError, match="AMX or AVX512-BF16"):
        check_precision(wanting("bfloat16", tmp_path), SilentProgress())
    told = Listening()
    check_precision(wanting("auto", tmp_path), told)
    check_precision(wanting("float32", tmp_path), told)
    processor("avx512_bf16")
    check_precision(wanting("auto", tmp_path), told)
    check_precision(wanting("bfloat16", tmp_path), told)
    assert [line.split(",")[0] for line in told.said] == [
        "train.precision: auto takes float32",
        "train.precision: auto takes bfloat16",
    ]


@pytest.mark.slow
def test_a_run_in_bfloat16_is_as_good_and_its_export_scores_in_float32(tmp_path, processor):
    processor("amx_bf16")
    write_clicks(tmp_path / "rows.tsv", 2000)
    loaded = wanting("float32", tmp_path)
    train(loaded, progress=SilentProgress())
    exact = evaluate(loaded, progress=SilentProgress())
    loaded = wanting("bfloat16", tmp_path)
    # The parity proof, in which TensorFlow alone scores the export, is part of it.
    result = run_pipeline(loaded, overwrite=True, progress=SilentProgress())
    rounded = result.metrics["test"]
    assert rounded["logloss"] != exact["logloss"]
    assert rounded["logloss"] == pytest.approx(exact["logloss"], abs=0.003)
    assert rounded["auc"] == pytest.approx(exact["auc"], abs=0.01)
    assert b"bfloat16" not in (tmp_path / "out/export/1/saved_model.pb").read_bytes()
