"""Gives memory back to the system after a catch-up read.

Readers far behind allocate and free blocks of megabytes, of many sizes, in a heap that all threads
share. Free space between blocks that stay (the caches) remains with the process: 150 MiB and more
after some hundred partitions were read at once. Trimming while they read would fault the same pages
in again.
"""

from __future__ import annotations

from collections.abc import Callable

from streamlog.runtime.allocator import give_back
from streamlog.runtime.offload import Lane, Offload

INTERVAL_S = 2.0
QUIET_BYTES = 8 << 20
"""Bytes read in an interval; below this a catch-up has ended, or is slow and keeps little."""
WORTH_BYTES = 64 << 20
"""Bytes read since memory was last given back; below this there is little to give back."""


class SpareMemory:
    """`read_bytes`: bytes that were read from the store so far. Call `tick` every INTERVAL_S."""

    def __init__(
        self,
        read_bytes: Callable[[], int],
        offload: Offload,
        give_back: Callable[[], None] = give_back,
    ) -> None:
        self._read_bytes = read_bytes
        self._offload = offload
        self._give_back = give_back
        self._seen = 0
        self._unreturned = 0
        """Bytes read since memory was given back."""

    async def tick(self) -> None:
        """Gives free memory back, once a large read is over; takes some ms of another thread."""
        read = self._read_bytes()
        now, self._seen = read - self._seen, read
        self._unreturned += now
        if now < QUIET_BYTES and self._unreturned >= WORTH_BYTES:
            self._unreturned = 0
            await self._offload.run(Lane.CPU, self._give_back)
