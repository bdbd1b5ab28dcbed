"""Settings of glibc's malloc for a node under load, which allocates messages of megabytes.

By default every block above 128 KiB is mapped, faulted in page by page and unmapped again, which
costs more than half of a 4 MiB fetch. And each thread has a heap of its own, which grows although
the event loop frees the memory. Here large blocks come from one heap for all threads; they hardly
ever wait for it, because of the interpreter's lock. The cost is resident memory: up to `trim_bytes`
at the heap's end stay with the process, until `give_back`.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import cast

MMAP_BYTES = 32 * 1024 * 1024
"""Blocks up to this size come from the heap; glibc takes no larger value."""
TRIM_BYTES = 32 * 1024 * 1024

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_large_blocks(trim_bytes: int = TRIM_BYTES) -> bool:
    """Returns True if the allocator is glibc's and took the settings; harmless elsewhere.

    Call it early: threads that run already keep their heaps.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (_M_MMAP_THRESHOLD, MMAP_BYTES),
        (_M_TRIM_THRESHOLD, trim_bytes),
        (_M_ARENA_MAX, 1),
    )
    return all(mallopt(name, value) for name, value in wanted)


def _uncleared_bytearray() -> Callable[[None, int], bytearray] | None:
    """CPython's own constructor, which takes a size without contents."""
    if sys.implementation.name != "cpython":
        return None
    make = ctypes.pythonapi.PyByteArray_FromStringAndSize
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
    return cast(Callable[[None, int], bytearray], make)


_make_uncleared = _uncleared_bytearray()


def uncleared(size_bytes: int) -> bytearray:
    """Memory that still has the bytes of whoever had it before: for an owner who shows nobody any
    of it before all of it is filled.

    `bytearray(size)` writes zeros first, which takes 0.1 ms for a MiB that the kernel fills next.
    """
    if _make_uncleared is None:
        return bytearray(size_bytes)
    return _make_uncleared(None, size_bytes)


def give_back() -> None:
    """Returns all free memory to the system; harmless without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def collect_rarely() -> None:
    """Makes the cycle collector run on young objects a tenth as often, on those that it has seen
    once a hundredth, and never on present ones.

    Reference counts free nearly everything that requests allocate; a search for cycles every 700
    objects costs a node a twentieth of its time. What it has seen once are the newest batches of
    all logs: 12,000 requests a second had a pause of 40 ms for them every two seconds with a
    threshold of 20.
    """
    gc.freeze()
    gc.set_threshold(10_000, 100, 50)
