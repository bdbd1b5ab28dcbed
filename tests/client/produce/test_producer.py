"""The blocking producer over real sockets: results, batching, order, limits, timeouts."""

from __future__ import annotations

import threading

import pytest

from streamlog.client import Delivery, Producer, RecordMetadata
from streamlog.codec.murmur2 import partition_for_key
from streamlog.errors import (
    Closed,
    Invalid,
    InvalidConfig,
    InvalidTimestamp,
    MessageTooLarge,
    Overloaded,
    StreamlogError,
    Unauthorized,
    Unavailable,
    UnknownTopicOrPartition,
)
from tests.client.fake_node import FakeNode
from tests.support.replacing import replace_method

WAIT_S = 20


def test_a_result_says_where_the_record_is(node: FakeNode) -> None:
    node.create("t", 3)
    with Producer(node.server) as producer:
        sent = producer.send(
            "t", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=5
        )
        partition = partition_for_key(b"k", 3)
        assert sent.result(WAIT_S) == RecordMetadata("t", partition, 0, 5)
        assert sent.done()
        assert sent.exception() is None
        assert producer.send("t", None, key=b"k").result(WAIT_S).offset == 1
    first, second = node.records("t", partition)
    assert first == (0, 5, b"k", b"v", [("h", b"1"), ("n", None)])
    assert second[2:] == (b"k", None, [])


def test_records_without_a_key_are_spread_in_whole_batches(node: FakeNode) -> None:
    node.create("t", 4)
    values = [b"%05d" % number for number in range(20_000)]
    with Producer(node.server, batch_size_bytes=4096, batch_size_max_bytes=4096) as producer:
        views = [producer.send("t", value) for value in values]
        producer.flush(WAIT_S)
        for value, view in zip(values, views, strict=True):
            metadata = view.result()
            assert node.topics["t"].partitions[metadata.partition].next_offset > metadata.offset
            assert metadata.offset >= 0, value
    stored = [node.values("t", partition) for partition in range(4)]
    assert sorted(value for part in stored for value in part) == values
    assert all(part == sorted(part) for part in stored)
    assert min(len(part) for part in stored) > 0


def test_send_many_gives_runs_and_metadata_in_input_order(node: FakeNode) -> None:
    node.create("t", 3)
    values = [b"%05d" % number for number in range(5000)]
    keys = [b"key-%d" % (number % 11) for number in range(5000)]
    with Producer(node.server, batch_size_bytes=8192) as producer:
        sent = producer.send_many("t", values, keys)
        runs = sent.result(WAIT_S)
        assert sum(run.record_count for run in runs) == len(sent) == len(values)
        stored = [node.values("t", partition) for partition in range(3)]
        for value, key, metadata in zip(values, keys, sent, strict=True):
            assert metadata.partition == partition_for_key(key, 3)
            assert stored[metadata.partition][metadata.offset] == value
        fixed = producer.send_many("t", values, partition=1)
        offsets = [metadata.offset for metadata in fixed]
        assert offsets == list(range(offsets[0], offsets[0] + len(values)))
        empty = producer.send_many("t", [])
        assert empty.result(WAIT_S) == []
        assert empty.done()


def test_callbacks_come_once_each(node: FakeNode) -> None:
    node.create("t")
    reports: list[tuple[int, StreamlogError | None]] = []
    many = threading.Event()
    with Producer(node.server) as producer:
        views = [
            producer.send(
                "t",
                b"v",
                on_delivery=lambda metadata, error: reports.append(
                    (-1 if metadata is None else metadata.offset, error)
                ),
            )
            for _ in range(100)
        ]
        views[3].add_done_callback(lambda view: reports.append((-3, view.exception())))
        producer.send_many("t", [b"a", b"b"]).add_done_callback(lambda _: many.set())
        producer.flush(WAIT_S)
        views[4].add_done_callback(lambda view: reports.append((-4, view.exception())))
    assert many.wait(WAIT_S)
    assert sorted(reports) == [(-4, None), (-3, None), *((n, None) for n in range(100))]


def test_a_callback_that_waits_is_refused_and_hangs_nothing(node: FakeNode) -> None:
    node.create("t")
    errors: list[StreamlogError] = []

    with Producer(node.server, linger_ms=0) as producer:

        def wait_inside(*_: object) -> None:
            producer.send("t", b"later")
            try:
                producer.flush(WAIT_S)
            except StreamlogError as error:
                errors.append(error)

        assert producer.send("t", b"first", on_delivery=wait_inside).result(WAIT_S).offset == 0
        producer.flush(WAIT_S)
    assert [type(error) for error in errors] == [Invalid]
    assert len(node.values("t")) == 2


def test_a_failing_callback_does_not_stop_the_producer(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.create("t")

    def fail(*_: object) -> None:
        raise RuntimeError("mine")

    with Producer(node.server) as producer:
        producer.send("t", b"1", on_delivery=fail).result(WAIT_S)
        assert producer.send("t", b"2").result(WAIT_S).offset == 1
    assert "a delivery callback failed" in caplog.text


def test_many_threads_share_a_producer(node: FakeNode) -> None:
    node.create("t", 2)
    with Producer(node.server, batch_size_bytes=2048) as producer:

        def write(number: int) -> None:
            for index in range(2000):
                producer.send("t", b"%d/%05d" % (number, index), partition=number % 2)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(WAIT_S)
    for partition in range(2):
        stored = node.values("t", partition)
        for number in (partition, partition + 2):
            own = [value for value in stored if value.startswith(b"%d/" % number)]
            assert own == [b"%d/%05d" % (number, index) for index in range(2000)]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(node: FakeNode, compression: str) -> None:
    node.create("t")
    values = [b"the same line again and again"] * 500
    with Producer(node.server, compression=compression) as producer:
        producer.send_many("t", values).result(WAIT_S)
    assert node.values("t") == values
    ((header, data),) = node.topics["t"].partitions[0].batches
    assert (header.codec == 0) == (compression == "none")
    assert (len(data) < 5000) == (compression != "none")


def test_own_partitioner(node: FakeNode) -> None:
    node.create("t", 3)
    partitioner_calls: list[tuple[str, object, int]] = []

    def choose(topic: str, key: object, partitions: int) -> int:
        partitioner_calls.append((topic, key, partitions))
        return 2

    with Producer(node.server, partitioner=choose) as producer:
        assert producer.send("t", b"v", key=b"k").result(WAIT_S).partition == 2
        assert [metadata.partition for metadata in producer.send_many("t", [b"a", b"b"])] == [2, 2]
    assert partitioner_calls == [("t", b"k", 3), ("t", None, 3), ("t", None, 3)]


def test_bad_calls_take_nothing(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server) as producer:
        with pytest.raises(UnknownTopicOrPartition):
            producer.send("unknown", b"v")
        for partition in (-1, 1):
            with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0"):
                producer.send("t", b"v", partition=partition)
        with pytest.raises(TypeError):
            producer.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not str"):
            producer.send_many("t", [b"a", "b"])  # type: ignore[list-item]
        with pytest.raises(InvalidTimestamp):
            producer.send("t", b"v", timestamp_ms=-1)
        with pytest.raises(StreamlogError, match="1 keys for 2 values"):
            producer.send_many("t", [b"a", b"b"], [b"k"])
        producer.flush(WAIT_S)
        assert producer.metrics()["buffered_bytes"] == 0
        assert producer.send("t", b"good").result(WAIT_S).offset == 0
    assert node.values("t") == [b"good"]
    with pytest.raises(Closed):
        producer.send("t", b"v")
    with pytest.raises(InvalidConfig):
        Producer(node.server, compression="brotli")
    with pytest.raises(InvalidConfig):
        Producer(node.server, linger_ms=-1)


def test_a_record_over_the_topics_limit_is_refused_locally(node: FakeNode) -> None:
    node.create("small", batch_bytes_max=4096)
    with Producer(node.server) as producer:
        with pytest.raises(MessageTooLarge) as caught:
            producer.send("small", bytes(5000))
        assert caught.value.max_bytes == 4096
        with pytest.raises(MessageTooLarge):
            producer.send_many("small", [b"fits", bytes(5000)])
        values = [b"%0100d" % number for number in range(500)]
        producer.send_many("small", values).result(WAIT_S)
        producer.send("small", bytes(3900)).result(WAIT_S)
    assert node.values("small") == [*values, bytes(3900)]
    assert all(len(data) <= 4096 for _, data in node.topics["small"].partitions[0].batches)


def test_a_batch_the_server_refuses_fails_alone(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, linger_ms=0) as producer:
        producer.send("t", b"before").result(WAIT_S)
        node.topics["t"].batch_bytes_max = 500
        too_large = producer.send("t", bytes(600))
        with pytest.raises(MessageTooLarge):
            too_large.result(WAIT_S)
        after = [producer.send("t", b"%d" % number) for number in range(100)]
        assert [view.result(WAIT_S).offset for view in after] == list(range(1, 101))
        metrics = producer.metrics()
    assert node.values("t") == [b"before", *(b"%d" % number for number in range(100))]
    assert metrics["records_failed"] == 1
    assert node.id_requests == [(None, None), (1001, 0)]


def test_a_refused_batch_among_others_under_way(node: FakeNode) -> None:
    node.create("t")
    values = [b"%04d" % number for number in range(64)]
    requests = [0]

    def refuse(_topic: str, _partition: int) -> StreamlogError | None:
        requests[0] += 1
        return Unauthorized("not you") if requests[0] in (2, 9) else None

    node.refusal = refuse
    with Producer(node.server, batch_size_bytes=128, batch_size_max_bytes=128) as producer:
        views = [producer.send("t", value) for value in values]
        producer.flush(WAIT_S)
        stored = [value for value, view in zip(values, views, strict=True) if not view.exception()]
        failed = [view.exception() for view in views if view.exception()]
    assert node.values("t") == stored
    assert failed
    assert all(isinstance(error, Unauthorized) for error in failed)


def _send_into(views: list[Delivery], producer: Producer) -> None:
    for _ in range(1000):
        views.append(producer.send("t", bytes(1000)))


def test_a_full_buffer_blocks_then_fails(node: FakeNode) -> None:
    node.create("t")
    node.hold.clear()
    with Producer(
        node.server,
        buffer_memory_bytes=64 * 1024,
        batch_size_bytes=8 * 1024,
        batch_size_max_bytes=8 * 1024,
        max_block_ms=1_000,
    ) as producer:
        views: list[Delivery] = []
        with pytest.raises(Overloaded) as caught:
            _send_into(views, producer)
        assert 20 < len(views) < 100
        assert caught.value.bound_bytes == 64 * 1024
        assert producer.metrics()["buffered_bytes"] <= 64 * 1024
        with pytest.raises(Overloaded) as caught_many:
            producer.send_many("t", [bytes(1000)] * 200)
        taken = caught_many.value.taken
        assert isinstance(taken, int)
        releasing = threading.Timer(0.05, node.hold.set)
        releasing.start()
        more = [producer.send("t", b"more") for _ in range(100)]
        assert more[-1].result(WAIT_S).offset == len(views) + taken + 99
        releasing.join()
    assert len(node.values("t")) == len(views) + taken + 100


def test_room_taken_by_other_callers_does_not_prolong_the_wait(node: FakeNode) -> None:
    node.create("t")
    node.hold.clear()
    with Producer(
        node.server,
        buffer_memory_bytes=16 * 1024,
        batch_size_bytes=8 * 1024,
        batch_size_max_bytes=8 * 1024,
        max_block_ms=1_000,
    ) as producer:
        with pytest.raises(Overloaded):
            producer.send_many("t", [bytes(1000)] * 100)
        waits: list[float] = []
        wait_for_room = producer._wait_for_room

        def others_are_quicker(runs: object, ends_at: float) -> None:
            """Room came free, and is gone again."""
            waits.append(ends_at)
            if len(waits) == 3:
                wait_for_room((), ends_at)

        replace_method(producer, "_wait_for_room", others_are_quicker)
        with pytest.raises(Overloaded):
            producer.send("t", bytes(1000))
        assert len(waits) == 3
        assert len(set(waits)) == 1
        node.hold.set()


def test_batches_grow_under_load_and_shrink_again(node: FakeNode) -> None:
    node.create("t")
    node.hold.clear()
    with Producer(node.server, batch_size_bytes=4096, batch_size_max_bytes=65536) as producer:
        producer.send_many("t", [bytes(1000)] * 500)
        node.hold.set()
        producer.flush(WAIT_S)
        sizes = [len(data) for _, data in node.topics["t"].partitions[0].batches]
        assert sizes[0] <= 4096
        assert max(sizes) > 32768
        for _ in range(8):
            producer.send("t", b"v")
            producer.flush(WAIT_S)
        producer.send_many("t", [bytes(1000)] * 20).result(WAIT_S)
        sizes = [len(data) for _, data in node.topics["t"].partitions[0].batches]
        assert max(sizes[-5:]) <= 8192


def test_acks_0_waits_for_nothing_durable(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, acks=0) as producer:
        assert producer.send("t", b"v").result(WAIT_S).offset == -1
    assert node.id_requests == []
    assert node.values("t") == [b"v"]


def test_without_idempotence_no_id_is_asked_for(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, acks=1, idempotence=False) as producer:
        assert producer.send("t", b"v").result(WAIT_S).offset == 0
    assert node.id_requests == []


def test_auto_created_topics(node: FakeNode) -> None:
    node.auto_create = True
    with Producer(node.server) as producer:
        assert producer.send("new", b"v").result(WAIT_S).offset == 0


def test_an_unreachable_node_is_unavailable() -> None:
    with FakeNode() as gone:
        server = gone.server
    with Producer(server, max_block_ms=200) as producer, pytest.raises(Unavailable):
        producer.send("t", b"v")


def test_new_partitions_are_found(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, metadata_max_age_ms=1, batch_size_bytes=128) as producer:
        producer.send("t", b"v").result(WAIT_S)
        node.create("t", 2)
        partitions = set()
        for _ in range(500):
            partitions.add(producer.send("t", b"v").result(WAIT_S).partition)
            if len(partitions) == 2:
                break
        assert partitions == {0, 1}
