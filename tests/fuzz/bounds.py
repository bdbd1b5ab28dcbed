"""Memory and work of a call, measured: bytes allocated at the peak, lines of Python run."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


class OutOfBounds(AssertionError):
    """The call took more than it was allowed; it was cut off there."""


def run_bounded(call: Callable[[], object], *, memory_bytes_max: int, lines_max: int) -> object:
    """What the call returns or raises; OutOfBounds past a bound.

    Lines are counted, not time, and the line past the bound is not run: an endless loop ends.
    What compiled code allocates for itself is not seen; what it hands over is.
    """
    left = lines_max

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise OutOfBounds(
                    f"more than {lines_max} lines at {frame.f_code.co_filename}:{frame.f_lineno}"
                )
        return count

    before = sys.gettrace()
    is_traced = tracemalloc.is_tracing()
    if not is_traced:
        tracemalloc.start(1)
    tracemalloc.reset_peak()
    held, _ = tracemalloc.get_traced_memory()
    sys.settrace(count)
    try:
        return call()
    finally:
        sys.settrace(before)
        _, peak = tracemalloc.get_traced_memory()
        if not is_traced:
            tracemalloc.stop()
        if peak - held > memory_bytes_max:
            raise OutOfBounds(f"{peak - held} bytes were held; {memory_bytes_max} are allowed")
