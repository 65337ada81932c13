"""The request that TensorFlow Serving runs before it takes traffic.

The file is a TFRecord of `PredictionLog` messages at `assets.extra/tf_serving_warmup_requests`.
Field numbers are those of TensorFlow Serving's public protos (prediction_log.proto, predict.proto,
model.proto of `tensorflow_serving/apis`); only the fields used here are declared.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

WARMUP_FILE = Path("assets.extra") / "tf_serving_warmup_requests"

_PACKAGE = "tensorflow.serving"
_Field = descriptor_pb2.FieldDescriptorProto


def write_warmup_requests(
    saved_model: Path, requests: Mapping[str, Mapping[str, Any]], *, model_name: str
) -> None:
    """Writes one request a signature.

    Args:
        saved_model: Folder of the SavedModel.
        requests: By signature name, the tensors by input name.
        model_name: As the server knows it.
    """
    log_class = prediction_log_class()
    path = saved_model / WARMUP_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests.items():
            log = log_class()
            request = log.predict_log.request
            request.model_spec.name = model_name
            request.model_spec.signature_name = signature
            for name, tensor in inputs.items():
                request.inputs[name] = tf.make_tensor_proto(tensor).SerializeToString()
            writer.write(log.SerializeToString(deterministic=True))


def prediction_log_class() -> Any:
    """The message class `PredictionLog`.

    `PredictRequest.inputs` is declared as map<string, bytes>: on the wire a serialised TensorProto
    in it is the map<string, TensorProto> of the original.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="ctr_pipeline/prediction_log.proto", package=_PACKAGE, syntax="proto3"
    )
    spec = file.message_type.add(name="ModelSpec")
    _add_field(spec, "name", 1, _Field.TYPE_STRING)
    _add_field(spec, "signature_name", 3, _Field.TYPE_STRING)
    request = file.message_type.add(name="PredictRequest")
    _add_field(request, "model_spec", 1, _Field.TYPE_MESSAGE, "ModelSpec")
    entry = request.nested_type.add(name="InputsEntry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, _Field.TYPE_STRING)
    _add_field(entry, "value", 2, _Field.TYPE_BYTES)
    inputs = _add_field(request, "inputs", 2, _Field.TYPE_MESSAGE, "PredictRequest.InputsEntry")
    inputs.label = _Field.LABEL_REPEATED
    log = file.message_type.add(name="PredictLog")
    _add_field(log, "request", 1, _Field.TYPE_MESSAGE, "PredictRequest")
    outer = file.message_type.add(name="PredictionLog")
    _add_field(outer, "predict_log", 6, _Field.TYPE_MESSAGE, "PredictLog")
    # A pool of its own: TensorFlow Serving's client package may be installed beside this one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.PredictionLog")
    return message_factory.GetMessageClass(descriptor)


def _add_field(
    message: Any, name: str, number: int, kind: Any, type_name: str | None = None
) -> Any:
    field = message.field.add(name=name, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    if type_name is not None:
        field.type_name = f".{_PACKAGE}.{type_name}"
    return field
