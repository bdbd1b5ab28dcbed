"""KV and admin services over gRPC on a real engine in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from streamlog import errors
from streamlog.client.aio import KV
from streamlog.engine.kv_client import EngineKVClient
from streamlog.model.kv import NAMESPACE_DEFAULT, Key, Value
from streamlog.settings.schema import knobs
from streamlog.v1 import admin_pb2, kv_pb2, log_pb2, stream_pb2
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.support.running_node import RunningNode, running_node
from tests.support.server_harness import batch


def key(name: bytes, namespace: str = "") -> kv_pb2.KvKey:
    return kv_pb2.KvKey(namespace=namespace, name=name)


async def put(node: RunningNode, name: bytes, data: bytes, **fields: Any) -> kv_pb2.KvEntry:
    request = kv_pb2.PutKvsRequest(puts=[kv_pb2.PutKv(key=key(name), data=data, **fields)])
    [entry] = (await node.kv.PutKvs(request)).entries
    assert isinstance(entry, kv_pb2.KvEntry)
    return entry


def test_values_are_put_read_listed_and_deleted() -> None:
    async def main() -> None:
        async with running_node() as node:
            first = await put(node, b"a", b"1")
            await put(node, b"b", b"")
            entries = (
                await node.kv.GetKvs(kv_pb2.GetKvsRequest(keys=[key(b"a"), key(b"b"), key(b"c")]))
            ).entries
            assert entries[0].value.data == b"1"
            assert entries[1].HasField("value")
            assert not entries[2].HasField("value")
            kept = await put(node, b"a", b"2", mode=kv_pb2.PUT_MODE_IF_ABSENT)
            assert kept.value.data == b"1"
            stale = await put(
                node, b"a", b"3", mode=kv_pb2.PUT_MODE_COMPARE_AND_SET, expected_revision=1 << 40
            )
            assert isinstance(from_proto(stale.error), errors.ValueConflict)
            fresh = await put(
                node,
                b"a",
                b"3",
                mode=kv_pb2.PUT_MODE_COMPARE_AND_SET,
                expected_revision=first.value.revision,
            )
            assert fresh.value.data == b"3"
            listed = (await node.kv.ListKvs(kv_pb2.ListKvsRequest(after=b"a"))).entries
            assert [entry.key.name for entry in listed] == [b"b"]
            gone = await node.kv.DeleteKvs(kv_pb2.DeleteKvsRequest(keys=[key(b"a")]))
            assert gone.entries[0].value.data == b"3"

    asyncio.run(main())


def as_large(entries: Any) -> list[int | None]:
    """The sizes of the values; None where the key is to be named in another request."""
    sizes: list[int | None] = []
    for entry in entries:
        if entry.HasField("error"):
            assert isinstance(from_proto(entry.error), errors.MessageTooLarge)
        sizes.append(None if entry.HasField("error") else len(entry.value.data))
    return sizes


HALF_A_MIB = 512 * 1024


def test_an_answer_has_bounded_bytes_of_values_whatever_is_asked_for() -> None:
    async def main() -> None:
        async with running_node() as node:
            value = bytes(HALF_A_MIB)
            names = [b"%02d" % number for number in range(12)]
            eight_and_no_more = [HALF_A_MIB] * 8 + [None] * 4
            put = [kv_pb2.PutKv(key=key(name), data=value) for name in names]
            stored = await node.kv.PutKvs(kv_pb2.PutKvsRequest(puts=put))
            assert as_large(stored.entries) == [HALF_A_MIB] * 12
            one_key = await node.kv.GetKvs(kv_pb2.GetKvsRequest(keys=[key(b"00")] * 12))
            assert as_large(one_key.entries) == eight_and_no_more
            for request in put:
                request.data, request.mode = b"", kv_pb2.PUT_MODE_IF_ABSENT
            kept = await node.kv.PutKvs(kv_pb2.PutKvsRequest(puts=put))
            assert as_large(kept.entries) == eight_and_no_more
            delete = kv_pb2.DeleteKvsRequest(keys=[key(name) for name in names])
            gone = await node.kv.DeleteKvs(delete)
            assert as_large(gone.entries) == eight_and_no_more
            left = await node.kv.ListKvs(kv_pb2.ListKvsRequest())
            assert [entry.key.name for entry in left.entries] == names[8:]
            assert not left.more

    asyncio.run(main())


def test_a_page_ends_where_its_values_fill_an_answer_and_says_so() -> None:
    async def main() -> None:
        async with running_node() as node:
            names = [b"%02d" % number for number in range(40)]
            for name in names:
                await put(node, name, bytes(HALF_A_MIB if name < b"30" else 1))
            pages: list[list[bytes]] = []
            after = b""
            while True:
                page = await node.kv.ListKvs(kv_pb2.ListKvsRequest(after=after, limit=35))
                pages.append([entry.key.name for entry in page.entries])
                after = pages[-1][-1]
                if not page.more:
                    break
            assert pages == [names[:8], names[8:16], names[16:24], names[24:]]
            async with KV(node.banner.grpc) as kv:
                assert [entry.key.name async for entry in kv.list()] == names
            some = await node.kv.ListKvs(kv_pb2.ListKvsRequest(after=b"30", limit=3))
            assert (len(some.entries), some.more) == (3, True)

    asyncio.run(main())


def test_the_largest_value_that_the_setting_allows_is_stored() -> None:
    setting = "limits.kv_value_bytes_max"
    most = knobs()[setting].maximum
    assert most is not None

    async def main() -> None:
        async with running_node(**{setting.replace(".", "__"): str(most)}) as node:
            assert not (await put(node, b"a", bytes(int(most)))).HasField("error")
            too_large = await put(node, b"a", bytes(int(most) + 1))
            assert isinstance(from_proto(too_large.error), errors.MessageTooLarge)

    asyncio.run(main())


def test_puts_of_one_connection_wait_for_each_others_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_store = asyncio.Event()
    begun = 0
    put_kv = EngineKVClient.put_kv

    async def held(self: EngineKVClient, kv_key: Key, data: bytes) -> Value:
        nonlocal begun
        if kv_key.namespace == NAMESPACE_DEFAULT:
            begun += 1
            await may_store.wait()
        return await put_kv(self, kv_key, data)

    async def main() -> None:
        bound = {"limits__in_flight_bytes_per_connection_max": str(HALF_A_MIB)}
        async with running_node(**bound) as node:
            puts = [
                asyncio.ensure_future(put(node, b"%d" % number, bytes(400 * 1024)))
                for number in range(4)
            ]
            while node.metric("streamlog_in_flight_waits_total") < 3:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
            assert begun == 1
            may_store.set()
            assert all(entry.HasField("value") for entry in await asyncio.gather(*puts))

    monkeypatch.setattr(EngineKVClient, "put_kv", held)
    asyncio.run(main())


@pytest.mark.parametrize("namespace", ["_topics", "../x", "a/b", "n" * 10_000, "a\x00"])
def test_namespaces_of_the_engine_and_bad_names_are_refused(namespace: str) -> None:
    async def main() -> None:
        async with running_node() as node:
            request = kv_pb2.GetKvsRequest(keys=[key(b"a", namespace)])
            [entry] = (await node.kv.GetKvs(request)).entries
            assert isinstance(from_proto(entry.error), errors.InvalidName)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await node.kv.ListKvs(kv_pb2.ListKvsRequest(namespace=namespace))
            error = from_rpc_error(caught.value, may_have_happened=False)
            assert isinstance(error, errors.InvalidName)

    asyncio.run(main())


def test_a_watch_reports_every_change_after_its_first_message() -> None:
    async def main() -> None:
        async with running_node() as node:
            call = node.kv.WatchKvs(kv_pb2.WatchKvsRequest(prefix=b"a"))
            begun = await call.read()
            assert not begun.changes
            await put(node, b"b", b"other")
            await put(node, b"a1", b"1")
            change = await call.read()
            assert change.revision > begun.revision
            assert [(c.key.name, c.value.data) for c in change.changes] == [(b"a1", b"1")]
            await node.kv.DeleteKvs(kv_pb2.DeleteKvsRequest(keys=[key(b"a1")]))
            change = await call.read()
            assert not change.changes[0].HasField("value")
            call.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("revision", [0, -1, -(1 << 63)])
def test_a_watch_from_a_revision_before_the_first_reports_all_changes(revision: int) -> None:
    async def main() -> None:
        async with running_node() as node:
            await put(node, b"a", b"1")
            call = node.kv.WatchKvs(kv_pb2.WatchKvsRequest(from_revision=revision))
            assert not (await call.read()).changes
            assert [c.key.name for c in (await call.read()).changes] == [b"a"]
            call.cancel()

    asyncio.run(main())


def test_a_watch_that_a_stop_ends_says_how_to_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node("serve", data=str(tmp_path / "data")) as node:
            watch = node.kv.WatchKvs(kv_pb2.WatchKvsRequest())
            await watch.read()
            seen = (await put(node, b"a", b"1")).value.revision
            assert (await watch.read()).revision == seen
            await node.node.stop()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch.read()
            ended = from_rpc_error(caught.value, may_have_happened=False)
            assert isinstance(ended, errors.Closed)
            assert "read the keys again" in str(ended)
        async with running_node("serve", data=str(tmp_path / "data")) as node:
            watch = node.kv.WatchKvs(kv_pb2.WatchKvsRequest(from_revision=seen + 1))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                assert [change async for change in watch] == []
            gone = from_rpc_error(caught.value, may_have_happened=False)
            assert isinstance(gone, errors.RevisionCompacted)

    asyncio.run(main())


async def create_topic(node: RunningNode, name: str, **fields: Any) -> admin_pb2.TopicResult:
    request = admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(name=name, **fields)])
    [result] = (await node.admin.CreateTopics(request)).topics
    assert isinstance(result, admin_pb2.TopicResult)
    return result


async def describe(node: RunningNode, name: str, **fields: Any) -> admin_pb2.TopicDescription:
    request = admin_pb2.DescribeTopicsRequest(names=[name], **fields)
    [topic] = (await node.admin.DescribeTopics(request)).topics
    assert isinstance(topic, admin_pb2.TopicDescription)
    return topic


async def produce(node: RunningNode, topic: str, data: bytes) -> log_pb2.ProducePartitionResult:
    part = log_pb2.ProducePartition(record_batches=data)
    answer = await node.log.Produce(
        log_pb2.ProduceRequest(topics=[log_pb2.ProduceTopic(topic=topic, partitions=[part])])
    )
    result = answer.topics[0].partitions[0]
    assert isinstance(result, log_pb2.ProducePartitionResult)
    return result


def test_topics_are_created_described_and_deleted() -> None:
    async def main() -> None:
        async with running_node("serve") as node:
            made = await create_topic(node, "t", partitions=2, configs={"retention.ms": "1000"})
            assert not made.HasField("error")
            again = await create_topic(node, "t")
            assert type(from_proto(again.error)) is errors.TopicAlreadyExists
            assert (await produce(node, "t", batch(b"a", b"b"))).base_offset == 0
            topic = await describe(node, "t")
            assert dict(topic.configs) == {"retention.ms": "1000"}
            first = topic.partitions[0]
            assert (first.high_watermark, first.leader_node) == (2, 1)
            assert first.data_stream_id > 0
            await node.admin.CreatePartitions(
                admin_pb2.CreatePartitionsRequest(topic="t", partitions=3)
            )
            listed = (await node.admin.ListTopics(admin_pb2.ListTopicsRequest())).topics
            assert [(summary.name, summary.partitions) for summary in listed] == [("t", 3)]
            status = await node.admin.GetStatus(admin_pb2.GetStatusRequest())
            assert (status.topics, status.partitions, status.connections) == (1, 3, 1)
            gone = await node.admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(names=["t", "x"]))
            assert not gone.topics[0].HasField("error")
            assert isinstance(from_proto(gone.topics[1].error), errors.UnknownTopicOrPartition)
            refused = await produce(node, "t", batch(b"c"))
            assert isinstance(from_proto(refused.error), errors.UnknownTopicOrPartition)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["a/b", "..", "a\x01", "n" * 10_000, "", "ä"])
def test_the_error_of_a_bad_topic_name_says_what_is_allowed(name: str) -> None:
    async def main() -> None:
        async with running_node() as node:
            error = from_proto((await create_topic(node, name)).error)
            assert isinstance(error, errors.InvalidName)
            produced = from_proto((await produce(node, name, batch(b"x"))).error)
            assert isinstance(produced, errors.InvalidName | errors.UnknownTopicOrPartition)
            assert not (await create_topic(node, "good")).HasField("error")

    asyncio.run(main())


def test_topics_are_created_on_demand_in_dev_and_not_in_serve() -> None:
    async def main() -> None:
        async with running_node("dev") as node:
            assert (await produce(node, "new", batch(b"a"))).base_offset == 0
            assert not (await describe(node, "asked")).partitions
            assert (await describe(node, "asked", allow_auto_create=True)).partitions
        async with running_node("serve") as node:
            topic = await describe(node, "asked", allow_auto_create=True)
            assert isinstance(from_proto(topic.error), errors.UnknownTopicOrPartition)

    asyncio.run(main())


TOPIC_T = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="t")


def test_a_topic_that_is_named_twice_is_described_once() -> None:
    async def main() -> None:
        async with running_node("serve") as node:
            await create_topic(node, "t", partitions=2)
            request = admin_pb2.DescribeTopicsRequest(names=["t", "none", "t", "none"])
            described = (await node.admin.DescribeTopics(request)).topics
            assert [(one.name, len(one.partitions)) for one in described] == [("t", 2), ("none", 0)]

    asyncio.run(main())


async def set_configs(node: RunningNode, values: dict[str, str]) -> None:
    """Of the topic t."""
    changes = [
        admin_pb2.ConfigChange(name=name, operation=admin_pb2.CONFIG_OPERATION_SET, value=value)
        for name, value in values.items()
    ]
    await node.admin.IncrementalAlterConfigs(
        admin_pb2.IncrementalAlterConfigsRequest(resource=TOPIC_T, changes=changes)
    )


async def configs(
    node: RunningNode, resource: admin_pb2.ConfigResource
) -> dict[str, admin_pb2.ConfigEntry]:
    request = admin_pb2.DescribeConfigsRequest(resource=resource)
    answer = await node.admin.DescribeConfigs(request)
    return {entry.name: entry for entry in answer.entries}


def test_a_topics_settings_are_described_with_their_source() -> None:
    async def main() -> None:
        async with running_node() as node:
            await create_topic(node, "t")
            await set_configs(node, {"retention.ms": "5000"})
            entries = await configs(node, TOPIC_T)
            own, default = entries["retention.ms"], entries["segment.ms"]
            assert (own.value, own.source) == ("5000", "topic")
            assert default.source == "broker"

    asyncio.run(main())


def test_settings_are_changed_together_or_not_at_all() -> None:
    async def main() -> None:
        async with running_node() as node:
            await create_topic(node, "t")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await set_configs(node, {"segment.ms": "7", "retention.m": "1"})
            error = from_rpc_error(caught.value, may_have_happened=False)
            assert isinstance(error, errors.InvalidConfig)
            assert "retention.ms" in error.message
            assert (await configs(node, TOPIC_T))["segment.ms"].source == "broker"

    asyncio.run(main())


def test_a_nodes_settings_are_described_and_those_of_its_start_are_read_only() -> None:
    async def main() -> None:
        async with running_node() as node:
            broker = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_BROKER)
            entries = await configs(node, broker)
            assert entries["node.listen"].read_only
            assert entries["engine.append.append_bytes_max"].read_only
            assert not entries["broker.num.partitions"].read_only

    asyncio.run(main())


def test_a_partitions_streams_are_written_through_the_topic_only() -> None:
    async def main() -> None:
        async with running_node() as node:
            await create_topic(node, "t")
            await produce(node, "t", batch(b"a"))
            stream = (await describe(node, "t")).partitions[0].data_stream_id
            read = await node.streams.FetchStream(stream_pb2.FetchStreamRequest(stream_id=stream))
            assert len(read.batches) == 1
            call = node.streams.Append()
            await call.write(stream_pb2.AppendRequest(stream_id=stream, payload=b"x"))
            await call.done_writing()
            [answer] = [answer async for answer in call]
            assert isinstance(from_proto(answer.error), errors.PolicyViolation)
            for refused in (
                node.streams.DeleteStream(stream_pb2.DeleteStreamRequest(stream_id=stream)),
                node.streams.OpenStream(stream_pb2.OpenStreamRequest(stream_id=stream)),
                node.streams.TrimStream(
                    stream_pb2.TrimStreamRequest(stream_id=stream, new_start_offset=1)
                ),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await refused
                error = from_rpc_error(caught.value, may_have_happened=False)
                assert isinstance(error, errors.PolicyViolation)
            assert (await produce(node, "t", batch(b"b"))).base_offset == 1

    asyncio.run(main())


def test_objects_are_listed_and_described(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(data=str(tmp_path / "d"), wal="object") as node:
            await create_topic(node, "t")
            await produce(node, "t", batch(b"a" * 1000))
            listed = (await node.admin.ListObjects(admin_pb2.ListObjectsRequest())).objects
            assert listed
            assert any(summary.live for summary in listed)
            data_stream = (await describe(node, "t")).partitions[0].data_stream_id
            streams = set()
            for summary in listed:
                described = await node.admin.DescribeObject(
                    admin_pb2.DescribeObjectRequest(key=summary.key)
                )
                assert described.cluster_id == node.banner.cluster_id
                streams |= {block.stream_id for block in described.blocks}
            assert data_stream in streams
            for bad, error in (
                ("data/../x", errors.InvalidName),
                ("cluster.json", errors.InvalidName),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await node.admin.DescribeObject(admin_pb2.DescribeObjectRequest(key=bad))
                assert isinstance(from_rpc_error(caught.value, may_have_happened=False), error)

    asyncio.run(main())
