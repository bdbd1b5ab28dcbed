"""Errors of a Fetch: which code, in which shape, and whether they end the wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from streamlog.errors import (
    Closed,
    Corrupt,
    DeadlinePassed,
    InvalidName,
    QuotaExceeded,
    StoreUnavailable,
    StreamlogError,
    Unauthorized,
    WalPending,
)
from streamlog.kafka.messages.fetch_response import FetchResponse, PartitionData
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import Isolation, LogFetch
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.server.context import Operation, RequestContext, Resource
from streamlog.server.kafka.sessions.answer import fetch_code
from streamlog.settings.limits import LimitsConfig
from tests.server.kafka.fetch_world import (
    NEWEST,
    NODE_ID,
    answered,
    fetch_world,
    offsets,
    wanted,
    world_over,
)
from tests.support.log_insides import leadership_of
from tests.support.server_fakes import FakeLogs, ListLog

SOON_S = 5.0


def shape(part: PartitionData) -> tuple[Any, ...]:
    records = part.records
    assert isinstance(records, memoryview)
    return (
        part.error_code,
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        part.aborted_transactions,
        len(records),
    )


def failed(code: KafkaError, aborted: Any = None) -> tuple[Any, ...]:
    """An error has no offsets and no records, as in Kafka."""
    return (code, -1, -1, -1, aborted, 0)


def absent(code: KafkaError) -> tuple[Any, ...]:
    return failed(code, aborted=[])


def test_an_offset_outside_of_the_log_is_answered_at_once_without_its_range() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            for _ in range(3):
                await world.append(b"a")
            await (await world.log()).delete_records(1)
            for offset in (0, 4, -1):
                response = await world.fetch(parts=[wanted(0, offset)], wait_ms=60_000)
                assert shape(answered(response)[0]) == failed(KafkaError.OFFSET_OUT_OF_RANGE)

    asyncio.run(main())


def test_the_code_of_an_unknown_topic_tells_names_from_ids() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            cases: list[tuple[int, str | bytes, int, KafkaError]] = [
                (12, "none", 0, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
                (12, "", 0, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
                (12, "no/name", 0, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
                (12, "t", 3, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
                (12, "t", -1, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
                (NEWEST, b"x" * 16, 0, KafkaError.UNKNOWN_TOPIC_ID),
                (NEWEST, bytes(16), 0, KafkaError.UNKNOWN_TOPIC_ID),
                (NEWEST, world.topic_id(), 3, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
            ]
            for version, topic, partition, code in cases:
                response = await world.fetch(
                    version, topic=topic, parts=[wanted(partition)], wait_ms=60_000
                )
                assert shape(answered(response)[partition]) == absent(code)
                [found] = response.responses
                assert topic == (found.topic_id if version == NEWEST else found.topic)

    asyncio.run(main())


def test_a_partition_that_is_not_there_does_not_end_the_wait_for_others() -> None:
    """Kafka's rule: a consumer whose one topic was deleted would ask without a pause else."""

    async def main() -> None:
        async with fetch_world() as world:
            loop = asyncio.get_running_loop()
            begin = loop.time()
            found = answered(await world.fetch(parts=[wanted(0), wanted(9)], wait_ms=60))
            assert loop.time() - begin >= 0.06
            assert (found[0].error_code, found[9].error_code) == (0, 3)
            async with asyncio.timeout(SOON_S):
                await world.append(b"a")
                found = answered(await world.fetch(parts=[wanted(9), wanted(0)], wait_ms=60_000))
                assert (offsets(found[0]), found[9].error_code) == ([0], 3)

    asyncio.run(main())


def test_a_topic_that_is_deleted_ends_the_wait() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            topic_id = world.topic_id()
            poll = asyncio.create_task(
                world.fetch(NEWEST, topic=topic_id, parts=[wanted()], wait_ms=60_000)
            )
            await world.waits()
            await world.logs.delete_topic("t")
            assert answered(await poll)[0].error_code == KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            response = await world.fetch(NEWEST, topic=topic_id, parts=[wanted()], wait_ms=60_000)
            assert answered(response)[0].error_code == KafkaError.UNKNOWN_TOPIC_ID

    asyncio.run(main())


def test_leader_epochs_are_checked_and_the_leader_is_told() -> None:
    async def main() -> None:
        async with fetch_world() as world:
            await world.append(b"a")
            epoch = (await world.log()).leader_epoch

            async def read(version: int, epoch: int) -> FetchResponse:
                topic = world.topic_id() if version >= 13 else "t"
                return await world.fetch(version, topic=topic, parts=[wanted(0, 0, epoch=epoch)])

            for version in (9, 12, 15, 16, NEWEST):
                assert offsets(answered(await read(version, epoch))[0]) == [0]
                newer = answered(await read(version, epoch + 1))[0]
                assert shape(newer) == failed(KafkaError.UNKNOWN_LEADER_EPOCH)
                older = await read(version, epoch - 1)
                part = answered(older)[0]
                assert shape(part) == failed(KafkaError.FENCED_LEADER_EPOCH)
                if version < 16:
                    assert (part.current_leader, older.node_endpoints) == (None, ())
                    continue
                assert part.current_leader is not None
                leader = part.current_leader
                assert (leader.leader_id, leader.leader_epoch) == (NODE_ID, epoch)
                [node] = older.node_endpoints
                assert (node.node_id, node.host, node.port) == (NODE_ID, "127.0.0.1", 9092)
            # Before version 9 requests have no epoch.
            assert offsets(answered(await read(8, epoch - 1))[0]) == [0]

    asyncio.run(main())


def test_a_partition_that_is_led_elsewhere_names_its_leader() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            partition = TopicPartition("t", 0)
            await leadership_of(world.logs).assign(partition, 9)
            world.leaders.leads[partition] = 9
            response = await world.fetch(
                NEWEST, topic=world.topic_id(), parts=[wanted()], wait_ms=60_000
            )
            part = answered(response)[0]
            assert shape(part) == failed(KafkaError.NOT_LEADER_OR_FOLLOWER)
            assert part.current_leader is not None
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (9, -1)
            assert response.node_endpoints == ()

    asyncio.run(main())


def test_a_reader_whose_last_record_is_not_in_the_log_learns_where_they_part() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            await world.append(b"a")
            epoch = (await world.log()).leader_epoch

            async def read(offset: int, last_epoch: int) -> PartitionData:
                parts = [wanted(0, offset, last_epoch=last_epoch)]
                return answered(await world.fetch(12, parts=parts, wait_ms=60_000))[0]

            assert offsets(await read(0, epoch)) == [0]
            diverging = await read(1, epoch - 1)
            assert diverging.error_code == 0
            assert diverging.diverging_epoch is not None
            # The epoch is older than the log's first, which begins at 0.
            assert diverging.diverging_epoch.end_offset == 0
            assert diverging.diverging_epoch.epoch == epoch - 1
            assert (offsets(diverging), diverging.high_watermark) == ([], 1)
            assert shape(await read(0, epoch + 1)) == failed(KafkaError.OFFSET_OUT_OF_RANGE)

    asyncio.run(main())


def test_a_topic_made_anew_under_the_same_name_is_not_read_in_place_of_the_old_one() -> None:
    async def main() -> None:
        async with fetch_world() as world, asyncio.timeout(SOON_S):
            old = world.topic_id()
            opened = await world.fetch(
                NEWEST, topic=old, parts=[wanted(0), wanted(1)], session=(0, 0)
            )
            await world.logs.delete_topic("t")
            await world.logs.create_topic("t", 3)
            await world.append(b"a")
            # The session knows the name by now, so Kafka says that the id is another's.
            response = await world.fetch(NEWEST, session=(opened.session_id, 1), wait_ms=60_000)
            assert response.error_code == 0
            codes = {part.error_code for part in answered(response).values()}
            assert codes == {KafkaError.INCONSISTENT_TOPIC_ID}
            response = await world.fetch(NEWEST, topic=old, parts=[wanted()], wait_ms=60_000)
            assert answered(response)[0].error_code == KafkaError.UNKNOWN_TOPIC_ID

    asyncio.run(main())


def test_partitions_that_the_client_may_not_read_are_refused_by_themselves() -> None:
    def authorize(context: RequestContext, operation: Operation, resource: Resource) -> None:
        if resource.name == "t":
            raise Unauthorized("no", principal="x", resource="t", operation=operation.value)

    async def main() -> None:
        async with fetch_world(authorize=authorize) as world, asyncio.timeout(SOON_S):
            response = await world.fetch(parts=[wanted()], wait_ms=60_000)
            code = KafkaError.TOPIC_AUTHORIZATION_FAILED
            assert shape(answered(response)[0]) == absent(code)

    asyncio.run(main())


class Failing(ListLog):
    error: StreamlogError

    async def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        deadline: float | None = None,
    ) -> LogFetch:
        raise self.error


def test_an_error_of_one_partition_leaves_the_records_of_the_others() -> None:
    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 2)
        world = world_over(logs)
        broken = logs.open[TopicPartition("t", 0)] = Failing(TopicPartition("t", 0))
        broken.error = StoreUnavailable("away")
        await world.append(b"a", partition=1)
        async with asyncio.timeout(SOON_S):
            found = answered(
                await world.fetch(parts=[wanted(0), wanted(1, 0)], wait_ms=60_000, min_bytes=1000)
            )
        assert shape(found[0]) == failed(KafkaError.KAFKA_STORAGE_ERROR)
        assert offsets(found[1]) == [0]

    asyncio.run(main())


class SlowStore(ListLog):
    """Its records are in a store that does not answer."""

    async def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        deadline: float | None = None,
    ) -> LogFetch:
        assert deadline is not None
        await asyncio.sleep(deadline - SystemClock().monotonic())
        raise StoreUnavailable("it could not be read before the deadline; retry")


def test_a_store_that_does_not_answer_holds_no_client_for_longer_than_it_waits() -> None:
    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 2)
        world = world_over(logs, limits=replace(LimitsConfig(), open_wait_ms=50))
        logs.open[TopicPartition("t", 0)] = SlowStore(TopicPartition("t", 0))
        await world.append(b"a", partition=1)
        async with asyncio.timeout(SOON_S):
            found = answered(await world.fetch(parts=[wanted(0), wanted(1)], wait_ms=20))
        assert shape(found[0]) == failed(KafkaError.KAFKA_STORAGE_ERROR)
        assert offsets(found[1]) == [0]

    asyncio.run(main())


def test_records_do_not_wait_for_a_store_that_another_partition_needs() -> None:
    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 2)
        world = world_over(logs, limits=replace(LimitsConfig(), open_wait_ms=50))
        logs.open[TopicPartition("t", 0)] = SlowStore(TopicPartition("t", 0))
        await world.append(b"a", partition=1)
        async with asyncio.timeout(SOON_S):
            found = answered(
                await world.fetch(parts=[wanted(1), wanted(0)], wait_ms=20, session=(0, 0))
            )
        # The slow partition is only left out, and comes first in the next fetch.
        assert (offsets(found[1]), offsets(found[0]), found[0].error_code) == ([0], [], 0)

    asyncio.run(main())


def test_a_partition_that_is_being_opened_is_answered_with_a_code_that_clients_retry() -> None:
    class Opening(FakeLogs):
        async def log(self, partition: TopicPartition) -> ListLog:
            await asyncio.Event().wait()
            raise AssertionError("it never opens")

    async def main() -> None:
        logs = Opening()
        await logs.create_topic("t", 1)
        world = world_over(logs, limits=replace(LimitsConfig(), open_wait_ms=30))
        async with asyncio.timeout(SOON_S):
            found = answered(await world.fetch(parts=[wanted(0)]))
        assert shape(found[0]) == failed(KafkaError.KAFKA_STORAGE_ERROR)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("away"), KafkaError.KAFKA_STORAGE_ERROR),
        (DeadlinePassed("late"), KafkaError.KAFKA_STORAGE_ERROR),
        (QuotaExceeded("much", retry_after_ms=1), KafkaError.KAFKA_STORAGE_ERROR),
        (WalPending("elsewhere"), KafkaError.KAFKA_STORAGE_ERROR),
        (Closed("closed"), KafkaError.NOT_LEADER_OR_FOLLOWER),
        (Corrupt("bad"), KafkaError.CORRUPT_MESSAGE),
        (InvalidName("bad"), KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        (StreamlogError("bug"), KafkaError.UNKNOWN_SERVER_ERROR),
    ],
)
def test_errors_are_codes_that_consumers_go_on_from(
    error: StreamlogError, code: KafkaError
) -> None:
    assert fetch_code(error, NEWEST) is code
    is_storage = code is KafkaError.KAFKA_STORAGE_ERROR
    assert fetch_code(error, 5) is (KafkaError.NOT_LEADER_OR_FOLLOWER if is_storage else code)
