"""A hash chain through one partition: loss, duplicates, disorder and changed bytes all break it.

Record i holds i (8 bytes, big-endian), the digest of record i-1 (16 bytes; of the chain's name for
the first) and a payload. The first value that does not continue the chain says where and how.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

DIGEST_BYTES = 16
SEQUENCE_BYTES = 8
RECORD_BYTES_MIN = SEQUENCE_BYTES + DIGEST_BYTES


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def _genesis(topic: str, partition: int) -> bytes:
    return _digest(f"{topic}/{partition}".encode())


class ChainWriter:
    """Makes a partition's records in order; the payload comes from the seed."""

    def __init__(self, topic: str, partition: int, *, record_bytes: int, seed: int = 0) -> None:
        if record_bytes < RECORD_BYTES_MIN:
            raise ValueError(f"a record of the chain needs {RECORD_BYTES_MIN} bytes")
        self._last = _genesis(topic, partition)
        self._payload = Random(f"{seed}/{partition}").randbytes(record_bytes - RECORD_BYTES_MIN)
        self.count = 0

    def values(self, count: int) -> list[bytes]:
        made = []
        for _ in range(count):
            value = self.count.to_bytes(SEQUENCE_BYTES, "big") + self._last + self._payload
            self._last = _digest(value)
            self.count += 1
            made.append(value)
        return made


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """Where a chain breaks: at the record read as number `position` (the first is 0)."""

    position: int
    fault: str


class ChainReader:
    """Checks a partition's records in order; `broken` is the first break, after which it stops."""

    def __init__(self, topic: str, partition: int) -> None:
        self._last = _genesis(topic, partition)
        self.count = 0
        self.broken: ChainBreak | None = None

    def check(self, values: Iterable[bytes | None]) -> None:
        for value in values:
            if self.broken is not None:
                return
            self.broken = self._fault(value or b"")
            self._last = _digest(value or b"")
            self.count += 1

    def _fault(self, value: bytes) -> ChainBreak | None:
        if len(value) < RECORD_BYTES_MIN:
            return ChainBreak(self.count, f"a record of {len(value)} bytes is not the chain's")
        sequence = int.from_bytes(value[:SEQUENCE_BYTES], "big")
        if sequence < self.count:
            return ChainBreak(self.count, f"record {sequence} is there twice")
        if sequence > self.count:
            return ChainBreak(self.count, f"records {self.count} to {sequence - 1} are missing")
        if value[SEQUENCE_BYTES:RECORD_BYTES_MIN] != self._last:
            return ChainBreak(
                self.count, f"record {sequence - 1} is not what was written before this"
            )
        return None
