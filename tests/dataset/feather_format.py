"""A source format that the package does not have: Arrow files, also called Feather."""

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from ctr_pipeline.dataset.arrow_columns import RecordBlock, check_type
from ctr_pipeline.dataset.schema_checks import check_same_types
from ctr_pipeline.dataset.source import OneFile, SourceFormat, ranges_between
from ctr_pipeline.dataset.typed_source import typed_source


@dataclass(frozen=True)
class FeatherFile(OneFile):
    path: Path
    schema: pa.Schema
    num_batches: int

    @property
    def column_names(self):
        return tuple(self.schema.names)

    def ranges(self, unit_bytes):
        cuts = [0]
        if unit_bytes is not None:
            batch_bytes = self.size_bytes() / self.num_batches
            cuts = list(range(0, self.num_batches, max(1, int(unit_bytes / batch_bytes))))
        return ranges_between(cuts)

    def batches(self, part):
        with pa.OSFile(str(self.path)) as stream:
            reader = pa.ipc.open_file(stream)
            for number in range(self.num_batches)[part.first : part.after]:
                yield number, reader.get_batch(number)

    def read(self, part, plan, block_bytes):
        for name in plan.names:
            check_type(self.path, self.schema.field(name).type, name, plan)
        for number, batch in self.batches(part):
            done = self.size_bytes() * (number + 1) // self.num_batches
            yield RecordBlock(self.path, batch.select(plan.names), done)


class FeatherFormat(SourceFormat):
    name = "Feather"
    endings = (".feather", ".arrow")
    magic = b"ARROW1"

    def inspect(self, data, places, *, seed, are_new):
        opened = []
        for file in dict.fromkeys(file for group in places.values() for file in group):
            with pa.OSFile(str(file)) as stream:
                reader = pa.ipc.open_file(stream)
                opened.append(FeatherFile(file, reader.schema, reader.num_record_batches))
        first = opened[0]
        for one in opened:
            check_same_types(one.schema, one.path, first.schema, first.path)
        head = pa.Table.from_batches([batch for _, batch in first.batches(first.ranges(1)[0])])
        source = typed_source(
            self, "feather", files=places, opened=opened, schema=first.schema, head=head
        )
        return replace(source, head_is_all=len(opened) == first.num_batches == 1)

    def read_typed(self, source, progress):
        with progress.task("convert", total=source.size_bytes, unit="bytes") as task:
            for file in source.opened.values():
                for _, batch in file.batches(file.ranges(None)[0]):
                    yield pa.Table.from_batches([batch.select(list(source.column_names))])
                task.advance(file.size_bytes())
