"""Payloads of RecordIO chunks: snappy in its framing format, and gzip.

The framing format cuts the data into frames of at most 64 KiB, each compressed or not, with a
masked CRC-32C of its plain bytes (google/snappy, framing_format.txt, 2013-10-25).
"""

import gzip
import zlib

import cramjam
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_COMPRESSED, _PLAIN = 0x00, 0x01
_HEADER_BYTES, _CRC_BYTES = 4, 4
_MOST_OF_SIZE = 5
"""Bytes that tell the plain size of a block."""

_GZIP_LEVEL = 6
_PIECE_BYTES = 16 << 10
_ANY_GZIP = 16 + zlib.MAX_WBITS


class DamagedStreamError(ValueError):
    """Bytes that cannot be decompressed; the message completes `as snappy, …`."""


def decompress_snappy(stored: Bytes, most_bytes: int) -> Bytes:
    """The plain bytes of a stream of frames.

    Args:
        stored: The stream, uint8.
        most_bytes: It may have, plain.

    Raises:
        DamagedStreamError: It is no such stream, or damaged.
        OverflowError: It has more bytes.
    """
    try:
        num_bytes = _promised_bytes(stored.data)
        if num_bytes > most_bytes:
            raise OverflowError
        plain = np.empty(num_bytes, np.uint8)
        if cramjam.snappy.decompress_into(stored.data, plain.data) == num_bytes:
            return plain
    except cramjam.DecompressionError as error:
        raise DamagedStreamError(f"it cannot be decompressed ({error})") from error
    raise DamagedStreamError("it is shorter than it says")


def _promised_bytes(stored: memoryview) -> int:
    """How many plain bytes the frames say that they have, before any is decompressed."""
    position, num_bytes = 0, 0
    while position + _HEADER_BYTES <= len(stored):
        kind = stored[position]
        body = position + _HEADER_BYTES
        end = body + int.from_bytes(stored[position + 1 : body], "little")
        data = body + _CRC_BYTES
        if kind == _PLAIN:
            num_bytes += max(end - data, 0)
        elif kind == _COMPRESSED:
            size = bytes(stored[data : min(end, data + _MOST_OF_SIZE)])
            num_bytes += cramjam.snappy.decompress_raw_len(size)
        position = end
    return num_bytes


def compress_snappy(plain: bytes | bytearray) -> bytes:
    """A stream of frames of 64 KiB."""
    return bytes(cramjam.snappy.compress(plain))


def decompress_gzip(stored: Bytes, most_bytes: int) -> Bytes:
    """The plain bytes of one or more gzip members.

    Raises:
        DamagedStreamError: They are no such members, truncated or damaged.
        OverflowError: They have more than `most_bytes` bytes.
    """
    view, plain, position = stored.data, bytearray(), 0
    if not len(view):
        raise DamagedStreamError("it is empty")
    while position < len(view):
        member = zlib.decompressobj(_ANY_GZIP)
        while not member.eof:
            # A little at a time: what is left behind a member is copied, and there may be many.
            piece = view[position : position + _PIECE_BYTES]
            if not len(piece):
                raise DamagedStreamError("it is truncated")
            try:
                plain += member.decompress(piece, most_bytes - len(plain) + 1)
            except zlib.error as error:
                raise DamagedStreamError("it cannot be decompressed") from error
            if len(plain) > most_bytes:
                raise OverflowError
            position += len(piece) - len(member.unused_data)
    return np.frombuffer(plain, np.uint8)


def compress_gzip(plain: bytes | bytearray) -> bytes:
    """One gzip member, the same for the same bytes at any time."""
    return gzip.compress(plain, _GZIP_LEVEL, mtime=0)
