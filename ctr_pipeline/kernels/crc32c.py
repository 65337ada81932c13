"""CRC-32C, masked, as the records of TFRecord have it."""

# NumPy's stubs give Any for arithmetic on uint64 scalars.
# mypy: disable-error-code="no-any-return"

import numpy as np
from numpy.typing import NDArray

from ctr_pipeline.kernels.compilation import kernel

_EACH = np.uint64(0xFF)
_ALL_ONES = np.uint64(0xFFFFFFFF)


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
def masked_crc(data: np.ndarray) -> np.uint64:
    """The masked CRC-32C of some bytes."""
    crc = _ALL_ONES
    position, end = 0, len(data)
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
