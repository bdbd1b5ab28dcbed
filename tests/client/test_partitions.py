"""Conditional appends and fencing tokens, mostly against real nodes: over the client and gRPC."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from streamlog.client import Admin, Consumer, PartitionAppendResult, Partitions, Record, aio
from streamlog.codec.records import encode_values
from streamlog.errors import (
    Closed,
    Invalid,
    MessageTooLarge,
    OffsetConflict,
    OutcomeUnknown,
    StreamlogError,
    TokenMismatch,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.v1 import log_pb2
from streamlog.v1.log_pb2_grpc import LogServiceStub
from streamlog.v1support.errors import from_proto, from_rpc_error, to_proto
from tests.client.fake_node import FakeNode
from tests.support.node import NodeProcess
from tests.support.server_harness import running

LONG_S = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("logs") / "data") as started:
        yield started


@pytest.fixture
def topic(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with two partitions."""
    name = request.node.name.replace("[", "-").replace("]", "")
    with Admin(node.server) as admin:
        admin.create_topic(name, partitions=2)
    return str(name)


def batch(*values: bytes, producer: Any = None) -> bytes:
    more = {} if producer is None else {"producer": producer}
    return bytes(encode_values(list(values), timestamp_ms=1_700_000_000_000, **more).data)


def values_of(server: str, topic: str, partition: int = 0) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(server) as consumer:
        consumer.assign([(topic, partition)])
        end = consumer.end_offsets([(topic, partition)])[topic, partition]
        while consumer.position(topic, partition) < end:
            values += [record.value for record in consumer.poll(1.0)]
    return values


class Cut:
    """Passes bytes between clients and a node, until `cut` ends a connection without an answer."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._answers = threading.Event()
        self._answers.set()
        self.server = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_answers(self) -> None:
        self._answers.clear()

    def cut(self) -> None:
        """Ends all connections; what was held back is lost. Later ones work again."""
        sockets, self._open = self._open, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._answers.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._target)
                self._open += [client, upstream]
                for source, sink, waits in ((client, upstream, False), (upstream, client, True)):
                    arguments = (source, sink, waits)
                    threading.Thread(target=self._pass, args=arguments, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, waits: bool) -> None:
        with suppress(OSError), source:
            while data := source.recv(1 << 16):
                if waits:
                    self._answers.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def until_end(logs: Partitions, topic: str, end: int) -> None:
    with ThreadPoolExecutor(1) as pool:

        def look() -> None:
            while logs.describe(topic, 0).log_end_offset < end:
                pass

        pool.submit(look).result(LONG_S)


# The client


def test_records_are_stored_where_they_are_expected(node: NodeProcess, topic: str) -> None:
    with Partitions(node.server) as logs:
        done = logs.append(topic, 1, [b"a", b"b"], expected_next_offset=0)
        assert done == PartitionAppendResult(0, 2)
        record = Record(b"c", b"key", [("name", b"x")], 17)
        assert logs.append(topic, 1, record, expected_next_offset=2).base_offset == 2
        for wrong in (0, 2, 4, 2**63 - 1):
            with pytest.raises(OffsetConflict) as conflict:
                logs.append(topic, 1, b"no", expected_next_offset=wrong)
            assert (conflict.value.expected, conflict.value.actual) == (wrong, 3)
        assert logs.append(topic, 1, b"d") == PartitionAppendResult(3, 4)
        assert logs.append(topic, 0, b"other", expected_next_offset=0).base_offset == 0
        info = logs.describe(topic, 1)
        assert (info.high_watermark, info.log_end_offset, info.fencing_token) == (4, 4, b"")
    assert values_of(node.server, topic, 1) == [b"a", b"b", b"c", b"d"]
    with Consumer(node.server) as consumer:
        consumer.assign([(topic, 1)])
        consumer.seek(topic, 1, 2)
        (found, *_) = consumer.poll(LONG_S)
        assert (found.offset, found.key, found.timestamp_ms) == (2, b"key", 17)
        assert list(found.headers) == [("name", b"x")]


def test_a_token_shuts_out_whoever_has_an_older_one(node: NodeProcess, topic: str) -> None:
    with Partitions(node.server) as old, Partitions(node.server) as new:
        old.set_fencing_token(topic, 0, b"old", expected_token=b"")
        old.append(topic, 0, b"a", fencing_token=b"old")
        new.set_fencing_token(topic, 0, b"new", expected_token=b"old", expected_next_offset=1)
        assert new.describe(topic, 0).fencing_token == b"new"
        assert new.describe(topic, 1).fencing_token == b""
        with pytest.raises(TokenMismatch) as mismatch:
            old.append(topic, 0, b"no", fencing_token=b"old", expected_next_offset=1)
        assert (mismatch.value.expected, mismatch.value.actual) == ("old", "new")
        with pytest.raises(TokenMismatch):
            old.set_fencing_token(topic, 0, b"again", expected_token=b"old")
        with pytest.raises(OffsetConflict) as conflict:
            new.set_fencing_token(topic, 0, b"newer", expected_next_offset=0)
        assert conflict.value.actual == 1
        new.append(topic, 0, b"b", fencing_token=b"new")
        new.set_fencing_token(topic, 0, b"")
        assert old.append(topic, 0, b"c", fencing_token=b"").base_offset == 2
    assert values_of(node.server, topic) == [b"a", b"b", b"c"]


def test_wrong_arguments_are_refused_and_change_nothing(node: NodeProcess, topic: str) -> None:
    with Partitions(node.server) as logs:
        bad: list[dict[str, Any]] = [
            {"expected_next_offset": -1},
            {"expected_next_offset": 1 << 63},
            {"expected_next_offset": "0"},
            {"fencing_token": bytes(65)},
            {"fencing_token": "text"},
        ]
        for arguments in bad:
            with pytest.raises(Invalid):
                logs.append(topic, 0, b"no", **arguments)
        for partition in (-1, 1 << 31, "0"):
            with pytest.raises(Invalid):
                logs.append(topic, partition, b"no")  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            logs.append(topic, 0, [])
        with pytest.raises(Invalid):
            logs.append(7, 0, b"no")  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError)):
            logs.append(topic, 0, "text")  # type: ignore[arg-type]
        for token in (bytes(65), "text"):
            with pytest.raises(Invalid):
                logs.set_fencing_token(topic, 0, token)  # type: ignore[arg-type]
        with pytest.raises(MessageTooLarge):
            logs.append(topic, 0, bytes(2 << 20), expected_next_offset=0)
        for call in (
            lambda: logs.append(topic, 7, b"no"),
            lambda: logs.set_fencing_token(topic, 7, b"x"),
            lambda: logs.describe(topic, 7),
            lambda: logs.describe("no-such-topic", 0),
        ):
            with pytest.raises(UnknownTopicOrPartition):
                call()
        assert logs.append(topic, 0, b"yes", expected_next_offset=0).base_offset == 0
    with pytest.raises(Closed):
        logs.append(topic, 0, b"no")


def test_racing_clients_lose_no_update_and_make_none_twice(node: NodeProcess, topic: str) -> None:
    """Each appends its number behind the one that it read: a counter without a lock."""
    each, clients = 15, 6

    def count(_: int) -> None:
        with Partitions(node.server) as logs:
            following = 0
            for _ in range(each):
                while True:
                    try:
                        done = logs.append(
                            topic, 0, b"%d" % following, expected_next_offset=following
                        )
                    except OffsetConflict as conflict:
                        following = int(conflict.actual)
                    else:
                        following = done.end_offset
                        break

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(count, range(clients)))
    assert values_of(node.server, topic) == [b"%d" % i for i in range(each * clients)]


def test_a_lost_answer_makes_no_conflict_with_oneself(node: NodeProcess, topic: str) -> None:
    wire = Cut(node.server)
    try:
        with (
            Partitions(wire.server) as logs,
            Partitions(node.server) as beside,
            ThreadPoolExecutor(1) as pool,
        ):
            logs.set_fencing_token(topic, 0, b"mine")
            logs.append(topic, 0, b"a", expected_next_offset=0)
            wire.hold_answers()
            lost = pool.submit(
                logs.append, topic, 0, b"b", expected_next_offset=1, fencing_token=b"mine"
            )
            until_end(beside, topic, 2)
            # Another one comes in between, and shuts this one out: "b" was stored before.
            beside.append(topic, 0, b"c", expected_next_offset=2)
            beside.set_fencing_token(topic, 0, b"theirs")
            wire.cut()
            assert lost.result(LONG_S) == PartitionAppendResult(1, 2)
            with pytest.raises(TokenMismatch):
                logs.append(topic, 0, b"no", fencing_token=b"mine")
            assert logs.append(topic, 0, b"d", expected_next_offset=3).base_offset == 3
    finally:
        wire.close()
    assert values_of(node.server, topic) == [b"a", b"b", b"c", b"d"]


def test_an_append_of_unknown_outcome_tells_itself_at_its_offset(
    node: NodeProcess, topic: str
) -> None:
    wire = Cut(node.server)
    try:
        with Partitions(wire.server, timeout_ms=2_000) as logs, Partitions(node.server) as beside:
            logs.append(topic, 0, b"a")
            wire.hold_answers()
            with pytest.raises(OutcomeUnknown, match="may be stored"):
                logs.append(topic, 0, b"b", expected_next_offset=1)
            until_end(beside, topic, 2)
            wire.cut()
            with pytest.raises(OffsetConflict) as conflict:
                logs.append(topic, 0, b"b", expected_next_offset=1)
            assert conflict.value.actual == 2
    finally:
        wire.close()
    assert values_of(node.server, topic) == [b"a", b"b"]


class _LosesFirstTry(FakeNode):
    """The first try is lost to its client, which gets a conflict for the second."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[Any] = []

    def Produce(self, request: Any, context: Any) -> Any:
        response = log_pb2.ProduceResponse()
        (topic,) = request.topics
        (part,) = topic.partitions
        self._parts.append(part)
        if len(self._parts) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken on command")
        result = response.topics.add(topic=topic.topic).partitions.add(partition=part.partition)
        if len(self._parts) == 2:
            result.error.CopyFrom(to_proto(OffsetConflict("too early", expected=1, actual=0)))
        else:
            result.base_offset, result.duplicate = self.store_part(topic.topic, "", part)
        return response

    def store_late(self) -> None:
        self.store_part("t", "", self._parts[0])


def test_a_late_try_behind_a_conflict_takes_no_later_append_for_its_own() -> None:
    with _LosesFirstTry() as fake, Partitions(fake.server) as logs:
        fake.create("t")
        with pytest.raises(OffsetConflict):
            logs.append("t", 0, b"late", expected_next_offset=1)
        fake.store_late()
        assert logs.append("t", 0, b"next") == PartitionAppendResult(1, 2)
        assert fake.values("t") == [b"late", b"next"]


def test_a_late_try_behind_a_conflict_in_asyncio() -> None:
    async def main(fake: _LosesFirstTry) -> None:
        async with aio.Partitions(fake.server) as logs:
            with pytest.raises(OffsetConflict):
                await logs.append("t", 0, b"late", expected_next_offset=1)
            fake.store_late()
            assert await logs.append("t", 0, b"next") == PartitionAppendResult(1, 2)

    with _LosesFirstTry() as fake:
        fake.create("t")
        asyncio.run(main(fake))
        assert fake.values("t") == [b"late", b"next"]


def test_an_unreachable_node_has_stored_nothing(tmp_path: Path) -> None:
    down = NodeProcess(tmp_path / "data")
    with Partitions(down.server, timeout_ms=300) as logs, pytest.raises(Unavailable) as error:
        logs.append("t", 0, b"no", expected_next_offset=0)
    assert not isinstance(error.value, OutcomeUnknown)


@pytest.mark.parametrize("wal", ["disk", "object"])
def test_promises_hold_over_the_death_of_the_node(tmp_path: Path, wal: str) -> None:
    with NodeProcess(tmp_path / "data", wal) as node:
        with Admin(node.server) as admin:
            admin.create_topic("t", partitions=1)
        with Partitions(node.server) as logs, ThreadPoolExecutor(1) as pool:
            for round_number in range(3):
                token = b"%d" % round_number
                logs.set_fencing_token("t", 0, token)
                end = logs.append("t", 0, b"%d a" % round_number, fencing_token=token).end_offset
                node.kill()
                waits = pool.submit(
                    logs.append,
                    "t",
                    0,
                    b"%d b" % round_number,
                    expected_next_offset=end,
                    fencing_token=token,
                )
                node.start()
                assert waits.result(LONG_S) == PartitionAppendResult(end, end + 1)
                assert logs.describe("t", 0).fencing_token == token
                with pytest.raises(TokenMismatch):
                    logs.append("t", 0, b"no", fencing_token=b"%d" % (round_number - 1))
        expected = [b"%d %s" % (i, letter) for i in range(3) for letter in (b"a", b"b")]
        assert values_of(node.server, "t") == expected


@pytest.mark.parametrize("wal", ["disk", "object"])
def test_a_token_whose_change_the_node_did_not_survive_is_the_old_or_the_new_one(
    tmp_path: Path, wal: str
) -> None:
    def change_on(server: str, since: int) -> tuple[int, int]:
        """The last number that was set for sure, and the last one that was asked for."""
        number = since
        with Partitions(server, timeout_ms=2000) as client:
            while True:
                was = b"%d" % number if number else b""
                try:
                    client.set_fencing_token("t", 0, b"%d" % (number + 1), expected_token=was)
                except (OutcomeUnknown, Unavailable):
                    return number, number + 1
                number += 1
                set_once.set()

    set_once = threading.Event()
    with NodeProcess(tmp_path / "data", wal) as node:
        with Admin(node.server) as admin:
            admin.create_topic("t", partitions=1)
        number = 0
        for _ in range(3):
            set_once.clear()
            with ThreadPoolExecutor(1) as pool:
                changes = pool.submit(change_on, node.server, number)
                assert set_once.wait(LONG_S)
                node.kill()
                known, asked = changes.result(LONG_S)
            node.start()
            with Partitions(node.server) as client:
                number = int(client.describe("t", 0).fencing_token)
                assert number in (known, asked)
                with pytest.raises(TokenMismatch):
                    client.append("t", 0, b"no", fencing_token=b"%d" % (known + asked - number))
                client.append("t", 0, b"yes", fencing_token=b"%d" % number)
        assert values_of(node.server, "t") == [b"yes"] * 3


def test_the_asyncio_client_does_the_same(node: NodeProcess, topic: str) -> None:
    async def main() -> None:
        async with aio.Partitions(node.server) as logs:
            done = await logs.append(topic, 0, [b"a", Record(b"b", b"k")], expected_next_offset=0)
            assert done == PartitionAppendResult(0, 2)
            with pytest.raises(OffsetConflict) as conflict:
                await logs.append(topic, 0, b"no", expected_next_offset=0)
            assert conflict.value.actual == 2
            await logs.set_fencing_token(topic, 0, b"one", expected_token=b"")
            with pytest.raises(TokenMismatch):
                await logs.append(topic, 0, b"no", fencing_token=b"two")
            calls = [logs.append(topic, 0, b"%d" % i, fencing_token=b"one") for i in range(10)]
            offsets = [one.base_offset for one in await asyncio.gather(*calls)]
            assert offsets == list(range(2, 12))
            cancelled = asyncio.ensure_future(logs.append(topic, 0, b"perhaps"))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await logs.append(topic, 1, b"other", expected_next_offset=0)
            info = await logs.describe(topic, 0)
            assert info.fencing_token == b"one"
            last = await logs.append(topic, 0, b"last", fencing_token=b"one")
            assert last.base_offset in (12, 13)

    asyncio.run(main())


# gRPC


@pytest.fixture
def stub(node: NodeProcess) -> Iterator[Any]:
    with grpc.insecure_channel(node.server) as channel:
        yield LogServiceStub(channel)


def part(data: bytes, partition: int = 0, **condition: Any) -> log_pb2.ProducePartition:
    return log_pb2.ProducePartition(partition=partition, record_batches=data, **condition)


def produce(topic: str, *parts: log_pb2.ProducePartition, **more: Any) -> log_pb2.ProduceRequest:
    topics = [log_pb2.ProduceTopic(topic=topic, partitions=list(parts))]
    return log_pb2.ProduceRequest(topics=topics, **more)


def found(response: log_pb2.ProduceResponse) -> list[int | type[StreamlogError]]:
    return [
        type(from_proto(one.error)) if one.HasField("error") else one.base_offset
        for topic in response.topics
        for one in topic.partitions
    ]


def test_a_refusal_touches_no_other_partition(stub: Any, topic: str) -> None:
    request = produce(
        topic,
        part(batch(b"no"), 0, expected_next_offset=7),
        part(batch(b"a"), 1),
        part(batch(b"b"), 0),
        part(batch(b"c"), 1, expected_next_offset=1),
        part(batch(b"no"), 1, fencing_token=b"whose"),
        part(batch(b"d"), 0, expected_next_offset=1, fencing_token=b""),
    )
    assert found(stub.Produce(request)) == [OffsetConflict, 0, 0, 1, TokenMismatch, 1]


def test_conditions_keep_their_place_in_a_pipeline(stub: Any, topic: str) -> None:
    sent = [
        part(batch(b"a")),
        part(batch(b"b"), expected_next_offset=1),
        part(batch(b"no"), expected_next_offset=1),
        part(batch(b"c", b"d")),
        part(batch(b"e"), expected_next_offset=4),
        part(batch(b"no"), fencing_token=b"x"),
        part(batch(b"f"), fencing_token=b"", expected_next_offset=5),
    ]
    requests = [
        log_pb2.ProduceStreamRequest(correlation_id=number, request=produce(topic, one))
        for number, one in enumerate(sent)
    ]
    answers = [one for many in stub.ProduceStream(iter(requests)) for one in many.answers]
    assert [one.correlation_id for one in answers] == list(range(len(sent)))
    outcomes = [found(one.response)[0] for one in answers]
    assert outcomes == [0, 1, OffsetConflict, 2, 4, TokenMismatch, 5]


def test_plain_records_take_conditions(stub: Any, topic: str) -> None:
    records = log_pb2.RecordList(records=[log_pb2.Record(value=b"a")])
    one = log_pb2.ProducePartition(records=records, expected_next_offset=0)
    assert found(stub.Produce(produce(topic, one))) == [0]
    assert found(stub.Produce(produce(topic, one))) == [OffsetConflict]


def test_conditions_that_cannot_be_tested_are_invalid(stub: Any, topic: str) -> None:
    for condition in ({"expected_next_offset": -1}, {"fencing_token": bytes(65)}):
        assert found(stub.Produce(produce(topic, part(batch(b"no"), **condition)))) == [Invalid]
    request = produce(topic, part(batch(b"no"), expected_next_offset=0), acks=log_pb2.ACKS_NONE)
    assert found(stub.Produce(request)) == [Invalid]
    bad: list[dict[str, Any]] = [
        {"fencing_token": bytes(65)},
        {"expected_fencing_token": bytes(65)},
        {"expected_next_offset": -1},
        {"timeout_ms": -1},
    ]
    for fields in bad:
        with pytest.raises(grpc.RpcError) as error:
            stub.SetFencingToken(log_pb2.LogServiceSetFencingTokenRequest(topic=topic, **fields))
        assert isinstance(from_rpc_error(error.value, may_have_happened=False), Invalid)
    assert found(stub.Produce(produce(topic, part(batch(b"a"))))) == [0]


def test_a_token_is_set_on_the_topic_that_is_meant(stub: Any, topic: str) -> None:
    request = log_pb2.LogServiceSetFencingTokenRequest(
        topic=topic, fencing_token=b"x", topic_id="00000000-0000-4000-8000-000000000000"
    )
    with pytest.raises(grpc.RpcError) as error:
        stub.SetFencingToken(request)
    assert isinstance(from_rpc_error(error.value, may_have_happened=False), UnknownTopicOrPartition)


def test_a_log_of_another_kind_refuses_what_it_cannot_test() -> None:
    """Stored without a test, the append would break the promise that its caller builds on."""

    async def main() -> None:
        async with running() as fake:
            stub = fake.log_stub
            condition = part(batch(b"no"), expected_next_offset=0)
            answer = await stub.Produce(produce("t", condition, part(batch(b"a"), 1)))
            assert found(answer) == [Invalid, 0]
            request = log_pb2.LogServiceSetFencingTokenRequest(topic="t", fencing_token=b"x")
            with pytest.raises(grpc.RpcError) as error:
                await stub.SetFencingToken(request)
            refusal = from_rpc_error(error.value, may_have_happened=False)
            assert isinstance(refusal, Invalid)
            assert "keeps no fencing token" in refusal.message

    asyncio.run(main())
