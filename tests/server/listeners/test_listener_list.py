"""The list of listeners: the order of its calls, and a further protocol over the same services."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streamlog.codec.records import encode_values
from streamlog.errors import Overloaded, Unavailable
from streamlog.server.addresses import Endpoint
from streamlog.server.composition import Services
from streamlog.server.context import RequestContext
from streamlog.server.limits.pipeline import Answer, Pipeline
from streamlog.server.listeners.listener import NodeView
from streamlog.server.listeners.listeners import Listeners
from streamlog.server.services.records.produce import SequencedProduce
from streamlog.server.services.records.requests import ProduceCall, ProducePartition, ProduceTopic
from streamlog.settings.limits import LimitsConfig
from tests.engine.harness import until
from tests.engine.remote import virtually
from tests.support.server_harness import listener_resources, running


class RecordedListener:
    """Notes its calls in a list that all listeners of a test share.

    `ends_after_s`: how long its requests take; at the stop they are cut off after the grace.
    """

    def __init__(
        self,
        name: str,
        calls: list[str],
        *,
        is_taken: bool = False,
        ends_after_s: float = 0,
        failure: Exception | None = None,
    ) -> None:
        self.endpoint = Endpoint(name, "test", "127.0.0.1:0", "127.0.0.1:0")
        self._calls = calls
        self._is_taken = is_taken
        self._ends_after_s = ends_after_s
        self._failure = failure

    def _note(self, call: str) -> None:
        self._calls.append(f"{call} {self.endpoint.name}")

    async def bind(self) -> None:
        if self._is_taken:
            raise Unavailable("the port is in use")
        self._note("bind")

    async def start(self) -> None:
        self._note("start")

    async def serve(self, services: Services, view: NodeView) -> None:
        self._note("serve")

    async def drain(self) -> None:
        self._note("drain")

    async def stop(self, grace_s: float) -> None:
        self._note("stop")
        await asyncio.sleep(min(grace_s, self._ends_after_s))
        if self._failure is not None:
            raise self._failure

    def connections(self) -> int:
        return 2


class EndlessListener(RecordedListener):
    """Its `drain` and `stop` wait for something that never comes."""

    async def drain(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, grace_s: float) -> None:
        self._note("stop")
        await asyncio.Event().wait()


def test_listeners_come_up_in_order_and_end_in_reverse() -> None:
    calls: list[str] = []
    listeners = Listeners([RecordedListener("a", calls), RecordedListener("b", calls)])

    async def scenario() -> None:
        services: Any = None
        view: Any = None
        await listeners.start()
        await listeners.start()
        await listeners.serve(services, view)
        await listeners.drain()
        await listeners.stop(1)
        await listeners.stop(1)

    asyncio.run(scenario())
    expected = ("bind a", "bind b", "start a", "start b", "serve a", "serve b")
    assert calls == [*expected, "drain a", "drain b", "stop b", "stop a"]
    assert listeners.connections() == 4


def test_a_port_in_use_frees_the_addresses_that_were_bound_before_it() -> None:
    calls: list[str] = []
    listeners = Listeners(
        [RecordedListener("a", calls), RecordedListener("b", calls, is_taken=True)]
    )
    with pytest.raises(Unavailable):
        asyncio.run(listeners.bind())
    assert calls == ["bind a", "stop a"]


def test_listeners_with_long_requests_stop_side_by_side_within_one_grace() -> None:
    calls: list[str] = []
    listeners = Listeners(
        [RecordedListener(name, calls, ends_after_s=60) for name in ("pages", "a", "b")]
    )

    async def scenario() -> None:
        await listeners.bind()
        await listeners.stop(4)

    assert virtually(scenario) == pytest.approx(4)
    assert calls[3:] == ["stop b", "stop a", "stop pages"]


def test_a_listener_that_fails_or_hangs_keeps_no_other_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []
    listeners = Listeners(
        [
            RecordedListener("pages", calls),
            RecordedListener("failing", calls, failure=RuntimeError("a bug")),
            EndlessListener("endless", calls),
        ]
    )

    async def scenario() -> None:
        await listeners.bind()
        await listeners.drain()
        await listeners.stop(4)

    assert virtually(scenario) < 10
    assert calls[3:5] == ["drain pages", "drain failing"]
    assert calls[5:] == ["stop endless", "stop failing", "stop pages"]
    failures = [record for record in caplog.records if record.exc_info]
    assert {getattr(record, "listener", None) for record in failures} == {"failing", "endless"}


class LineListener:
    """A protocol of lines: a record's value in each request, its offset in the answer.

    It imports what a Kafka listener would: services, Pipeline, and the resources of listeners.
    """

    def __init__(self) -> None:
        self.endpoint = Endpoint("lines", "lines", "127.0.0.1:0", "127.0.0.1:0")
        self._server: asyncio.Server | None = None
        self._services: Services | None = None

    async def bind(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, start_serving=False
        )
        address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.endpoint = Endpoint("lines", "lines", address, "log.example:9092")

    async def start(self) -> None:
        """Refuses nothing: connections wait until `serve`."""

    async def serve(self, services: Services, view: NodeView) -> None:
        self._services = services
        assert self._server is not None
        await self._server.start_serving()

    async def drain(self) -> None:
        """The pipelines end by the shared drain."""

    async def stop(self, grace_s: float) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def connections(self) -> int:
        return 1

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._services is not None
        services, resources = self._services, self._services.resources
        context = RequestContext(peer=str(writer.get_extra_info("peername")), client_id="lines")

        async def read() -> bytes | None:
            return await reader.readline() or None

        async def write(answer: bytes) -> None:
            writer.write(answer)
            await writer.drain()

        async def start(line: bytes) -> Answer:
            data = encode_values([line.strip()], timestamp_ms=1).data
            call = ProduceCall([ProduceTopic("t", [ProducePartition(0, data)])])
            return LineAnswer(await services.produce.sequence(context, call))

        resources.requests.begin()
        named = resources.requests.name(context)
        try:
            with resources.budgets.of(context.peer) as budget:
                await Pipeline(read, write, start, budget, resources.drain).run()
        finally:
            resources.requests.end("lines", "OK", named)
            writer.close()


class LineAnswer:
    def __init__(self, sequenced: SequencedProduce) -> None:
        self._sequenced = sequenced

    async def message(self) -> bytes:
        await self._sequenced.settle()
        (topic,) = self._sequenced.results()
        return f"{topic.partitions[0].base_offset}\n".encode()

    def is_ready(self) -> bool:
        return False

    def abandon(self) -> None:
        self._sequenced.abandon()


def test_a_further_protocol_is_one_more_listener_over_the_same_services() -> None:
    async def scenario() -> None:
        lines = LineListener()
        async with running(more=[lines]) as node:
            host, _, port = lines.endpoint.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"one\ntwo\nthree\n")
            assert [await reader.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
            assert node.metric("streamlog_requests_active") == 1
            assert node.metric("streamlog_client_requests_total", client_id="lines") == 1
            writer.close()
            await writer.wait_closed()
            await until(lambda: not node.metric("streamlog_requests_active"))
            status = await node.service.services.status.status(RequestContext())
            assert [listener["name"] for listener in status["listeners"]] == [
                "http",
                "grpc",
                "lines",
            ]
            assert status["listeners"][2]["advertised"] == "log.example:9092"

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_one_bound_holds_for_the_requests_of_all_listeners() -> None:
    requests = listener_resources(CollectorRegistry()).requests
    for _ in range(LimitsConfig().requests_max):
        requests.begin()
        requests.check_bound()
    requests.begin()
    with pytest.raises(Overloaded, match="requests are under way"):
        requests.check_bound()
    requests.end("Fetch", "RESOURCE_EXHAUSTED", None)
    requests.check_bound()
