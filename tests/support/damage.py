"""What disks and stores do to bytes that nobody looks at."""

from __future__ import annotations

from collections.abc import Iterator


def one_bit_changed(data: bytes, step: int = 1) -> Iterator[bytes]:
    """The data with one other bit, for each of its bits; or for each `step`-th of them."""
    whole = int.from_bytes(data)
    for bit in range(0, len(data) * 8, step):
        yield (whole ^ 1 << bit).to_bytes(len(data))


def cut(data: bytes) -> Iterator[bytes]:
    """Every beginning of the data, the empty one among them, but not all of it."""
    for length in range(len(data)):
        yield data[:length]
