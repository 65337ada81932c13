"""`analysis.engine` names any registered engine; `auto` asks those that have the rows."""

import json
from types import SimpleNamespace
from typing import get_args

import pytest
import yaml

from ctr_pipeline.cli.main import main
from ctr_pipeline.config.models import AnalysisConfig
from ctr_pipeline.errors import StatisticsError
from ctr_pipeline.pipeline.stages.statistics_engines.choosing import (
    open_engine,
    prepare_engine,
)
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.statistics_engines import STATISTICS_ENGINES, StatisticsEngineKind

FILES = SimpleNamespace(files={"train": ["a"]}, opened={"a": object()})


class Able:
    """Has the rows and computes at once."""

    def has_rows(self, source):
        return source is FILES

    def prepare(self, rows):
        return type(self).__name__


class Unable(Able):
    """Has the rows and cannot compute what is asked for."""

    def prepare(self, rows):
        raise StatisticsError("is a list", place="column 'x'")


class Elsewhere(Able):
    """Does not have the rows."""

    def has_rows(self, source):
        return False


class Notes(SilentProgress):
    """Keeps what is logged."""

    def __init__(self):
        self.lines = []

    def log(self, message):
        self.lines.append(message)


def ask(engines, analysis=None):
    """What is prepared by a registry of these engines, all automatic, and what was logged."""
    kinds = {
        one.__name__: StatisticsEngineKind(
            one.__name__, one.__name__, f"{__name__}:{one.__name__}", "", is_automatic=True
        )
        for one in engines
    }
    config = SimpleNamespace(analysis=analysis and SimpleNamespace(engine=analysis))
    progress = Notes()
    rows = SimpleNamespace(config=config, source=FILES, progress=progress)
    return prepare_engine(rows, kinds), progress.lines


def test_the_first_that_has_the_rows_is_asked():
    assert ask([Elsewhere, Able]) == ("Able", [])


def test_the_next_is_asked_where_one_cannot():
    said = ["Statistics are not computed by Unable: column 'x': is a list"]
    assert ask([Unable, Able]) == ("Able", said)


def test_one_that_is_named_is_the_only_one_asked():
    assert ask([Able, Elsewhere], "Elsewhere") == ("Elsewhere", [])
    with pytest.raises(StatisticsError, match="is a list"):
        ask([Unable, Able], "Unable")


def test_the_config_offers_every_engine():
    assert get_args(AnalysisConfig.model_fields["engine"].annotation) == (
        "auto",
        *STATISTICS_ENGINES,
    )


@pytest.mark.parametrize("name", STATISTICS_ENGINES)
def test_every_engine_opens_and_options_are_keys(name):
    kind = STATISTICS_ENGINES[name]
    assert all(hasattr(open_engine(kind), method) for method in ("has_rows", "check", "prepare"))
    assert set(kind.options) <= set(AnalysisConfig.model_fields)


def analyze(tmp_path, engine):
    rows = "".join(f"{n % 3 == 0:d},{n}\n" for n in range(60))
    (tmp_path / "rows.csv").write_text(f"click,price\n{rows}")
    config = {
        "data": {"train": str(tmp_path / "rows.csv"), "label": "click"},
        "features": [{"columns": "price", "number": "standardize"}],
        "analysis": {"engine": engine},
        "output": str(tmp_path / "run"),
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    return main(["analyze", str(tmp_path / "c.yaml"), "-q"])


def test_duckdb_counts_files(tmp_path):
    assert analyze(tmp_path, "duckdb") == 0
    found = json.loads((tmp_path / "run" / "statistics.json").read_text())
    assert found["columns"]["price"]["num_distinct"] > 0


def test_maxcompute_is_refused_for_files_before_they_are_read(tmp_path, capsys):
    assert analyze(tmp_path, "maxcompute") == 1
    error = capsys.readouterr().err
    assert "analysis.engine: is maxcompute, which computes on its own tables" in error
    assert "Leave analysis out, or name a table as odps://PROJECT/TABLE" in error
    assert not (tmp_path / "run" / "cache").exists()
