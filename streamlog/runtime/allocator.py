"""Settings of the process's memory that suit a node under load.

glibc's malloc keeps large blocks: messages of megabytes come and go all the time.

By default every block above 128 KiB is mapped, faulted in page by page and unmapped again, which
costs more than half of a 4 MiB fetch. The price is resident memory: up to `trim_bytes` at the
heap's end stay with the process, until `give_back`.
"""

from __future__ import annotations

import ctypes
import gc
import sys

MMAP_BYTES = 32 * 1024 * 1024
"""Blocks up to this size come from the heap; glibc takes no larger value."""
TRIM_BYTES = 32 * 1024 * 1024

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_large_blocks(trim_bytes: int = TRIM_BYTES) -> bool:
    """True where the allocator is glibc's and took the settings; harmless elsewhere."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, trim_bytes)
    return bool(taken)


def give_back() -> None:
    """What is free goes back to the system, whatever was to stay; harmless without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def collect_rarely() -> None:
    """Has the cycle collector look at young objects a tenth as often, and at those of now never.

    What requests leave behind is freed by its count; a search for cycles every 700 objects costs a
    node a twentieth of its time.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
