"""Quality on real Criteo rows by rolling origin: every model by its defaults, beside regression.

For each origin n of 66k, 77k, 88k and 99k rows, the first n rows train, except that the last tenth
of them validates, and the next 11k rows test. Figures are over the 44k test rows of all origins
together. Logistic regression is scikit-learn's (see logistic_regression.py), fitted on the same
training rows with its strength chosen on the same validation rows. A second line fits it again on
training and validation rows together, as `refit` does with ours.

Variants of the first model say what a change of one key gives: `auto`, the features chosen by
`features: auto` and none written by hand; `refit`, training once more on training and validation
rows together; `ensemble`, four seeds in one run; `kinds`, four kinds of model in one run;
`refit_ensemble`, two at once. Their difference from that model is over the same rows and draws.

Rows from 88,000 on took part in choosing the defaults of the first 110k rows of the challenge.

With `--keep FOLDER` a prediction that is there is not computed again, and `criteo_peers.py --ours
FOLDER` sets other packages beside them. Use another folder after a change of the code.

    python benchmarks/criteo_quality.py --data train.txt --seeds 3 --keep runs/criteo
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kept_predictions import Prediction, PredictionFolder, pool
from logistic_regression import COLUMNS, fit_baseline
from machine import Spread, describe_machine, print_machine, print_table, write_results
from paired_interval import Scored, compare

ORIGINS = (66_000, 77_000, 88_000, 99_000)
TEST_ROWS = 11_000
MODELS = ("deepfm", "wide_and_deep", "xdeepfm", "dcn", "dcnv2")
MORE_MODELS = ("autoint", "fibinet", "masknet", "finalmlp", "dlrm")
KINDS = ["deepfm", "xdeepfm", "dcnv2", "wide_and_deep"]
VARIANTS: dict[str, dict[str, Any]] = {
    "auto": {"features": "auto"},
    "refit": {"train": {"refit": True}},
    "ensemble": {"train": {"ensemble": 4}},
    "refit_ensemble": {"train": {"refit": True, "ensemble": 4}},
    "kinds": {"train": {"ensemble": 4, "ensemble_models": KINDS}},
    "bfloat16": {"train": {"precision": "bfloat16"}},
}


@dataclass
class Outcome:
    """Predictions over all origins, one list entry a seed."""

    name: str
    probabilities: list[np.ndarray]
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Fold:
    """Rows of one origin, which is how many rows lie before the test rows."""

    origin: int
    train: pd.DataFrame
    valid: pd.DataFrame
    test: pd.DataFrame


def read_rows(path: Path, num_rows: int) -> pd.DataFrame:
    """The first rows of a file in Criteo's format, all texts; '' is missing."""
    return pd.read_csv(
        path, sep="\t", names=list(COLUMNS), dtype=str, keep_default_na=False, nrows=num_rows
    )


def cut_folds(rows: pd.DataFrame, origins: tuple[int, ...], test_rows: int) -> list[Fold]:
    """One fold an origin, in order."""
    return [
        Fold(
            origin=origin,
            train=rows[: origin - origin // 10],
            valid=rows[origin - origin // 10 : origin],
            test=rows[origin : origin + test_rows],
        )
        for origin in origins
    ]


def labels_by_origin(folds: list[Fold]) -> dict[int, np.ndarray]:
    """Clicks of the test rows, float64."""
    return {fold.origin: fold.test["label"].to_numpy(dtype=np.float64) for fold in folds}


def run_baseline(folds: list[Fold], *, refit: bool, kept: PredictionFolder) -> Outcome:
    """Logistic regression on every fold."""
    name = "logistic regression, refitted with validation rows" if refit else "logistic regression"
    key = "logistic_regression_refitted" if refit else "logistic_regression"
    parts = []
    for number, fold in enumerate(folds, start=1):
        prediction = kept.load(key, seed=0, origin=fold.origin)
        if prediction is None:
            started = time.perf_counter()
            result = fit_baseline(fold.train, fold.valid, fold.test, refit=refit)
            facts = {
                "seconds": time.perf_counter() - started,
                "inverse_strength": result.inverse_strength,
            }
            prediction = Prediction(result.probabilities, facts)
            kept.save(key, prediction, seed=0, origin=fold.origin)
        parts.append(prediction)
        strength = prediction.facts["inverse_strength"]
        print(f"  {name}: fold {number}, C {strength}", file=sys.stderr)
    whole = pool(parts)
    return Outcome(name, [whole.probabilities], [whole.facts["seconds"]])


def configuration(
    folder: Path, fold_folder: Path, model: str, seed: int, variant: str | None
) -> dict[str, Any]:
    """The config of a fold: nothing but the columns, the model's name, the seed and the variant."""
    changed = VARIANTS[variant] if variant else {}
    config: dict[str, Any] = {
        "name": f"criteo-{model}",
        "data": {
            "train": str(fold_folder / "train.tsv"),
            "valid": str(fold_folder / "valid.tsv"),
            "test": str(fold_folder / "test.tsv"),
            "columns": ["label", "I1..I13", "C1..C26"],
            "label": "label",
        },
        "features": [
            {
                "columns": "I1..I13",
                "number": ["log", "standardize"],
                "id": {"bucketize": {"quantiles": 30}},
            },
            {"columns": "C1..C26", "id": {"vocabulary": {"min_count": 2}}},
        ],
        "model": {"name": model},
        "output": str(folder),
        **changed,
    }
    train = changed.get("train", {})
    # Members have seeds of their own from the first on: no two ensembles share one.
    return {**config, "train": {"seed": seed * train.get("ensemble", 1), **train}}


def run_model(
    model: str,
    folds: list[Fold],
    folder: Path,
    seeds: int,
    *,
    kept: PredictionFolder,
    variant: str | None = None,
) -> Outcome:
    """One of our models on every fold, with every seed; `folder` has the folds and takes runs."""
    outcome = Outcome(f"{model}, {variant}" if variant else model, [])
    key = f"{model}-{variant}" if variant else model
    for seed in range(seeds):
        parts = []
        for number, fold in enumerate(folds, start=1):
            prediction = kept.load(key, seed=seed, origin=fold.origin)
            if prediction is None:
                # One folder a fold: statistics and encoded rows do not depend on model and seed.
                output = folder / "runs" / ("auto" if variant == "auto" else "given")
                config = configuration(
                    output / f"fold{number}", folder / f"fold{number}", model, seed, variant
                )
                prediction = train_and_score(config)
                kept.save(key, prediction, seed=seed, origin=fold.origin)
            parts.append(prediction)
            print(f"  {outcome.name}: seed {seed}, fold {number}", file=sys.stderr)
        whole = pool(parts)
        outcome.probabilities.append(whole.probabilities)
        outcome.seconds.append(whole.facts["seconds"])
    return outcome


def train_and_score(config: dict[str, Any]) -> Prediction:
    """Predictions of the test rows of a config."""
    from ctr_pipeline.apps.scoring.evaluate import evaluate
    from ctr_pipeline.config.loader import config_from_mapping
    from ctr_pipeline.pipeline.run import train
    from ctr_pipeline.progress import SilentProgress

    started = time.perf_counter()
    silent = SilentProgress()
    loaded = config_from_mapping(config)
    train(loaded, overwrite=True, progress=silent)
    evaluate(loaded, progress=silent)
    predictions = pd.read_parquet(Path(config["output"]) / "predictions.parquet")
    probabilities = predictions["probability"].to_numpy(dtype=np.float64)
    return Prediction(probabilities, {"seconds": time.perf_counter() - started})


def write_folds(folds: list[Fold], folder: Path) -> None:
    """Each fold as three files in the original format."""
    for number, fold in enumerate(folds, start=1):
        (folder / f"fold{number}").mkdir(parents=True)
        for name in ("train", "valid", "test"):
            path = folder / f"fold{number}" / f"{name}.tsv"
            getattr(fold, name).to_csv(path, sep="\t", header=False, index=False)


def score(outcome: Outcome, labels: np.ndarray) -> list[Scored]:
    """Scores of its seeds."""
    return [Scored.of(labels, probabilities) for probabilities in outcome.probabilities]


def summarize(outcome: Outcome, labels: np.ndarray, baseline: list[Scored]) -> dict[str, Any]:
    """Figures of one model: over seeds as spread, over rows as intervals."""
    scored = score(outcome, labels)
    ones = np.ones(labels.size)
    comparison = compare(scored, baseline)
    return {
        "auc": Spread.of([one.auc(ones) for one in scored]),
        "logloss": Spread.of([one.logloss(ones) for one in scored]),
        "seconds": Spread.of(outcome.seconds),
        "predicted_over_observed": comparison.predicted_over_observed,
        "auc_ahead": comparison.auc_ahead,
        "logloss_ahead": comparison.logloss_ahead,
    }


def main() -> None:
    """Runs the protocol and prints its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("CTRPIPE_CRITEO_DATA"),
        help="Criteo rows, tab-separated, may be compressed; default: $CTRPIPE_CRITEO_DATA",
    )
    parser.add_argument("--seeds", type=int, default=3, help="Seeds of each of our models.")
    parser.add_argument(
        "--models", nargs="*", default=list(MODELS), choices=[*MODELS, *MORE_MODELS, []]
    )
    parser.add_argument(
        "--variants", nargs="*", default=[], choices=VARIANTS, help="Of the first model."
    )
    parser.add_argument("--quick", action="store_true", help="One origin, one seed, 20k rows.")
    parser.add_argument("--no-refit", action="store_true", help="Leave the refitted baseline out.")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="Keep predictions of test rows there, and use those that are there.",
    )
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("--data or CTRPIPE_CRITEO_DATA must name a file of Criteo rows")
    if arguments.variants and not arguments.models:
        parser.error("--variants are of the first of --models, and there is none")
    origins, test_rows = ((18_000,), 2_000) if arguments.quick else (ORIGINS, TEST_ROWS)
    seeds = 1 if arguments.quick else arguments.seeds
    needed = origins[-1] + test_rows
    rows = read_rows(Path(arguments.data), needed)
    if len(rows) < needed:
        parser.error(f"the protocol needs {needed} rows, {arguments.data} has {len(rows)}")
    machine = describe_machine()
    folds = cut_folds(rows, origins, test_rows)
    by_origin = labels_by_origin(folds)
    labels = np.concatenate(list(by_origin.values()))
    with tempfile.TemporaryDirectory(prefix="criteo-quality-") as temporary:
        folder = Path(temporary)
        kept = PredictionFolder(arguments.keep or folder / "kept", by_origin)
        outcomes = [run_baseline(folds, refit=False, kept=kept)]
        if not arguments.no_refit:
            outcomes.append(run_baseline(folds, refit=True, kept=kept))
        write_folds(folds, folder)
        outcomes += [
            run_model(model, folds, folder, seeds, kept=kept) for model in arguments.models
        ]
        variants = [
            run_model(arguments.models[0], folds, folder, seeds, kept=kept, variant=variant)
            for variant in arguments.variants
        ]
    first = next((one for one in outcomes if one.name == arguments.models[0]), None)
    outcomes += variants
    baseline = score(outcomes[0], labels)
    figures = {outcome.name: summarize(outcome, labels, baseline) for outcome in outcomes}
    print(f"\n{len(origins)} origins, {labels.size:,} test rows, {seeds} seeds of our models\n")
    print_machine(machine)
    print_table(
        ["model", "AUC", "logloss", "predicted / observed", "AUC ahead of regression",
         "logloss ahead", "seconds for all origins"],
        [
            [
                name,
                row["auc"].show(),
                row["logloss"].show(),
                row["predicted_over_observed"].show(3),
                row["auc_ahead"].show(),
                row["logloss_ahead"].show(),
                row["seconds"].show(0),
            ]
            for name, row in figures.items()
        ],
    )  # fmt: skip
    if variants and first is not None:
        ahead = {one.name: compare(score(one, labels), score(first, labels)) for one in variants}
        print_table(
            ["variant", f"AUC ahead of {first.name}", "logloss ahead"],
            [
                [name, difference.auc_ahead.show(), difference.logloss_ahead.show()]
                for name, difference in ahead.items()
            ],
        )
        for name, difference in ahead.items():
            figures[name]["auc_ahead_of_first"] = difference.auc_ahead
            figures[name]["logloss_ahead_of_first"] = difference.logloss_ahead
    write_results(arguments.json, benchmark="criteo_quality", machine=machine, results=figures)


if __name__ == "__main__":
    main()
