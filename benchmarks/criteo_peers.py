"""Quality of other packages on real Criteo rows, by the rolling origin of `criteo_quality.py`.

FuxiCTR (models put together from its wheel's layers), DeepCTR-Torch, plain Keras, LightGBM and
Vowpal Wabbit train on the same rows as our models, stop early on the same validation rows, and are
scored on the same 44k test rows. Each has two lines: with its published settings (the better of
two, where two are published), and with the best of those and a small search (`peer_settings.py`);
what is better is told by the validation logloss of the first origin with one seed, and then used
at all origins. `peer_inputs.py` says what they are given.

With `--ours FOLDER`, filled by `criteo_quality.py --keep FOLDER`, each line says how far ours is
ahead of it, by a paired bootstrap over the test rows. All predictions are kept in `--keep`, and
those that are there are not computed again, so an interrupted run goes on where it ended.
`--settings` takes what an earlier run chose: more seeds without another search.

    python benchmarks/criteo_peers.py --data train.txt --seeds 3 --ours runs/criteo
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from criteo_quality import (
    ORIGINS,
    TEST_ROWS,
    Fold,
    Outcome,
    cut_folds,
    labels_by_origin,
    read_rows,
    score,
)
from environments import KEPT_IN, make_lightgbm, make_peers, try_package
from kept_predictions import OtherRowsError, Prediction, PredictionFolder, pool
from machine import Spread, describe_machine, print_machine, print_table, write_results
from paired_interval import Interval, Scored, compare
from peer_inputs import write_ids, write_lines
from peer_settings import MODELS, OWN_MODEL, SEEDLESS, Settings, candidates

from ctr_pipeline.machine import available_cores

SIDES = {
    "fuxictr": "FuxiCTR",
    "deepctr_torch": "DeepCTR-Torch",
    "keras": "plain Keras",
    "lightgbm": "LightGBM",
    "vowpal_wabbit": "Vowpal Wabbit",
}

LINES = ("published", "searched")


class SideError(RuntimeError):
    """A training of a peer failed."""


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        title: Of a person's table.
        side: The peer.
        model: Its model.
        settings: The one line's of all origins and seeds.
        outcome: Its predictions.
    """

    title: str
    side: str
    model: str
    settings: Settings
    outcome: Outcome


class Trainer:
    """Trains peers on the folds, each training in a process of its own, unless it is kept.

    Args:
        kept: Where predictions are kept.
        folder: For prepared rows.
        pythons: Of each peer's environment.
        threads: Of each training.
    """

    def __init__(
        self, kept: PredictionFolder, folder: Path, pythons: dict[str, Path], threads: int
    ) -> None:
        self._kept = kept
        self._folder = folder
        self._pythons = pythons
        self._threads = threads

    def predict(
        self, side: str, model: str, settings: Settings, *, seed: int, fold: Fold
    ) -> Prediction:
        """Predictions of the fold's test rows; `valid_logloss` is among the facts.

        Raises:
            SideError: If the training fails.
        """
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
        name = f"{side}-{model}-{digest}"
        known = self._kept.load(name, seed=seed, origin=fold.origin)
        if known is not None:
            return known
        prediction = self._train(side, model, settings, seed, fold)
        self._kept.save(name, prediction, seed=seed, origin=fold.origin)
        print(
            f"  {name}: origin {fold.origin}, seed {seed}: validation logloss "
            f"{prediction.facts['valid_logloss']:.4f} after {prediction.facts['epochs']} epochs, "
            f"{prediction.facts['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        return prediction

    def _train(
        self, side: str, model: str, settings: Settings, seed: int, fold: Fold
    ) -> Prediction:
        given = {key: value for key, value in settings.items() if key != "min_count"}
        output = self._folder / "output.npz"
        output.unlink(missing_ok=True)
        command = [str(self._pythons[side]), str(Path(__file__).with_name("peer_quality.py"))]
        command += [side, model, str(self._inputs(side, settings, fold)), str(output)]
        command += ["--settings", json.dumps(given), "--seed", str(seed)]
        command += ["--threads", str(self._threads)]
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "OMP_NUM_THREADS": str(self._threads),
            # Beside other work, threads that spin while they wait take what the others need.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        log = self._folder / "side.log"
        with log.open("w", encoding="utf-8") as lines:
            code = subprocess.run(
                command, env=environment, stdout=lines, stderr=lines, check=False
            ).returncode
        if code != 0 or not output.exists():
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            raise SideError(f"{side}, {model}, {settings}: ended with {code}\n" + "\n".join(tail))
        with np.load(output, allow_pickle=False) as scores:
            clicks = fold.valid["label"].to_numpy(dtype=np.float64)
            valid = Scored.of(clicks, scores["valid"])
            facts = {
                "settings": settings,
                "seconds": float(scores["seconds"]),
                "epochs": int(scores["epochs"]),
                "valid_logloss": valid.logloss(np.ones(clicks.size)),
            }
            return Prediction(scores["test"].astype(np.float64), facts)

    def _inputs(self, side: str, settings: Settings, fold: Fold) -> Path:
        rows = {"train": fold.train, "valid": fold.valid, "test": fold.test}
        if side == "vowpal_wabbit":
            folder = self._folder / f"lines-{fold.origin}"
            if not folder.exists():
                folder.mkdir()
                write_lines(rows, folder)
            return folder
        path = self._folder / f"ids-{fold.origin}-{settings['min_count']}.npz"
        if not path.exists():
            write_ids(rows, path, min_count=settings["min_count"])
        return path


def make_environments(sides: list[str], kept_in: Path) -> dict[str, Path]:
    """The Python of each peer; a peer without one is left out, and why is said."""
    pythons = {}
    for side in sides:
        if side == "keras":
            pythons[side] = Path(sys.executable)
        elif side == "lightgbm":
            pythons[side] = make_lightgbm(kept_in)
        elif side == "vowpal_wabbit":
            folder = kept_in.expanduser().resolve() / side
            python, said = try_package(folder, "vowpalwabbit", "vowpalwabbit", beside=("numpy",))
            print(f"{SIDES[side]}: {said}\n", flush=True)
            if python is not None:
                pythons[side] = python
        else:
            pythons[side] = make_peers(kept_in)
    return pythons


def line_title(side: str, model: str, kind: str) -> str:
    """Title in a person's table and in the results."""
    name = SIDES[side] if side in OWN_MODEL else f"{SIDES[side]} {model}"
    return f"{name}, {kind}"


def search(
    trainer: Trainer, side: str, model: str, kinds: list[str], fold: Fold, *, quick: bool
) -> tuple[dict[str, Settings], list[dict[str, Any]]]:
    """The settings of each line of a peer's model, and all that was tried on the fold."""
    choices = candidates(side, model)
    published = choices.published[:1] if quick else choices.published
    tried = [] if quick else choices.search
    of_kind = {"published": published, "searched": [*published, *tried]}
    found = [
        trainer.predict(side, model, settings, seed=0, fold=fold).facts
        for settings in max((of_kind[kind] for kind in kinds), key=len)
    ]
    chosen = {
        kind: min(found[: len(of_kind[kind])], key=lambda one: one["valid_logloss"])["settings"]
        for kind in kinds
    }
    return chosen, found


def load_settings(path: Path, titles: list[str]) -> dict[str, Settings]:
    """Settings of an earlier run's lines, by title.

    Raises:
        ValueError: If the file is not a result of this script, or lacks lines.
    """
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))["results"]["lines"]
        settings = {title: lines[title]["settings"] for title in titles if title in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--settings: {path} is no result of this script ({error!r})") from error
    missing = [title for title in titles if title not in settings]
    if missing:
        raise ValueError(f"--settings: {path} lacks the lines: {'; '.join(missing)}")
    return settings


def run_lines(
    trainer: Trainer,
    side: str,
    model: str,
    chosen: dict[str, Settings],
    folds: list[Fold],
    *,
    seeds: int,
) -> list[Line]:
    """Trains and predicts the lines of a peer's model."""
    lines = []
    for kind, settings in chosen.items():
        outcome = Outcome(line_title(side, model, kind), [])
        for seed in range(1 if side in SEEDLESS else seeds):
            whole = pool(
                [trainer.predict(side, model, settings, seed=seed, fold=fold) for fold in folds]
            )
            outcome.probabilities.append(whole.probabilities)
            outcome.seconds.append(whole.facts["seconds"])
        lines.append(Line(outcome.name, side, model, settings, outcome))
    return lines


def load_ours(
    folder: Path, labels: dict[int, np.ndarray], models: list[str]
) -> dict[str, list[Prediction]]:
    """Our predictions of each model, a seed an entry.

    Raises:
        FileNotFoundError: If a model has no seed with all origins.
    """
    kept = PredictionFolder(folder, labels) if folder.is_dir() else None
    ours = {model: list(kept.pooled(model).values()) if kept else [] for model in models}
    missing = [model for model, seeds in ours.items() if not seeds]
    if missing:
        raise FileNotFoundError(
            f"{folder} has no predictions of {', '.join(missing)} at all origins; "
            f"criteo_quality.py --keep {folder} writes them"
        )
    return ours


def summarize(
    outcome: Outcome, labels: np.ndarray, ours: list[Scored] | None
) -> dict[str, Spread | Interval]:
    """Figures of one line; with ours, how far ours is ahead (positive is better for ours)."""
    scored = score(outcome, labels)
    ones = np.ones(labels.size)
    comparison = compare(scored, ours or scored)
    figures: dict[str, Spread | Interval] = {
        "auc": Spread.of([one.auc(ones) for one in scored]),
        "logloss": Spread.of([one.logloss(ones) for one in scored]),
        "seconds": Spread.of(outcome.seconds),
        "predicted_over_observed": comparison.predicted_over_observed,
    }
    if ours is not None:
        figures["ours_ahead_auc"] = turn(comparison.auc_ahead)
        figures["ours_ahead_logloss"] = turn(comparison.logloss_ahead)
    return figures


def turn(interval: Interval) -> Interval:
    """The interval of the difference the other way round."""
    return Interval(-interval.value, -interval.high, -interval.low)


def cells(name: str, figures: dict[str, Spread | Interval]) -> list[str]:
    """A line of the table."""
    ahead = [figures.get(key) for key in ("ours_ahead_auc", "ours_ahead_logloss")]
    return [
        name,
        figures["auc"].show(),
        figures["logloss"].show(),
        figures["predicted_over_observed"].show(3),
        *("" if one is None else one.show() for one in ahead),
        figures["seconds"].show(0),
    ]


def main() -> int:
    """Runs the protocol and prints its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("CTRPIPE_CRITEO_DATA"),
        help="Criteo rows, tab-separated, may be compressed; default: $CTRPIPE_CRITEO_DATA",
    )
    parser.add_argument("--seeds", type=int, default=3, help="Of each line.")
    parser.add_argument("--peers", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=["deepfm"],
        help="Of the peers with a choice.",
    )
    parser.add_argument(
        "--lines", nargs="+", choices=LINES, default=list(LINES), help="Of each peer's model."
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="RESULTS",
        help="Written by an earlier run's --json: take what it chose instead of searching again.",
    )
    parser.add_argument(
        "--ours", type=Path, metavar="FOLDER", help="Kept by criteo_quality.py: set beside."
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        default=KEPT_IN / "criteo-peers",
        help="Keep predictions there, and use those that are there.",
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=KEPT_IN,
        help="Where environments of other packages are made and kept (4 GB).",
    )
    parser.add_argument(
        "--quick", action="store_true", help="One origin, one seed, 20k rows, published settings."
    )
    parser.add_argument(
        "--threads", type=int, default=available_cores(), help="Of each training; all cores."
    )
    parser.add_argument("--json", type=Path, help="Write the results there.")
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("--data or CTRPIPE_CRITEO_DATA must name a file of Criteo rows")
    origins, test_rows = ((18_000,), 2_000) if arguments.quick else (ORIGINS, TEST_ROWS)
    needed = origins[-1] + test_rows
    rows = read_rows(Path(arguments.data), needed)
    if len(rows) < needed:
        parser.error(f"the protocol needs {needed} rows, {arguments.data} has {len(rows)}")
    kinds = arguments.lines
    pairs = [
        (side, model)
        for side in arguments.peers
        for model in ([OWN_MODEL[side]] if side in OWN_MODEL else arguments.models)
    ]
    titles = [line_title(side, model, kind) for side, model in pairs for kind in kinds]
    try:
        earlier = load_settings(arguments.settings, titles) if arguments.settings else None
    except ValueError as error:
        parser.error(str(error))
    seeds = 1 if arguments.quick else arguments.seeds
    machine = describe_machine()
    folds = cut_folds(rows, origins, test_rows)
    by_origin = labels_by_origin(folds)
    labels = np.concatenate(list(by_origin.values()))
    try:
        kept = PredictionFolder(arguments.keep, by_origin)
        ours = load_ours(arguments.ours, by_origin, arguments.models) if arguments.ours else {}
    except (OtherRowsError, FileNotFoundError) as error:
        parser.error(str(error))
    pythons = make_environments(arguments.peers, arguments.environments)
    lines: list[Line] = []
    searches: dict[str, list[dict[str, Any]]] = {}
    failed = []
    with tempfile.TemporaryDirectory(prefix="criteo-peers-") as temporary:
        trainer = Trainer(kept, Path(temporary), pythons, arguments.threads)
        for side, model in pairs:
            if side not in pythons:
                continue
            try:
                if earlier is None:
                    chosen, searches[f"{side} {model}"] = search(
                        trainer, side, model, kinds, folds[0], quick=arguments.quick
                    )
                else:
                    chosen = {kind: earlier[line_title(side, model, kind)] for kind in kinds}
                lines += run_lines(trainer, side, model, chosen, folds, seeds=seeds)
            except SideError as error:
                # The others are worth having; a later run takes up what is missing.
                print(f"  {error}", file=sys.stderr, flush=True)
                failed.append(f"{side} {model}")
    our_scores = {
        model: [Scored.of(labels, one.probabilities) for one in predictions]
        for model, predictions in ours.items()
    }
    results: dict[str, Any] = {}
    table = []
    for model, predictions in ours.items():
        name = f"**ours, {model}**"
        outcome = Outcome(
            name,
            [one.probabilities for one in predictions],
            [float(one.facts["seconds"]) for one in predictions],
        )
        figures = summarize(outcome, labels, None)
        table.append(cells(name, figures))
        results[f"ours {model}"] = {key: one.as_dict() for key, one in figures.items()}
    for line in lines:
        beside = our_scores.get(line.model, our_scores.get(arguments.models[0]))
        figures = summarize(line.outcome, labels, beside)
        table.append(cells(line.title, figures))
        results[line.title] = {key: one.as_dict() for key, one in figures.items()}
        results[line.title]["settings"] = line.settings
    print(f"\n{len(origins)} origins, {labels.size:,} test rows\n")
    print_machine(machine)
    print_table(
        ["", "AUC", "logloss", "predicted / observed", "ours ahead, AUC", "ours ahead, logloss",
         "seconds for all origins"],
        table,
    )  # fmt: skip
    if searches:
        print_table(
            ["search at the first origin", "validation logloss", "epochs", "settings"],
            [
                [
                    name,
                    f"{one['valid_logloss']:.4f}",
                    str(one["epochs"]),
                    json.dumps(one["settings"]),
                ]
                for name, found in searches.items()
                for one in found
            ],
        )
    write_results(
        arguments.json,
        benchmark="criteo_peers",
        machine=machine,
        results={"lines": results, "searches": searches},
    )
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
