"""The base of all packages: clocks, randomness, blocking work, disks. All of it is injected.

Imports errors alone. Used by all packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.runtime.exports import lazy_exports

if TYPE_CHECKING:
    from streamlog.runtime.allocator import collect_rarely as collect_rarely
    from streamlog.runtime.allocator import keep_large_blocks as keep_large_blocks
    from streamlog.runtime.clock import Clock as Clock
    from streamlog.runtime.clock import SystemClock as SystemClock
    from streamlog.runtime.offload import Offload as Offload
    from streamlog.runtime.offload import ThreadOffload as ThreadOffload
    from streamlog.runtime.rand import Random as Random
    from streamlog.runtime.rand import SeededRandom as SeededRandom
    from streamlog.runtime.rand import SystemRandom as SystemRandom

__all__ = [
    "Clock",
    "Offload",
    "Random",
    "SeededRandom",
    "SystemClock",
    "SystemRandom",
    "ThreadOffload",
    "collect_rarely",
    "keep_large_blocks",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "collect_rarely": "streamlog.runtime.allocator",
        "keep_large_blocks": "streamlog.runtime.allocator",
        "Clock": "streamlog.runtime.clock",
        "SystemClock": "streamlog.runtime.clock",
        "Offload": "streamlog.runtime.offload",
        "ThreadOffload": "streamlog.runtime.offload",
        "Random": "streamlog.runtime.rand",
        "SeededRandom": "streamlog.runtime.rand",
        "SystemRandom": "streamlog.runtime.rand",
    },
)
