"""What `whole_job_beside.py` runs in FuxiCTR's own environment: from its file to test metrics.

Preprocessing, one epoch of DeepFM with validation and its checkpoint, scores of the test rows: what
its own `run_expid.py` does, with its defaults where nothing is given. It ends there: FuxiCTR
exports no servable model.
"""

import argparse
import json
import time
from pathlib import Path


def main() -> None:
    """Runs the job in `FOLDER` and writes what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="Of train.csv, valid.csv and test.csv.")
    parser.add_argument("work", type=Path, help="An empty folder.")
    parser.add_argument("output", type=Path, help="Seconds and metrics, as JSON.")
    parser.add_argument("--min-count", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--embedding-dim", type=int, required=True)
    parser.add_argument("--hidden-units", type=int, nargs="+", required=True)
    parser.add_argument("--threads", type=int, required=True, help="Of PyTorch.")
    arguments = parser.parse_args()

    import torch
    from fuxictr.features import FeatureMap
    from fuxictr.preprocess.build_dataset import build_dataset
    from fuxictr.pytorch.dataloaders import RankDataLoader
    from fuxictr_models import ClickModel
    from fuxictr_preparation import make_processor

    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    processor = make_processor(arguments.work)
    train, valid, test = build_dataset(
        processor,
        **{f"{split}_data": str(arguments.folder / f"{split}.csv") for split in SPLITS},
        data_format="csv",
        sep="\t",
        min_categr_count=arguments.min_count,
    )
    prepared = time.perf_counter()
    data_folder = Path(processor.data_dir)
    feature_map = FeatureMap(data_folder.name, str(data_folder))
    feature_map.load(str(data_folder / "feature_map.json"), {"embedding_dim": None})
    model = ClickModel(
        "deepfm",
        feature_map,
        str(arguments.work),
        embedding_dim=arguments.embedding_dim,
        hidden_units=arguments.hidden_units,
        cross_layers=0,
        cin_layers=(),
    )
    shared = {"batch_size": arguments.batch_size, "data_format": "parquet"}
    train_rows, valid_rows = RankDataLoader(
        feature_map, stage="train", train_data=train, valid_data=valid, **shared
    )
    model.fit(train_rows, epochs=1, validation_data=valid_rows)
    trained = time.perf_counter()
    metrics = model.evaluate(RankDataLoader(feature_map, stage="test", test_data=test, **shared))
    ended = time.perf_counter()
    figures = {
        "seconds": {
            "preparation": prepared - started,
            "training": trained - prepared,
            "evaluation": ended - trained,
        },
        "test_logloss": float(metrics["logloss"]),
        "test_auc": float(metrics["AUC"]),
    }
    arguments.output.write_text(json.dumps(figures), encoding="utf-8")


SPLITS = ("train", "valid", "test")

if __name__ == "__main__":
    main()
