"""What every call asks permission for, before it does anything."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from streamlog.errors import Unauthorized
from streamlog.server.context import Operation, RequestContext, Resource
from streamlog.v1 import (
    admin_pb2,
    compaction_pb2,
    kv_pb2,
    log_pb2,
    staging_pb2,
    stream_pb2,
    transaction_pb2,
)
from streamlog.v1.transaction_pb2_grpc import TransactionServiceStub
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.server_harness import Running, batch, running

MODULES = (admin_pb2, compaction_pb2, kv_pb2, log_pb2, staging_pb2, stream_pb2, transaction_pb2)
CLUSTER, TOPIC, STREAM, NAMESPACE = "cluster cluster", "topic t", "stream 7", "namespace n"
TRANSACTIONAL_ID = "transactional_id x"

KEY = kv_pb2.KvKey(namespace="n", name=b"k")
TOPIC_RESOURCE = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="t")
PRODUCE = log_pb2.ProduceRequest(
    topics=[
        log_pb2.ProduceTopic(
            topic="t", partitions=[log_pb2.ProducePartition(record_batches=batch(b"v"))]
        )
    ]
)

ASKED: dict[str, tuple[Message, str]] = {
    "AdminService/CreateTopics": (
        admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(name="t")]),
        f"create {TOPIC}",
    ),
    "AdminService/DeleteTopics": (admin_pb2.DeleteTopicsRequest(names=["t"]), f"delete {TOPIC}"),
    "AdminService/ListTopics": (admin_pb2.ListTopicsRequest(), f"describe {CLUSTER}"),
    "AdminService/DescribeTopics": (
        admin_pb2.DescribeTopicsRequest(names=["t"]),
        f"describe {TOPIC}",
    ),
    "AdminService/CreatePartitions": (
        admin_pb2.CreatePartitionsRequest(topic="t", partitions=9),
        f"alter {TOPIC}",
    ),
    "AdminService/DescribeConfigs": (
        admin_pb2.DescribeConfigsRequest(resource=TOPIC_RESOURCE),
        f"describe_configs {TOPIC}",
    ),
    "AdminService/IncrementalAlterConfigs": (
        admin_pb2.IncrementalAlterConfigsRequest(resource=TOPIC_RESOURCE),
        f"alter_configs {TOPIC}",
    ),
    "AdminService/GetStatus": (admin_pb2.GetStatusRequest(), f"describe {CLUSTER}"),
    "AdminService/ListObjects": (admin_pb2.ListObjectsRequest(), f"describe {CLUSTER}"),
    "AdminService/DescribeObject": (
        admin_pb2.DescribeObjectRequest(key="data/1"),
        f"describe {CLUSTER}",
    ),
    "AdminService/Backup": (admin_pb2.BackupRequest(), f"alter {CLUSTER}"),
    "AdminService/PinObjects": (admin_pb2.PinObjectsRequest(owner="o"), f"read {CLUSTER}"),
    "AdminService/UnpinObjects": (admin_pb2.UnpinObjectsRequest(pin_id=1), f"read {CLUSTER}"),
    "AdminService/LocateRecords": (
        admin_pb2.LocateRecordsRequest(windows=[admin_pb2.OffsetWindow(topic="t")]),
        f"read {TOPIC}",
    ),
    "CompactionService/ExecuteMerges": (
        compaction_pb2.ExecuteMergesRequest(executor=compaction_pb2.MergeExecutor(owner="o")),
        f"alter {CLUSTER}",
    ),
    "KVService/GetKvs": (kv_pb2.GetKvsRequest(keys=[KEY]), f"read {NAMESPACE}"),
    "KVService/PutKvs": (kv_pb2.PutKvsRequest(puts=[kv_pb2.PutKv(key=KEY)]), f"write {NAMESPACE}"),
    "KVService/DeleteKvs": (kv_pb2.DeleteKvsRequest(keys=[KEY]), f"delete {NAMESPACE}"),
    "KVService/ListKvs": (kv_pb2.ListKvsRequest(namespace="n"), f"read {NAMESPACE}"),
    "KVService/WatchKvs": (kv_pb2.WatchKvsRequest(namespace="n"), f"read {NAMESPACE}"),
    "LogService/Produce": (PRODUCE, f"write {TOPIC}"),
    "LogService/ProduceStream": (
        log_pb2.ProduceStreamRequest(request=PRODUCE),
        f"write {TOPIC}",
    ),
    "LogService/Fetch": (
        log_pb2.FetchRequest(
            topics=[log_pb2.FetchTopic(topic="t", partitions=[log_pb2.FetchPartition()])]
        ),
        f"read {TOPIC}",
    ),
    "LogService/ListOffsets": (
        log_pb2.ListOffsetsRequest(
            topics=[
                log_pb2.ListOffsetsTopic(topic="t", partitions=[log_pb2.ListOffsetsPartition()])
            ]
        ),
        f"describe {TOPIC}",
    ),
    "LogService/OffsetsForLeaderEpoch": (
        log_pb2.OffsetsForLeaderEpochRequest(
            topics=[
                log_pb2.OffsetsForLeaderEpochTopic(
                    topic="t", partitions=[log_pb2.OffsetsForLeaderEpochPartition()]
                )
            ]
        ),
        f"describe {TOPIC}",
    ),
    "LogService/InitProducerId": (
        log_pb2.InitProducerIdRequest(),
        f"idempotent_write {CLUSTER}",
    ),
    "LogService/DeleteRecords": (
        log_pb2.DeleteRecordsRequest(
            topics=[
                log_pb2.DeleteRecordsTopic(
                    topic="t", partitions=[log_pb2.DeleteRecordsPartition(offset=1)]
                )
            ]
        ),
        f"delete {TOPIC}",
    ),
    "LogService/SetFencingToken": (
        log_pb2.LogServiceSetFencingTokenRequest(topic="t"),
        f"write {TOPIC}",
    ),
    "StagedWriteService/Stage": (
        staging_pb2.StageRequest(
            writer_id="w", parts=[staging_pb2.StagedBatches(topic="t", batches=batch(b"v"))]
        ),
        f"write {TOPIC}",
    ),
    "StagedWriteService/Attach": (
        staging_pb2.AttachRequest(
            transactional_id="x",
            producer=staging_pb2.StagedProducer(producer_id=7),
            objects=[
                staging_pb2.StagedManifestEntry(
                    object_id=1,
                    partitions=[staging_pb2.StagedPartitions(topic="t", partitions=[0])],
                )
            ],
        ),
        f"write {TRANSACTIONAL_ID}",
    ),
    "StagedWriteService/Commit": (
        staging_pb2.CommitRequest(writer_id="w"),
        f"idempotent_write {CLUSTER}",
    ),
    "StagedWriteService/Status": (
        staging_pb2.StatusRequest(writer_id="w"),
        f"describe {CLUSTER}",
    ),
    "StagedWriteService/Abort": (
        staging_pb2.AbortRequest(writer_id="w"),
        f"idempotent_write {CLUSTER}",
    ),
    "StreamService/CreateStream": (stream_pb2.CreateStreamRequest(), f"create {CLUSTER}"),
    "StreamService/OpenStream": (stream_pb2.OpenStreamRequest(stream_id=7), f"write {STREAM}"),
    "StreamService/CloseStream": (stream_pb2.CloseStreamRequest(stream_id=7), f"write {STREAM}"),
    "StreamService/DeleteStream": (stream_pb2.DeleteStreamRequest(stream_id=7), f"delete {STREAM}"),
    "StreamService/DescribeStream": (
        stream_pb2.DescribeStreamRequest(stream_id=7),
        f"describe {STREAM}",
    ),
    "StreamService/ListStreams": (stream_pb2.ListStreamsRequest(), f"describe {CLUSTER}"),
    "StreamService/Append": (stream_pb2.AppendRequest(stream_id=7), f"write {STREAM}"),
    "StreamService/FetchStream": (stream_pb2.FetchStreamRequest(stream_id=7), f"read {STREAM}"),
    "StreamService/ReadStream": (stream_pb2.ReadStreamRequest(stream_id=7), f"read {STREAM}"),
    "StreamService/TrimStream": (stream_pb2.TrimStreamRequest(stream_id=7), f"delete {STREAM}"),
    "StreamService/SetFencingToken": (
        stream_pb2.SetFencingTokenRequest(stream_id=7),
        f"write {STREAM}",
    ),
    "TransactionService/AddPartitions": (
        transaction_pb2.AddPartitionsRequest(
            transactional_id="x", partitions=[transaction_pb2.TransactionPartition(topic="t")]
        ),
        f"write {TRANSACTIONAL_ID}",
    ),
    "TransactionService/EndTransaction": (
        transaction_pb2.EndTransactionRequest(transactional_id="x"),
        f"write {TRANSACTIONAL_ID}",
    ),
    "TransactionService/DescribeTransactions": (
        transaction_pb2.DescribeTransactionsRequest(transactional_ids=["x"]),
        f"describe {TRANSACTIONAL_ID}",
    ),
    "TransactionService/AbortTransaction": (
        transaction_pb2.AbortTransactionRequest(transactional_id="x"),
        f"write {TRANSACTIONAL_ID}",
    ),
}
FILTERED = {"TransactionService/ListTransactions"}
"""Calls whose answer leaves out what the caller may not see."""


class Untouched:
    """A part of the backend that no call may use."""

    def __getattr__(self, name: str) -> Any:
        async def use(*_: object, **__: object) -> Any:
            raise AssertionError(f"{name} was called without permission")

        return use


def deny(_: RequestContext, operation: Operation, resource: Resource) -> None:
    raise Unauthorized(f"denied: {operation.value} {resource.kind.value} {resource.name}")


def methods() -> dict[str, Any]:
    """Name → descriptor of every call of every service."""
    return {
        f"{service.name}/{method.name}": method
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


async def answer(node: Running, name: str, request: Message) -> str:
    """The first answer, or the status and its text; Unauthorized may stand in either."""
    method = methods()[name]
    channel: Any = node.channel  # Its stubs ask for serializers, which may be left out.
    path = f"/streamlog.v1.{name}"
    if method.client_streaming:
        call = channel.stream_stream(path)()
        await call.write(request.SerializeToString())
        first = call.read()
    elif method.server_streaming:
        first = channel.unary_stream(path)(request.SerializeToString()).read()
    else:
        first = channel.unary_unary(path)(request.SerializeToString())
    try:
        async with asyncio.timeout(30):
            data: bytes = await first
    except grpc.aio.AioRpcError as error:
        return f"{error.code()}: {error.details()}"
    return data.decode("utf-8", "replace")


def test_the_table_has_every_call() -> None:
    assert set(ASKED) | FILTERED == set(methods())


def test_every_call_asks_first() -> None:
    """A call that did anything before would end by a bug: there is little to call."""

    async def main() -> None:
        async with running(authorize=deny, kv=Untouched(), streams=Untouched()) as node:
            for name, (request, asked) in ASKED.items():
                assert f"denied: {asked}" in await answer(node, name, request), name
            assert set(node.logs.topics) == {"t"}
            assert not node.logs.open

    asyncio.run(main())


def test_a_list_of_transactions_has_those_that_the_caller_may_describe() -> None:
    def deny_one(_: RequestContext, operation: Operation, resource: Resource) -> None:
        if resource.name == "hidden" and operation is Operation.DESCRIBE:
            raise Unauthorized("denied")

    async def main() -> None:
        coordinator = FakeCoordinator()
        async with running(authorize=deny_one, transactions=coordinator) as node:
            for transactional_id in ("hidden", "seen"):
                await coordinator.init_producer_id(transactional_id, 1000)
            answer = await TransactionServiceStub(node.channel).ListTransactions(
                transaction_pb2.ListTransactionsRequest()
            )
            assert [one.transactional_id for one in answer.transactions] == ["seen"]

    asyncio.run(main())


def test_producing_in_a_transaction_asks_for_its_id() -> None:
    request = log_pb2.InitProducerIdRequest(transactional_id="x")

    async def main() -> None:
        async with running(authorize=deny) as node:
            said = await answer(node, "LogService/InitProducerId", request)
            assert f"denied: write {TRANSACTIONAL_ID}" in said

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["BROKER", "BROKER_DEFAULT", "CLIENT"])
def test_settings_of_the_node_are_asked_for_at_the_cluster(kind: str) -> None:
    resource = admin_pb2.ConfigResource(type=f"CONFIG_RESOURCE_TYPE_{kind}")

    async def main() -> None:
        async with running(authorize=deny) as node:
            for name, request, operation in (
                (
                    "AdminService/DescribeConfigs",
                    admin_pb2.DescribeConfigsRequest(resource=resource),
                    "describe_configs",
                ),
                (
                    "AdminService/IncrementalAlterConfigs",
                    admin_pb2.IncrementalAlterConfigsRequest(resource=resource),
                    "alter_configs",
                ),
            ):
                assert f"denied: {operation} {CLUSTER}" in await answer(node, name, request)

    asyncio.run(main())
