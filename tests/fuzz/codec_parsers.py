"""Record batches and their compression."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from streamlog.codec import piecewise, records
from streamlog.codec.batch import (
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchProducer,
    Compression,
    resealed,
    scan,
)
from streamlog.codec.columns import Wanted, twin
from streamlog.codec.compression import compress, decompress
from streamlog.codec.plain_decoder import decode_plain
from streamlog.codec.pure import columns as pure_columns
from streamlog.errors import CorruptMessage, InvalidRecord
from tests.fuzz.parser import Parser

ERRORS = (CorruptMessage, InvalidRecord)
LIMIT_BYTES = 1 << 20
"""What a batch may expand to here."""


def _batch(codec: Compression, count: int, producer: BatchProducer | None = None) -> bytes:
    made = records.encode_values(
        [None if i % 3 == 2 else b"value %d " % i * 4 for i in range(count)],
        timestamp_ms=0,
        timestamps_ms=[1_700_000_000_000 + 7 * i for i in range(count)],
        keys=[None if i % 2 else b"key" for i in range(count)],
        headers=[[("größe", b"x"), ("n", None)] if i % 4 == 0 else [] for i in range(count)],
        compression=codec,
        producer=producer or BatchProducer(-1, -1, -1),
    )
    return bytes(made.data)


BATCHES = (
    _batch(Compression.NONE, 1),
    _batch(Compression.NONE, 5, BatchProducer(9, 1, 3)),
    *(_batch(codec, 12) for codec in Compression if codec is not Compression.NONE),
)


def mend_batch(data: bytes) -> bytes:
    """The bytes as one batch whose magic, length and CRC are right."""
    if len(data) < HEADER_BYTES:
        return data
    changed = bytearray(data)
    changed[8:LENGTH_END] = (len(changed) - LENGTH_END).to_bytes(4, "big")
    changed[16] = MAGIC
    return bytes(resealed(changed))


def _scanned(data: bytes) -> object:
    return [(batch.header, bytes(batch.view)) for batch in scan(data)]


def _decoded(data: bytes) -> object:
    return records.decode(data, limit_bytes=LIMIT_BYTES)


def _iterated(data: bytes) -> object:
    return list(records.iterate(data, verify_crc=False, limit_bytes=LIMIT_BYTES))


def _piecewise(data: bytes) -> object:
    """Nothing else than what comes of all at once, but for what is larger than may be."""
    found = list(piecewise.iterate(data, LIMIT_BYTES))
    if len(found) < 1000:
        assert found == records.decode(data, verify_crc=False)
    return found


def _columns(module: ModuleType, data: bytes) -> object:
    return list(
        module.decode(
            data,
            start=0,
            end=1 << 40,
            wanted=Wanted(),
            base_offsets=None,
            verify_crc=True,
            rows_max=1 << 20,
            bytes_max=1 << 22,
        )
    )


def _found(data: bytes) -> object:
    return piecewise.first_at_or_after(data, 1_700_000_000_020, 2)


def _expanded(codec: Compression, data: bytes) -> object:
    return bytes(decompress(codec, data, LIMIT_BYTES))


PLAIN = b"some text that repeats, some text that repeats; " * 20


def _compressed(codec: Compression) -> Parser:
    samples = [bytes(compress(codec, PLAIN)), bytes(compress(codec, b"q"))]
    if codec is Compression.SNAPPY:
        import cramjam

        samples.append(bytes(cramjam.snappy.compress_raw(PLAIN)))
    return Parser(
        f"decompress_{codec.name.lower()}",
        partial(_expanded, codec),
        tuple(samples),
        ERRORS,
        memory_bytes=4 * LIMIT_BYTES,
    )


PARSERS = (
    Parser("batch_scan", _scanned, BATCHES, ERRORS, mend_batch),
    Parser("batch_decode", _decoded, BATCHES, ERRORS, mend_batch, memory_bytes=8 * LIMIT_BYTES),
    Parser("batch_iterate", _iterated, BATCHES, ERRORS, memory_bytes=8 * LIMIT_BYTES),
    Parser("batch_piecewise", _piecewise, BATCHES, ERRORS, memory_bytes=300 << 20),
    Parser("batch_find", _found, BATCHES, ERRORS, memory_bytes=300 << 20),
    Parser("columns", partial(_columns, twin), BATCHES, ERRORS, mend_batch, memory_bytes=300 << 20),
    Parser(
        "columns_pure",
        partial(_columns, pure_columns),
        BATCHES,
        ERRORS,
        mend_batch,
        memory_bytes=300 << 20,
    ),
    Parser("batch_plain", decode_plain, BATCHES, ERRORS, mend_batch, memory_bytes=300 << 20),
    *(_compressed(codec) for codec in Compression if codec is not Compression.NONE),
)
