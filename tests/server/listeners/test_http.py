"""/metrics, /livez, /readyz, health and reflection of a running node."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from streamlog.runtime.progress import ProgressConfig, ProgressWatch
from streamlog.server.listeners.http import HttpListener
from streamlog.server.services.records.long_polls import LongPolls
from streamlog.v1 import log_pb2
from tests.engine.remote import LoopClock, virtually
from tests.support.server_harness import running, with_limits


async def get(address: str, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{path}") as response,
    ):
        return response.status, await response.text()


def test_metrics_show_bounds_and_their_use() -> None:
    async def main() -> None:
        async with running() as node:
            await node.log_stub.Fetch(
                log_pb2.FetchRequest(
                    topics=[log_pb2.FetchTopic(topic="t", partitions=[log_pb2.FetchPartition()])]
                )
            )
            status, text = await get(node.service.http_address, "/metrics")
            assert status == 200
            for line in (
                'streamlog_connections{listener="grpc"} 1.0',
                "streamlog_connections_bound 2000.0",
                "streamlog_topics 1.0",
                "streamlog_partitions 2.0",
                'streamlog_requests_total{method="LogService/Fetch",status="OK"} 1.0',
                "streamlog_loop_lag_seconds_count",
                "streamlog_insecure_listener 0.0",
                "process_open_fds",
            ):
                assert f"\n{line}" in text
            assert node.metric("streamlog_resident_memory_bytes") > 1_000_000

    asyncio.run(main())


def test_readiness_follows_the_engine() -> None:
    alive = True

    async def main() -> None:
        nonlocal alive
        async with running(is_alive=lambda: alive) as node:
            address = node.service.http_address
            assert (await get(address, "/livez"))[0] == 200
            assert (await get(address, "/readyz"))[0] == 200
            alive = False
            assert (await get(address, "/livez"))[0] == 503
            assert (await get(address, "/readyz"))[0] == 503

    asyncio.run(main())


def test_readyz_names_work_that_is_stuck_and_livez_stays_ok() -> None:
    reason: str | None = "uploads: the PUT of data/1 (since 2026-01-01T00:00:00Z)"

    async def main() -> None:
        nonlocal reason
        async with running(not_ready_reason=lambda: reason) as node:
            address = node.service.http_address
            assert await get(address, "/readyz") == (503, f"not ready: {reason}\n")
            assert (await get(address, "/livez"))[0] == 200
            reason = None
            assert await get(address, "/readyz") == (200, "ready\n")

    asyncio.run(main())


def test_a_long_poll_that_outlives_its_time_becomes_an_alarm() -> None:
    clock = LoopClock()
    watch = ProgressWatch(ProgressConfig(), clock, CollectorRegistry())
    released = asyncio.Event()

    async def stubborn() -> None:
        """A wait that ignores its cancellation."""
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def ticks(seconds: int) -> tuple[str, ...]:
        for _ in range(seconds):
            await asyncio.sleep(1)
            watch.tick()
        return tuple(alarm.name for alarm in watch.alarms)

    async def scenario() -> None:
        polls = LongPolls()
        watch.watch("long_polls", polls.progress)
        answered = asyncio.ensure_future(polls.wait([asyncio.Event().wait()], 100))
        stuck = asyncio.ensure_future(polls.wait([stubborn()], 5))
        assert await ticks(60) == ()
        assert await ticks(10) == ("long_polls",)
        released.set()
        await stuck
        assert await ticks(1) == ()
        await answered
        assert await ticks(70) == ()

    virtually(scenario)


def test_health_and_reflection_are_on() -> None:
    async def main() -> None:
        async with running() as node:
            health = health_pb2_grpc.HealthStub(node.channel)
            for name in ("", "streamlog.v1.LogService", "streamlog.v1.AdminService"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            reflection = reflection_pb2_grpc.ServerReflectionStub(node.channel)
            call = reflection.ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            )
            answer = await call.read()
            names = {service.name for service in answer.list_services_response.service}
            assert {
                f"streamlog.v1.{name}Service" for name in ("Log", "Stream", "KV", "Admin")
            } <= names

    asyncio.run(main())


def test_bytes_that_are_no_http_leave_no_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        # The listener alone: gRPC's poller logs tracebacks of its own in a process of many loops.
        listener = HttpListener(with_limits(), lambda: "the store")
        await listener.bind()
        await listener.start()
        host, _, port = listener.endpoint.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        await listener.stop(1.0)

    asyncio.run(main())
    assert not [record for record in caplog.records if record.exc_info]
