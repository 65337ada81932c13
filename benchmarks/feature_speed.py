"""How fast raw rows become ids and numbers, beside what else could do it.

Rows of Criteo's shape come from the generator of `ctrpipe sample criteo`. Every side runs in a
process of its own, the sides by turns; ratios are of neighbours. What a row of the table compares:

- `fuxictr`: TSV and Parquet files of training, validation and test rows to encoded rows on disk,
  beside FuxiCTR's preprocessing of the same files, in an environment of its own that is made here.
  Both bucket the counts by floor(ln(x)^2) and look values seen at least twice up in vocabularies;
  ours also makes 13 standardised logarithms. Clocks start after imports, with Ray running and our
  kernels loaded; whole processes are compared too.
- `statistics`: all statistics that the same features need, and the report's, from ingested parts,
  whose texts are dictionaries already, beside hand-written SQL in DuckDB from Parquet and from a
  table of DuckDB's own that is loaded before the clock. The SQL computes rows, distinct values,
  ends, means and deviations of the 13 counts as they are and as logarithms, their exact
  30-quantiles, and the 26 vocabularies with clicks. Ours adds 20-quantiles, the 20 most frequent
  values, histograms with click rates, what each column says of the click, skews and the click rates
  of missing values, and waits until its files are on disk.
- `kernels`: 26 columns of texts in Arrow's buffers to ids by our kernels, beside our Keras layers,
  which serve exports, compiled by TensorFlow: by hash and by vocabulary. Both give the same ids.
- `packages`: what pip says of TensorFlow Transform and NVTabular on this Python; where the former
  works, preparation beside it on Beam's local runner.
- `recordio`: what `recordio_speed.py` finds.
- `memory`: peak resident memory of the process that prepares ten million rows.

    python benchmarks/feature_speed.py --json results.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from environments import FUXICTR, KEPT_IN, make_environment, try_package
from machine import Spread, describe_machine, print_machine, print_table, write_results

ROWS = ("fuxictr", "statistics", "kernels", "packages", "recordio", "memory")
COUNTS = [f"I{n}" for n in range(1, 14)]
CATEGORIES = [f"C{n}" for n in range(1, 27)]
SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}
MIN_COUNT = 2
QUANTILES = 30
HASH_BUCKETS = 1_000_000
BATCH_ROWS = 16_384
TRANSFORM_ROWS = 100_000
PACKAGES = {"tensorflow-transform": "tensorflow_transform", "nvtabular": "nvtabular"}
AIM_FUXICTR = {"csv": 12, "parquet": 20}
AIM_STATISTICS = 1.5
AIM_KERNELS = 8
AIM_RECORDIO_MB = 300
AIM_MEMORY_GB = 3.0
KERNEL_FEATURES: dict[str, dict[str, Any]] = {
    "hash": {"hash": {"buckets": HASH_BUCKETS}},
    "vocabulary": {"vocabulary": {"min_count": MIN_COUNT}},
}


# Rows.


def write_rows(folder: Path, num_rows: int, seed: int) -> None:
    """`train`, `valid` and `test` as tab-separated .csv with a header, and as .parquet."""
    from ctr_pipeline.apps.sample import write_criteo_sample
    from ctr_pipeline.progress import SilentProgress

    every = folder / "rows.tsv"
    write_criteo_sample(every, num_rows=num_rows, seed=seed, progress=SilentProgress(), header=True)
    with every.open("rb") as lines:
        header = lines.readline()
        for split, share in SHARES.items():
            path = folder / f"{split}.csv"
            with path.open("wb") as file:
                file.write(header)
                left = round(num_rows * share)
                for _, line in zip(range(left), lines, strict=False):
                    file.write(line)
            pq.write_table(_read_table(path), folder / f"{split}.parquet")
    every.unlink()


def _read_table(path: Path) -> pa.Table:
    types = {"label": pa.int64()} | dict.fromkeys(COUNTS, pa.float64())
    return pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(delimiter="\t"),
        convert_options=pa_csv.ConvertOptions(
            column_types=types | dict.fromkeys(CATEGORIES, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )


# Our side, as the pipeline runs it.


def config_of(paths: dict[str, str], kind: str, features: list[Any], output: Path) -> Any:
    """A config of these rows, with its defaults."""
    from ctr_pipeline.config.loader import config_from_mapping

    named = {"format": "tsv" if kind == "csv" else kind, "label": "label"}
    return config_from_mapping(
        {
            "name": "feature-speed",
            "data": {**paths, **named},
            "features": features,
            "output": str(output),
        }
    )


def all_features() -> list[dict[str, Any]]:
    """Numbers and ids of the counts, ids of the categories."""
    return [
        {
            "columns": COUNTS,
            "number": ["log", "standardize"],
            "id": {"bucketize": {"ln2": True}},
        },
        {"columns": CATEGORIES, "id": KERNEL_FEATURES["vocabulary"]},
    ]


def split_paths(folder: Path, kind: str) -> dict[str, str]:
    """Paths for `data`."""
    return {split: str(folder / f"{split}.{kind}") for split in SHARES}


def prepare(loaded: Any) -> dict[str, Any]:
    """Rows to encoded rows, with kernels loaded before the clock."""
    from ctr_pipeline.pipeline.context import RunContext
    from ctr_pipeline.pipeline.environment import peak_memory_bytes
    from ctr_pipeline.pipeline.run_folder import RunFolder
    from ctr_pipeline.pipeline.stages.analyze import run_analysis
    from ctr_pipeline.pipeline.stages.encode import run_encoding
    from ctr_pipeline.preprocessing.encode import wake_kernels
    from ctr_pipeline.progress import SilentProgress

    wake_kernels()
    context = RunContext(loaded, RunFolder(loaded.config.run_folder), SilentProgress())
    started = time.perf_counter()
    with context.run.locked():
        analysis = run_analysis(context)
        run_encoding(context, analysis)
    return {
        "seconds": time.perf_counter() - started,
        "stages": context.times.seconds,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def side_ours(folder: Path, kind: str) -> dict[str, Any]:
    """Rows of three files to encoded rows, in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="ours-") as output:
        return prepare(
            config_of(split_paths(folder, kind), kind, all_features(), Path(output) / "run")
        )


def side_prepare_base(folder: Path, _kind: str) -> dict[str, Any]:
    """Makes the ingested rows that the statistics start from."""
    return prepare(
        config_of(split_paths(folder, "parquet"), "parquet", quantile_features(), folder / "base")
    )


def quantile_features() -> list[dict[str, Any]]:
    """As `all_features`, with buckets that need exact quantiles."""
    first, second = all_features()
    return [{**first, "id": {"bucketize": {"quantiles": QUANTILES}}}, second]


def side_statistics(folder: Path, kind: str) -> dict[str, Any]:
    """Statistics of the ingested training rows; `drift`: and how far the other splits are."""
    from ctr_pipeline.analysis import collect_statistics, plan_statistics
    from ctr_pipeline.dataset.ingested import load_ingested
    from ctr_pipeline.pipeline.feature_file import load_features
    from ctr_pipeline.pipeline.resources import available_cores
    from ctr_pipeline.pipeline.run_folder import RunFolder
    from ctr_pipeline.preprocessing.encode import wake_kernels
    from ctr_pipeline.progress import SilentProgress

    wake_kernels()
    run = RunFolder(folder / "base")
    ingested = load_ingested(run.ingested)
    if ingested is None:
        raise SystemExit("the rows are not ingested")
    plan = plan_statistics(load_features(run.features), "label")
    others = {name: rows.files for name, rows in ingested.splits.items() if name != "train"}
    with tempfile.TemporaryDirectory(dir=folder, prefix="statistics-") as output:
        started = time.perf_counter()
        found = collect_statistics(
            plan,
            ingested.splits["train"].files,
            Path(output),
            data_fingerprint=ingested.fingerprint,
            threads=available_cores(),
            memory_limit_gb=4.0,
            progress=SilentProgress(),
            others=others if kind == "drift" else {},
        )
        seconds = time.perf_counter() - started
    sizes = {name: vocabulary.size for name, vocabulary in found.vocabularies.items()}
    return {"seconds": seconds, "num_rows": found.num_rows, "vocabularies": sizes}


def side_sql(folder: Path, kind: str) -> dict[str, Any]:
    """The same by hand: one query of all counts, and three of each category."""
    import duckdb

    from ctr_pipeline.pipeline.resources import available_cores

    database = duckdb.connect()
    database.execute(f"SET threads = {available_cores()}")
    database.execute("SET memory_limit = '4GB'")
    rows = f"read_parquet('{folder / 'train.parquet'}')"
    if kind == "table":
        database.execute(f"CREATE TABLE rows AS SELECT * FROM {rows}")
        rows = "rows"
    cuts = ", ".join(str(part / QUANTILES) for part in range(1, QUANTILES))
    per_count = ", ".join(
        f"count({name}), count(DISTINCT {name}), min({name}), max({name}), avg({name}), "
        f"stddev_pop({name}), avg(ln(1 + greatest({name}, 0))), "
        f"stddev_pop(ln(1 + greatest({name}, 0))), quantile_disc({name}, [{cuts}])"
        for name in COUNTS
    )
    sizes = {}
    with tempfile.TemporaryDirectory(dir=folder, prefix="sql-") as output:
        started = time.perf_counter()
        total = database.execute(f"SELECT count(*), sum(label), {per_count} FROM {rows}").fetchall()
        for name in CATEGORIES:
            database.execute(
                f"CREATE OR REPLACE TEMP TABLE found AS SELECT {name} AS value, count(*) AS "
                f"count, sum(label) AS label_sum FROM {rows} GROUP BY {name}"
            )
            database.execute("SELECT count(value), sum(count) FROM found").fetchall()
            database.execute(
                f"COPY (SELECT * FROM found WHERE value IS NOT NULL AND count >= {MIN_COUNT} "
                f"ORDER BY count DESC, value) TO '{Path(output) / name}.parquet'"
            )
        seconds = time.perf_counter() - started
        for name in CATEGORIES:
            sizes[name] = pq.read_metadata(f"{Path(output) / name}.parquet").num_rows
    return {"seconds": seconds, "num_rows": total[0][0], "vocabularies": sizes}


def side_plans(folder: Path, _kind: str) -> dict[str, Any]:
    """Fits the transforms that kernels and layers are compared by."""
    from ctr_pipeline.pipeline.context import RunContext
    from ctr_pipeline.pipeline.run_folder import RunFolder
    from ctr_pipeline.pipeline.stages.analyze import run_analysis
    from ctr_pipeline.preprocessing.fit import plan_preprocessing
    from ctr_pipeline.progress import SilentProgress

    for name, chain in KERNEL_FEATURES.items():
        features = [{"columns": CATEGORIES, "id": chain}]
        paths = split_paths(folder, "parquet")
        loaded = config_of(paths, "parquet", features, folder / f"plan-{name}")
        run = RunFolder(loaded.config.run_folder)
        with run.locked():
            analysis = run_analysis(RunContext(loaded, run, SilentProgress()))
            plan_preprocessing(analysis.features, analysis.statistics, run.path).save(
                run.preprocessing
            )
    return {}


def side_kernels(folder: Path, kind: str) -> dict[str, Any]:
    """The same texts by kernels and by layers, in turns.

    `kind` is the transform and the number of turns, such as `hash-3`.
    """
    import tensorflow as tf

    from ctr_pipeline.pipeline.resources import available_cores
    from ctr_pipeline.preprocessing.build import build_preprocessing
    from ctr_pipeline.preprocessing.encode import ColumnEncoder
    from ctr_pipeline.preprocessing.plan import load_plan

    name, _, turns = kind.partition("-")
    run = folder / f"plan-{name}"
    plan = load_plan(run / "preprocessing.json")
    file = pq.ParquetFile(folder / "train.parquet")
    batch_rows = min(BATCH_ROWS, file.metadata.num_rows)
    batches = [
        batch
        for batch in file.iter_batches(batch_rows, columns=CATEGORIES)
        if batch.num_rows == batch_rows  # of one shape, as TensorFlow compiles it once
    ]
    as_dictionaries = [_as_dictionaries(batch) for batch in batches]
    encoder = ColumnEncoder(plan, run, threads=available_cores())
    layers = build_preprocessing(plan, run)
    compiled = tf.function(lambda columns: layers(columns)[0])

    def by_layers(batch: pa.RecordBatch) -> Any:
        texts = {
            name: tf.constant(pc.fill_null(batch.column(name), "").to_numpy(zero_copy_only=False))
            for name in CATEGORIES
        }
        return compiled(texts).numpy()

    if not np.array_equal(encoder.encode(batches[0]).ids, by_layers(batches[0])):
        raise SystemExit(f"{name}: kernels and layers give different ids")
    num_rows = len(batches) * batch_rows
    speeds: dict[str, list[float]] = {"kernels": [], "dictionaries": [], "layers": []}
    with ThreadPoolExecutor(available_cores()) as pool:

        def by_kernels(chosen: Sequence[pa.RecordBatch]) -> None:
            for _ in pool.map(encoder.encode, chosen):
                pass

        def by_graph(chosen: Sequence[pa.RecordBatch]) -> None:
            for batch in chosen:
                by_layers(batch)

        work: dict[str, tuple[Callable[[Sequence[pa.RecordBatch]], None], list[Any]]] = {
            "kernels": (by_kernels, batches),
            "dictionaries": (by_kernels, as_dictionaries),
            "layers": (by_graph, batches),
        }
        for turn in range(int(turns) + 1):
            for side, (call, chosen) in work.items():
                started = time.perf_counter()
                call(chosen)
                if turn:  # the first one warms up
                    speeds[side].append(num_rows / (time.perf_counter() - started))
    return {"num_rows": num_rows, "rows_per_second": speeds}


def _as_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As ingestion keeps texts: each distinct value once."""
    columns = [column.dictionary_encode() for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def side_memory(folder: Path, _kind: str) -> dict[str, Any]:
    """Prepares one TSV file, divided by order."""
    paths = {"train": str(folder / "rows.tsv")}
    return prepare(config_of(paths, "csv", quantile_features(), folder / "memory"))


SIDES: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "ours": side_ours,
    "base": side_prepare_base,
    "statistics": side_statistics,
    "sql": side_sql,
    "plans": side_plans,
    "kernels": side_kernels,
    "memory": side_memory,
}


class SideError(Exception):
    """A side ended without figures."""


def start_side(side: str, folder: Path, kind: str = "") -> dict[str, Any]:
    """One side in a process of its own; adds the seconds of the whole process."""
    output = folder / "side.json"
    command = [sys.executable, __file__, "--side", side, "--kind", kind]
    command += ["--folder", str(folder), "--output", str(output)]
    return _timed(command, output, f"{side} {kind}")


def start_fuxictr(python: Path, folder: Path, kind: str) -> dict[str, Any]:
    """FuxiCTR's side, in its environment."""
    script = Path(__file__).with_name("fuxictr_preparation.py")
    output = folder / "side.json"
    with tempfile.TemporaryDirectory(dir=folder, prefix="fuxictr-") as work:
        command = [str(python), str(script), str(folder), kind, work, str(output)]
        command += ["--min-count", str(MIN_COUNT)]
        return _timed(command, output, f"FuxiCTR {kind}")


def start_transform(python: Path, folder: Path) -> dict[str, Any]:
    """TensorFlow Transform's side, in its environment."""
    script = Path(__file__).with_name("transform_preparation.py")
    output = folder / "side.json"
    with tempfile.TemporaryDirectory(dir=folder, prefix="transform-") as work:
        command = [str(python), str(script), str(folder), work, str(output)]
        command += ["--min-count", str(MIN_COUNT)]
        return _timed(command, output, "TensorFlow Transform")


def _timed(command: list[str], output: Path, what: str) -> dict[str, Any]:
    output.unlink(missing_ok=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "RAY_USAGE_STATS_ENABLED": "0"}
    log = output.with_suffix(".log")
    started = time.perf_counter()
    with log.open("w+", encoding="utf-8") as lines:
        code = subprocess.run(
            command, env=environment, stdout=lines, stderr=lines, check=False
        ).returncode
    if code != 0 or not output.exists():
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        raise SideError(f"{what} ended with {code}:\n{tail}")
    figures: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    figures["process_seconds"] = time.perf_counter() - started
    if "seconds" in figures:
        print(f"  {what}: {figures['seconds']:.2f} s", file=sys.stderr)
    return figures


# The rows of the table.


@dataclass(frozen=True)
class Setting:
    """What is measured with."""

    num_rows: int
    memory_rows: int
    repeats: int
    seed: int
    environments: Path
    is_quick: bool


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    what: str
    ours: str
    beside: str
    ratio: str
    aim: str
    is_met: bool | None

    @property
    def cells(self) -> list[str]:
        """Cells of the Markdown table."""
        verdict = {True: "met", False: "missed", None: ""}[self.is_met]
        return [self.what, self.ours, self.beside, self.ratio, self.aim, verdict]


@contextmanager
def rows_in(setting: Setting) -> Iterator[Path]:
    """A folder with the rows, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="feature-speed-") as temporary:
        write_rows(Path(temporary), setting.num_rows, setting.seed)
        yield Path(temporary)


def _ratios(above: list[float], below: list[float]) -> Spread:
    return Spread.of([first / second for first, second in zip(above, below, strict=True)])


def measure_fuxictr(setting: Setting) -> tuple[list[Line], dict[str, Any]]:
    """Preparation from files."""
    python = make_environment(setting.environments / "fuxictr", FUXICTR)
    lines, results = [], {}
    with rows_in(setting) as folder:
        for kind, aim in AIM_FUXICTR.items():
            start_side("ours", folder, kind)  # compiles what is not compiled yet
            ours: list[dict[str, Any]] = []
            theirs: list[dict[str, Any]] = []
            for _ in range(setting.repeats):
                ours.append(start_side("ours", folder, kind))
                theirs.append(start_fuxictr(python, folder, kind))
            name = "TSV" if kind == "csv" else "Parquet"
            for clock, label in (("seconds", ""), ("process_seconds", ", whole process")):
                ratio = _ratios([one[clock] for one in theirs], [one[clock] for one in ours])
                mine, other = (
                    Spread.of([setting.num_rows / one[clock] / 1e3 for one in side])
                    for side in (ours, theirs)
                )
                is_main = clock == "seconds"
                lines.append(
                    Line(
                        f"{name} to ids and numbers{label}, thousand rows/s",
                        mine.show(0),
                        f"FuxiCTR {other.show(1)}",
                        f"{ratio.show(1)} times as fast",
                        f"≥ {aim}" if is_main else "",
                        ratio.mean >= aim if is_main else None,
                    )
                )
            results[kind] = {"ours": ours, "fuxictr": theirs}
    return lines, results


def measure_statistics(setting: Setting) -> tuple[list[Line], dict[str, Any]]:
    """Statistics beside SQL."""
    results: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("ours", "ours with drift", "SQL on Parquet", "SQL on a table")
    }
    with rows_in(setting) as folder:
        start_side("base", folder)
        start_side("statistics", folder)  # compiles what is not compiled yet
        for _ in range(setting.repeats):
            results["ours"].append(start_side("statistics", folder))
            results["SQL on Parquet"].append(start_side("sql", folder, "parquet"))
            results["SQL on a table"].append(start_side("sql", folder, "table"))
            results["ours with drift"].append(start_side("statistics", folder, "drift"))
    for name, runs in results.items():
        for key in ("num_rows", "vocabularies"):
            if runs[0][key] != results["ours"][0][key]:
                raise SystemExit(f"statistics: {name} has other {key} than ours")
    seconds = {name: [one["seconds"] for one in runs] for name, runs in results.items()}
    lines = []
    for ours, other, is_main in (
        ("ours", "SQL on Parquet", True),
        ("ours", "SQL on a table", False),
        ("ours with drift", "SQL on Parquet", False),
    ):
        ratio = _ratios(seconds[ours], seconds[other])
        lines.append(
            Line(
                "statistics of 39 columns, with vocabularies"
                + (", and the drift of the other splits" if ours != "ours" else "")
                + ", s",
                Spread.of(seconds[ours]).show(2),
                f"{other} {Spread.of(seconds[other]).show(2)}",
                f"{ratio.show(2)} of its time",
                f"≤ {AIM_STATISTICS}" if is_main else "",
                ratio.mean <= AIM_STATISTICS if is_main else None,
            )
        )
    return lines, results


def measure_kernels(setting: Setting) -> tuple[list[Line], dict[str, Any]]:
    """Kernels beside layers."""
    lines, results = [], {}
    with rows_in(setting) as folder:
        start_side("plans", folder)
        for name in KERNEL_FEATURES:
            results[name] = start_side("kernels", folder, f"{name}-{setting.repeats}")
            speeds = results[name]["rows_per_second"]
            for side, form in (("kernels", "texts"), ("dictionaries", "dictionaries of texts")):
                is_main = side == "kernels"
                ratio = _ratios(speeds[side], speeds["layers"])
                mine, other = (
                    Spread.of([speed / 1e3 for speed in speeds[one]]) for one in (side, "layers")
                )
                lines.append(
                    Line(
                        f"26 columns of {form} to ids by {name}, thousand rows/s",
                        mine.show(0),
                        f"Keras layers {other.show(0)}",
                        f"{ratio.show(1)} times as fast",
                        f"≥ {AIM_KERNELS}" if is_main else "",
                        ratio.mean >= AIM_KERNELS if is_main else None,
                    )
                )
    return lines, results


def measure_packages(setting: Setting) -> tuple[list[Line], dict[str, Any]]:
    """What pip says; and TensorFlow Transform's speed, if it works here."""
    lines: list[Line] = []
    results: dict[str, Any] = {}
    version = ".".join(str(part) for part in sys.version_info[:3])
    for package, module in PACKAGES.items():
        python, said = try_package(setting.environments / package, package, module)
        results[package] = {"works": python is not None, "said": said}
        lines.append(Line(f"{package} on Python {version}", "", said, "", "", None))
        if python is not None and package == "tensorflow-transform":
            line, results["by turns"] = _measure_transform(python, setting)
            lines.append(line)
    return lines, results


def _measure_transform(python: Path, setting: Setting) -> tuple[Line, dict[str, Any]]:
    """Few rows: it needs minutes for a hundred thousand."""
    small = replace(setting, num_rows=min(setting.num_rows, TRANSFORM_ROWS))
    ours: list[float] = []
    theirs: list[float] = []
    with rows_in(small) as folder:
        start_side("ours", folder, "csv")  # compiles what is not compiled yet
        for _ in range(setting.repeats):
            ours.append(start_side("ours", folder, "csv")["seconds"])
            try:
                theirs.append(start_transform(python, folder)["seconds"])
            except SideError as error:
                said = str(error).splitlines()[-1].strip().replace("|", "/")
                what = f"TSV to ids and numbers, {small.num_rows:,} rows"
                beside = f"TensorFlow Transform fails: {said}"
                return Line(what, "", beside, "", "", None), {"said": str(error)}
    mine, other = (
        Spread.of([small.num_rows / seconds / 1e3 for seconds in side]) for side in (ours, theirs)
    )
    ratio = _ratios(theirs, ours)
    line = Line(
        f"TSV to ids and numbers, {small.num_rows:,} rows, thousand rows/s",
        mine.show(0),
        f"TensorFlow Transform {other.show(1)}",
        f"{ratio.show(1)} times as fast",
        "> 1",
        ratio.mean > 1,
    )
    return line, {"num_rows": small.num_rows, "ours": ours, "tensorflow-transform": theirs}


def measure_recordio(setting: Setting) -> tuple[list[Line], dict[str, Any]]:
    """What `recordio_speed.py` finds."""
    script = Path(__file__).with_name("recordio_speed.py")
    with tempfile.TemporaryDirectory(prefix="feature-speed-") as temporary:
        output = Path(temporary) / "recordio.json"
        command = [sys.executable, str(script), "--json", str(output)]
        command += ["--quick"] if setting.is_quick else ["--repeats", str(setting.repeats)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        results = json.loads(output.read_text(encoding="utf-8"))["results"]
    found = results["records, no compression"]["megabytes_per_second"]
    line = Line(
        "RecordIO read from the page cache, MB/s",
        Spread.of(found["values"]).show(0),
        "",
        "",
        f"≥ {AIM_RECORDIO_MB}",
        found["mean"] >= AIM_RECORDIO_MB,
    )
    return [line], results


def measure_memory(setting: Setting) -> tuple[list[Line], dict[str, Any]]:
    """Peak memory of one long preparation."""
    from ctr_pipeline.apps.sample import write_criteo_sample
    from ctr_pipeline.progress import SilentProgress

    with tempfile.TemporaryDirectory(prefix="feature-speed-") as temporary:
        write_criteo_sample(
            Path(temporary) / "rows.tsv",
            num_rows=setting.memory_rows,
            seed=setting.seed,
            progress=SilentProgress(),
            header=True,
        )
        found = start_side("memory", Path(temporary))
    gigabytes = found["peak_memory_bytes"] / 1e9
    line = Line(
        f"peak memory of preparing {setting.memory_rows:,} rows, GB "
        f"({found['seconds']:.0f} s, {setting.memory_rows / found['seconds'] / 1e3:,.0f} thousand "
        "rows/s)",
        f"{gigabytes:.2f}",
        "",
        "",
        f"≤ {AIM_MEMORY_GB:g}",
        gigabytes <= AIM_MEMORY_GB,
    )
    return [line], found


MEASURES: dict[str, Callable[[Setting], tuple[list[Line], dict[str, Any]]]] = {
    "fuxictr": measure_fuxictr,
    "statistics": measure_statistics,
    "kernels": measure_kernels,
    "packages": measure_packages,
    "recordio": measure_recordio,
    "memory": measure_memory,
}


def main() -> None:
    """Measures what is asked for and prints one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="Rows of the comparisons.")
    parser.add_argument("--memory-rows", type=int, default=10_000_000, help="Rows of `memory`.")
    parser.add_argument("--repeats", type=int, default=3, help="Turns of each side.")
    parser.add_argument("--seed", type=int, default=0, help="Of the rows.")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=ROWS, help="Rows of the table.")
    parser.add_argument(
        "--environments",
        type=Path,
        default=KEPT_IN,
        help="Where environments of other packages are made and kept (4 GB).",
    )
    parser.add_argument("--quick", action="store_true", help="20,000 rows, once.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write the results there.")
    for hidden, kind in (("side", str), ("kind", str), ("folder", Path), ("output", Path)):
        parser.add_argument(f"--{hidden}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        figures = SIDES[options.side](options.folder, options.kind)
        options.output.write_text(json.dumps(figures), encoding="utf-8")
        return
    setting = Setting(
        num_rows=20_000 if options.quick else options.rows,
        memory_rows=20_000 if options.quick else options.memory_rows,
        repeats=1 if options.quick else options.repeats,
        seed=options.seed,
        environments=options.environments.expanduser().resolve(),
        is_quick=options.quick,
    )
    machine = describe_machine()
    lines: list[Line] = []
    failures: list[str] = []
    results: dict[str, Any] = {"num_rows": setting.num_rows, "repeats": setting.repeats}
    for name in options.only:
        print(f"{name}:", file=sys.stderr)
        try:
            found, results[name] = MEASURES[name](setting)
        except SideError as error:
            failures.append(f"{name}: {error}")
            continue
        lines += found
        # What is measured stays, should a later row fail.
        if options.json is not None:
            _write_quietly(options.json, machine, results)
    print(f"\n{setting.num_rows:,} rows, {setting.repeats} repeats, sides by turns\n")
    print_machine(machine)
    print_table(
        ["what", "ours", "beside", "ratio", "reach", ""],
        [line.cells for line in lines],
    )
    write_results(options.json, benchmark="feature_speed", machine=machine, results=results)
    if failures:
        raise SystemExit("\n".join(failures))


def _write_quietly(path: Path, machine: dict[str, Any], results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": "feature_speed", "machine": machine, "results": results}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
