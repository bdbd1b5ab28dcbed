"""From a batch of uncompressed records to one as it is stored."""

from __future__ import annotations

from streamlog.codec.batch import HEADER_BYTES, LENGTH_END, Compression, resealed
from streamlog.codec.compression import compress
from streamlog.runtime.buffers import Buffer

_CODEC_BYTE_AT = 22


def finish(batch: bytearray | memoryview, compression: Compression, level: int | None) -> bytearray:
    """Compressed where that makes it smaller; length and CRC are right. A bytearray is kept."""
    with memoryview(batch) as whole, whole[HEADER_BYTES:] as records:
        size = len(records)
        packed: Buffer = b""
        if compression is not Compression.NONE:
            packed = compress(compression, records, level)
        is_smaller = compression is not Compression.NONE and len(packed) < size
        if is_smaller:
            finished = bytearray(whole[:HEADER_BYTES]) + packed
        else:
            finished = batch if isinstance(batch, bytearray) else bytearray(whole)
    if is_smaller:
        finished[8:LENGTH_END] = (len(finished) - LENGTH_END).to_bytes(4, "big")
        finished[_CODEC_BYTE_AT] |= compression
    return resealed(finished)
