"""From uncompressed records with a header to a batch as it is stored."""

from __future__ import annotations

from streamlog.codec.batch import HEADER_BYTES, LENGTH_END, Compression, resealed
from streamlog.codec.compression import compress
from streamlog.runtime.buffers import Buffer

_CODEC_BYTE_AT = 22


def finish(batch: bytearray, compression: Compression, level: int | None = None) -> bytearray:
    """The same object, compressed where that makes it smaller, with length and CRC."""
    if compression is not Compression.NONE:
        with memoryview(batch) as whole, whole[HEADER_BYTES:] as records:
            packed: Buffer = compress(compression, records, level)
        if len(packed) < len(batch) - HEADER_BYTES:
            batch[HEADER_BYTES:] = packed
            batch[8:LENGTH_END] = (len(batch) - LENGTH_END).to_bytes(4, "big")
            batch[_CODEC_BYTE_AT] |= compression
    return resealed(batch)
