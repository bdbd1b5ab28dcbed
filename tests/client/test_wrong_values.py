"""Values that a request or a timer cannot hold are refused by the call that brings them."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from streamlog.client import KV, Admin, Consumer, Producer, Streams, aio
from streamlog.errors import Closed, Invalid, InvalidConfig, InvalidPartitions, OutcomeUnknown
from tests.client.fake_node import FakeNode

WAIT_S = 20
FOREVER = float("inf")
NOT_A_NUMBER = float("nan")


def some(setting: str, *values: Any) -> list[tuple[str, Any]]:
    return [(setting, value) for value in values]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *some("request_timeout_ms", 1000.5, FOREVER, 2**31, True, "5", None),
        *some("delivery_timeout_ms", 2**63, FOREVER, 0),
        *some("linger_ms", FOREVER, NOT_A_NUMBER, 2**63, True, None),
        *some("batch_size_bytes", 5000.5, 2**31),
        *some("buffer_memory_bytes", 5000.5, 2**63),
        *some("max_block_ms", FOREVER, -1),
        *some("idempotence", "no", 1),
    ],
)
def test_a_producer_refuses_a_setting_that_would_end_its_thread(setting: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"{setting} is .*(give|needed|most)"):
        Producer("127.0.0.1:1", **{setting: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *some("fetch_max_bytes", 1e6, 2**31, True, FOREVER),
        *some("fetch_min_bytes", 1e6, 2**31),
        *some("fetch_max_wait_ms", 0.5, 2**31),
        *some("max_partition_fetch_bytes", 1e6, 2**31),
        *some("request_timeout_ms", FOREVER),
        *some("check_crcs", "no"),
    ],
)
def test_a_consumer_refuses_a_setting_that_would_end_its_thread(setting: str, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"{setting} is .*(give|needed|most)"):
        Consumer("127.0.0.1:1", **{setting: value})


@pytest.mark.parametrize("client_id", [5, "\u00fc", "two\nlines", "x" * 20_000, None])
def test_every_client_refuses_a_client_id_that_no_header_carries(client_id: Any) -> None:
    for make in (Producer, Consumer, Admin):
        with pytest.raises(Invalid, match=r"client_id is .*give"):
            make("127.0.0.1:1", client_id=client_id)


@pytest.mark.parametrize("server", [None, 5, "http://127.0.0.1:9644", "127.0.0.1:99999"])
def test_an_address_that_cannot_be_one_is_refused_at_once(server: Any) -> None:
    with pytest.raises(Invalid, match="give host:port"):
        Producer(server)


def test_a_consumer_goes_on_after_values_that_it_refused(node: FakeNode) -> None:
    node.create("t")
    bad: Any
    with Producer(node.server, linger_ms=0) as producer, Consumer(node.server) as consumer:
        producer.send("t", b"v").result(WAIT_S)
        for bad in ([("t", True)], [("t", 0.0)], [("\ud800", 0)]):
            with pytest.raises(Invalid, match="a text and a number"):
                consumer.assign(bad)
        with pytest.raises(Invalid, match="a list of topics"):
            consumer.subscribe(["\ud800"])
        consumer.assign([("t", 0)])
        for bad in (True, 1.0, 2**63):
            with pytest.raises(Invalid, match="an offset is a number"):
                consumer.seek("t", 0, bad)
        assert [record.value for record in consumer.poll(FOREVER)] == [b"v"]


def test_time_outs_without_end_wait_and_wrong_ones_change_nothing(node: FakeNode) -> None:
    node.create("t")
    producer = Producer(node.server, linger_ms=0)
    assert producer.send("t", b"0").result(FOREVER).offset == 0
    assert producer.send_many("t", [b"1"]).result(1e300)[0].base_offset == 1
    producer.flush(FOREVER)
    sent = producer.send("t", b"2")
    wrong: Any = "5"
    for call in (producer.close, producer.flush):
        with pytest.raises(TypeError, match="a time-out is a number of seconds"):
            call(wrong)
    producer.close(FOREVER)
    assert sent.result(0).offset == 2


def test_asyncio_time_outs_without_end_wait_and_wrong_ones_change_nothing(node: FakeNode) -> None:
    node.create("t")

    async def main() -> None:
        producer = aio.Producer(node.server, linger_ms=0)
        sent = await producer.send("t", b"0")
        wrong: Any = "5"
        with pytest.raises(TypeError, match="a time-out is a number of seconds"):
            await producer.close(wrong)
        with pytest.raises(TimeoutError):
            await producer.flush(NOT_A_NUMBER)
        await producer.close(FOREVER)
        assert (await sent).offset == 0
        async with aio.Consumer(node.server) as consumer:
            await consumer.assign([("t", 0)])
            assert [record.value for record in await consumer.poll(FOREVER)] == [b"0"]

    asyncio.run(main())


def test_a_topic_without_partitions_is_refused(node: FakeNode) -> None:
    """0 in the request would leave the number to the node."""

    async def asyncio_client() -> None:
        async with aio.Admin(node.server) as admin:
            await admin.create_topic("none", 0)

    with Admin(node.server) as admin, pytest.raises(InvalidPartitions, match="at least 1"):
        admin.create_topic("none", 0)
    with pytest.raises(InvalidPartitions, match="at least 1"):
        asyncio.run(asyncio_client())


def test_a_batch_that_lingers_is_sent_before_its_delivery_timeout(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, linger_ms=600_000, delivery_timeout_ms=2_000) as producer:
        assert producer.send("t", b"v").result(WAIT_S).offset == 0


def test_an_error_that_is_raised_again_and_again_does_not_grow(node: FakeNode) -> None:
    node.create("t")
    producer = Producer(node.server, linger_ms=600_000)
    failed = producer.send("t", b"v")
    node.hold.clear()
    producer.close(0)
    depths = []
    for _ in range(3):
        # Unknown where the record was on its way to the node.
        with pytest.raises((Closed, OutcomeUnknown)) as raised:
            failed.result()
        depths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert depths[1] == depths[2]
    consumer = Consumer(node.server)
    consumer.close()
    depths.clear()
    for _ in range(3):
        with pytest.raises(Closed) as raised:
            consumer.end_offsets([("t", 0)])
        depths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert depths[1] == depths[2]


@pytest.mark.parametrize("timeout_ms", [-1, "5", None, True, FOREVER, float("nan"), 2**31])
def test_a_time_limit_that_no_request_can_hold_is_refused_at_once(timeout_ms: Any) -> None:
    """gRPC takes a time far beyond for one that is over, and each call was tried without end."""
    for make in (Admin, KV, Streams):
        with pytest.raises(InvalidConfig, match="timeout_ms is"):
            make("127.0.0.1:1", timeout_ms=timeout_ms)


@pytest.mark.parametrize("partition", ["t", ("t", 2**31), ("\ud800", 0), ("t", "0"), ("t", 0, 0)])
def test_offsets_of_what_is_no_partition_are_refused_at_once(
    node: FakeNode, partition: Any
) -> None:
    async def main() -> None:
        async with aio.Consumer(node.server) as consumer:
            with pytest.raises(Invalid, match="partition"):
                await consumer.beginning_offsets([partition])

    with Consumer(node.server) as consumer:
        for look_up in (consumer.beginning_offsets, consumer.end_offsets):
            with pytest.raises(Invalid, match="partition"):
                look_up([partition])
        with pytest.raises(Invalid, match="partition"):
            consumer.offsets_for_times({partition: 0})
    asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "values", "options"),
    [
        *(("get", (name,), {}) for name in ("text", None, 5)),
        ("get", (b"a",), {"namespace": 5}),
        ("get", (b"a",), {"namespace": "\ud800"}),
        ("delete", ("text",), {}),
        ("put", (b"a", "text"), {}),
        ("put", (b"a", None), {}),
        ("put", (b"a", b"b"), {"namespace": b"n\xff"}),
        ("put_if_absent", ("text", b"b"), {}),
        ("compare_and_set", (b"a", b"b", 2**63), {}),
        ("compare_and_set", (b"a", b"b", "1"), {}),
        ("list", (), {"prefix": "text"}),
        ("watch", (), {"prefix": "text"}),
        ("watch", (), {"from_revision": 2**63}),
    ],
)
def test_small_values_and_names_of_another_type_are_refused_at_once(
    node: FakeNode, call: str, values: tuple[Any, ...], options: dict[str, Any]
) -> None:
    match = "keys, prefixes and values are bytes|cannot be written as utf-8"

    async def called(kv: aio.KV) -> None:
        result = getattr(kv, call)(*values, **options)
        await (anext(result) if call == "list" else result)

    async def main() -> None:
        async with aio.KV(node.server) as kv:
            with pytest.raises(Invalid, match=match):
                await called(kv)

    with KV(node.server) as kv, pytest.raises(Invalid, match=match):
        list(getattr(kv, call)(*values, **options))
    asyncio.run(main())
