"""Encoding of drawn rows: what a row learns of others does not depend on which are drawn."""

import numpy as np
import pyarrow as pa
import pytest

from ctr_pipeline.dataset.encoded import EncodedReader, EncodedWriter
from ctr_pipeline.dataset.sampling import NegativeSampling
from ctr_pipeline.pipeline.stages.encode import Targets, encode_in_order

NUM_ROWS = 1000
LABELS = (np.arange(NUM_ROWS) % 4 == 0).astype(np.int8)
WEIGHTS = np.arange(NUM_ROWS) * 1e30 / NUM_ROWS


class RowNumbers:
    """An encoder whose id is the row's own value and whose number is the one it was told."""

    def encode(self, batch, into, *, out_of_fold):
        into.ids[:, 0] = batch.column("row").to_numpy()
        into.numbers[:, 0] = out_of_fold["seen"]


def batches(batch_rows):
    for first in range(0, NUM_ROWS, batch_rows):
        part = slice(first, first + batch_rows)
        columns = {"row": np.arange(NUM_ROWS)[part], "label": LABELS[part], "w": WEIGHTS[part]}
        yield pa.record_batch(columns)


def rows_before():
    """A stateful encoding: how many rows came before."""
    seen = 0

    def out_of_fold(batch):
        nonlocal seen
        seen += batch.num_rows
        return {"seen": np.arange(seen - batch.num_rows, seen, dtype=np.float64)}

    return out_of_fold


@pytest.mark.parametrize("batch_rows", [64, 1000])
def test_drawn_rows_keep_what_they_know_of_all_rows(tmp_path, batch_rows):
    sampling = NegativeSampling(negatives=0.3, seed=1)
    with EncodedWriter(
        tmp_path, num_fields=1, num_numbers=1, fingerprint="f", has_weights=True
    ) as writer:
        for records in encode_in_order(
            RowNumbers(),
            writer,
            batches(batch_rows),
            targets=Targets("label", "w", float(WEIGHTS.mean())),
            threads=2,
            out_of_fold=rows_before(),
            sampling=sampling,
        ):
            writer.write_records(records)
    with EncodedReader(tmp_path) as reader:
        rows = reader.read_range(0, reader.meta.num_rows)
    drawn = np.flatnonzero(sampling.is_drawn(0, LABELS == 1))
    assert rows.ids_BF[:, 0].tolist() == drawn.tolist()
    assert rows.numbers_BN[:, 0].tolist() == drawn.tolist()
    assert rows.labels_B.tolist() == LABELS[drawn].tolist()
    # Too large for float32 as they are, and over the mean of the rows that are drawn.
    relative = WEIGHTS[drawn] / WEIGHTS[drawn].mean()
    np.testing.assert_allclose(rows.weights_B, relative, rtol=1e-6)
    expected = sampling.expected_rows(NUM_ROWS, int(LABELS.sum()))
    assert rows.num_rows == pytest.approx(expected, rel=0.1)
