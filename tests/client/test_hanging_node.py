"""A node that takes connections and never answers: each wait ends at its bound and names it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from streamlog.client import KV, Admin, Consumer, Partitions, Producer, Streams, aio
from streamlog.client.calls.kv import WATCH
from streamlog.client.calls.stream import READ
from streamlog.client.consume import subscription
from streamlog.errors import Closed, DeadlinePassed, OutcomeUnknown, StreamlogError, Unavailable
from streamlog.v1 import kv_pb2, stream_pb2
from tests.client.fake_node import FakeNode, Fault

WAIT_S = 20
SHORT: dict[str, Any] = dict(delivery_timeout_ms=200, max_block_ms=200)


def test_the_first_send_names_the_node_and_how_long_it_tried(silent: str) -> None:
    async def main() -> None:
        async with aio.Producer(silent, **SHORT) as producer:
            with pytest.raises(Unavailable, match=f"{silent} was not reached within 0.2 s"):
                await producer.send("t", b"v")

    with (
        Producer(silent, **SHORT) as producer,
        pytest.raises(Unavailable, match=f"{silent} was not reached within 0.2 s"),
    ):
        producer.send("t", b"v")
    asyncio.run(main())


def test_appends_that_wait_for_each_other_end_in_their_own_time(silent: str) -> None:
    """And not each after the one before."""

    async def main() -> list[BaseException]:
        async with aio.Partitions(silent, timeout_ms=500) as logs:
            calls = [logs.append("t", 0, b"v") for _ in range(30)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            return [error for error in found if isinstance(error, BaseException)]

    ready = threading.Barrier(30)  # So that all deadlines lie close, however busy the machine is.

    def append(logs: Partitions) -> object:
        ready.wait(WAIT_S)
        return logs.append("t", 0, b"v")

    began = time.monotonic()
    with Partitions(silent, timeout_ms=500) as logs, ThreadPoolExecutor(30) as threads:
        waiting = [threads.submit(append, logs) for _ in range(30)]
        found = [one.exception(WAIT_S) for one in waiting]
    for errors in (found, asyncio.run(main())):
        assert len(errors) == 30
        assert sum(isinstance(error, DeadlinePassed) for error in errors) > 20
        assert all(isinstance(error, StreamlogError) for error in errors)
    assert time.monotonic() - began < 15  # One after the other they would take 30 s.


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.STORE_AND_HANG])
def test_flush_and_close_end_with_the_delivery_timeout(node: FakeNode, fault: Fault) -> None:
    node.create("t")
    node.faults.append(fault)

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0, delivery_timeout_ms=1_000) as producer:
            node.faults.append(fault)
            sent = await producer.send("t", b"v")
            await producer.flush()
            assert isinstance(await sent.exception(), OutcomeUnknown)

    with Producer(node.server, linger_ms=0, delivery_timeout_ms=1_000) as producer:
        sent = producer.send("t", b"v")
        producer.flush()
        assert isinstance(sent.exception(0), OutcomeUnknown)
    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_closing_a_producer_ends_at_its_timeout(node: FakeNode) -> None:
    node.create("t")
    node.hold.clear()
    producer = Producer(node.server, linger_ms=0)
    sent = producer.send("t", b"v")
    producer.close(0.05)
    assert isinstance(sent.exception(0), OutcomeUnknown | Closed)

    async def main() -> StreamlogError | None:
        producer = aio.Producer(node.server, linger_ms=0)
        sent = await producer.send("t", b"v")
        await producer.close(0.05)
        return await sent.exception()

    assert isinstance(asyncio.run(asyncio.wait_for(main(), WAIT_S)), OutcomeUnknown | Closed)
    node.hold.set()


def test_closing_a_consumer_does_not_wait_for_the_node(silent: str) -> None:
    async def main() -> None:
        async with aio.Consumer(silent) as consumer:
            await consumer.subscribe(["t"])
            assert await consumer.poll(0.05) == []

    consumer = Consumer(silent)
    consumer.subscribe(["t"])
    assert consumer.poll(0.05) == []
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(WAIT_S / 2)
    assert not closing.is_alive()
    asyncio.run(asyncio.wait_for(main(), WAIT_S / 2))


def test_closing_streams_ends_an_append_that_waits(silent: str) -> None:
    streams = Streams(silent)
    errors: list[StreamlogError] = []

    def append() -> None:
        try:
            streams.append(1, b"x")
        except StreamlogError as error:
            errors.append(error)

    appending = threading.Thread(target=append)
    appending.start()
    while streams._appending is None:
        appending.join(0.001)
    streams.close()
    appending.join(WAIT_S)
    assert not appending.is_alive()
    assert isinstance(errors[0], OutcomeUnknown | Closed)


def test_a_client_used_after_close_says_so(node: FakeNode) -> None:
    node.create("t")
    admin, kv, streams = Admin(node.server), KV(node.server), Streams(node.server)
    consumer, producer = Consumer(node.server), Producer(node.server)
    for client in (admin, kv, streams, consumer, producer):
        client.close()
        client.close()
    for use in (
        admin.list_topics,
        lambda: kv.get(b"k"),
        lambda: list(kv.watch()),
        lambda: streams.fetch(1, 0),
        lambda: consumer.end_offsets([("t", 0)]),
        lambda: consumer.assign([("t", 0)]),
        lambda: producer.send("t", b"v"),
    ):
        with pytest.raises(Closed, match="open another one"):
            use()
    producer.flush()

    async def main() -> None:
        admin = aio.Admin(node.server)
        await admin.close()
        with pytest.raises(Closed, match="open another one"):
            await admin.list_topics()

    asyncio.run(main())


def test_closing_an_asyncio_producer_in_a_callback_stores_the_rest(node: FakeNode) -> None:
    node.create("t")

    async def main() -> list[int]:
        producer = aio.Producer(node.server, linger_ms=0, batch_size_bytes=128)
        closing: list[asyncio.Task[None]] = []

        def close(*_: object) -> None:
            closing.append(asyncio.create_task(producer.close()))

        await producer.send("t", b"1" * 100, on_delivery=close)
        rest = [await producer.send("t", b"%d" % n * 100) for n in range(2, 6)]
        offsets = [(await delivery).offset for delivery in rest]
        await closing[0]
        with pytest.raises(Closed):
            await producer.send("t", b"late")
        return offsets

    assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == [1, 2, 3, 4]


def test_a_call_that_waits_in_asyncio_gets_closed_and_is_not_cancelled(silent: str) -> None:
    """gRPC cancels the calls of a channel that is closed; the tasks were not cancelled."""

    async def main() -> None:
        admin, streams = aio.Admin(silent), aio.Streams(silent)
        reading = aiter(streams.read(1, 0))
        waiting = [asyncio.ensure_future(wait) for wait in (admin.status(), anext(reading))]
        writing = asyncio.create_task(admin.create_topic("t"))
        await asyncio.sleep(0.1)
        await admin.close()
        await streams.close()
        for wait in waiting:
            with pytest.raises(Closed, match="open another one"):
                await asyncio.wait_for(wait, WAIT_S)
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(writing, WAIT_S)

    asyncio.run(main())


def begun_for_ever(begun: threading.Semaphore) -> grpc.Server:
    """A node whose reads and watches begin, and then bring nothing."""

    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        ended = threading.Event()
        context.add_callback(ended.set)
        is_watch = isinstance(request, kv_pb2.WatchKvsRequest)
        yield kv_pb2.WatchKvsResponse() if is_watch else stream_pb2.ReadStreamResponse()
        begun.release()
        ended.wait(WAIT_S)

    server = grpc.server(ThreadPoolExecutor(8))
    for path, request_class in (
        (READ, stream_pb2.ReadStreamRequest),
        (WATCH, kv_pb2.WatchKvsRequest),
    ):
        service, method = path[1:].split("/")
        handler = grpc.unary_stream_rpc_method_handler(
            answer,
            request_deserializer=request_class.FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )
        generic = grpc.method_handlers_generic_handler(service, {method: handler})
        server.add_generic_rpc_handlers([generic])
    return server


def test_a_read_and_a_watch_that_have_begun_get_closed_as_well() -> None:
    begun = threading.Semaphore(0)
    node = begun_for_ever(begun)
    address = f"127.0.0.1:{node.add_insecure_port('127.0.0.1:0')}"
    node.start()
    with ThreadPoolExecutor(2) as executor:
        streams, kv = Streams(address), KV(address)
        waiting: list[Future[Any]] = [
            executor.submit(lambda: next(streams.read(1, 0))),
            executor.submit(lambda: next(kv.watch())),
        ]
        for _ in waiting:
            assert begun.acquire(timeout=WAIT_S)
        streams.close()
        kv.close()
        for wait in waiting:
            with pytest.raises(Closed, match="open another one"):
                wait.result(WAIT_S)
    node.stop(None).wait()


def test_a_send_that_waits_for_its_topic_ends_when_the_producer_is_closed(silent: str) -> None:
    with FakeNode() as gone:
        address = gone.server

    def send(producer: Producer) -> None:
        with pytest.raises(Closed):
            producer.send("t", b"v")

    for server in (silent, address):
        producer = Producer(server, max_block_ms=60_000)
        with ThreadPoolExecutor(1) as executor:
            sending = executor.submit(send, producer)
            with pytest.raises(TimeoutError):
                sending.result(0.2)
            producer.close()
            sending.result(WAIT_S / 4)

    async def main(server: str) -> None:
        producer = aio.Producer(server, max_block_ms=60_000)
        sending = asyncio.create_task(producer.send("t", b"v"))
        await asyncio.sleep(0.2)
        await producer.close()
        with pytest.raises(Closed):
            await asyncio.wait_for(sending, WAIT_S / 4)

    asyncio.run(main(silent))
    asyncio.run(main(address))


def test_a_consumer_tells_that_the_node_owes_it_an_answer(
    node: FakeNode, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the call has its time-out, which 30 s later says so in its own words."""
    monkeypatch.setattr(subscription, "SILENCE_S", 0.1)
    node.create("t")

    async def main() -> None:
        async with aio.Consumer(silent, fetch_max_wait_ms=50) as consumer:
            await consumer.subscribe(["t"])
            while (waiting := consumer.waiting_for()) is None:
                assert await consumer.poll(0.01) == []
            assert waiting == f"{silent}, for 0 s: no answer"

    with Consumer(node.server, fetch_max_wait_ms=50) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 0)
        with node.changed:  # Fetch takes it.
            while (waiting := consumer.waiting_for()) is None:
                assert consumer.poll(0.01) == []
            assert waiting == f"{node.server}, for 0 s: no answer"
        while consumer.waiting_for() is not None:
            assert consumer.poll(0.01) == []
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
