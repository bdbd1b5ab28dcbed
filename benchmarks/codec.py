"""Record batches ↔ columns, without a node: each twin, aiokafka, and a plain copy of the bytes.

Figures are per second of CPU, which other processes on the machine disturb least.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from benchmarks.report import Report, Row
from streamlog.codec import native_columns
from streamlog.codec.batch import NO_PRODUCER, Compression, scan
from streamlog.codec.columns import BYTES_MAX, BinaryColumn, Wanted
from streamlog.codec.compression import decompress
from streamlog.codec.pure import columns as pure_columns

BATCH_BYTES = 1 << 20
NOW_MS = 1_700_000_000_000
ROUNDS = 5
AIMS = {("decode", 100): 1000.0, ("decode", 1024): 3000.0, ("encode", 100): 1500.0,
        ("encode", 1024): 1700.0}  # fmt: skip
"""MB/s of the native twin, uncompressed."""


def run(report: Report, folder: Path, *, scale: float) -> None:
    """`scale` 1 takes 128 MiB of records; slow cases take a part of it."""
    for record_bytes in (100, 1024):
        count = max(1000, int((128 << 20) * scale) // record_bytes)
        values = _values(record_bytes, count)
        for codec in (Compression.NONE, Compression.ZSTD):
            _case(report, record_bytes, values, count, codec)


def _values(record_bytes: int, count: int) -> BinaryColumn:
    """Text that zstd shrinks to about a third, as logs do."""
    chosen = random.Random(7)
    words = [b"%x" % chosen.getrandbits(chosen.randrange(8, 40)) for _ in range(4000)]
    text = b" ".join(chosen.choices(words, k=record_bytes * 300))
    pool = [
        text[at : at + record_bytes]
        for at in (chosen.randrange(len(text) - record_bytes) for _ in range(min(count, 20_000)))
    ]
    entries = [pool[index % len(pool)] for index in range(count)]
    places = array("i", accumulate((len(entry) for entry in entries), initial=0))
    return BinaryColumn(None, memoryview(places).cast("B"), b"".join(entries))


def _case(
    report: Report, record_bytes: int, values: BinaryColumn, count: int, codec: Compression
) -> None:
    def encode(twin: object, rows: int) -> list[object]:
        return twin.encode(  # type: ignore[attr-defined, no-any-return]
            rows,
            timestamp_ms=NOW_MS,
            keys=None,
            values=values,
            headers=None,
            timestamps_us=None,
            rows=None,
            compression=codec,
            level=1 if codec is Compression.ZSTD else None,
            batch_bytes=BATCH_BYTES,
            producer=NO_PRODUCER,
        )

    def decode(twin: object, data: bytes) -> int:
        return sum(
            columns.count
            for columns in twin.decode(  # type: ignore[attr-defined]
                data,
                start=0,
                end=(1 << 63) - 1,
                wanted=Wanted(keys=True, values=True, headers=False),
                base_offsets=None,
                verify_crc=True,
                rows_max=1 << 20,
                bytes_max=BYTES_MAX,
            )
        )

    name = f"{record_bytes} B {codec.name.lower()}"
    data = _joined(encode(native_columns, count))
    few = max(1000, count // 20)
    small = _joined(encode(native_columns, few))
    plain_bytes = count * (record_bytes + 8)
    small_bytes = few * (record_bytes + 8)
    floor = _copy_rate(bytes(values.data))
    for verb, fast, slow, other in (
        (
            "decode",
            lambda: decode(native_columns, data),
            lambda: decode(pure_columns, small),
            lambda: _aiokafka_decode(small),
        ),
        (
            "encode",
            lambda: encode(native_columns, count),
            lambda: encode(pure_columns, few),
            lambda: _aiokafka_encode(values, record_bytes, few, codec),
        ),
    ):
        aim = AIMS[verb, record_bytes] if codec is Compression.NONE else None
        for twin, work, size in (
            ("native", fast, plain_bytes),
            ("pure", slow, small_bytes),
            ("aiokafka", other, small_bytes),
        ):
            rate = _rate(work, size)
            report.add(
                Row(
                    "codec",
                    f"{verb} {name} {twin}",
                    rate,
                    "MB/s",
                    aim=aim if twin == "native" else None,
                    facts={"M records/s": rate / (record_bytes + 8), "of memcpy": rate / floor},
                )
            )


def _joined(batches: list[object]) -> bytes:
    return b"".join(batch.data for batch in batches)  # type: ignore[attr-defined]


def _rate(work: Callable[[], object], size_bytes: int) -> float:
    """MB per second of CPU, in the best of some rounds; bytes of uncompressed batches."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return size_bytes / best / 1e6


def _copy_rate(source: bytes) -> float:
    """A copy to memory that is already allocated."""
    target = memoryview(bytearray(len(source)))

    def copy() -> None:
        target[:] = source

    return _rate(copy, len(source))


def _aiokafka_decode(data: bytes) -> int:
    """aiokafka's compiled parser, CRC checked, into the lists that columns would be made of."""
    offsets, stamps, keys, values = [], [], [], []
    for batch in scan(data):
        plain = batch.view
        if batch.header.codec:
            records = decompress(batch.header.codec, batch.view[61:])
            plain = memoryview(b"".join((batch.view[:22], b"\0", batch.view[23:61], records)))
        for record in DefaultRecordBatch(plain):
            offsets.append(record.offset)
            stamps.append(record.timestamp)
            keys.append(record.key)
            values.append(record.value)
    return len(offsets)


def _aiokafka_encode(
    values: BinaryColumn, record_bytes: int, count: int, codec: Compression
) -> int:
    """aiokafka's compiled builder, with its own compression libraries at their default level."""
    size, data = 0, memoryview(values.data)
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, BATCH_BYTES)
    index = 0
    for start in range(0, count * record_bytes, record_bytes):
        value = data[start : start + record_bytes]
        if builder.append(index, NOW_MS, None, value, []) is None:
            size += len(builder.build())
            builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, BATCH_BYTES)
            index = 0
            builder.append(index, NOW_MS, None, value, [])
        index += 1
    return size + len(builder.build())
