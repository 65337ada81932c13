"""Quality of the defaults on generated sets of several kinds, beside the best that can be learned.

Each set (`generated_sets.py`) is a million rows, or the few of its kind, of which the last two
tenths validate and test. The config names the files and the label, nothing else: features, model
and training are those of the pipeline. Losses are expected over the labels of the test rows, whose
true click probabilities are known. The floor has the true effect of every id that a training row
shows, however rarely, so no model that has to estimate effects from clicks reaches it. The
known-form baseline (`known_form_baseline.py`), which knows how the set was made but for the effects
of its ids, shows how near a model can come. The loss of the true main effects alone, without
columns that act together, is shown as well.

    python benchmarks/generated_quality.py --seeds 3
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from criteo_quality import train_and_score
from generated_sets import KINDS, Kind, draw_set
from known_form_baseline import predict_known_form
from machine import Spread, describe_machine, print_machine, print_table, write_results

from ctr_pipeline.apps.sample.reference_losses import cross_entropy, ranking_quality


def run_kind(kind: Kind, *, num_rows: int, seed: int, folder: Path) -> dict[str, float]:
    """Trains the defaults on a set and scores its test rows."""
    generated = draw_set(kind, num_rows=num_rows, seed=seed)
    paths = {name: str(folder / f"{name}.parquet") for name in ("train", "valid", "test")}
    for name, path in paths.items():
        getattr(generated, name).to_parquet(path, index=False)
    prediction = train_and_score(
        {
            "name": "generated",
            "data": {**paths, "label": "click"},
            "features": "auto",
            "train": {"seed": seed},
            "output": str(folder / "run"),
        }
    )
    predicted_B = prediction.probabilities
    labels_B = generated.test["click"].to_numpy(dtype=np.float64)
    losses = generated.losses(predicted_B)
    told = cross_entropy(generated.probabilities_B, predict_known_form(generated))
    return {
        **losses,
        "told": told,
        "above_floor": losses["ours"] / losses["floor"] - 1,
        "above_told": losses["ours"] / told - 1,
        "auc": ranking_quality(labels_B, predicted_B),
        "floor_auc": ranking_quality(labels_B, generated.floor_B),
        "predicted_over_observed": float(predicted_B.sum() / generated.probabilities_B.sum()),
        "seconds": float(prediction.facts["seconds"]),
    }


def main() -> None:
    """Runs every kind with every seed and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="Of a set, all splits.")
    parser.add_argument("--seeds", type=int, default=3, help="Of rows and of training.")
    names = [kind.name for kind in KINDS]
    parser.add_argument("--kinds", nargs="+", choices=names, default=names)
    parser.add_argument("--quick", action="store_true", help="One seed, 20,000 rows.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    num_rows, seeds = (20_000, 1) if arguments.quick else (arguments.rows, arguments.seeds)
    machine = describe_machine()
    figures: dict[str, dict[str, Spread]] = {}
    for kind in (kind for kind in KINDS if kind.name in arguments.kinds):
        runs = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory(prefix="generated-") as folder:
                run = run_kind(kind, num_rows=num_rows, seed=seed, folder=Path(folder))
            print(f"  {kind.name}, seed {seed}: {describe(run)}", file=sys.stderr)
            runs.append(run)
        figures[kind.name] = {key: Spread.of([run[key] for run in runs]) for key in runs[0]}
    print(f"\n{num_rows:,} rows (few rows: 20,000), {seeds} seeds\n")
    print_machine(machine)
    print_table(
        ["kind", "logloss", "true effects", "above them, %", "known-form baseline", "above it, %",
         "true main effects", "constant rate", "AUC", "floor's AUC", "predicted / expected",
         "seconds"],
        [
            [
                name,
                row["ours"].show(5),
                row["floor"].show(5),
                Spread.of([100 * value for value in row["above_floor"].values]).show(2),
                row["told"].show(5),
                Spread.of([100 * value for value in row["above_told"].values]).show(2),
                row["main"].show(5),
                row["constant"].show(5),
                row["auc"].show(),
                row["floor_auc"].show(),
                row["predicted_over_observed"].show(3),
                row["seconds"].show(0),
            ]
            for name, row in figures.items()
        ],
    )  # fmt: skip
    write_results(arguments.json, benchmark="generated_quality", machine=machine, results=figures)


def describe(run: dict[str, Any]) -> str:
    """One run, while others go on."""
    return (
        f"logloss {run['ours']:.5f}, floor {run['floor']:.5f} ({100 * run['above_floor']:.2f} % "
        f"above), told {run['told']:.5f} ({100 * run['above_told']:.2f} % above), "
        f"constant {run['constant']:.5f}, {run['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
