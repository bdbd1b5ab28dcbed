"""The compiled codec and its twin in plain Python: the same bytes, values and errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.codec import choice
from streamlog.codec.batch import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    ScannedBatch,
    parse_header,
    plain_scan,
    resealed,
)
from streamlog.codec.crc import crc32c
from streamlog.codec.murmur2 import partition_for_key, partitions_for_keys
from streamlog.codec.pure import murmur2 as pure_murmur2
from streamlog.codec.pure import records as pure_records
from streamlog.codec.pure import writer as pure_writer
from streamlog.codec.records import encode_values, record_bytes_max
from streamlog.errors import InvalidConfig, InvalidTimestamp, MessageTooLarge, StreamlogError
from tests.codec.column_rows import headers, nullable, record, runs
from tests.fuzz.mutations import damaged

try:
    from streamlog.codec import _native
except ImportError:
    _native = None  # type: ignore[assignment]

PURE = SimpleNamespace(
    check_records=pure_records.check_records,
    RecordWriter=pure_writer.RecordWriter,
    RecordReader=pure_records.RecordReader,
    scan=lambda view, verify, header, batch: plain_scan(view, verify),
    murmur2=pure_murmur2.murmur2,
)
TWINS = [PURE, _native] if _native else [PURE]
each_twin = pytest.mark.parametrize("twin", TWINS, ids=["pure", "native"][: len(TWINS)])
needs_native = pytest.mark.skipif(_native is None, reason="the compiled codec is not built")
NOW = 1_700_000_000_000


class Placed(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: pure_records.Headers


def same(call):
    """What every twin gives, a typed error as its class and fields."""

    def attempt(twin):
        try:
            return call(twin)
        except (StreamlogError, TypeError) as error:
            return type(error), getattr(error, "fields", None)

    outcomes = [attempt(twin) for twin in TWINS]
    assert all(each == outcomes[0] for each in outcomes)
    return outcomes[0]


def test_with_a_compiler_the_native_twin_is_there():
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    if compiler is None:
        pytest.skip("there is no C compiler")
    assert _native is not None
    assert choice.load("native") is _native


@pytest.mark.parametrize("wanted", ["native", "pure"])
def test_the_variable_chooses(wanted):
    if wanted == "native" and _native is None:
        pytest.skip("the compiled codec is not built")
    script = "from streamlog.codec import choice; print(choice.IN_USE)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {choice.VARIABLE: wanted},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{wanted}\n"


def test_what_cannot_be_chosen_is_a_typed_error(monkeypatch):
    with pytest.raises(InvalidConfig, match="not known"):
        choice.load("fast")
    assert choice.load("pure") is None
    monkeypatch.setitem(sys.modules, "streamlog.codec._native", None)
    assert choice.load("") is None
    with pytest.raises(InvalidConfig, match="cannot be loaded"):
        choice.load("native")


@settings(max_examples=80, deadline=None)
@given(st.lists(record, max_size=12), st.integers(0, 400), st.integers(0, 3))
def test_writers_write_what_aiokafka_writes(records, limit, attributes):
    def written(twin):
        writer = twin.RecordWriter(limit)
        taken = [writer.append(*fields) for fields in records]
        return taken, writer.record_count, writer.size_bytes, writer.take(7, 2, 5, attributes)

    taken, count, size, data = same(written)
    builder = DefaultRecordBatchBuilder(2, 0, 0, 7, 2, 5, 1 << 20)
    index = 0
    for fields, was_taken in zip(records, taken, strict=True):
        if was_taken:
            assert builder.append(index, *fields) is not None
            index += 1
    assert (count, size) == (index, len(data))
    assert size <= limit or count < 2
    if count and not attributes:
        assert bytes(resealed(data)) == bytes(builder.build())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(record, max_size=12),
    st.integers(60, 600),
    st.integers(0, 3),
    st.sets(st.integers(0, 3)),
)
def test_columns_go_in_like_records_one_by_one(records, limit, start, given_columns):
    stamps, keys, values, head = ([fields[i] for fields in records] for i in range(4))

    def written(twin):
        writer = twin.RecordWriter(limit)
        writer.append(3, b"first", None)
        taken = writer.extend(
            values,
            timestamp_ms=4,
            keys=keys if 0 in given_columns else None,
            timestamps_ms=tuple(stamps) if 1 in given_columns else None,
            headers=head if 2 in given_columns else None,
            start=start,
        )
        return taken, writer.take(-1, -1, -1, 0)

    taken, data = same(written)
    single = pure_writer.RecordWriter(limit)
    single.append(3, b"first", None)
    for index in range(start, start + max(0, taken)):
        assert single.append(
            stamps[index] if 1 in given_columns else 4,
            keys[index] if 0 in given_columns else None,
            values[index],
            head[index] if 2 in given_columns else None,
        )
    assert data == single.take(-1, -1, -1, 0)


@each_twin
def test_a_writer_refuses_what_is_not_a_record(twin):
    writer = twin.RecordWriter(1000)
    for timestamp_ms in (-1, -(1 << 62)):
        with pytest.raises(InvalidTimestamp):
            writer.append(timestamp_ms, None, b"")
        with pytest.raises(InvalidTimestamp):
            writer.extend([b"", b""], timestamp_ms=0, timestamps_ms=[1, timestamp_ms])
    for bad in ((0, None, "text"), (0, 7, b""), (0, None, b"", [("name", "text")])):
        with pytest.raises(TypeError):
            writer.append(*bad)
    with pytest.raises((AttributeError, TypeError)):
        writer.append(0, None, b"", [(b"name", b"")])
    with pytest.raises(UnicodeEncodeError):
        writer.append(0, None, b"", [("\ud800", b"")])
    assert writer.record_count == 0
    assert writer.append(0, bytearray(b"k"), memoryview(b"xvx")[1:2], [])
    data = resealed(writer.take(-1, -1, -1, 0))
    reader = twin.RecordReader(parse_header(data), data[HEADER_BYTES:], 0)
    assert reader.all() == [(0, 0, b"k", b"v", [])]


def test_a_record_that_fits_into_no_batch_is_too_large(monkeypatch):
    monkeypatch.setattr(pure_writer, "BATCH_BYTES_MAX", 1000)
    writer = pure_writer.RecordWriter(1 << 20)
    with pytest.raises(MessageTooLarge):
        writer.append(0, None, bytes(1000))
    assert writer.record_count == 0


@needs_native
def test_taking_a_batch_while_its_headers_are_looked_at_is_an_error():
    writer = _native.RecordWriter(1000)

    class Sly(list[Any]):
        def __len__(self):
            writer.take(-1, -1, -1, 0)
            return 0

        def __bool__(self):
            return True

    with pytest.raises(RuntimeError):
        writer.append(0, None, b"", Sly())
    with pytest.raises(RuntimeError):
        writer.append(0, None, b"")


def _read(twin, data, how):
    header = parse_header(data)
    reader = twin.RecordReader(header, memoryview(data)[HEADER_BYTES:], header.base_offset)
    if how == "values":
        return reader.values()
    if how == "as":
        return reader.list_as(Placed, "t", 3)
    if how == "one by one":
        return [next(reader), *reader]
    return reader.all()


def _batch(count, codec=Compression.NONE):
    return bytes(
        encode_values(
            [None if i % 3 == 2 else b"value %d" % i for i in range(count)],
            timestamp_ms=NOW,
            keys=[None if i % 2 else b"key" for i in range(count)],
            headers=[[("größe", b"x"), ("n", None)] if i % 4 == 0 else [] for i in range(count)],
            compression=codec,
        ).data
    )


SAMPLES = (_batch(1), _batch(7), _batch(40))


@pytest.mark.parametrize("how", ["all", "values", "as", "one by one"])
def test_readers_give_the_same(how):
    for sample in SAMPLES:
        records = same(lambda twin, data=sample: _read(twin, data, how))
        assert len(records) == parse_header(sample).record_count
    if how == "as":
        assert type(records[0]) is Placed
        assert hash(records[1][:6]) == hash(tuple(records[1])[:6])
        assert records[4] == ("t", 3, 4, NOW, b"key", b"value 4", [("größe", b"x"), ("n", None)])


@settings(max_examples=200, deadline=None)
@given(damaged(SAMPLES), st.sampled_from(["all", "values", "as"]))
def test_readers_refuse_the_same(bad, how):
    if len(bad) >= HEADER_BYTES:
        same(lambda twin: _read(twin, bad, how))


@settings(max_examples=200, deadline=None)
@given(damaged(SAMPLES), st.booleans())
def test_records_pass_the_check_where_they_can_be_read(bad, is_whole):
    if len(bad) < HEADER_BYTES:
        return
    batch = bytes(8) + (SAMPLES[0][8:] if is_whole else bad[8:])
    refusal = same(lambda twin: twin.check_records(batch))
    read = same(lambda twin: _read(twin, batch, "all"))
    assert (refusal is None) == isinstance(read, list)
    assert refusal is None or refusal == read


@settings(max_examples=30, deadline=None)
@given(runs, st.booleans(), st.data())
def test_scans_are_the_same(run, verify, data):
    joined = b"".join(batch.data for batch in run)
    if joined and data.draw(st.booleans()):
        joined = data.draw(damaged((joined,)))
    batches = same(lambda twin: twin.scan(memoryview(joined), verify, BatchHeader, ScannedBatch))
    if isinstance(batches, list):
        assert all(type(batch) is ScannedBatch for batch in batches)
        assert all(type(batch.header) is BatchHeader for batch in batches)


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(1, 1 << 31))
def test_hashes_are_the_same(key, partitions):
    expected = (same(lambda twin: twin.murmur2(key)) & 0x7FFFFFFF) % partitions
    assert partition_for_key(key, partitions) == expected
    assert partitions_for_keys([key, None, memoryview(key)], partitions, -5) == [
        expected,
        -5,
        expected,
    ]


@needs_native
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 40_000) | st.integers(0, 500_000), st.integers(0, 9), st.integers(0, 2**32 - 1)
)
def test_checksums_are_the_same_by_instruction_and_by_table(size, skew, previous):
    data = memoryview(bytes(range(251)) * 2000)[skew : skew + size]
    checksums = {
        _native.crc32c(data, previous),
        _native.crc32c_by_table(data, previous),
        crc32c(data, previous),
    }
    assert len(checksums) == 1
    assert _native.crc32c(b"123456789") == 0xE3069283, "the check value of CRC-32C"


@settings(deadline=None)
@given(nullable, nullable, headers)
def test_the_bound_of_a_record_holds(key, value, pairs):
    writer = pure_writer.RecordWriter(0)
    writer.append((1 << 63) - 1, key, value, pairs)
    assert 0 <= record_bytes_max(key, value, pairs) - writer.size_bytes <= 20


@needs_native
def test_a_decoder_is_one_threads_and_many_decoders_many_threads():
    data = memoryview(b"".join(SAMPLES[2] for _ in range(2000)))
    counts = []

    def read():
        decoder = _native.ColumnsDecoder(
            data, None, 0, 1 << 60, 1 << 20, 1 << 26, True, True, True, True
        )
        assert decoder.step()[0] == 0
        counts.append(decoder.take()[0])  # type: ignore[index]

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [80_000] * 4
