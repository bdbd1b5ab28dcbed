"""Record batches as producers send them, good and bad, from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping

from streamlog.codec.batch import (
    CONTROL,
    CRC_START,
    LENGTH_END,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    TRANSACTIONAL,
    BatchProducer,
    Compression,
    resealed,
)
from streamlog.codec.records import encode_values

BASE_MS = 1_767_225_600_000
SPAN_MS = 5_000
"""Timestamps of all records lie within this, so that no segment rolls by time."""


def batch(
    rng: random.Random,
    producer: BatchProducer | None = None,
    count: int | None = None,
    large_value: int | None = None,
    base_ms: int = BASE_MS,
) -> bytes:
    """A good batch; compressed by any codec, with keys, nulls and headers here and there.

    `large_value`: the bytes of one value that no codec makes smaller.
    """
    count = rng.choice((1, 1, 2, 5, 20)) if count is None else count
    values = [_value(rng) for _ in range(count)]
    if large_value is not None:
        values[-1] = rng.randbytes(large_value)
    keys = [rng.choice((None, b"", b"k%d" % rng.randrange(9))) for _ in range(count)]
    headers = [rng.choice(([], [], [("h", b"1"), ("n", None)])) for _ in range(count)]
    times = [base_ms + rng.randrange(SPAN_MS) for _ in range(count)]
    encoded = encode_values(
        values,
        timestamp_ms=times[0],
        timestamps_ms=times,
        keys=keys,
        headers=headers,
        compression=rng.choice(list(Compression)),
        producer=producer or NO_PRODUCER,
    )
    return bytes(encoded.data)


def _value(rng: random.Random) -> bytes | None:
    size = rng.choice((0, 3, 100, 1000))
    return None if rng.random() < 0.1 else bytes(rng.choices(b"abcdef", k=size))


def _changed(data: bytes, format: str, at: int, value: int, *, sealed: bool = True) -> bytes:
    copy = bytearray(data)
    struct.pack_into(format, copy, at, value)
    return bytes(resealed(copy) if sealed else copy)


def _attribute(data: bytes, bits: int) -> bytes:
    (attributes,) = struct.unpack_from(">h", data, CRC_START)
    return _changed(data, ">h", CRC_START, attributes | bits)


def _with_cut_block(rng: random.Random) -> bytes:
    """Its checksum is right, its gzip block ends too soon."""
    values = [rng.randbytes(20)] * 20
    whole = encode_values(values, timestamp_ms=BASE_MS, compression=Compression.GZIP).data
    cut = bytes(whole)[:-6]
    return _changed(cut, ">i", 8, len(cut) - LENGTH_END)


BAD: Mapping[str, Callable[[random.Random, bytes], bytes]] = {
    "wrong CRC": lambda rng, data: data[:-1] + bytes([data[-1] ^ 1]),
    "magic 0": lambda rng, data: _changed(data, ">b", 16, 0, sealed=False),
    "magic 1": lambda rng, data: _changed(data, ">b", 16, 1, sealed=False),
    "magic 3": lambda rng, data: _changed(data, ">b", 16, 3, sealed=False),
    "two batches": lambda rng, data: data + batch(rng),
    "no batch": lambda rng, data: b"",
    "cut short": lambda rng, data: data[: rng.randrange(1, len(data))],
    "a byte more": lambda rng, data: data + b"\0",
    "length too small": lambda rng, data: _changed(data, ">i", 8, 10, sealed=False),
    "count is one more": lambda rng, data: _changed(
        data, ">i", 57, struct.unpack_from(">i", data, 57)[0] + 1
    ),
    "count is zero": lambda rng, data: _changed(data, ">i", 57, 0),
    "last delta is one more": lambda rng, data: _changed(
        data, ">i", 23, struct.unpack_from(">i", data, 23)[0] + 1
    ),
    "codec 7": lambda rng, data: _attribute(data, 7),
    "control": lambda rng, data: _attribute(data, CONTROL),
    "transactional": lambda rng, data: _attribute(data, TRANSACTIONAL),
    "log-append time": lambda rng, data: _attribute(data, LOG_APPEND_TIME),
    "base offset 7": lambda rng, data: _changed(data, ">q", 0, 7, sealed=False),
    "leader epoch 9": lambda rng, data: _changed(data, ">i", 12, 9, sealed=False),
    "cut block": lambda rng, data: _with_cut_block(rng),
    "epoch below zero": lambda rng, data: _changed(_changed(data, ">q", 43, 77), ">h", 51, -1),
}
"""What is wrong with a batch, and how a good one becomes that. Some of these are taken by Kafka."""
