"""Examples as protocol buffers write and read them, described here so that TensorFlow stays out."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _message_classes():
    """Example and its parts."""
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="o", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED

    def message(name, *fields):
        described = file.message_type.add(name=name)
        for number, (key, kind, label) in enumerate(fields, 1):
            added = described.field.add(name=key, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = field.TYPE_MESSAGE, kind
            else:
                added.type = kind
        return described

    message("BytesList", ("value", field.TYPE_BYTES, many))
    message("FloatList", ("value", field.TYPE_FLOAT, many))
    message("Int64List", ("value", field.TYPE_INT64, many))
    feature = message(
        "Feature",
        ("bytes_list", ".o.BytesList", one),
        ("float_list", ".o.FloatList", one),
        ("int64_list", ".o.Int64List", one),
    )
    feature.oneof_decl.add(name="kind")
    for added in feature.field:
        added.oneof_index = 0
    features = message("Features", ("feature", ".o.Features.FeatureEntry", many))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=one, type=field.TYPE_MESSAGE, type_name=".o.Feature"
    )
    message("Example", ("features", ".o.Features", one))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessages([file], pool=pool)


CLASSES = _message_classes()
Example = CLASSES["o.Example"]
LISTS = {int: "int64_list", float: "float_list", bytes: "bytes_list"}


def example_of(row):
    """An Example of protocol buffers; a value may be a list of several."""
    example = Example()
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        feature = example.features.feature[name]
        if values and values[0] is not None:
            getattr(feature, LISTS[type(values[0])]).value.extend(values)
    return example
