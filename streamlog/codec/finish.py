"""Finishes a batch: compresses its records, sets length and CRC."""

from __future__ import annotations

from streamlog.codec.batch import HEADER_BYTES, LENGTH_END, Compression, resealed
from streamlog.codec.compression import compress
from streamlog.runtime.buffers import Buffer

_CODEC_BYTE_AT = 22


def finish(batch: bytearray | memoryview, compression: Compression, level: int | None) -> bytearray:
    """The batch, compressed if that makes it smaller, with its length and CRC.

    A bytearray that stays uncompressed is changed in place and returned.
    """
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
