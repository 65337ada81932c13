"""Payloads of RecordIO chunks: snappy in its framing format, and gzip.

The framing format cuts the data into frames of at most 64 KiB, each compressed or not, with a
masked CRC-32C of its plain bytes (google/snappy, framing_format.txt, 2013-10-25). Blocks inside the
frames are compressed by Arrow's snappy; Arrow does not read or write the frames.
"""

# NumPy's stubs give Any for arithmetic on uint64 scalars.
# mypy: disable-error-code="no-any-return"

import gzip
import zlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr_pipeline.kernels.compilation import kernel, read_only

Bytes = NDArray[np.uint8]

_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _LAST_UNSKIPPABLE, _IDENTIFIES = 0x00, 0x01, 0x7F, 0xFF
_FRAME_BYTES = 65_536
_WORST_SHARE = 7 / 8
"""A frame that stays longer than this is stored plain, as the reference implementation does."""

_GZIP_LEVEL = 6
_PIECE_BYTES = 16 << 10
_ANY_GZIP = 16 + zlib.MAX_WBITS
_EACH = np.uint64(0xFF)
_ALL_ONES = np.uint64(0xFFFFFFFF)
_SNAPPY = pa.Codec("snappy")


class DamagedStreamError(ValueError):
    """Bytes that cannot be decompressed; the message completes `as snappy, …`."""


class _Frames(NamedTuple):
    """Frames of data [F]: where their bytes are, and how many they are when plain."""

    is_compressed: NDArray[np.bool_]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    plain_bytes: NDArray[np.int64]
    crcs: NDArray[np.uint64]


def decompress_snappy(stored: Bytes, most_bytes: int) -> Bytes:
    """The plain bytes of a stream of frames.

    Args:
        stored: The stream, uint8.
        most_bytes: It may have, plain.

    Raises:
        DamagedStreamError: It is no such stream, or damaged.
        OverflowError: It has more bytes.
    """
    if bytes(stored[: len(_IDENTIFIER)]) != _IDENTIFIER:
        raise DamagedStreamError("it does not begin with the stream identifier")
    num_frames, total, position = _measure_frames(stored)
    if position < len(stored):
        raise DamagedStreamError(f"the frame at byte {position} is truncated or of no known kind")
    if total > most_bytes:
        raise OverflowError
    frames = _Frames(
        np.empty(num_frames, np.bool_),
        np.empty(num_frames, np.int64),
        np.empty(num_frames, np.int64),
        np.empty(num_frames, np.int64),
        np.empty(num_frames, np.uint64),
    )
    _list_frames(stored, frames)
    plain = np.empty(total, np.uint8)
    firsts = np.concatenate([[0], np.cumsum(frames.plain_bytes)])
    _copy_plain_frames(stored, frames, plain)
    for frame in np.flatnonzero(frames.is_compressed):
        start, end = int(frames.starts[frame]), int(frames.ends[frame])
        size = int(frames.plain_bytes[frame])
        block = pa.py_buffer(stored[start:end])
        try:
            text = _SNAPPY.decompress(block, decompressed_size=size)
        except (OSError, pa.ArrowException) as error:
            raise DamagedStreamError(f"the block at byte {start} is damaged") from error
        plain[firsts[frame] : firsts[frame + 1]] = np.frombuffer(text, np.uint8)
    wrong = _find_wrong_crc(read_only(plain), frames)
    if wrong >= 0:
        raise DamagedStreamError(
            f"the checksum of the frame at byte {int(frames.starts[wrong]) - 8} is wrong"
        )
    return plain


def compress_snappy(plain: bytes | bytearray) -> bytes:
    """A stream of frames of 64 KiB."""
    data = read_only(np.frombuffer(plain, np.uint8))
    parts = [_IDENTIFIER]
    for start in range(0, len(data), _FRAME_BYTES):
        block = data[start : start + _FRAME_BYTES]
        crc = int(masked_crc(block, 0, len(block))).to_bytes(4, "little")
        small = _SNAPPY.compress(pa.py_buffer(block), asbytes=True)
        is_small = len(small) < len(block) * _WORST_SHARE
        body = small if is_small else block.tobytes()
        kind = _COMPRESSED if is_small else _PLAIN
        parts += [bytes([kind]), (len(body) + len(crc)).to_bytes(3, "little"), crc, body]
    return b"".join(parts)


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


def _crc_tables() -> NDArray[np.uint64]:
    """What a byte adds to the CRC, by how many bytes follow it in a word of eight [8, 256].

    CRC-32C has the polynomial 0x1EDC6F41, here with its bits reversed.
    """
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for place in range(1, 8):
        before = tables[place - 1]
        tables[place] = (before >> np.uint64(8)) ^ tables[0][(before & _EACH).astype(np.int64)]
    return tables


_CRC_TABLES = _crc_tables()


@kernel
def masked_crc(data: np.ndarray, start: int, end: int) -> np.uint64:
    """The masked CRC-32C of data[start:end]."""
    crc = _ALL_ONES
    position = start
    while position + 8 <= end:
        word = crc
        for byte in range(8):
            word ^= np.uint64(data[position + byte]) << np.uint64(8 * byte)
        crc = np.uint64(0)
        for byte in range(8):
            crc ^= _CRC_TABLES[7 - byte, (word >> np.uint64(8 * byte)) & _EACH]
        position += 8
    while position < end:
        crc = (crc >> np.uint64(8)) ^ _CRC_TABLES[0, (crc ^ np.uint64(data[position])) & _EACH]
        position += 1
    crc ^= _ALL_ONES
    rotated = ((crc >> np.uint64(15)) | (crc << np.uint64(17))) & _ALL_ONES
    return (rotated + np.uint64(0xA282EAD8)) & _ALL_ONES


@kernel
def _frame_end(stored: np.ndarray, position: int) -> int:
    """Where the frame at `position` ends, -1 if it does not end in the data or is of no kind."""
    if len(stored) - position < 4:
        return -1
    kind = stored[position]
    length = (
        np.int64(stored[position + 1])
        | np.int64(stored[position + 2]) << 8
        | np.int64(stored[position + 3]) << 16
    )
    end = position + 4 + length
    if end > len(stored) or (_PLAIN < kind <= _LAST_UNSKIPPABLE):
        return -1
    if kind <= _PLAIN and length < 4:
        return -1
    if kind == _IDENTIFIES and (length != 6 or stored[position + 4] != 0x73):
        return -1
    return int(end)


@kernel
def _plain_size(stored: np.ndarray, start: int, end: int) -> tuple[int, bool]:
    """The plain bytes that a compressed block promises in a varint, and whether it may."""
    size = np.int64(0)
    for byte in range(5):
        if start + byte >= end:
            return 0, False
        size |= np.int64(stored[start + byte] & 0x7F) << (7 * byte)
        if stored[start + byte] < 0x80:
            return int(size), bool(size <= _FRAME_BYTES)
    return 0, False


@kernel
def _measure_frames(stored: np.ndarray) -> tuple[int, int, int]:
    """Frames with data, their plain bytes together, and the position after the last good frame."""
    num_frames, total, position = 0, 0, 0
    while position < len(stored):
        end = _frame_end(stored, position)
        if end < 0:
            break
        if stored[position] <= _PLAIN:
            if stored[position] == _COMPRESSED:
                size, is_good = _plain_size(stored, position + 8, end)
            else:
                size = end - position - 8
                is_good = size <= _FRAME_BYTES
            if not is_good:
                break
            num_frames += 1
            total += size
        position = end
    return num_frames, total, position


@kernel
def _list_frames(stored: np.ndarray, frames: _Frames) -> None:
    """Fills in the frames, which are good."""
    frame, position = 0, 0
    while position < len(stored):
        end = _frame_end(stored, position)
        if stored[position] <= _PLAIN:
            is_compressed = stored[position] == _COMPRESSED
            frames.is_compressed[frame] = is_compressed
            frames.starts[frame] = position + 8
            frames.ends[frame] = end
            frames.plain_bytes[frame] = end - position - 8
            if is_compressed:
                frames.plain_bytes[frame] = _plain_size(stored, position + 8, end)[0]
            crc = np.uint64(0)
            for byte in range(4):
                crc |= np.uint64(stored[position + 4 + byte]) << np.uint64(8 * byte)
            frames.crcs[frame] = crc
            frame += 1
        position = end


@kernel
def _copy_plain_frames(stored: np.ndarray, frames: _Frames, plain: np.ndarray) -> None:
    position = 0
    for frame in range(len(frames.starts)):
        size = frames.plain_bytes[frame]
        if not frames.is_compressed[frame]:
            start, end = frames.starts[frame], frames.ends[frame]
            plain[position : position + size] = stored[start:end]
        position += size


@kernel
def _find_wrong_crc(plain: np.ndarray, frames: _Frames) -> int:
    """The first frame whose checksum is not that of its bytes, -1 if there is none."""
    position = 0
    for frame in range(len(frames.starts)):
        end = position + frames.plain_bytes[frame]
        if masked_crc(plain, position, end) != frames.crcs[frame]:
            return frame
        position = end
    return -1
