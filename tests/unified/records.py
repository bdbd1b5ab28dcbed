"""Record batches for tests of unified logs."""

from __future__ import annotations

from streamlog.codec.batch import BatchProducer, Compression
from streamlog.codec.records import BatchBuilder


def keyed(
    key: bytes,
    value: bytes | None,
    *,
    at_ms: int = 1_700_000_000_000,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
) -> bytes:
    builder = BatchBuilder(1 << 20, compression=Compression.NONE)
    assert builder.append(at_ms, key, value)
    made = builder.build(BatchProducer(*producer), is_transactional=is_transactional)
    return bytes(made)
