"""What supervisors and load balancers see of a node that drains."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from streamlog.model.partition import TopicPartition
from streamlog.v1 import log_pb2
from tests.engine.harness import until
from tests.support.server_harness import batch, running


def produce_request() -> log_pb2.ProduceRequest:
    part = log_pb2.ProducePartition(record_batches=batch(b"v"))
    return log_pb2.ProduceRequest(topics=[log_pb2.ProduceTopic(topic="t", partitions=[part])])


def test_a_draining_node_says_so_until_its_last_request_has_ended() -> None:
    async def main() -> None:
        async with running() as node, aiohttp.ClientSession() as session:
            log = await node.logs.log(TopicPartition("t", 0))
            log.hold()
            under_way = asyncio.ensure_future(node.log_stub.Produce(produce_request()))
            await until(lambda: log.log_end_offset == 1)
            watch = health_pb2_grpc.HealthStub(node.channel).Watch(
                health_pb2.HealthCheckRequest(service="streamlog.v1.LogService")
            )
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            stop = asyncio.ensure_future(node.service.stop(60))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
            async with session.get(f"http://{node.service.http_address}/readyz") as page:
                assert (page.status, await page.text()) == (
                    503,
                    "not ready: the node is draining\n",
                )
            assert node.metric("streamlog_ready") == 0
            assert not stop.done()
            log.let_go()
            assert (await under_way).topics[0].partitions[0].base_offset == 0
            await stop

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_watch_of_the_health_does_not_hold_up_the_stop() -> None:
    async def main() -> None:
        async with running() as node:
            watch = health_pb2_grpc.HealthStub(node.channel).Watch(
                health_pb2.HealthCheckRequest(service="")
            )
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            began = time.monotonic()
            await node.service.stop(60)
            assert time.monotonic() - began < 30
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await watch.read()
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(asyncio.wait_for(main(), 90))
