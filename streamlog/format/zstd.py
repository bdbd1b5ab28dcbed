"""Decompresses zstd frames from bytes that may be damaged or hostile.

`zstandard.decompress` allocates the size that a frame states and then ignores `max_output_size`:
twenty bytes that state a tebibyte raise MemoryError, and a small bomb is expanded in full.
"""

from __future__ import annotations

import zstandard

from streamlog.runtime.buffers import Buffer

RATIO_MAX = 1 << 15
"""A block of 128 KiB takes four bytes at least."""


def decompress_exactly(data: Buffer, size: int) -> bytes:
    """The `size` bytes that one whole frame holds; never more is allocated.

    Errors: ValueError.
    """
    try:
        stated = zstandard.frame_content_size(data)
        if stated != size or size > RATIO_MAX * len(data):
            raise ValueError(f"a frame of {len(data)} bytes states {stated} bytes, not {size}")
        plain = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"the compressed bytes cannot be read: {error}") from error
    if len(plain) != size:
        raise ValueError(f"a frame that states {size} bytes holds {len(plain)}")
    return plain
