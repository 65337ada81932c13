"""Quality of `features: auto` beside LightGBM on tables of many shapes.

Of ours the config names the files and the label, nothing else. LightGBM trains on the same rows,
stops early on the same validation rows, and is told what each column is. It is given texts and ids
in two ways: as categorical columns, and as how many training rows have the value beside their click
rate, to which of a training row the other four folds of five contribute. Of a list it gets the
length, the last element and which of the hundred most frequent ones it holds; of a time the hour,
the weekday and the seconds. Where LightGBM cannot be installed, `--stand-in` takes scikit-learn's
`HistGradientBoostingClassifier`, made after it, with the same counts, rates and settings.

Each seed draws a table anew (`auto_tables.py`), or takes another window of Criteo's rows; the
figures are means over the seeds. How far ours is ahead is over the test rows, by a bootstrap that
draws rows of each seed and shares each draw among all sides. Generated tables come with the AUC
of the true click probabilities, which nobody reaches.

    python benchmarks/auto_quality.py --data train.txt --seeds 5
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from auto_tables import CRITEO, LABEL, TABLES, Parts, Shape, Sizes, criteo_parts
from criteo_quality import train_and_score
from environments import KEPT_IN, make_lightgbm
from kept_predictions import OtherRowsError, Prediction, PredictionFolder
from machine import Spread, describe_machine, print_machine, print_table, write_results
from numpy.typing import NDArray
from paired_interval import Interval, Scored, compare_pairs

from ctr_pipeline.machine import available_cores

Floats = NDArray[np.float64]
OURS = "ctrpipe"
SETTINGS = {"learning_rate": 0.05, "num_leaves": 31, "rounds": 2000, "patience": 50}
SIZES = Sizes(train=30_000, valid=4_000, test=10_000)
QUICK_SIZES = Sizes(train=4_000, valid=1_000, test=2_000)
FOLDS = 5
SMOOTHING = 20.0
FREQUENT_ELEMENTS = 100


@dataclass(frozen=True)
class Trees:
    """The opponent.

    Attributes:
        side: Of `peer_quality.py`.
        python: Of its environment.
        encodings: What categories are to be, and how that side is called.
    """

    side: str
    python: Path
    encodings: Mapping[str, str]


class Encoder:
    """Makes LightGBM's inputs of a table.

    Args:
        parts: The rows; the training rows alone are counted.
        seed: Of the folds.
    """

    def __init__(self, parts: Parts, *, seed: int) -> None:
        train = parts.rows["train"]
        self._parts = parts
        self._clicks_B = parts.labels("train")
        self._folds_B = np.random.default_rng(seed).integers(0, FOLDS, len(train))

    def write(self, path: Path) -> None:
        """Writes the arrays that `peer_quality.train_lightgbm` takes."""
        columns: dict[str, list[Floats]] = {}
        for name, shape in self._parts.shapes.items():
            for key, values in self._encode(name, shape).items():
                columns.setdefault(key, []).append(values)
        arrays = {}
        ends = np.cumsum([len(rows) for rows in self._parts.rows.values()])
        for kind in ("numbers", "ids", "counts", "rates"):
            found = columns.get(kind, [])
            whole = np.column_stack(found) if found else np.empty((ends[-1], 0))
            for part, rows in zip(self._parts.rows, np.split(whole, ends[:-1]), strict=True):
                arrays[f"{part}_{kind}"] = rows
        labels = {f"{part}_labels": self._parts.labels(part) for part in self._parts.rows}
        np.savez(path, allow_pickle=False, **arrays, **labels)

    def _encode(self, name: str, shape: Shape) -> dict[str, Floats]:
        values = pd.concat([rows[name] for rows in self._parts.rows.values()], ignore_index=True)
        if shape is Shape.NUMBER:
            return {"numbers": values.to_numpy(dtype=np.float64, na_value=np.nan)}
        if shape is Shape.TIME:
            seconds_B = values.to_numpy(dtype=np.float64)
            days_B = np.floor(seconds_B / 86_400)
            parts = [seconds_B, np.floor(seconds_B % 86_400 / 3_600), (days_B + 3) % 7]
            return {"numbers": np.column_stack(parts)}
        if shape is Shape.LIST:
            return self._encode_list(values)
        return self._encode_category(values)

    def _encode_category(self, values: pd.Series) -> dict[str, Floats]:
        codes_B = pd.factorize(values)[0]
        counts_V, rates_B = self._count(codes_B, np.arange(len(codes_B)))
        # An id that no training row has is missing to LightGBM.
        ids_B = np.where(counts_V[codes_B] > 0, codes_B, np.nan)
        return {"ids": ids_B, "counts": counts_V[codes_B], "rates": rates_B}

    def _encode_list(self, values: pd.Series) -> dict[str, Floats]:
        lists = values.str.split("|")
        elements = lists.explode()
        codes_E, rows_E = pd.factorize(elements)[0], elements.index.to_numpy()
        counts_V, rates_E = self._count(codes_E, rows_E)
        length_B = lists.map(len).to_numpy(dtype=np.float64)
        rate_B = np.bincount(rows_E, rates_E, len(values)) / length_B
        frequent = np.argsort(-counts_V, kind="stable")[:FREQUENT_ELEMENTS]
        holds = [
            np.bincount(rows_E[codes_E == code], minlength=len(values)) > 0 for code in frequent
        ]
        last = self._encode_category(lists.str[-1])
        return {
            **last,
            "numbers": np.column_stack([length_B, *holds]),
            "rates": np.column_stack([last["rates"], rate_B]),
        }

    def _count(self, codes: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Training rows of each code, and the click rate at each place.

        Args:
            codes: A code a place.
            rows: The row of each place; a row has several where it is a list.
        """
        trained = rows < len(self._clicks_B)
        known, clicks = codes[trained], self._clicks_B[rows[trained]]
        folds = self._folds_B[rows[trained]]
        size, base = int(codes.max()) + 1, self._clicks_B.mean()

        def rates(chosen: NDArray[np.bool_]) -> Floats:
            clicks_V = np.bincount(known[chosen], clicks[chosen], size)
            shown_V = np.bincount(known[chosen], minlength=size)
            return (clicks_V + SMOOTHING * base) / (shown_V + SMOOTHING)

        found = rates(np.ones(len(known), dtype=bool))[codes]
        for fold in range(FOLDS):
            found[np.flatnonzero(trained)[folds == fold]] = rates(folds != fold)[
                known[folds == fold]
            ]
        return np.bincount(known, minlength=size).astype(np.float64), found


def train_trees(parts: Parts, encoding: str, trees: Trees, folder: Path, seed: int) -> Prediction:
    """Predictions of the test rows, in the environment of the opponent."""
    inputs, output = folder / "inputs.npz", folder / "trees.npz"
    if not inputs.exists():
        Encoder(parts, seed=seed).write(inputs)
    command = [str(trees.python), str(Path(__file__).with_name("peer_quality.py")), trees.side]
    command += ["trees", str(inputs), str(output), "--seed", str(seed)]
    command += ["--settings", json.dumps({**SETTINGS, "categories": encoding})]
    command += ["--threads", str(available_cores())]
    # Beside other work, threads that spin while they wait take what the others need.
    subprocess.run(command, env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}, check=True)
    with np.load(output, allow_pickle=False) as scores:
        facts = {"seconds": float(scores["seconds"]), "trees": int(scores["epochs"])}
        return Prediction(scores["test"], facts)


def train_ours(parts: Parts, folder: Path, seed: int) -> Prediction:
    """Predictions of the test rows."""
    paths = {}
    for part, rows in parts.rows.items():
        path = folder / f"{part}.csv"
        rows.to_csv(path, index=False)
        paths[part] = str(path)
    return train_and_score(
        {
            "name": "auto",
            "data": {**paths, "label": LABEL},
            "features": "auto",
            "train": {"seed": seed},
            "output": str(folder / "run"),
        }
    )


def run_table(
    name: str, parts: Parts, seed: int, trees: Trees, kept: Path | None
) -> dict[str, Prediction]:
    """Predictions of each side."""
    with tempfile.TemporaryDirectory(prefix="auto-quality-") as temporary:
        folder = Path(temporary)
        predictions = PredictionFolder(
            (kept or folder / "kept") / name.replace(" ", "_"), {seed: parts.labels("test")}
        )
        sides = {OURS: lambda: train_ours(parts, folder, seed)} | {
            encoding: lambda encoding=encoding: train_trees(parts, encoding, trees, folder, seed)
            for encoding in trees.encodings
        }
        found = {}
        for side, train in sides.items():
            file = side if side == OURS else f"{trees.side}_{side}"
            known = predictions.load(file, seed=seed, origin=seed)
            if known is None:
                known = train()
                predictions.save(file, known, seed=seed, origin=seed)
            found[side] = known
    return found


def summarize(
    parts: list[Parts], found: list[dict[str, Prediction]], encodings: Collection[str]
) -> dict[str, Any]:
    """Figures of one table, an entry of the lists a seed."""
    labels = [one.labels("test") for one in parts]
    scored = {
        side: [
            Scored.of(clicks, predictions[side].probabilities)
            for clicks, predictions in zip(labels, found, strict=True)
        ]
        for side in (OURS, *encodings)
    }
    figures: dict[str, Any] = {
        side: {
            "auc": Spread.of([one.auc(np.ones(one.labels.size)) for one in seeds]),
            "logloss": Spread.of([one.logloss(np.ones(one.labels.size)) for one in seeds]),
            "seconds": Spread.of([predictions[side].facts["seconds"] for predictions in found]),
        }
        for side, seeds in scored.items()
    }
    for encoding in encodings:
        ahead = compare_pairs(scored[OURS], scored[encoding])
        figures[encoding] |= {"auc_behind": ahead.auc, "logloss_behind": ahead.logloss}
    truths = [
        Scored.of(clicks, one.true_B).auc(np.ones(clicks.size))
        for clicks, one in zip(labels, parts, strict=True)
        if one.true_B is not None
    ]
    figures["true_auc"] = Spread.of(truths) if truths else None
    return figures


def verdict(interval: Interval) -> str:
    """One word, for a glance down the table."""
    return "ahead" if interval.low > 0 else "behind" if interval.high < 0 else "level"


def main() -> None:
    """Runs every table with every seed and prints the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [table.name for table in TABLES]
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("CTRPIPE_CRITEO_DATA"),
        help="Criteo rows, tab-separated, as one more table; default: $CTRPIPE_CRITEO_DATA",
    )
    parser.add_argument("--tables", nargs="+", choices=[*names, CRITEO], default=[*names, CRITEO])
    parser.add_argument("--seeds", type=int, default=5, help="Of tables, folds and training.")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="Keep predictions of test rows there, and use those that are there.",
    )
    parser.add_argument(
        "--environments", type=Path, default=KEPT_IN, help="Where LightGBM is installed, once."
    )
    parser.add_argument("--stand-in", action="store_true", help="scikit-learn for LightGBM.")
    parser.add_argument("--quick", action="store_true", help="One seed, 4,000 training rows.")
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    sizes, seeds = (QUICK_SIZES, 1) if arguments.quick else (SIZES, arguments.seeds)
    machine = describe_machine()
    if arguments.stand_in:
        encodings = {"rates": "scikit-learn, counts and rates"}
        trees = Trees("scikit_learn", Path(sys.executable), encodings)
    else:
        encodings = {"ids": "LightGBM, categories", "rates": "LightGBM, counts and rates"}
        trees = Trees("lightgbm", make_lightgbm(arguments.environments), encodings)
    makers = {
        table.name: lambda seed, table=table: table.parts(sizes, seed)
        for table in TABLES
        if table.name in arguments.tables
    }
    if arguments.data is not None and CRITEO in arguments.tables:
        makers[CRITEO] = lambda seed: criteo_parts(Path(arguments.data), sizes, seed, seeds)
    figures = {}
    for name, make in makers.items():
        parts, found = [], []
        for seed in range(seeds):
            parts.append(make(seed))
            try:
                found.append(run_table(name, parts[-1], seed, trees, arguments.keep))
            except OtherRowsError as error:
                parser.error(f"--keep: {error}")
            print(f"  {name}, seed {seed}", file=sys.stderr, flush=True)
        figures[name] = summarize(parts, found, trees.encodings)
    print(f"\n{sizes.train:,} training rows, {sizes.test:,} test rows, {seeds} seeds\n")
    print_machine(machine)
    print_table(
        ["table", "true AUC", "auto", *trees.encodings.values()],
        [
            [
                name,
                row["true_auc"].show() if row["true_auc"] else "",
                *(
                    f"{row[side]['auc'].show()}, {row[side]['logloss'].show()}"
                    for side in (OURS, *trees.encodings)
                ),
            ]
            for name, row in figures.items()
        ],
    )
    for encoding, title in trees.encodings.items():
        print_table(
            ["table", f"AUC ahead of {title}", "", "logloss ahead", ""],
            [
                [
                    name,
                    row[encoding]["auc_behind"].show(),
                    verdict(row[encoding]["auc_behind"]),
                    row[encoding]["logloss_behind"].show(),
                    verdict(row[encoding]["logloss_behind"]),
                ]
                for name, row in figures.items()
            ],
        )
    write_results(arguments.json, benchmark="auto_quality", machine=machine, results=figures)


if __name__ == "__main__":
    main()
