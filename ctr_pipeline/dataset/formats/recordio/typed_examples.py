"""Examples as columns with a type that fits all of their values, which only reading all tells."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_pipeline.dataset.data_files import DataFile
from ctr_pipeline.dataset.formats.recordio.examples import (
    ExampleColumns,
    ExampleKind,
    find_features,
    read_examples,
)
from ctr_pipeline.dataset.formats.recordio.rows import read_record_blocks
from ctr_pipeline.dataset.rows import BLOCK_BYTES
from ctr_pipeline.errors import DataError

OnBytes = Callable[[int], None]


@dataclass
class ExampleTypes:
    """Finds the features of all Examples and of which kind their values are."""

    names: tuple[str, ...] = ()
    kinds: dict[str, set[ExampleKind]] = field(default_factory=dict)
    not_utf8: set[str] = field(default_factory=set)

    def look(self, files: Sequence[DataFile], on_bytes: OnBytes) -> None:
        """Reads all rows.

        Raises:
            DataError: A file is damaged, a record is no Example, or a feature has several values.
        """
        for path in files:
            num_before, position = 0, 0
            for records, after in read_record_blocks(path, BLOCK_BYTES):
                self.names = find_features(records, self.names)
                columns = read_examples(records, self.names)
                _check(columns, path, num_before)
                for feature, name in enumerate(self.names):
                    kinds = columns.kinds_of(feature)
                    self.kinds.setdefault(name, set()).update(kinds)
                    if ExampleKind.BYTES in kinds and name not in self.not_utf8:
                        try:
                            pc.cast(columns.bytes_of(feature), pa.large_string())
                        except pa.ArrowInvalid:
                            self.not_utf8.add(name)
                num_before += len(records)
                on_bytes(after - position)
                position = after

    def read(self, files: Sequence[DataFile], on_bytes: OnBytes) -> Iterator[pa.Table]:
        """All rows, typed by what `look` saw."""
        for path in files:
            position = 0
            for records, after in read_record_blocks(path, BLOCK_BYTES):
                columns = read_examples(records, self.names)
                yield pa.table(
                    [self._typed(columns, feature) for feature in range(len(self.names))],
                    names=list(self.names),
                )
                on_bytes(after - position)
                position = after

    def _typed(self, columns: ExampleColumns, feature: int) -> pa.Array:
        name = self.names[feature]
        kinds = self.kinds[name]
        if kinds == {ExampleKind.INT64}:
            return columns.int64_of(feature)
        if kinds == {ExampleKind.FLOAT}:
            return columns.float_of(feature)
        if name in self.not_utf8 and kinds == {ExampleKind.BYTES}:
            return columns.bytes_of(feature)
        texts = [
            pc.cast(columns.bytes_of(feature), pa.large_string()),
            pc.cast(columns.int64_of(feature), pa.large_string()),
            pc.cast(columns.float_of(feature), pa.large_string()),
        ]
        if kinds == {ExampleKind.INT64, ExampleKind.FLOAT}:
            return pc.cast(pc.coalesce(*texts), pa.float64())
        return pc.coalesce(*texts)


def _check(columns: ExampleColumns, path: DataFile, num_before: int) -> None:
    wrong = np.flatnonzero(~columns.is_good_N)
    if len(wrong):
        raise DataError(
            "not a tf.train.Example",
            place=f"{path}, row {num_before + int(wrong[0]) + 1}",
            remedy="Write the record again",
        )
    for feature, name in enumerate(columns.names):
        several = np.flatnonzero(columns.counts_TN[feature] > 1)
        if len(several):
            raise DataError(
                "several values in one record",
                place=f"{path}, row {num_before + int(several[0]) + 1}, column '{name}'",
                remedy="Write one value a record",
            )
