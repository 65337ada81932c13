import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_pipeline.config.models import DataConfig, SplitConfig
from ctr_pipeline.dataset.encoded import EncodedReader, EncodedWriter, load_meta
from ctr_pipeline.dataset.ingest import RowsToRead, ingest
from ctr_pipeline.dataset.ingested import WeightSums, load_ingested
from ctr_pipeline.dataset.inspection import inspect_source
from ctr_pipeline.dataset.parts import read_columns
from ctr_pipeline.dataset.stream import stream_rows
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import SilentProgress
from ctr_pipeline.specs.columns import ColumnType

NUM_ROWS = 400
WEIGHTS = [0.25 * (i % 8) for i in range(NUM_ROWS)]


def write(folder, weights=WEIGHTS, *, kind="csv"):
    path = folder / f"rows.{kind}"
    labels = [i % 3 == 0 for i in range(NUM_ROWS)]
    if kind == "parquet":
        columns = {"label": np.array(labels, np.int8), "x": np.arange(NUM_ROWS), "w": weights}
        pq.write_table(pa.table(columns), path)
        return path
    # A quote now and then takes the slower ways of reading.
    rows = [
        f'{int(label)},{i},"{weight}"' if i % 150 == 9 else f"{int(label)},{i},{weight}"
        for i, (label, weight) in enumerate(zip(labels, weights, strict=True))
    ]
    path.write_text("\n".join(["label,x,w", *rows]) + "\n")
    return path


def run(folder, path, **data):
    config = DataConfig(train=str(path), **{"weight": "w", **data})
    return ingest(
        RowsToRead(config, inspect_source(config), {"x": ColumnType.NUMBER}, seed=0),
        folder / "in",
        threads=2,
        progress=SilentProgress(),
        block_bytes=512,
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("by", ["order", "random"])
def test_weights_go_with_their_rows(tmp_path, kind, by):
    path = write(tmp_path, kind=kind)
    ingested = run(tmp_path, path, split=SplitConfig(by=by))
    total = 0.0
    for split in ingested.splits.values():
        table = read_columns(split.files, ["x", "w", "label"])
        numbers = table.column("x").to_numpy().astype(int)
        weights = table.column("w").to_numpy()
        assert weights.tolist() == [WEIGHTS[i] for i in numbers]
        positive = weights[table.column("label").to_numpy() == 1].sum()
        assert split.weights == WeightSums(total=weights.sum(), positive=positive)
        assert split.label_rate == positive / weights.sum()
        total += split.weights.total
    assert total == sum(WEIGHTS)
    assert load_ingested(tmp_path / "in") == ingested


def test_weights_are_not_kept_when_none_are_configured(tmp_path):
    ingested = run(tmp_path, write(tmp_path), weight=None)
    assert {split.weights for split in ingested.splits.values()} == {None}
    train = ingested.splits["train"]
    assert train.label_rate == train.num_positive / train.num_rows
    with pytest.raises(KeyError):
        read_columns(train.files, ["w"])


def test_other_weights_are_other_rows(tmp_path):
    path = write(tmp_path)
    assert run(tmp_path, path).fingerprint != run(tmp_path, path, weight=None).fingerprint


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("-0.5", "weight negative or not finite: '-0.5'"),
        ("inf", "weight negative or not finite: 'inf'"),
        ("1e31", "weight negative or not finite: '1e31'"),
        ("nan", "weight missing"),
        ("", "weight missing"),
        ("heavy", "not a number: 'heavy'"),
    ],
)
@pytest.mark.parametrize("row", [30, 159])
def test_a_bad_weight_is_named(tmp_path, weight, message, row):
    path = write(tmp_path, [weight if i == row else w for i, w in enumerate(WEIGHTS)])
    with pytest.raises(DataError) as caught:
        run(tmp_path, path)
    assert caught.value.place == f"{path}, row {row + 2}, column 'w'"
    assert caught.value.message.startswith(message)
    skipped = run(tmp_path, path, bad_rows="skip")
    assert skipped.bad_rows.total == 1
    assert sum(split.num_rows for split in skipped.splits.values()) == NUM_ROWS - 1


@pytest.mark.parametrize("weight", [-1.0, float("inf"), None])
def test_a_bad_weight_in_parquet_is_named(tmp_path, weight):
    weights = [weight if i == 30 else w for i, w in enumerate(WEIGHTS)]
    path = write(tmp_path, weights, kind="parquet")
    with pytest.raises(DataError, match=r"weight (missing|negative or not finite)") as caught:
        run(tmp_path, path)
    assert caught.value.place == f"{path}, row 31, column 'w'"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0] * NUM_ROWS, "all weights of the train rows are 0"),
        ([i % 3 != 0 for i in range(NUM_ROWS)], "train rows of label 1 are 0"),
        ([i % 3 == 0 for i in range(NUM_ROWS)], "train rows of label 0 are 0"),
        ([i < NUM_ROWS * 0.9 for i in range(NUM_ROWS)], "all weights of the test rows are 0"),
    ],
)
def test_splits_in_which_a_class_weighs_nothing_are_refused(tmp_path, weights, message):
    with pytest.raises(DataError, match=message) as caught:
        run(tmp_path, write(tmp_path, [int(w) for w in weights]))
    assert caught.value.remedy == "Check data.weight"


def test_new_rows_need_weights_only_where_they_need_labels(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("label,x\n1,2\n0,3\n")
    data = DataConfig(train="unused", weight="w")
    types = {"x": ColumnType.NUMBER}
    (batch,) = stream_rows(data, str(path), types, label_required=False)
    assert batch.schema.names == ["x"]
    with pytest.raises(DataError, match=r"no column 'w', which data\.weight names"):
        list(stream_rows(data, str(path), types, label_required=True))


def encode(folder, weights):
    """Records as they are written with weights, or without any."""
    chance = np.random.default_rng(0)
    ids = chance.integers(0, 9, (20, 3)).astype(np.int32)
    numbers = chance.normal(size=(20, 2)).astype(np.float32)
    labels = (chance.random(20) < 0.5).astype(np.float32)
    with EncodedWriter(
        folder,
        num_fields=3,
        num_numbers=2,
        fingerprint="f",
        has_weights=weights is not None,
    ) as writer:
        for part in (slice(0, 7), slice(7, 20)):
            some = None if weights is None else weights[part]
            writer.write(ids[part], numbers[part], labels[part], some)
    return ids, numbers, labels


def test_encoded_weights_come_back_over_their_mean(tmp_path):
    weights = np.arange(20, dtype=np.float32)
    ids, numbers, labels = encode(tmp_path, weights)
    with EncodedReader(tmp_path) as reader:
        assert reader.meta.weight_sum == weights.sum()
        rows = reader.read_range(0, 20)
    np.testing.assert_array_equal(rows.weights_B, (weights / 9.5).astype(np.float32))
    np.testing.assert_array_equal(rows.ids_BF, ids)
    np.testing.assert_array_equal(rows.numbers_BN, numbers)
    np.testing.assert_array_equal(rows.labels_B, labels)


def test_records_without_weights_are_what_they_were(tmp_path):
    ids, numbers, labels = encode(tmp_path, None)
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert set(meta) == {
        "version",
        "fingerprint",
        "num_rows",
        "num_fields",
        "num_numbers",
        "num_positive",
    }
    words = np.fromfile(tmp_path / "rows.bin", np.int32).reshape(20, 6)
    expected = [ids, numbers.view(np.int32), labels.view(np.int32)[:, None]]
    np.testing.assert_array_equal(words, np.concatenate(expected, axis=1))
    with EncodedReader(tmp_path) as reader:
        assert reader.read_range(0, 20).weights_B is None
    assert not load_meta(tmp_path).has_weights


def test_weights_for_some_rows_alone_are_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="for all records or for none"):
        encode_half(tmp_path)


def encode_half(folder):
    with EncodedWriter(
        folder, num_fields=1, num_numbers=0, fingerprint="f", has_weights=True
    ) as writer:
        writer.write(np.zeros((1, 1), np.int32), np.zeros((1, 0), np.float32), np.zeros(1))
