"""A writing task without a JVM: columns, partitions, chunks, what is staged and what is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from streamlog.client.produce.partitioner import partition_for_key
from streamlog.client.staging import StagedObject, StagedPart
from streamlog.codec.batch import Compression, scan
from streamlog.codec.columns import key_partitions
from streamlog.codec.records import decode
from streamlog.errors import (
    InvalidConfig,
    InvalidRecord,
    MessageTooLarge,
    OutcomeUnknown,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import SystemClock
from streamlog.spark.sink import partitioner
from streamlog.spark.sink.sink import named_once
from streamlog.spark.sink.stage import StageSizes, StagingTask, chunks
from streamlog.spark.sink.write_columns import check_columns
from streamlog.spark.sink.write_options import WriteOptions

COUNTS = {"t": 4, "u": 3, "one": 1, "wide": 200}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
OPTIONS = WriteOptions(server="h:1")


class FakeTarget:
    """Keeps what is staged."""

    def __init__(self, *, fails_at: int | None = None, batch_bytes: int = 1 << 20) -> None:
        self.calls: list[dict[tuple[str, int], bytes]] = []
        self.attempts: list[str] = []
        self.dropped: list[StagedObject] = []
        self._fails_at = fails_at
        self._batch_bytes = batch_bytes

    def partition_count(self, topic: str) -> int:
        if topic not in COUNTS:
            raise UnknownTopicOrPartition(f"there is no topic {topic}")
        return COUNTS[topic]

    def batch_bytes_max(self, topic: str) -> int:
        return self._batch_bytes

    def stage(
        self, attempt: str, batches: dict[tuple[str, int], Buffer], *, expires_ms: int
    ) -> list[StagedObject]:
        if len(self.calls) == self._fails_at:
            raise Unavailable("no node")
        self.calls.append({at: bytes(data) for at, data in batches.items()})
        self.attempts.append(attempt)
        parts = tuple(StagedPart(*at, 1, len(data)) for at, data in batches.items())
        return [StagedObject("w", attempt, len(self.calls), 0, parts)]

    def drop(self, objects: Iterable[StagedObject]) -> None:
        self.dropped += objects
        raise OutcomeUnknown("dropping is no more than tried")

    def records(self) -> dict[tuple[str, int], list[tuple[Any, Any, Any]]]:
        """(key, value, headers) by topic and partition, in order."""
        by_partition: dict[tuple[str, int], list[tuple[Any, Any, Any]]] = {}
        for call in self.calls:
            for at, data in call.items():
                for batch in scan(data):
                    by_partition.setdefault(at, []).extend(
                        (key, value, headers) for _, _, key, value, headers in decode(batch.view)
                    )
        return by_partition


def _write(
    target: FakeTarget,
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions = OPTIONS,
    *,
    start: float = 0.0,
    **sizes: int,
) -> list[StagedObject]:
    if sizes:
        sizes.setdefault("part_bytes", 1)
    task = StagingTask(
        target, options, "0-x", clock=SystemClock(), start=start, sizes=StageSizes(**sizes)
    )
    return task.write(batches)


def _of_topic(topic: str, **given: Any) -> WriteOptions:
    return WriteOptions(server="h:1", topic=topic, **given)


def _batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_keys_go_where_a_producer_puts_them(kind: pa.DataType) -> None:
    keys = [None if n % 9 == 4 else "" if n == 7 else f"schlüssel {n % 50}" for n in range(400)]
    values = [f"value {n}" for n in range(400)]
    as_kind = [None if k is None else k.encode() if "string" not in str(kind) else k for k in keys]
    batch = _batch(key=pa.array(as_kind, kind), value=pa.array(values))
    target = FakeTarget()
    # A slice, whose validity does not begin at a byte.
    _write(target, [batch.slice(3, 390)], _of_topic("t"))
    stored_at = {
        value: (partition, key)
        for (_, partition), records in target.records().items()
        for key, value, _ in records
    }
    assert len(stored_at) == 390
    for key, value in list(zip(keys, values, strict=True))[3:393]:
        partition, stored = stored_at[value.encode()]
        assert stored == (None if key is None else key.encode())
        if stored is not None:
            assert partition == partition_for_key(stored, 4)


def test_a_partition_column_wins_and_null_leaves_it_to_the_key() -> None:
    columns = {
        "key": pa.array([b"k", b"k", None, None]),
        "value": pa.array([b"a", b"b", b"c", b"d"]),
        "partition": pa.array([2, None, 1, None], pa.int32()),
    }
    target = FakeTarget()
    _write(target, [_batch(**columns)], _of_topic("t"), start=0.99)
    by_key = partition_for_key(b"k", 4)
    expected: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for partition, record in [
        (2, (b"k", b"a")),
        (by_key, (b"k", b"b")),
        (1, (None, b"c")),
        (3, (None, b"d")),
    ]:
        expected.setdefault(("t", partition), []).append((*record, []))
    assert {at: [(k, v, list(h)) for k, v, h in rs] for at, rs in target.records().items()} == (
        expected
    )


def test_rows_without_a_key_go_in_runs_of_a_batch_round_the_partitions() -> None:
    batch = _batch(value=pa.array([b"%04d" % n + b"x" * 88 for n in range(100)]))
    target = FakeTarget()
    _write(target, [batch], _of_topic("u", batch_bytes=1000), start=0.5)
    numbers = {at[1]: [int(value[:4]) for _, value, _ in rs] for at, rs in target.records().items()}
    assert sorted(n for rows in numbers.values() for n in rows) == list(range(100))
    runs = {number: partition for partition, rows in numbers.items() for number in rows}
    changes = [n for n in range(1, 100) if runs[n] != runs[n - 1]]
    assert changes == list(range(10, 100, 10))
    assert [runs[n] for n in range(0, 60, 10)] == [1, 2, 0, 1, 2, 0]


def test_rows_go_to_the_topic_of_their_column_in_order() -> None:
    topics = ["u" if n % 3 else "t" for n in range(90)]
    batch = _batch(
        topic=pa.array(topics),
        value=pa.array([b"%d" % n for n in range(90)]),
        partition=pa.array([n % 2 for n in range(90)], pa.int32()),
    )
    target = FakeTarget()
    _write(target, [batch])
    assert {at: [int(v) for _, v, _ in rs] for at, rs in target.records().items()} == {
        (topic, p): [n for n in range(90) if topics[n] == topic and n % 2 == p]
        for topic in ("t", "u")
        for p in (0, 1)
    }
    # The option wins over the column, whatever is in it.
    target = FakeTarget()
    _write(target, [_batch(topic=pa.array([None, "t"]), value=["a", "b"])], _of_topic("one"))
    assert list(target.records()) == [("one", 0)]


def test_headers_and_nulls_are_as_they_were() -> None:
    headers = [None, [], [("a", b"1"), ("a", None)], None, [("ü", b"")]]
    column = pa.array(
        [
            None if of_row is None else [{"key": key, "value": value} for key, value in of_row]
            for of_row in headers
        ],
        HEADERS,
    )
    batch = _batch(headers=column, value=pa.array([b"0", None, b"2", b"3", b"4"]))
    target = FakeTarget()
    _write(target, [batch.slice(1)], _of_topic("one"))
    assert [
        (value, [(name, data) for name, data in stored])
        for _, value, stored in target.records()["one", 0]
    ] == list(zip([None, b"2", b"3", b"4"], [list(h or []) for h in headers[1:]], strict=True))


@pytest.mark.parametrize("compression", list(Compression))
def test_batches_are_compressed_and_no_larger_than_the_topic_takes(
    compression: Compression,
) -> None:
    batch = _batch(value=[f"value {n} " * 5 for n in range(500)])
    target = FakeTarget(batch_bytes=2000)
    options = _of_topic("one", batch_bytes=5000, compression=compression)
    _write(target, [batch], options)
    found = [one for call in target.calls for one in scan(call["one", 0])]
    assert {Compression(one.header.attributes & 7) for one in found} == {compression}
    assert len(found) > 10
    assert max(len(one.view) for one in found) <= 2000
    assert [value.decode() for _, value, _ in target.records()["one", 0]] == (
        batch.column("value").to_pylist()
    )


def test_much_is_staged_in_pieces_and_other_columns_are_left_out() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(20):
            values = [b"%d.%d" % (n, row) + b"x" * 500 for row in range(40)]
            yield _batch(value=pa.array(values), other=[["y" * 10_000]] * 40)
        yield _batch(value=pa.array([], pa.binary()), other=pa.array([], pa.list_(pa.string())))

    target = FakeTarget()
    options = _of_topic("one", batch_bytes=8000)
    staged = _write(target, batches(), options, chunk_bytes=8000, object_bytes=50_000)
    assert len(staged) == len(target.calls) == 8
    assert len(set(target.attempts)) == 8
    assert max(sum(map(len, call.values())) for call in target.calls) < 60_000
    assert [value.rstrip(b"x") for _, value, _ in target.records()["one", 0]] == [
        b"%d.%d" % (n, row) for n in range(20) for row in range(40)
    ]


def test_an_object_has_few_of_many_partitions() -> None:
    """Else a commit, which takes so many pairs of object and partition, were a small one."""
    rows = 20_000

    def batches() -> Iterator[pa.RecordBatch]:
        for low in range(0, rows, 500):
            numbers = range(low, low + 500)
            yield _batch(
                key=pa.array([b"%d" % (n % 1000) for n in numbers]),
                value=pa.array([b"%06d" % n + b"x" * 94 for n in numbers]),
            )

    def written(buffer_bytes: int) -> FakeTarget:
        target = FakeTarget()
        options = _of_topic("wide", buffer_bytes=buffer_bytes, batch_bytes=2000)
        _write(
            target,
            batches(),
            options,
            chunk_bytes=50_000,
            object_bytes=50_000,
            part_bytes=10_000,
            staged_bytes_max=100_000,
        )
        return target

    target = written(buffer_bytes=800_000)
    pairs = sum(map(len, target.calls))
    size = sum(len(data) for call in target.calls for data in call.values())
    gatherings = -(-size // 800_000)
    assert 200 < pairs <= 200 * gatherings
    assert max(sum(map(len, call.values())) for call in target.calls) <= 100_000
    # A chunk has a batch of each partition: as full as a quarter of the buffer allows.
    sizes = [
        len(batch.view) for call in target.calls for data in call.values() for batch in scan(data)
    ]
    assert sum(sizes) / len(sizes) > 700
    numbers = [int(v[:6]) for rs in target.records().values() for _, v, _ in rs]
    assert sorted(numbers) == list(range(rows))
    for (_, partition), records in target.records().items():
        own = [int(value[:6]) for _, value, _ in records]
        assert own == sorted(own)
        assert {partition_for_key(key, 200) for key, _, _ in records} == {partition}
    assert sum(map(len, written(buffer_bytes=100_000).calls)) > 4 * pairs


def test_a_partition_that_has_much_is_not_waited_for_the_others() -> None:
    """With few partitions a task holds no more than an object."""
    batches = [_batch(value=pa.array([b"x" * 1000] * 50)) for _ in range(8)]
    target = FakeTarget()
    options = _of_topic("t", batch_bytes=10_000, buffer_bytes=10 << 20)
    _write(target, batches, options, chunk_bytes=50_000, object_bytes=50_000, part_bytes=20_000)
    assert len(target.calls) == 4
    assert max(sum(map(len, call.values())) for call in target.calls) < 160_000


def test_the_error_for_a_row_too_large_says_what_to_do() -> None:
    def rows(value: bytes) -> list[pa.RecordBatch]:
        return [_batch(value=pa.array([b"small"] * 5 + [value]))]

    target = FakeTarget(batch_bytes=2000)
    with pytest.raises(
        MessageTooLarge, match=r"topic one makes .* takes 2000 \(max.message"
    ) as too:
        _write(target, rows(b"x" * 5000), _of_topic("one"))
    assert too.value.max_bytes == 2000
    assert target.calls == []
    # It is what is stored that counts.
    _write(target, rows(b"x" * 5000), _of_topic("one", compression=Compression.ZSTD))
    assert [len(value) for _, value, _ in target.records()["one", 0]] == [5] * 5 + [5000]


def test_keys_are_hashed_once_for_topics_with_as_many_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def counted(keys: Any, count: int, partitions: int) -> Buffer:
        asked.append(partitions)
        return key_partitions(keys, count, partitions)

    monkeypatch.setattr(partitioner, "key_partitions", counted)
    for n in range(50):
        monkeypatch.setitem(COUNTS, f"of-{n}", 3 + n % 2)
    topics = [f"of-{n % 50}" for n in range(400)]
    keys = [b"k%d" % n for n in range(400)]
    target = FakeTarget()
    _write(target, [_batch(topic=pa.array(topics), key=pa.array(keys), value=pa.array(keys))])
    assert sorted(asked) == [3, 4]
    partition_of = {v: at for at, rs in target.records().items() for _, v, _ in rs}
    assert partition_of == {
        key: (topic, partition_for_key(key, COUNTS[topic]))
        for topic, key in zip(topics, keys, strict=True)
    }


def test_a_large_batch_is_split_and_a_large_row_stands_alone() -> None:
    batch = _batch(value=pa.array([b"x" * 10] * 1000 + [b"y" * 5000] + [b"z"] * 3))
    sizes = [(chunk.num_rows, chunk.nbytes) for chunk in chunks([batch], "t", lambda: 1000)]
    assert sum(rows for rows, _ in sizes) == 1004
    assert [rows for rows, size in sizes if size > 1000] == [1]


def test_a_failed_attempt_drops_its_objects_and_raises_its_own_error() -> None:
    batches = [_batch(value=pa.array([b"x" * 600] * 10)) for _ in range(5)]
    sizes = {"chunk_bytes": 6000, "object_bytes": 6000}
    options = _of_topic("one", batch_bytes=6000)
    target = FakeTarget(fails_at=2)
    with pytest.raises(Unavailable, match="no node"):
        _write(target, batches, options, **sizes)
    assert [staged.object_id for staged in target.dropped] == [1, 2]

    def killed() -> Iterator[pa.RecordBatch]:
        yield from batches[:2]
        raise KeyboardInterrupt

    target = FakeTarget()
    with pytest.raises(KeyboardInterrupt):
        _write(target, killed(), options, **sizes)
    assert len(target.dropped) == len(target.calls) == 1


def test_a_message_to_the_driver_names_a_partition_once() -> None:
    def of(object_id: int, *partitions: tuple[str, int]) -> StagedObject:
        parts = tuple(StagedPart(*partition, 1, 10) for partition in partitions)
        return StagedObject("w", "a", object_id, 0, parts)

    objects = [of(1, ("t", 0), ("t", 1)), of(2, ("t", 1), ("u", 1)), of(3, ("t", 0))]
    named = named_once(objects)
    assert [staged.object_id for staged in named] == [1, 2, 3]
    assert [[p[:2] for p in staged.parts] for staged in named] == [
        [("t", 0), ("t", 1)],
        [("u", 1)],
        [],
    ]


def test_nothing_is_staged_where_there_are_no_rows() -> None:
    target = FakeTarget()
    assert _write(target, [_batch(value=pa.array([], pa.string()))], _of_topic("t")) == []
    assert target.calls == []


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"topic": ["t", None]}, InvalidRecord, "column topic is null"),
        ({"topic": ["t", ""]}, InvalidRecord, "column topic is empty"),
        ({"topic": ["t", "x"]}, UnknownTopicOrPartition, "no topic x"),
        (
            {"topic": ["t", "t"], "partition": pa.array([0, 4], pa.int32())},
            InvalidRecord,
            "column partition has 4; topic t has 4 partitions",
        ),
        (
            {"topic": ["t", "t"], "partition": pa.array([None, -1], pa.int32())},
            InvalidRecord,
            "column partition has -1",
        ),
        (
            {"topic": ["t", "t"], "headers": pa.array([[{"key": None}], []], HEADERS)},
            InvalidRecord,
            "column headers has a header whose key is null",
        ),
        (
            {"topic": ["t", "t"], "headers": pa.array([[None], []], HEADERS)},
            InvalidRecord,
            "column headers",
        ),
    ],
)
def test_a_row_that_cannot_be_written_names_its_column(
    columns: dict[str, Any], error: type[StreamlogError], says: str
) -> None:
    target = FakeTarget()
    with pytest.raises(error, match=says):
        _write(target, [_batch(value=["a", "b"], **columns)])
    assert target.calls == []


VALUE = ("value", pa.string())


@pytest.mark.parametrize(
    ("fields", "name", "says"),
    [
        ([("key", pa.string())], "value", "there is no column value; there are key"),
        ([("value", pa.int64())], "value", "is int64; it must be string or binary"),
        ([VALUE, ("key", pa.list_(pa.int8()))], "key", "must be string or binary"),
        ([VALUE, ("topic", pa.binary())], "topic", "must be string"),
        ([VALUE, ("partition", pa.int64())], "partition", "must be int"),
        ([VALUE, ("headers", pa.map_(pa.string(), pa.binary()))], "headers", "array<struct"),
        (
            [VALUE, ("headers", pa.list_(pa.struct([("key", pa.string()), ("v", pa.binary())])))],
            "headers",
            "array<struct<key: string, value: binary>>",
        ),
        ([VALUE, VALUE], "value", "2 columns value"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    fields: Sequence[tuple[str, pa.DataType]], name: str, says: str
) -> None:
    with pytest.raises(InvalidConfig, match=says) as raised:
        check_columns(pa.schema(fields), "t")
    assert raised.value.name == name


def test_a_topic_is_needed_and_other_columns_are_not_looked_at() -> None:
    with pytest.raises(InvalidConfig, match="option topic is missing") as raised:
        check_columns(pa.schema([VALUE]), None)
    assert raised.value.name == "topic"
    check_columns(pa.schema([VALUE, ("offset", pa.int64()), ("topic", pa.string())]), None)
