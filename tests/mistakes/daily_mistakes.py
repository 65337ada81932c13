"""Mistakes in going on from an earlier run."""

from tests.mistakes.artefact_mistakes import removed
from tests.mistakes.spoiled_world import Case, setting

ROW_MISTAKES = (
    Case("init_from_nothing", setting(train__init_from=""), ("train.init_from", "no run folder")),
    Case(
        "init_from_for_an_ensemble",
        setting(train__init_from="run", train__ensemble=2),
        ("train.init_from", "trained from the start", "ensemble: 1"),
    ),
)

COMMAND_MISTAKES = (
    Case(
        "init_from_nowhere",
        setting(train__init_from="gone"),
        ("train.init_from", "there is no 'gone'"),
        ("train", "c.yaml"),
    ),
    Case(
        "init_from_itself",
        setting(train__init_from="run"),
        ("train.init_from", "the 'output' of this run itself"),
        ("train", "c.yaml"),
    ),
    Case(
        "init_from_another_model",
        setting(train__init_from="run", output="next", model={"embedding_dim": 3}),
        ("train.init_from", "'run' has another model", "model.embedding_dim is 2 there and 3 here"),
        ("train", "c.yaml"),
        trained=True,
    ),
    Case(
        "init_from_other_features",
        lambda w: w.config(
            train__init_from="run",
            output="next",
            features=[{"columns": "user", "id": "vocabulary"}],
        ),
        ("train.init_from", "'user' is a feature here", "'price' is a feature there"),
        ("train", "c.yaml"),
        trained=True,
    ),
    Case(
        "init_from_damaged",
        lambda w: (
            removed("checkpoints/*")(w),
            w.config(train__init_from="run", output="next"),
        ),
        ("run", "holds no trained model", "ctrpipe train"),
        ("train", "c.yaml"),
        trained=True,
        unfollowed="it is told for the config of the other run",
    ),
    Case(
        "tune_from_an_earlier_run",
        setting(
            train__init_from="run",
            output="next",
            tune={"space": {"model.dropout": {"low": 0.0, "high": 0.5}}},
        ),
        ("train.init_from", "each of its trials from the start"),
        ("tune", "c.yaml"),
        trained=True,
    ),
)
