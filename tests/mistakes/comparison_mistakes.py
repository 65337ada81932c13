"""What users get wrong about runs that are to be compared."""

import json
from collections.abc import Callable

import numpy as np

from ctr_pipeline.evaluation.metrics import evaluate_predictions
from tests.mistakes.spoiled_world import Case, World, nothing

COMPARE = ("compare", "a", "b")


def _write_run(world: World, name: str, **files: str) -> None:
    """A run that has measured nothing, with some files replaced."""
    world.write(f"{name}/config.resolved.yaml", files.get("config", "model: {name: deepfm}\n"))
    world.write(f"{name}/metrics.json", files.get("metrics", "{}"))
    for other in files.keys() - {"config", "metrics"}:
        world.write(f"{name}/{other}", files[other])


def _runs(**files: str) -> Callable[[World], None]:
    """Two runs, and the second has these files."""

    def spoil(world: World) -> None:
        _write_run(world, "a")
        _write_run(world, "b", **files)

    return spoil


def _unfinished(world: World) -> None:
    _runs()(world)
    (world.folder / "b" / "metrics.json").unlink()


def _no_run(world: World) -> None:
    _runs()(world)
    (world.folder / "b" / "config.resolved.yaml").unlink()


def _damaged_predictions(world: World) -> None:
    test = evaluate_predictions(np.array([0, 1]), np.array([-2.0, 2.0])).to_metrics()
    _runs(metrics=json.dumps({"test": test}))(world)
    world.write("b/predictions.parquet", "PAR1")


APP_MISTAKES = (
    Case(
        "compare_a_run_that_is_not_there",
        _runs(),
        ("gone: there is no such run",),
        (*COMPARE, "gone"),
    ),
    Case(
        "compare_a_run_with_itself", _runs(), ("is named twice",), ("compare", "a", "b", "b/../a")
    ),
    Case("compare_a_folder_of_no_run", _no_run, ("b: is not a run folder", "'output'"), COMPARE),
    Case(
        "compare_a_file",
        _runs(),
        ("rows.csv: is not a run folder",),
        ("compare", "a", "rows.csv"),
    ),
    Case(
        "compare_by_a_config_without_a_run",
        _runs(),
        ("c.yaml: there is no such run",),
        ("compare", "a", "c.yaml"),
    ),
    Case(
        "compare_damaged_config",
        _runs(config="["),
        ("b/config.resolved.yaml: is damaged",),
        COMPARE,
        unfollowed="the runs are made up",
    ),
    Case(
        "compare_other_metrics",
        _runs(metrics='{"test": {"auc": 0.5}}'),
        ("b/metrics.json: is damaged", "'ctrpipe export RUN'"),
        COMPARE,
    ),
    Case(
        "compare_damaged_predictions",
        _damaged_predictions,
        ("b/predictions.parquet: is damaged",),
        COMPARE,
        unfollowed="the runs are made up",
    ),
    Case(
        "compare_damaged_history",
        _runs(**{"history.csv": "epoch\nfirst\n"}),
        ("b/history.csv: is damaged",),
        COMPARE,
    ),
    Case(
        "compare_into_nowhere",
        _runs(),
        ("gone/c.html", "its folder does not exist"),
        (*COMPARE, "--html", "gone/c.html"),
    ),
)

COMMAND_MISTAKES = (
    Case("compare_nothing", nothing, ("Missing argument", "ctrpipe compare --help"), ("compare",)),
    Case(
        "compare_one_run",
        _runs(),
        ("a: one run alone", "ctrpipe compare RUN RUN"),
        ("compare", "a"),
    ),
    Case(
        "compare_an_unfinished_run",
        _unfinished,
        ("b: is not finished", "metrics.json", "--resume"),
        COMPARE,
        unfollowed="the runs are made up",
    ),
    Case(
        "compare_damaged_metrics",
        _runs(metrics="[1"),
        ("b/metrics.json: is damaged", "'ctrpipe export RUN'"),
        COMPARE,
    ),
    Case(
        "compare_with_too_few_repeats",
        _runs(),
        ("--repeats", "100"),
        (*COMPARE, "--repeats", "3"),
    ),
)
