"""What `feature_speed.py` runs in FuxiCTR's own environment: its preprocessing of Criteo's columns.

The features are those of its own Criteo configs: counts as `floor(ln(x)^2)`, then a vocabulary of
each of the 39 columns. FuxiCTR 2.3.10 needs no model library for this, and nothing of ours.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def make_processor(root: Path) -> Any:
    """FuxiCTR's preprocessing of Criteo's columns, to be kept below `root`."""
    from fuxictr.datasets.criteo import CustomizedFeatureProcessor

    counts = {
        "name": [f"I{n}" for n in range(1, 14)],
        "active": True,
        "dtype": "float",
        "type": "categorical",
        "preprocess": "convert_to_bucket",
    }
    categories = {
        "name": [f"C{n}" for n in range(1, 27)],
        "active": True,
        "dtype": "str",
        "type": "categorical",
    }
    return CustomizedFeatureProcessor(
        feature_cols=[counts, categories],
        label_col={"name": "label", "dtype": "float"},
        dataset_id="criteo",
        data_root=str(root),
    )


def main() -> None:
    """Prepares `FOLDER/{train,valid,test}` and writes what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="Of the rows.")
    parser.add_argument("format", choices=("csv", "parquet"))
    parser.add_argument("work", type=Path, help="An empty folder.")
    parser.add_argument("output", type=Path, help="Seconds and memory, as JSON.")
    parser.add_argument("--min-count", type=int, required=True)
    arguments = parser.parse_args()

    from fuxictr.preprocess.build_dataset import build_dataset, init_ray

    # Its engine is started before the clock, as our kernels are loaded before ours.
    init_ray()
    paths = {
        f"{split}_data": str(arguments.folder / f"{split}.{arguments.format}")
        for split in ("train", "valid", "test")
    }
    started = time.perf_counter()
    processor = make_processor(arguments.work)
    build_dataset(
        processor,
        **paths,
        data_format=arguments.format,
        sep="\t",
        min_categr_count=arguments.min_count,
    )
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    arguments.output.write_text(
        json.dumps({"seconds": seconds, "peak_memory_bytes": peak}), encoding="utf-8"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
