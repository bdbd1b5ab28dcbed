"""Undecodable batches: the records before them are returned, and the error names the batch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from streamlog.client import Consumer, ConsumerRecord, aio
from streamlog.client.consume import records
from streamlog.codec import compression as codecs
from streamlog.codec.batch import (
    CONTROL,
    HEADER_BYTES,
    NO_PRODUCER,
    Compression,
    pack_header,
    with_producer,
)
from streamlog.codec.records import encode_values
from streamlog.errors import Closed, CorruptMessage, Invalid, InvalidRecord, StreamlogError
from tests.client.fake_node import FakeNode

WAIT_S = 20


def store(
    node: FakeNode, values: list[bytes | None], codec: Compression = Compression.NONE
) -> None:
    """One batch in partition 0 of topic t."""
    batch = encode_values(values, timestamp_ms=1000, compression=codec)
    node.topics["t"].partitions[0].append(bytes(batch.data), 1 << 30)


def store_garbage(node: FakeNode) -> None:
    """A batch of one record with a right CRC whose bytes are no gzip."""
    values = [b"bad" * 100]
    batch = bytearray(encode_values(values, timestamp_ms=1000, compression=Compression.GZIP).data)
    batch[HEADER_BYTES:] = b"\x00" * (len(batch) - HEADER_BYTES)
    # Writing the producer's fields anew makes the CRC right.
    node.topics["t"].partitions[0].append(bytes(with_producer(batch, NO_PRODUCER)), 1 << 30)


def five_good_one_bad_three_good(node: FakeNode) -> None:
    node.create("t", 2)
    for number in range(5):
        store(node, [b"%d" % number])
    store_garbage(node)
    for number in range(6, 9):
        store(node, [b"%d" % number])


def names_the_place(error: StreamlogError) -> bool:
    assert "t-0: the record batch at offsets 5 to 5 cannot be decoded" in str(error)
    assert "seek to 6 to go on behind it" in str(error)
    place = dict(topic="t", partition=0, offset=5, next_offset=6)
    return error.fields.items() >= place.items()


def test_the_records_before_a_bad_batch_are_returned_and_a_seek_goes_on(node: FakeNode) -> None:
    five_good_one_bad_three_good(node)
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        assert [record.value for record in consumer.poll(WAIT_S)] == [b"%d" % n for n in range(5)]
        for _ in range(3):
            assert consumer.position("t", 0) == 5
            with pytest.raises(CorruptMessage) as raised:
                consumer.poll(WAIT_S)
            assert names_the_place(raised.value)
        consumer.seek("t", 0, 6)
        assert [record.value for record in consumer.poll(WAIT_S)] == [b"6", b"7", b"8"]


def test_the_records_before_a_bad_batch_are_returned_in_asyncio(node: FakeNode) -> None:
    five_good_one_bad_three_good(node)

    async def main() -> None:
        async with aio.Consumer(node.server) as consumer:
            await consumer.assign([("t", 0), ("t", 1)])
            records = await consumer.poll(WAIT_S)
            assert [record.value for record in records] == [b"%d" % n for n in range(5)]
            for _ in range(3):
                with pytest.raises(CorruptMessage) as raised:
                    await consumer.poll(WAIT_S)
                assert names_the_place(raised.value)
            await consumer.seek("t", 0, 6)
            assert [record.value for record in await consumer.poll(WAIT_S)] == [b"6", b"7", b"8"]

    asyncio.run(main())


def test_iteration_ends_at_a_bad_batch_and_goes_on_behind_it(node: FakeNode) -> None:
    five_good_one_bad_three_good(node)
    values: list[bytes | None] = []

    async def main() -> None:
        async with aio.Consumer(node.server) as consumer:
            await consumer.assign([("t", 0)])
            with contextlib.suppress(CorruptMessage):
                async for record in consumer:
                    values.append(record.value)
            assert len(values) == 5
            await consumer.seek("t", 0, 6)
            async for record in consumer:
                values.append(record.value)
                if len(values) == 8:
                    return

    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(CorruptMessage):
            values.extend(record.value for record in consumer)
        assert values == [b"%d" % n for n in range(5)]
        consumer.seek("t", 0, 6)
        assert next(iter(consumer)).value == b"6"
    values.clear()
    asyncio.run(main())
    assert values == [b"%d" % n for n in range(9) if n != 5]


def test_a_seek_into_a_bad_batch_raises_its_error(node: FakeNode) -> None:
    node.create("t")
    store(node, [b"a", b"b", b"c"])
    header, data = node.topics["t"].partitions[0].batches[0]
    node.topics["t"].partitions[0].batches[0] = (header, data[:-1] + b"\x7f")
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 1)
        with pytest.raises(CorruptMessage, match="offsets 1 to 2 cannot be decoded"):
            consumer.poll(WAIT_S)


def test_an_answer_that_is_no_batch_is_raised_after_the_batches_before_it(node: FakeNode) -> None:
    node.create("t")
    store(node, [b"good"])
    store(node, [b"cut"])
    partition = node.topics["t"].partitions[0]
    header, data = partition.batches[1]
    partition.batches[1] = (header, data[:-4])
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        assert [record.value for record in consumer.poll(WAIT_S)] == [b"good"]
        for _ in range(2):
            with pytest.raises(
                CorruptMessage, match="t-0: what the server sent from offset 1 on"
            ) as raised:
                consumer.poll(WAIT_S)
        place = dict(topic="t", partition=0, offset=1, next_offset=2)
        assert raised.value.fields.items() >= place.items()
        assert "seek to 2 to go on behind it" in raised.value.message


@pytest.mark.parametrize(
    ("damage", "next_offset"),
    [
        (dict(magic=1), 4),
        (dict(length=7), 4),
        (dict(length=7, last_offset_delta=-9), 6),
        (dict(length=7, last_offset_delta=1 << 30), 6),
    ],
)
def test_a_seek_to_the_offset_that_the_error_names_goes_on_behind_what_is_no_batch(
    node: FakeNode, damage: dict[str, int], next_offset: int
) -> None:
    """The header of the damaged batch says where it ends; if not, the answer does."""
    node.create("t")
    for values in ([b"a"], [b"b", b"c", b"d"], [b"e", b"f"]):
        store(node, list(values))
    partition = node.topics["t"].partitions[0]
    header, data = partition.batches[1]
    partition.batches[1] = (header, pack_header(header._replace(**damage)) + data[HEADER_BYTES:])
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        assert [record.value for record in consumer.poll(WAIT_S)] == [b"a"]
        with pytest.raises((CorruptMessage, InvalidRecord)) as raised:
            consumer.poll(WAIT_S)
        assert raised.value.fields["next_offset"] == next_offset
        consumer.seek("t", 0, next_offset)
        rest = [b"e", b"f"] if next_offset == 4 else [b"late"]
        store(node, [b"late"])
        assert consumer.poll(WAIT_S)[0].value == rest[0]


def test_the_position_passes_over_a_batch_that_holds_nothing_for_the_caller(
    node: FakeNode,
) -> None:
    """Markers of transactions at the end of a log: who reads up to the end gets there."""

    def control(node: FakeNode) -> None:
        store(node, [b"marker"])
        batches = node.topics["t"].partitions[0].batches
        header = batches[-1][0]
        header = header._replace(attributes=header.attributes | CONTROL)
        batches[-1] = (header, pack_header(header) + batches[-1][1][HEADER_BYTES:])

    node.create("t")
    control(node)
    store(node, [b"record"])
    control(node)
    control(node)

    async def main() -> None:
        async with aio.Consumer(node.server) as consumer:
            await consumer.assign([("t", 0)])
            assert [record.value for record in await consumer.poll(WAIT_S)] == [b"record"]
            assert await consumer.position("t", 0) == 4

    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        batches = consumer.poll_batches(WAIT_S)
        assert [(batch.base_offset, batch.next_offset) for batch in batches] == [(1, 2)]
        assert consumer.position("t", 0) == 4
        consumer.seek("t", 0, 1)
        assert consumer.position("t", 0) == 1
    asyncio.run(main())


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_a_batch_that_expands_beyond_the_bound_is_refused_with_its_place(
    node: FakeNode, codec: Compression
) -> None:
    node.create("t")
    store(node, [b"good"])
    store(node, [b"\0" * 300_000], codec)
    store(node, [b"\0" * 1000], codec)
    with Consumer(node.server, decoded_batch_bytes_max=100_000) as consumer:
        consumer.assign([("t", 0)])
        assert [record.value for record in consumer.poll(WAIT_S)] == [b"good"]
        with pytest.raises(InvalidRecord, match="more than 100000 bytes") as raised:
            consumer.poll(WAIT_S)
        assert raised.value.next_offset == 2
        consumer.seek("t", 0, 2)
        assert [len(record.value or b"") for record in consumer.poll(WAIT_S)] == [1000]


def test_one_poll_decodes_a_bounded_number_of_bytes(node: FakeNode) -> None:
    node.create("t")
    for _ in range(10):
        store(node, [b"\0" * 300_000], Compression.ZSTD)

    async def main() -> list[int]:
        async with aio.Consumer(node.server, poll_bytes_max=500_000) as consumer:
            await consumer.assign([("t", 0)])
            return [len(await consumer.poll(WAIT_S)) for _ in range(5)]

    with Consumer(node.server, poll_bytes_max=500_000) as consumer:
        consumer.assign([("t", 0)])
        assert [len(consumer.poll(WAIT_S)) for _ in range(5)] == [2] * 5
    assert asyncio.run(main()) == [2] * 5


def test_few_records_of_a_large_batch_exist_at_a_time(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    store(node, [b""] * 100_000, Compression.ZSTD)
    windows: list[int] = []
    take = records.DecodedBatch.take

    def counted(decoded: records.DecodedBatch, count: int) -> list[ConsumerRecord]:
        window = take(decoded, count)
        windows.append(len(window))
        return window

    monkeypatch.setattr(records.DecodedBatch, "take", counted)
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 10)
        first = consumer.poll(WAIT_S)
        assert [record.offset for record in first] == list(range(10, 510))
        assert consumer.position("t", 0) == 510
        offsets = [record.offset for record in consumer.poll(WAIT_S, 200_000)]
        assert offsets == list(range(510, 100_000))
        assert consumer.position("t", 0) == 100_000
    assert max(windows) < 40_000


def test_compressed_batches_are_decoded_beside_the_loop(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    store(node, [b"\0" * 1000], Compression.ZSTD)
    store(node, [b"\0" * 1000], Compression.GZIP)
    threads: list[threading.Thread] = []
    decompress = codecs.decompress

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return decompress(*arguments)

    monkeypatch.setattr(records, "decompress", watched)

    async def main() -> None:
        async with aio.Consumer(node.server) as consumer:
            await consumer.assign([("t", 0)])
            assert len(await consumer.poll(WAIT_S)) == 2

    asyncio.run(main())
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_wrong_offsets_and_partitions_are_refused_at_once(node: FakeNode) -> None:
    node.create("t")
    store(node, [b"good"])
    with Consumer(node.server) as consumer:
        consumer.assign([("t", 0)])
        offsets: list[Any] = [-1, 2**63, "0", 1.5, None]
        for offset in offsets:
            with pytest.raises(Invalid, match="an offset is a number from 0"):
                consumer.seek("t", 0, offset)
        partitions: list[Any] = [("t", -1), ("t", 2**31), ("t", "0"), (0, 0), "t", ("t", 0, 1)]
        for tp in partitions:
            with pytest.raises(Invalid, match="partition"):
                consumer.assign([tp])
        with pytest.raises(Invalid, match="list of topics"):
            consumer.subscribe("t")
        assert [record.value for record in consumer.poll(WAIT_S)] == [b"good"]
        consumer.seek("t", 0, 0)
        consumer.close()
        for use in (consumer.poll, consumer.poll_batches, lambda: next(iter(consumer))):
            with pytest.raises(Closed):
                use()
