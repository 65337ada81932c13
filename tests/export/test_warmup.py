from pathlib import Path

import numpy as np
import tensorflow as tf

from ctr_pipeline.export.warmup import WARMUP_FILE, write_warmup_requests


def fields_of(message: bytes) -> dict[int, list[bytes]]:
    """Length-delimited fields of a message by number: the wire format, read by hand."""
    fields: dict[int, list[bytes]] = {}
    place = 0
    while place < len(message):
        tag, place = message[place], place + 1
        assert tag & 7 == 2
        length, shift = 0, 0
        while True:
            byte, place = message[place], place + 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        fields.setdefault(tag >> 3, []).append(message[place : place + length])
        place += length
    return fields


def test_requests_have_tensorflow_servings_field_numbers(tmp_path: Path) -> None:
    inputs = {"C1": np.array([b"a", b""], dtype=object), "I1": np.array([1.5, np.nan])}
    write_warmup_requests(tmp_path, {"serving_default": inputs}, model_name="criteo")
    (record,) = tf.data.TFRecordDataset(str(tmp_path / WARMUP_FILE)).as_numpy_iterator()
    (predict_log,) = fields_of(record)[6]
    (request,) = fields_of(predict_log)[1]
    (model_spec,) = fields_of(request)[1]
    assert fields_of(model_spec) == {1: [b"criteo"], 3: [b"serving_default"]}
    tensors = {}
    for entry in fields_of(request)[2]:
        pair = fields_of(entry)
        tensors[pair[1][0].decode()] = tf.io.parse_tensor(
            pair[2][0], tf.string if pair[1][0] == b"C1" else tf.float64
        ).numpy()
    assert tensors["C1"].tolist() == [b"a", b""]
    np.testing.assert_equal(tensors["I1"], [1.5, np.nan])
