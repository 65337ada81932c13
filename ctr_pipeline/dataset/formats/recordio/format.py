"""RecordIO files as a source: recognised, inspected and read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pyarrow as pa

from ctr_pipeline.config.models import DataConfig
from ctr_pipeline.dataset.arrow_columns import column_type_of
from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.formats.recordio.chunks import MAGIC_BYTES
from ctr_pipeline.dataset.formats.recordio.head import (
    RecordKind,
    find_record_kind,
    read_head_of_examples,
    read_head_of_lines,
)
from ctr_pipeline.dataset.formats.recordio.rows import ExampleFile, LineFile
from ctr_pipeline.dataset.formats.recordio.typed_examples import ExampleTypes
from ctr_pipeline.dataset.formats.text.format import inspect_lines
from ctr_pipeline.dataset.formats.text.head import TextHead
from ctr_pipeline.dataset.formats.text.typed_rows import read_typed_texts
from ctr_pipeline.dataset.schema_checks import check_names
from ctr_pipeline.dataset.source import (
    HEAD_BYTES,
    HEAD_ROWS,
    OTHER_HEAD_BYTES,
    Place,
    Source,
    SourceFormat,
)
from ctr_pipeline.dataset.typed_source import refuse_columns, typed_source
from ctr_pipeline.errors import DataError
from ctr_pipeline.progress import Progress


class RecordIOFormat(SourceFormat):
    """RecordIO files, a record a row: delimited lines or `tf.train.Example`."""

    name = "RecordIO"
    endings = (".recordio", ".rio")
    magic = MAGIC_BYTES

    def inspect(
        self,
        data: DataConfig,
        places: Mapping[str, tuple[Place, ...]],
        *,
        seed: int | None,
        are_new: bool,
    ) -> Source:
        """As `SourceFormat.inspect`."""
        files = [file for group in places.values() for file in group if isinstance(file, DataFile)]
        if _record_kind("auto" if are_new else data.record, files) == "example":
            if not are_new:
                refuse_columns(data, "Examples", files[0])
            return self._inspect_examples(places, files)

        def look(file: DataFile, num_bytes: int, delimiter: str | None) -> TextHead:
            return read_head_of_lines(file, data, HEAD_ROWS, num_bytes, delimiter, are_new=are_new)

        source = inspect_lines(self, data, places, look, LineFile, are_new=are_new)
        # Of the head's records, those that are no rows are left out.
        return replace(
            source, format_name="recordio", record="line", head_block=None, head_is_all=False
        )

    def _inspect_examples(
        self, places: Mapping[str, tuple[Place, ...]], files: Sequence[DataFile]
    ) -> Source:
        """The columns are the features of the first records of all files together."""
        first = files[0]
        heads = {
            file: read_head_of_examples(
                file, HEAD_ROWS, HEAD_BYTES if file == first else OTHER_HEAD_BYTES
            )
            for file in files
        }
        schema = _joint_schema(heads)
        head = heads[first]
        for name, kind in zip(schema.names, schema.types, strict=True):
            if name not in head.schema.names:
                head = head.append_column(name, pa.nulls(head.num_rows, kind))
        opened = [ExampleFile(file, heads[file].schema) for file in heads]
        source = typed_source(
            self, "recordio", files=places, opened=opened, schema=schema, head=head
        )
        return replace(source, record="example", may_lack_columns=True)

    def read_typed(self, source: Source, progress: Progress) -> Iterator[pa.Table]:
        """As `SourceFormat.read_typed`; all rows are read twice."""
        if source.record == "line":
            yield from read_typed_texts(source, progress)
            return
        files = [file for file in source.opened if isinstance(file, DataFile)]
        types = ExampleTypes()
        with progress.task("find types", total=source.size_bytes, unit="bytes") as task:
            types.look(files, task.advance)
        with progress.task("convert", total=source.size_bytes, unit="bytes") as task:
            yield from types.read(files, task.advance)


def _record_kind(
    wanted: Literal["auto", "line", "example"], files: Sequence[DataFile]
) -> RecordKind:
    """What the records of all files hold."""
    first = files[0]
    kinds = {file: find_record_kind(file, wanted) for file in files}
    for file, kind in kinds.items():
        if kind != kinds[first]:
            raise DataError(
                f"holds records of the kind {kind}, but '{first}' of the kind {kinds[first]}",
                place=str(file),
                remedy="Give files of one kind",
            )
    return kinds[first]


def _joint_schema(heads: Mapping[DataFile, pa.Table]) -> pa.Schema:
    """The features of all files; one that has no value in a file may have any type there."""
    fields: dict[str, tuple[pa.DataType, DataFile]] = {}
    for file, head in heads.items():
        check_names(head.schema.names, file)
        for name in head.schema.names:
            found = head.schema.field(name).type
            expected, other = fields.get(name, (found, file))
            if pa.types.is_null(expected):
                fields[name] = found, file
                continue
            if not pa.types.is_null(found) and column_type_of(found) is not column_type_of(
                expected
            ):
                raise DataError(
                    f"column '{name}' has the type {found}, but {expected} in '{other}'",
                    place=str(file),
                    remedy="Give files with the same types",
                )
            fields[name] = expected, other
    return pa.schema([(name, kind) for name, (kind, _) in fields.items()])
