"""An exception inside a producer fails one call or all of them; no caller hangs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from streamlog.client import Producer, aio
from streamlog.client.produce.batches import PendingBatch
from streamlog.client.produce.core import ProducerCore
from streamlog.codec import records as codec_records
from streamlog.errors import (
    Closed,
    Internal,
    MessageTooLarge,
    Overloaded,
    StreamlogError,
)
from tests.client.fake_node import FakeNode

WAIT_S = 20

BAD_SENDS: dict[str, dict[str, Any]] = {
    "text as a value": dict(value="text"),
    "a number as a value": dict(value=5),
    "text as a key": dict(value=b"v", key="k", partition=0),
    "a negative timestamp": dict(value=b"v", timestamp_ms=-5),
    "a timestamp beyond 64 bits": dict(value=b"v", timestamp_ms=2**63),
    "a timestamp that is no number": dict(value=b"v", timestamp_ms="now"),
    "a header of three": dict(value=b"v", headers=[("a", b"", 1)]),
    "a header's number": dict(value=b"v", headers=[("a", 5)]),
    "a header that UTF-8 cannot hold": dict(value=b"v", headers=[("\ud800", b"")]),
    "too large": dict(value=b"x" * 3_000_000),
    "a partition that is text": dict(value=b"v", partition="0"),
}


@pytest.mark.parametrize("bad", BAD_SENDS.values(), ids=BAD_SENDS.keys())
@pytest.mark.parametrize("warm", [False, True])
def test_the_next_record_is_sent_after_a_send_that_raised(
    node: FakeNode, bad: dict[str, Any], warm: bool
) -> None:
    node.create("t")
    with Producer(node.server, linger_ms=0) as producer:
        if warm:
            producer.send("t", b"before").result(WAIT_S)
        with pytest.raises((StreamlogError, TypeError, OverflowError, UnicodeEncodeError)):
            producer.send("t", **bad)
        assert producer.metrics()["buffered_bytes"] == 0
        assert producer.send("t", b"after").result(WAIT_S).offset == int(warm)


@pytest.mark.parametrize("bad", BAD_SENDS.values(), ids=BAD_SENDS.keys())
def test_the_next_record_is_sent_after_a_send_that_raised_in_asyncio(
    node: FakeNode, bad: dict[str, Any]
) -> None:
    node.create("t")

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0) as producer:
            with pytest.raises((StreamlogError, TypeError, OverflowError, UnicodeEncodeError)):
                await producer.send("t", **bad)
            sent = await producer.send("t", b"after")
            assert (await asyncio.wait_for(sent.result(), WAIT_S)).offset == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "values", [["text"], [b"good", memoryview(b"abcdef")[::2]], [b"x" * 3_000_000]]
)
def test_the_next_record_is_sent_after_a_send_many_that_raised(
    node: FakeNode, values: list[Any]
) -> None:
    node.create("t")

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0) as producer:
            with pytest.raises((TypeError, MessageTooLarge)):
                await producer.send_many("t", values)
            sent = await producer.send_many("t", [b"after"])
            await asyncio.wait_for(sent.result(), WAIT_S)

    with Producer(node.server, linger_ms=0) as producer:
        with pytest.raises((TypeError, MessageTooLarge)):
            producer.send_many("t", values)
        producer.send_many("t", [b"after"]).result(WAIT_S)
    asyncio.run(main())
    assert node.values("t") == [b"after", b"after"]


def test_a_header_that_is_no_pair_is_a_type_error(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, linger_ms=1000) as producer:
        producer.send("t", b"opens the batch")
        for pair in (("a", b"", 1), ("a",), (b"a", b""), "ab"):
            with pytest.raises(TypeError, match=r"pairs \(name, value\)"):
                producer.send("t", b"v", headers=[pair])  # type: ignore[list-item]
    assert node.values("t") == [b"opens the batch"]


def test_a_partitioner_that_raises_fails_its_call_alone(node: FakeNode) -> None:
    node.create("t")
    answers: list[Any] = [ZeroDivisionError(), "0", 7, 0]

    def choose(*_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Producer(node.server, partitioner=choose, linger_ms=0) as producer:
        for _ in range(3):
            with pytest.raises((ZeroDivisionError, TypeError, StreamlogError)):
                producer.send("t", b"v")
        assert producer.send("t", b"good").result(WAIT_S).offset == 0


def test_exit_in_a_callback_ends_no_thread_of_the_producer(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.create("t")
    offsets: list[int] = []

    def leave(*_: object) -> None:
        raise SystemExit(3)

    with Producer(node.server, linger_ms=0) as producer:
        producer.send("t", b"1", on_delivery=leave)
        producer.send("t", b"2", on_delivery=lambda at, _: offsets.append(at.offset if at else -1))
        producer.flush(WAIT_S)
        assert producer.send("t", b"3").result(WAIT_S).offset == 2
    assert offsets == [1]
    assert "raised SystemExit(3)" in caplog.text


def test_exit_in_a_callback_that_closing_runs_reaches_the_caller_of_close(node: FakeNode) -> None:
    node.create("t")
    node.hold.clear()
    callbacks: list[str] = []

    def leave(*_: object) -> None:
        raise SystemExit(3)

    producer = Producer(node.server)
    producer.send("t", b"1", on_delivery=leave)
    last = producer.send("t", b"2", on_delivery=lambda *_: callbacks.append("second"))
    with pytest.raises(SystemExit):
        producer.close(0)
    assert callbacks == ["second"]
    assert isinstance(last.exception(0), (Closed, StreamlogError))


def test_exit_in_an_asyncio_callback_ends_the_program_after_all_callbacks(node: FakeNode) -> None:
    node.create("t")
    callbacks: list[str] = []

    def leave(*_: object) -> None:
        raise SystemExit(3)

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0) as producer:
            await producer.send("t", b"1", on_delivery=leave)
            await producer.send("t", b"2", on_delivery=lambda *_: callbacks.append("second"))
            await producer.flush(WAIT_S)
            await asyncio.Event().wait()

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert callbacks == ["second"]


def test_close_in_a_callback_returns_and_what_was_sent_is_stored(node: FakeNode) -> None:
    node.create("t")
    refused: list[type[BaseException]] = []
    is_closed = threading.Event()

    def close(*_: object) -> None:
        producer.close()
        try:
            producer.send("t", b"late")
        except StreamlogError as error:
            refused.append(type(error))
        is_closed.set()

    node.hold.clear()
    producer = Producer(node.server, linger_ms=0, batch_size_bytes=128, batch_size_max_bytes=128)
    producer.send("t", b"1", on_delivery=close)
    rest = [producer.send("t", b"%d" % number * 50) for number in range(2, 6)]
    node.hold.set()
    assert is_closed.wait(WAIT_S)
    assert [delivery.result(WAIT_S).offset for delivery in rest] == [1, 2, 3, 4]
    assert refused == [Closed]
    producer.close()
    for thread in threading.enumerate():
        if thread.name == "streamlog-producer-end":
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_a_send_in_a_callback_does_not_wait_for_room(node: FakeNode) -> None:
    node.create("t")
    refusals: list[Overloaded] = []

    with Producer(
        node.server, linger_ms=0, buffer_memory_bytes=4096, batch_size_bytes=2048
    ) as producer:

        def more(*_: object) -> None:
            try:
                for _number in range(1000):
                    producer.send("t", b"y" * 1500)
            except Overloaded as error:
                refusals.append(error)

        producer.send("t", b"first", on_delivery=more).result(WAIT_S)
        producer.flush(WAIT_S)
        producer.send("t", b"last").result(WAIT_S)
    assert "a delivery callback cannot wait for room" in str(refusals[0])


def test_a_batch_that_cannot_be_encoded_fails_alone(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    finish = codec_records.finish  # type: ignore[attr-defined]
    fails = [MemoryError("no memory")]

    def finish_later(*arguments: Any) -> Any:
        if fails:
            raise fails.pop()
        return finish(*arguments)

    monkeypatch.setattr(codec_records, "finish", finish_later)

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0) as producer:
            bad = await producer.send("t", b"bad")
            assert isinstance(await asyncio.wait_for(bad.exception(), WAIT_S), Internal)
            good = await producer.send("t", b"good")
            await asyncio.wait_for(good.result(), WAIT_S)

    with Producer(node.server, linger_ms=0) as producer:
        with pytest.raises(Internal, match="could not be encoded"):
            producer.send("t", b"bad").result(WAIT_S)
        producer.send("t", b"good").result(WAIT_S)
    fails.append(MemoryError("no memory"))
    asyncio.run(main())
    assert node.values("t") == [b"good", b"good"]


def test_an_answer_that_leaves_a_partition_out_is_asked_for_again(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t", 2)
    produce = node.produce
    left_out: list[Any] = []

    def answer(request: Any, refuse: bool) -> Any:
        response = produce(request, refuse)
        if not left_out:
            left_out.append(response.topics.pop())
        return response

    monkeypatch.setattr(node, "produce", answer)
    with Producer(node.server, linger_ms=0, retry_backoff_ms=1) as producer:
        sent = [producer.send("t", b"v", partition=number) for number in (0, 1)]
        assert [delivery.result(WAIT_S).offset for delivery in sent] == [0, 0]
    assert left_out
    assert node.values("t", 0) == node.values("t", 1) == [b"v"]
    left_out.clear()

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0, retry_backoff_ms=1) as producer:
            sent = [await producer.send("t", b"w", partition=number) for number in (0, 1)]
            for delivery in sent:
                assert (await asyncio.wait_for(delivery.result(), WAIT_S)).offset == 1

    asyncio.run(main())
    assert left_out
    assert node.values("t", 0) == node.values("t", 1) == [b"v", b"w"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("broken", ["expire", "next_message", "answered"])
def test_a_failure_in_the_producers_threads_fails_every_call(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    node.create("t")

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=0) as producer:
            sent = await producer.send("t", b"v")
            error = await asyncio.wait_for(sent.exception(), WAIT_S)
            assert isinstance(error, StreamlogError)
            with pytest.raises(Internal, match="a bug"):
                await producer.send("t", b"v")

    monkeypatch.setattr(ProducerCore, broken, fail)
    with Producer(node.server, linger_ms=0) as producer:
        error = producer.send("t", b"v").exception(WAIT_S)
        assert "a bug" in str(error)
        with pytest.raises(Internal, match="a bug"):
            producer.send("t", b"v")
    asyncio.run(main())


def test_a_thread_that_cannot_be_started_is_started_by_the_next_send(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "streamlog-producer" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    with Producer(node.server, linger_ms=0) as producer:
        with pytest.raises(RuntimeError):
            producer.send("t", b"refused")
        assert producer.send("t", b"taken").result(WAIT_S).offset == 0


FORKING = """
import os, select, sys
from streamlog.client import Admin, Consumer, Producer, Streams

WAIT_S = 20

def in_child(use):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcome = repr(use())
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(write, outcome.encode())
        os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], WAIT_S)
    print(os.read(read, 65536).decode() if ready else "does not end", flush=True)
    os.kill(pid, 9)
    os.waitpid(pid, 0)

server = sys.argv[1]
producer, admin, consumer = Producer(server, linger_ms=0), Admin(server), Consumer(server)
streams = Streams(server)
producer.send("t", b"parent").result(WAIT_S)
consumer.assign([("t", 0)])
assert [record.value for record in consumer.poll(WAIT_S)] == [b"parent"]
slow = Producer(server, linger_ms=600_000)
under_way = slow.send("t", b"under way")
in_child(lambda: producer.send("t", b"child"))
in_child(lambda: producer.send("other", b"child"))
in_child(lambda: producer.send_many("t", [b"child"]))
in_child(lambda: under_way.result(1))
in_child(lambda: admin.list_topics())
in_child(lambda: streams.append(1, b"x"))
in_child(lambda: consumer.poll(1))
in_child(lambda: consumer.end_offsets([("t", 0)]))
in_child(lambda: producer.close())
in_child(lambda: consumer.close())
slow.close()
assert under_way.result(WAIT_S).offset == 1
assert producer.send("t", b"parent again").result(WAIT_S).offset == 2
producer.close()
consumer.close()
"""


def test_clients_used_after_a_fork_say_so(node: FakeNode) -> None:
    node.create("t")
    # In a process of its own, without the handlers by which gRPC itself aborts some forks.
    run = subprocess.run(
        [sys.executable, "-c", FORKING, node.server],
        env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "false"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    outcomes = run.stdout.splitlines()
    assert len(outcomes) == 10
    for line in outcomes[:8]:
        assert "this client was made before the process was forked" in line
        assert line.startswith("Invalid: ")
    assert outcomes[8:] == ["None", "None"]
    assert node.values("t") == [b"parent", b"under way", b"parent again"]


def test_a_batch_that_a_refused_record_closed_is_sent_at_once(node: FakeNode) -> None:
    node.create("t")
    with Producer(node.server, linger_ms=600_000) as producer:
        for number in range(10):
            sent = producer.send("t", b"before")
            if not number:
                # Connected, so that the writer waits for the linger's end and nothing else.
                producer.flush(WAIT_S)
            with pytest.raises(MessageTooLarge):
                producer.send("t", b"x" * 3_000_000)
            assert sent.result(WAIT_S).offset == number

    async def main() -> None:
        async with aio.Producer(node.server, linger_ms=600_000) as producer:
            for number in range(10, 20):
                sent = await producer.send("t", b"before")
                if number == 10:
                    await producer.flush(WAIT_S)
                for _ in range(10):
                    await asyncio.sleep(0)
                with pytest.raises(MessageTooLarge):
                    await producer.send("t", b"x" * 3_000_000)
                assert (await asyncio.wait_for(sent.result(), WAIT_S)).offset == number

    asyncio.run(main())


def test_batches_behind_one_that_cannot_be_encoded_are_sent_at_once(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    encode = PendingBatch.encode

    def fail_one(batch: PendingBatch, identity: Any) -> None:
        if batch.record_count == 2:
            raise RuntimeError("a bug")
        encode(batch, identity)

    monkeypatch.setattr(PendingBatch, "encode", fail_one)
    with Producer(node.server, linger_ms=600_000) as producer:
        # Until the first batch is answered the others wait behind it, all of them ready.
        node.hold.clear()
        sent = []
        for count in (1, 2, 1):
            sent.append([producer.send("t", b"v", partition=0) for _ in range(count)][-1])
            with pytest.raises(TimeoutError):
                producer.flush(0)
        node.hold.set()
        assert sent[0].result(WAIT_S).offset == 0
        with pytest.raises(Internal, match="could not be encoded"):
            sent[1].result(WAIT_S)
        assert sent[2].result(WAIT_S).offset == 1
