"""Files as streams of plain bytes, whatever they are compressed with.

The compression is told by the first bytes, not by the file's ending. Streams made of several gzip
members or zstd frames are read to the end; a truncated one is an error, never a short file.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum

import pyarrow as pa

from ctr_pipeline.dataset.data_files import DataFile, open_arrow
from ctr_pipeline.dataset.source import WHOLE, Range
from ctr_pipeline.errors import DataError


class Compression(StrEnum):
    """How a text file is compressed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_MAGIC = {b"\x1f\x8b": Compression.GZIP, b"\x28\xb5\x2f\xfd": Compression.ZSTD}
_UNREADABLE = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"%PDF": "a PDF document",
    b"ORC": "an ORC file",
    b"Obj\x01": "an Avro file",
}


def detect_compression(path: DataFile, magic: bytes) -> Compression:
    """The compression that a file's first bytes tell.

    Raises:
        DataError: They are those of a format that is not read.
    """
    for start, compression in _MAGIC.items():
        if magic.startswith(start):
            return compression
    for start, what in _UNREADABLE.items():
        if magic.startswith(start):
            raise DataError(
                f"is {what}, not text or Parquet",
                place=str(path),
                remedy="Convert it to UTF-8 CSV or TSV (plain, gzip or zstd) or to Parquet",
            )
    return Compression.NONE


class PlainStream:
    """Reads a file's uncompressed bytes, and knows how far it is in the file itself."""

    def __init__(
        self, path: DataFile, raw: pa.NativeFile, stream: pa.NativeFile, after: int | None
    ) -> None:
        self._path = path
        self._raw = raw
        self._stream = stream
        self._after = after

    def read(self, num_bytes: int) -> bytes:
        """Up to `num_bytes` bytes; fewer only at the end of the file or of its part.

        Raises:
            DataError: The file is truncated or damaged.
        """
        if self._after is not None:
            num_bytes = min(num_bytes, self._after - self._raw.tell())
        try:
            block: bytes = self._stream.read(num_bytes)
        except OSError as error:
            raise DataError(
                f"is truncated or damaged ({error})",
                place=str(self._path),
                remedy="Copy or download the file again",
            ) from error
        return block

    def position_bytes(self) -> int:
        """Bytes of the (compressed) file read so far."""
        return int(self._raw.tell())


@contextmanager
def open_plain(
    path: DataFile, compression: Compression, part: Range = WHOLE
) -> Iterator[PlainStream]:
    """Opens a text file for reading from its start, or from that of a range of its bytes.

    Args:
        path: The file.
        compression: How the file is compressed; a compressed one has no ranges.
        part: The bytes to read.

    Raises:
        DataError: The file cannot be opened.
    """
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(open_arrow(path))
        except OSError as error:
            raise DataError(
                f"cannot be read ({error.strerror or error})",
                place=str(path),
                remedy="Check the path and its permissions",
            ) from error
        if part.first:
            raw.seek(part.first)
        stream = raw
        if compression is not Compression.NONE:
            stream = stack.enter_context(pa.CompressedInputStream(raw, compression.value))
        yield PlainStream(path, raw, stream, part.after)
