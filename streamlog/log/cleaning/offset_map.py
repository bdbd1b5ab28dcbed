"""The newest offset of each key, in bounded memory (Kafka's OffsetMap).

Keys of up to 32 bytes are kept as they are, longer ones as a hash of 33 bytes, so that the two
never meet. A false match would delete a record; at 264 bits none is expected.
"""

from __future__ import annotations

from hashlib import blake2b

from streamlog.errors import Invalid

KEY_BYTES_MAX = 32
_HASH_BYTES = 33
ENTRY_BYTES = 256
"""Upper bound of an entry's memory: key, offset, and the table at the moment it grows."""


class KeyOffsetMap:
    """`latest_offset` (inclusive): up to where the map knows the log; -1 at first."""

    def __init__(self, memory_bytes_max: int) -> None:
        """Errors: Invalid where not one key fits."""
        self.entries_max = memory_bytes_max // ENTRY_BYTES
        if self.entries_max < 1:
            raise Invalid(
                f"log.cleaner.dedupe.buffer.size is {memory_bytes_max}; one key needs {ENTRY_BYTES}"
            )
        self.latest_offset = -1
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Whether it fits; if not, nothing changes. Offsets come in rising order."""
        kept = _kept(key)
        if len(self._offsets) >= self.entries_max and kept not in self._offsets:
            return False
        self._offsets[kept] = offset
        self.latest_offset = offset
        return True

    def get(self, key: bytes) -> int:
        """-1 where the key is not there."""
        return self._offsets.get(_kept(key), -1)


def _kept(key: bytes) -> bytes:
    if len(key) <= KEY_BYTES_MAX:
        return key
    return blake2b(key, digest_size=_HASH_BYTES).digest()
