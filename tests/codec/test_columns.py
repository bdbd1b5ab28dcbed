"""Record batches ↔ columns: both twins, aiokafka's parser, and hostile bytes."""

from __future__ import annotations

from array import array

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.codec.batch import BatchProducer, Compression, parse_header, resealed
from streamlog.codec.columns import (
    BinaryColumn,
    HeadersColumn,
    Wanted,
    decode_columns,
    encode_batches,
    key_partitions,
)
from streamlog.codec.murmur2 import partition_for_key
from streamlog.codec.records import decode, encode_values
from streamlog.errors import (
    CorruptMessage,
    Invalid,
    InvalidRecord,
    InvalidTimestamp,
    StreamlogError,
)
from tests.codec.column_rows import (
    TWINS,
    binary,
    expected,
    headers_column,
    nullable,
    record,
    rows_of,
    runs,
)
from tests.fuzz.mutations import damaged

NOW = 1_700_000_000_000
LAST = (1 << 63) - 1
ALL = Wanted()
each_twin = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__[-14:])

wanted_columns = st.builds(Wanted, st.booleans(), st.booleans(), st.booleans())
offsets = st.integers(-3, 60)


def outcome(twin, data, **given_options):
    """All columns, or the class of the typed error."""
    options = {
        "start": 0,
        "end": LAST,
        "wanted": ALL,
        "base_offsets": None,
        "verify_crc": True,
        "rows_max": 1 << 20,
        "bytes_max": 1 << 26,
        **given_options,
    }
    try:
        return list(twin.decode(data, **options))
    except StreamlogError as error:
        return type(error), error.fields


@settings(max_examples=80, deadline=None)
@given(runs, offsets, offsets, wanted_columns, st.booleans(), st.integers(1, 30), st.data())
def test_both_twins_read_what_aiokafka_reads(run, start, end, wanted, override, rows_max, data):
    bases = array("q", [data.draw(offsets.filter(lambda n: n >= 0)) for _ in run])
    options = {
        "start": start,
        "end": end,
        "wanted": wanted,
        "base_offsets": bases if override else None,
        "rows_max": rows_max,
        "bytes_max": data.draw(st.integers(1, 300)),
    }
    joined = b"".join(batch.data for batch in run)
    outcomes = [outcome(twin, joined, **options) for twin in TWINS]
    assert all(each == outcomes[0] for each in outcomes)
    rows = [row for columns in outcomes[0] for row in rows_of(columns, wanted)]
    assert rows == [
        (
            *row[:3],
            row[3] if wanted.keys else None,
            row[4] if wanted.values else None,
            row[5] if wanted.headers else [],
        )
        for row in expected(run, start, end, bases if override else None)
    ]
    assert all(columns.count <= rows_max for columns in outcomes[0])


def _sample(codec):
    made = encode_values(
        [None if i % 3 == 2 else b"value %d " % i * 4 for i in range(9)],
        timestamp_ms=0,
        timestamps_ms=[NOW + 7 * i for i in range(9)],
        keys=[None if i % 2 else b"key" for i in range(9)],
        headers=[[("größe", b"x"), ("n", None)] if i % 4 == 0 else [] for i in range(9)],
        compression=codec,
    )
    return bytes(made.data)


SAMPLES = tuple(_sample(codec) for codec in Compression)


def mended(data):
    """The bytes as one batch with a right length and CRC: so damage reaches the records."""
    if len(data) < 61:
        return data
    changed = bytearray(data)
    changed[8:12] = (len(data) - 12).to_bytes(4, "big")
    changed[16] = 2
    return bytes(resealed(changed))


@settings(max_examples=200, deadline=None)
@given(damaged(SAMPLES[:2]) | damaged(SAMPLES), st.booleans(), wanted_columns, st.booleans())
def test_damage_is_the_same_error_to_both(bad, mend, wanted, verify_crc):
    data = SAMPLES[0] + (mended(bad) if mend else bad)
    options = {"wanted": wanted, "verify_crc": verify_crc, "rows_max": 4}
    outcomes = [outcome(twin, data, **options) for twin in TWINS]
    assert all(each == outcomes[0] for each in outcomes)
    if not isinstance(outcomes[0], tuple) and wanted == ALL and mend and len(bad) >= 61:
        header = parse_header(mended(bad))
        if not header.is_control and header.base_offset >= 0:
            rows = [row for columns in outcomes[0] for row in rows_of(columns, ALL)][9:]
            assert [(row[0], *row[3:]) for row in rows] == [
                (r.offset, r.key, r.value, r.headers) for r in _DefaultRecordBatchPy(mended(bad))
            ]


@each_twin
def test_every_cut_is_a_typed_error(twin):
    whole = SAMPLES[0]
    for cut in range(1, len(whole)):
        assert outcome(twin, whole[:cut])[0] is CorruptMessage
        assert outcome(twin, memoryview(mended(whole[:cut])))[0] in (CorruptMessage, InvalidRecord)


@each_twin
def test_every_flipped_bit_behind_the_crc_is_found(twin):
    for at in range(17, len(SAMPLES[0])):
        bad = bytearray(SAMPLES[0])
        bad[at] ^= 1 << at % 8
        assert outcome(twin, bad) == (CorruptMessage, {"position": 0})


@each_twin
@settings(max_examples=100, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_a_typed_error(twin, noise):
    assert not noise or isinstance(outcome(twin, noise), tuple)
    outcome(twin, mended(SAMPLES[0][:61] + noise), verify_crc=False)


@each_twin
def test_what_is_outside_of_the_window_is_not_looked_at(twin):
    bad = bytearray(SAMPLES[0])
    bad[61:] = bytes(len(bad) - 61)
    joined = bytes(resealed(bad)) + SAMPLES[0]
    bases = array("q", [0, 100])
    columns = outcome(twin, joined, base_offsets=bases, start=9)
    assert [row[0] for row in rows_of(columns[0], ALL)] == list(range(100, 109))
    assert outcome(twin, joined, base_offsets=bases, start=8)[0] is InvalidRecord
    assert outcome(twin, joined, base_offsets=bases, end=100)[0] is InvalidRecord
    bad[-1] ^= 1
    joined = bytes(bad) + SAMPLES[0]
    assert outcome(twin, joined, base_offsets=bases, start=9)[0] is CorruptMessage


@each_twin
def test_a_batch_without_offsets_lies_before_its_base(twin):
    empty = bytearray(SAMPLES[0])
    empty[23:27] = (-1).to_bytes(4, "big", signed=True)
    empty[57:61] = bytes(4)
    data = bytes(resealed(empty))
    for base, start, is_outside in ((-LAST - 1, 0, True), (5, 5, True), (5, 4, False)):
        columns = outcome(twin, data, base_offsets=array("q", [base]), start=start)
        # Its records are no records: looked at, they are an error.
        assert (columns == []) if is_outside else (columns[0] is InvalidRecord), (base, start)


@each_twin
def test_base_offsets_are_one_a_batch(twin):
    for numbers in ([], [1], [1, 2, 3]):
        assert outcome(twin, SAMPLES[0] * 2, base_offsets=array("q", numbers))[0] is Invalid
    near = array("q", [LAST - 9, LAST - 8])
    assert outcome(twin, SAMPLES[0], base_offsets=near[:1])[0].count == 9
    assert outcome(twin, SAMPLES[0], base_offsets=near[1:])[0] is InvalidRecord


@each_twin
def test_columns_end_at_their_bounds(twin):
    batch = bytes(encode_values([b"v" * 10] * 20, timestamp_ms=NOW).data)
    by_bytes = outcome(twin, batch, bytes_max=35)
    assert [columns.count for columns in by_bytes] == [3] * 6 + [2]
    by_rows = outcome(twin, batch, rows_max=8)
    assert [columns.count for columns in by_rows] == [8, 8, 4]
    alone = outcome(twin, batch, bytes_max=1)
    assert [columns.count for columns in alone] == [1] * 20


@each_twin
@settings(max_examples=100, deadline=None)
@given(name=st.binary(max_size=8))
def test_a_header_name_is_utf_8(twin, name):
    batch = encode_values([b""], timestamp_ms=NOW, headers=[[("x" * len(name), b"")]]).data
    at = len(batch) - 1 - len(name)
    batch[at : at + len(name)] = name
    columns = outcome(twin, resealed(batch))
    try:
        name.decode()
    except UnicodeDecodeError:
        assert columns == (InvalidRecord, {"record_index": 0})
    else:
        assert bytes(columns[0].headers.keys.data) == name
    assert outcome(twin, batch, wanted=Wanted(headers=False))[0].count == 1


def test_bounds_and_numbers_are_checked_before_anything():
    for options in ({"rows_max": 0}, {"bytes_max": 0}, {"base_offsets": [1 << 63]}):
        with pytest.raises(Invalid):
            decode_columns(b"", **options)
    for count in (-1, 1 << 31):
        with pytest.raises(Invalid):
            encode_batches(count, timestamp_ms=0)
    with pytest.raises(Invalid):
        key_partitions(binary([]), 0, 0)
    assert list(decode_columns(b"")) == []
    wide = memoryview(array("q", [1, 2]))
    with pytest.raises(CorruptMessage):
        list(decode_columns(wide))


def encoded(twin, records, **given_options):
    stamps, keys, values, head = ([*column] for column in zip(*records, strict=True))
    options = {
        "timestamp_ms": 0,
        "keys": binary(keys),
        "values": binary(values),
        "headers": headers_column(head),
        "timestamps_us": array("q", [1000 * stamp + 999 for stamp in stamps]),
        "rows": None,
        "compression": Compression.NONE,
        "level": None,
        "batch_bytes": 1 << 16,
        "producer": BatchProducer(-1, -1, -1),
        **given_options,
    }
    return twin.encode(len(records), **options)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(record.filter(lambda drawn: drawn[0] < 1 << 50), min_size=1, max_size=20),
    st.sampled_from(Compression),
    st.integers(1, 400),
    st.booleans(),
    st.data(),
)
def test_both_twins_write_what_is_read_again(records, codec, batch_bytes, choose, data):
    chosen = range(len(records))
    if choose:
        chosen = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=30))
    options = {
        "compression": codec,
        "batch_bytes": batch_bytes,
        "rows": array("i", chosen) if choose else None,
        "producer": BatchProducer(7, 1, (1 << 31) - 3),
    }
    both = [encoded(twin, records, **options) for twin in TWINS]
    batches = both[0]
    for other in both:
        assert [(bytes(b.data), b.record_count, b.max_timestamp_ms) for b in other] == [
            (bytes(b.data), b.record_count, b.max_timestamp_ms) for b in batches
        ]
    again = [
        (r.timestamp, r.key, r.value, r.headers)
        for batch in batches
        for r in _DefaultRecordBatchPy(batch.data)
    ]
    assert again == [records[index] for index in chosen]
    sequence = (1 << 31) - 3
    for batch in batches:
        header = parse_header(batch.data)
        assert header.base_sequence == sequence
        assert header.record_count == batch.record_count == len(decode(batch.data))
        assert header.max_timestamp_ms == batch.max_timestamp_ms
        sequence = (sequence + batch.record_count) % (1 << 31)
        if codec is Compression.NONE:
            assert len(batch.data) <= batch_bytes or batch.record_count == 1


@each_twin
def test_a_batch_is_what_the_record_writer_makes(twin):
    records = [(NOW + i, b"k", b"v" * 30, [("h", b"1")]) for i in range(10)]
    (batch,) = encoded(twin, records)
    stamps, keys, values, head = ([*column] for column in zip(*records, strict=True))
    same = encode_values(values, timestamp_ms=0, keys=keys, timestamps_ms=stamps, headers=head)
    assert bytes(batch.data) == bytes(same.data)
    (fixed,) = encoded(
        twin, records, timestamps_us=None, timestamp_ms=5, keys=None, values=None, headers=None
    )
    assert decode(fixed.data) == [(i, 5, None, None, []) for i in range(10)]
    assert encoded(twin, records, rows=b"") == []


def int32s(values: list[int]) -> memoryview:
    return memoryview(array("i", values))


@each_twin
def test_columns_that_do_not_fit_are_refused(twin):
    records = [(NOW, b"k", b"v", [("h", b"1")])] * 3
    good = binary([b"a", b"b", b"c"])
    for bad in (
        {"values": BinaryColumn(None, good.offsets[:12], good.data)},
        {"values": BinaryColumn(None, good.offsets[:13], good.data)},
        {"values": BinaryColumn(None, good.offsets, b"ab")},
        {"values": BinaryColumn(None, int32s([0, 2, 1, 3]), good.data)},
        {"keys": BinaryColumn(None, int32s([-1, 0, 1, 2]), good.data)},
        {"keys": BinaryColumn(b"", good.offsets, good.data)},
        {"rows": array("i", [3])},
        {"rows": array("i", [-1])},
        {"rows": b"123"},
        {"timestamps_us": bytes(16)},
        {"headers": HeadersColumn(int32s([0, 1, 2, 4]), good, good)},
        {"headers": HeadersColumn(int32s([0, 2, 1, 3]), good, good)},
        {"headers": HeadersColumn(int32s([0, 1, 2, 3]), binary([b"a", None, b"c"]), good)},
        {"headers": HeadersColumn(int32s([0, 1, 2, 3]), binary([b"a", b"\xff", b""]), good)},
        {"headers": HeadersColumn(int32s([0, 1, 2, 3]), good, binary([b"a"]))},
    ):
        with pytest.raises(Invalid) as caught:
            encoded(twin, records, **bad)
        assert type(caught.value) is Invalid
    with pytest.raises(InvalidTimestamp):
        encoded(twin, records, timestamps_us=array("q", [0, -1, 0]))
    with pytest.raises(InvalidTimestamp):
        encoded(twin, records, timestamps_us=None, timestamp_ms=-1)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_columns_are_the_same_to_both(data):
    count = data.draw(st.integers(0, 4))
    few = st.integers(-2, 9)

    def column(entries):
        validity = data.draw(st.none() | st.binary(max_size=2))
        size = data.draw(st.integers(max(0, entries - 1), entries + 2))
        numbers = memoryview(array("i", [data.draw(few) for _ in range(size)]))
        return BinaryColumn(validity, numbers, data.draw(st.binary(max_size=9)))

    options = {
        "timestamp_ms": data.draw(st.integers(-1, 5)),
        "keys": (data.draw(st.booleans()) and column(count)) or None,
        "values": column(count),
        "headers": (
            data.draw(st.booleans())
            and HeadersColumn(
                memoryview(array("i", [data.draw(few) for _ in range(count + 1)])),
                column(2),
                column(2),
            )
        )
        or None,
        "timestamps_us": None,
        "rows": None,
        "compression": Compression.NONE,
        "level": None,
        "batch_bytes": 100,
        "producer": BatchProducer(-1, -1, -1),
    }

    def attempt(twin):
        try:
            return [bytes(batch.data) for batch in twin.encode(count, **options)]
        except StreamlogError as error:
            return type(error)

    outcomes = [attempt(twin) for twin in TWINS]
    assert all(each == outcomes[0] for each in outcomes)


@each_twin
@settings(deadline=None)
@given(keys=st.lists(nullable, max_size=20), partitions=st.integers(1, 50))
def test_partitions_of_a_column_are_those_of_the_client(twin, keys, partitions):
    column = memoryview(twin.key_partitions(binary(keys), len(keys), partitions)).cast("i")
    assert column.tolist() == [
        -1 if key is None else partition_for_key(key, partitions) for key in keys
    ]


def test_round_trip_through_columns():
    (columns,) = decode_columns(SAMPLES[4])
    (batch,) = encode_batches(
        columns.count,
        timestamp_ms=0,
        keys=columns.keys,
        values=columns.values,
        headers=columns.headers,
        timestamps_us=columns.timestamps_us,
        compression=Compression.ZSTD,
    )
    assert bytes(batch.data) == SAMPLES[4]
