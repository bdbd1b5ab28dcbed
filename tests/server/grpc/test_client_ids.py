"""Client ids in metrics and log lines; the number of ids with metrics is bounded."""

from __future__ import annotations

import asyncio
import logging

import grpc.aio
import pytest

from streamlog.errors import InvalidConfig
from streamlog.runtime.logs import JsonFormatter
from streamlog.settings import load
from streamlog.v1 import log_pb2
from streamlog.v1support.metadata import CLIENT_ID
from tests.support.server_harness import Running, batch, running, with_limits


async def produce(node: Running, client_id: str) -> None:
    part = log_pb2.ProducePartition(record_batches=batch(b"v"))
    topic = log_pb2.ProduceTopic(topic="t", partitions=[part])
    metadata = [(CLIENT_ID, client_id)] if client_id else []
    await node.log_stub.Produce(log_pb2.ProduceRequest(topics=[topic]), metadata=metadata)


async def fetch(node: Running, client_id: str, topic: str = "t") -> None:
    part = log_pb2.FetchPartition(partition=0, fetch_offset=0)
    request = log_pb2.FetchRequest(topics=[log_pb2.FetchTopic(topic=topic, partitions=[part])])
    await node.log_stub.Fetch(request, metadata=[(CLIENT_ID, client_id)])


def test_requests_and_bytes_are_counted_per_client_up_to_a_bound() -> None:
    async def main() -> None:
        async with running(with_limits(client_ids_max=3)) as node:
            for client_id in ("", "one", "two", "three", "four", "one", "three"):
                await produce(node, client_id)
            await fetch(node, "two")
            size = len(batch(b"v"))
            for label, requests, sent, took in (
                ("(none)", 1, size, 0),
                ("one", 2, 2 * size, 0),
                ("two", 2, size, 7 * size),
                ("(other)", 3, 3 * size, 0),
            ):
                assert node.metric("streamlog_client_requests_total", client_id=label) == requests
                assert node.metric("streamlog_client_bytes_in_total", client_id=label) == sent
                assert node.metric("streamlog_client_bytes_out_total", client_id=label) == took
            lines = [line for metric in node.registry.collect() for line in metric.samples]
            labels = {line.labels["client_id"] for line in lines if "client_id" in line.labels}
            assert labels == {"(none)", "one", "two", "(other)"}

    asyncio.run(main())


def test_log_lines_of_a_request_name_its_client(caplog: pytest.LogCaptureFixture) -> None:
    written: list[str] = []

    class Written(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(JsonFormatter().format(record))

    async def main() -> None:
        async with running() as node:
            with pytest.raises(grpc.aio.AioRpcError):
                await node.log_stub.Fetch(log_pb2.FetchRequest(), metadata=[(CLIENT_ID, "me")])
            with pytest.raises(grpc.aio.AioRpcError):
                await node.log_stub.Fetch(log_pb2.FetchRequest())

    caplog.set_level(logging.DEBUG, "streamlog.server.grpc.calls")
    handler = Written()
    logging.getLogger("streamlog.server.grpc.calls").addHandler(handler)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("streamlog.server.grpc.calls").removeHandler(handler)
    named, unnamed = (line for line in written if "request refused" in line)
    assert '"client_id": "me"' in named
    assert "client_id" not in unnamed


def test_a_rack_is_refused_as_long_as_it_has_no_effect() -> None:
    with pytest.raises(InvalidConfig, match="no effect"):
        load(None, {}, {"engine.metadata.rack": "a"})
