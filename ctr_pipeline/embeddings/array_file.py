"""A binary file of a description and arrays, checked on reading.

    magic (8 bytes) | length of the description (uint32) | description (JSON) | arrays | CRC-32

Little endian; the CRC-32 (uint32) covers all before it. Arrays are written and read in blocks, so
that memory beside them stays small; their lengths follow from the description.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ctr_pipeline.errors import CheckpointError

_BLOCK_BYTES = 1 << 22
_MOST_DESCRIPTION_BYTES = 1 << 26


class ArrayFileWriter:
    """Writes one file.

    Args:
        file: Open for writing, binary; it is not closed.
        magic: 8 bytes that name the kind of file and the version of its format.
        description: JSON values.
    """

    def __init__(self, file: IO[bytes], magic: bytes, description: Mapping[str, Any]) -> None:
        self._file = file
        self._crc = 0
        text = json.dumps(description, sort_keys=True).encode()
        self._write(magic + struct.pack("<I", len(text)) + text)

    def _write(self, block: bytes | memoryview) -> None:
        self._crc = zlib.crc32(block, self._crc)
        self._file.write(block)

    def write_array(self, array: npt.NDArray[Any]) -> None:
        """Appends a contiguous array."""
        content = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(content), _BLOCK_BYTES):
            self._write(content[start : start + _BLOCK_BYTES])

    def finish(self) -> None:
        """Appends the checksum."""
        self._file.write(struct.pack("<I", self._crc))


class ArrayFileReader:
    """Reads one file.

    Args:
        file: Open for reading, binary.
        magic: What the file must begin with.
        place: The file, as an error names it.

    Raises:
        CheckpointError: It is another kind of file, or damaged.
    """

    def __init__(self, file: IO[bytes], magic: bytes, place: str) -> None:
        self._file = file
        self._crc = 0
        self._place = place
        if self._read(len(magic)) != magic:
            raise self.damaged(f"does not begin with {magic.decode()}")
        (length,) = struct.unpack("<I", self._read(4))
        if length > _MOST_DESCRIPTION_BYTES:
            raise self.damaged("the description is too long")
        try:
            description = json.loads(self._read(length))
        except ValueError as error:
            raise self.damaged("the description cannot be read") from error
        if not isinstance(description, dict):
            raise self.damaged("the description is not a mapping")
        self.description: dict[str, Any] = description

    def damaged(self, what: str) -> CheckpointError:
        """The error of a file that is not as it was written."""
        return CheckpointError(
            f"the file is damaged: {what}", place=self._place, remedy="Use an earlier checkpoint"
        )

    def _read(self, num_bytes: int) -> bytes:
        block = self._file.read(num_bytes)
        if len(block) != num_bytes:
            raise self.damaged("it ends too early")
        self._crc = zlib.crc32(block, self._crc)
        return block

    def read_array(self, array: npt.NDArray[Any]) -> None:
        """Fills a contiguous array with what comes next."""
        content = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(content), _BLOCK_BYTES):
            block = content[start : start + _BLOCK_BYTES]
            block[:] = self._read(len(block))

    def skip_array(self, num_bytes: int) -> int:
        """Reads past what comes next, for the checksum; where in the file it begins."""
        place = self._file.tell()
        for start in range(0, num_bytes, _BLOCK_BYTES):
            self._read(min(_BLOCK_BYTES, num_bytes - start))
        return place

    def finish(self) -> None:
        """Checks the checksum and that nothing follows."""
        expected = self._crc
        (stored,) = struct.unpack("<I", self._read(4))
        if stored != expected:
            raise self.damaged("its checksum differs")
        if self._file.read(1):
            raise self.damaged("something follows its end")
