"""What `feature_speed.py` runs in TensorFlow Transform's own environment, on Beam's local runner.

The features are those of ours: of each count its standardised logarithm and `floor(ln(x)^2)`, of
each category its place in a vocabulary. Training rows are analysed; all rows are transformed and
written as TFRecord files of Examples, as its guides do.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

COUNTS = [f"I{n}" for n in range(1, 14)]
CATEGORIES = [f"C{n}" for n in range(1, 27)]


def main() -> None:
    """Prepares `FOLDER/{train,valid,test}.csv` and writes what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="Of the rows.")
    parser.add_argument("work", type=Path, help="An empty folder.")
    parser.add_argument("output", type=Path, help="Seconds, as JSON.")
    parser.add_argument("--min-count", type=int, required=True)
    arguments = parser.parse_args()

    import apache_beam as beam
    import tensorflow as tf
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from tensorflow_transform.tf_metadata import schema_utils
    from tfx_bsl.public import tfxio

    schema = schema_utils.schema_from_feature_spec(
        {"label": tf.io.FixedLenFeature([], tf.int64)}
        | {name: tf.io.VarLenFeature(tf.float32) for name in COUNTS}
        | {name: tf.io.VarLenFeature(tf.string) for name in CATEGORIES}
    )

    def dense(sparse: Any, default: Any) -> Any:
        one = tf.SparseTensor(sparse.indices, sparse.values, [sparse.dense_shape[0], 1])
        return tf.squeeze(tf.sparse.to_dense(one, default_value=default), axis=1)

    def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = {"label": inputs["label"]}
        for name in COUNTS:
            count = dense(inputs[name], 0.0)
            outputs[f"{name}_number"] = tft.scale_to_z_score(tf.math.log1p(tf.maximum(count, 0.0)))
            bucket = tf.where(
                count > 2.0, tf.floor(tf.square(tf.math.log(tf.maximum(count, 1.0)))), count
            )
            outputs[f"{name}_id"] = tf.cast(bucket, tf.int64)
        for name in CATEGORIES:
            outputs[name] = tft.compute_and_apply_vocabulary(
                dense(inputs[name], ""),
                frequency_threshold=arguments.min_count,
                num_oov_buckets=1,
                vocab_filename=name,
            )
        return outputs

    def encode(pair: Any, encoder: Any) -> Any:
        batch, _ = pair
        return encoder.encode(batch)

    def read(split: str) -> Any:
        source = tfxio.CsvTFXIO(
            file_pattern=str(arguments.folder / f"{split}.csv"),
            column_names=["label", *COUNTS, *CATEGORIES],
            schema=schema,
            telemetry_descriptors=["feature-speed"],
            skip_header_lines=1,
            delimiter="\t",
        )
        return source.BeamSource(), source.TensorAdapterConfig()

    started = time.perf_counter()
    with beam.Pipeline() as pipeline, tft_beam.Context(temp_dir=str(arguments.work / "temporary")):
        source, adapter = read("train")
        rows = pipeline | "read train" >> source
        (transformed, metadata), fitted = (rows, adapter) | tft_beam.AnalyzeAndTransformDataset(
            preprocess, output_record_batches=True
        )
        splits = {"train": (transformed, metadata)}
        for split in ("valid", "test"):
            source, adapter = read(split)
            others = pipeline | f"read {split}" >> source
            splits[split] = ((others, adapter), fitted) | f"transform {split}" >> (
                tft_beam.TransformDataset(output_record_batches=True)
            )
        for split, (batches, about) in splits.items():
            encoder = tfxio.RecordBatchToExamplesEncoder(about.schema)
            _ = (
                batches
                | f"encode {split}" >> beam.FlatMap(encode, encoder=encoder)
                | f"write {split}" >> beam.io.WriteToTFRecord(str(arguments.work / split))
            )
    seconds = time.perf_counter() - started
    arguments.output.write_text(json.dumps({"seconds": seconds}), encoding="utf-8")


if __name__ == "__main__":
    main()
