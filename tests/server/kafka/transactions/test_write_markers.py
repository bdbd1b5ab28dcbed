"""WriteTxnMarkers: markers go to the logs, past the coordinator; each partition has its outcome."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from typing import Any, cast

from streamlog.errors import (
    CoordinatorFenced,
    OutcomeUnknown,
    ProducerFenced,
    StoreUnavailable,
    StreamlogError,
    UnknownTopicOrPartition,
)
from streamlog.kafka.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import AbstractLog, LogAppendInfo, TransactionMarker
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.server.context import Operation, RequestContext, allow_all
from streamlog.server.services.ports import Logs
from streamlog.server.services.transactions import MarkerWrite, TransactionService
from streamlog.settings.limits import LimitsConfig
from tests.server.kafka.transactions.asked_markers import asked
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.kafka_handlers import KafkaHandlers, all_but, kafka_handlers

STORED = LogAppendInfo(0, 0, -1, 0)


class MarkerLogs:
    """Partitions of topic t that take markers; what is asked of others fails."""

    def __init__(self, partitions: int) -> None:
        self.written: dict[int, list[TransactionMarker]] = defaultdict(list)
        self.errors: dict[int, StreamlogError] = {}
        self.holds = asyncio.Event()
        self.holds.set()
        self._partitions = partitions

    def open_log(self, partition: TopicPartition) -> AbstractLog | None:
        return None

    async def log(self, partition: TopicPartition) -> AbstractLog:
        if partition.topic != "t" or not 0 <= partition.partition < self._partitions:
            raise UnknownTopicOrPartition("no", topic=partition.topic)
        return cast(AbstractLog, _MarkerLog(self, partition.partition))

    def topic(self, name: str) -> Any:
        return None if name != "t" else cast(Any, self)

    topic_id = "id"


class _MarkerLog:
    def __init__(self, logs: MarkerLogs, number: int) -> None:
        self._logs = logs
        self._number = number

    async def append_marker(self, marker: TransactionMarker) -> Awaitable[LogAppendInfo]:
        if self._number in self._logs.errors:
            raise self._logs.errors[self._number]
        self._logs.written[self._number].append(marker)
        return self._durable()

    async def _durable(self) -> LogAppendInfo:
        await self._logs.holds.wait()
        return STORED


def service_over(logs: MarkerLogs, **limits: int) -> TransactionService:
    return TransactionService(
        FakeCoordinator(),
        cast(Logs, logs),
        node_id=1,
        clock=SystemClock(),
        authorize=allow_all,
        limits=LimitsConfig(**limits),
    )


def marker(producer_id: int, epoch: int = 0, *, is_commit: bool = False) -> TransactionMarker:
    return TransactionMarker(producer_id, epoch, 5, is_commit)


def parts(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


async def told(node: KafkaHandlers, *markers: WritableTxnMarker) -> Any:
    """Codes by producer id, then by topic and partition; a producer comes once."""
    request = WriteTxnMarkersRequest(markers=markers)
    answer = await node.ask(ApiKey.WRITE_TXN_MARKERS, 1, request)
    assert len({result.producer_id for result in answer.markers}) == len(answer.markers)
    return {
        result.producer_id: {
            (topic.name, part.partition_index): KafkaError(part.error_code)
            for topic in result.topics
            for part in topic.partitions
        }
        for result in answer.markers
    }


def test_a_partitions_markers_are_written_in_order() -> None:
    async def main() -> None:
        logs = MarkerLogs(2)
        one, two = marker(1), marker(2, is_commit=True)
        outcomes = await service_over(logs).write_markers(
            RequestContext(),
            [MarkerWrite(one, parts(0, 1)), MarkerWrite(two, parts(1)), MarkerWrite(two, [])],
        )
        assert outcomes == [[None, None], [None], []]
        assert dict(logs.written) == {0: [one], 1: [one, two]}

    asyncio.run(main())


def test_a_marker_that_comes_twice_is_written_once() -> None:
    async def main() -> None:
        logs = MarkerLogs(1)
        twice = [MarkerWrite(marker(1), parts(0, 0)), MarkerWrite(marker(1), parts(0))]
        assert await service_over(logs).write_markers(RequestContext(), twice) == [
            [None, None],
            [None],
        ]
        assert dict(logs.written) == {0: [marker(1)]}

    asyncio.run(main())


def test_an_error_is_its_partitions_own() -> None:
    async def main() -> None:
        logs = MarkerLogs(4)
        logs.errors = {
            0: ProducerFenced("a newer epoch"),
            1: CoordinatorFenced("a newer coordinator"),
            2: StoreUnavailable("away"),
        }
        [outcomes] = await service_over(logs).write_markers(
            RequestContext(), [MarkerWrite(marker(1), parts(0, 1, 2, 3, 4))]
        )
        assert [type(error) for error in outcomes] == [
            ProducerFenced,
            CoordinatorFenced,
            StoreUnavailable,
            type(None),
            UnknownTopicOrPartition,
        ]

    asyncio.run(main())


def test_a_marker_that_is_not_durable_in_time_goes_on() -> None:
    async def main() -> None:
        logs = MarkerLogs(1)
        logs.holds.clear()
        service = service_over(logs, produce_timeout_ms=20)
        [[error]] = await service.write_markers(
            RequestContext(), [MarkerWrite(marker(1), parts(0))]
        )
        assert isinstance(error, OutcomeUnknown)
        assert logs.written[0] == [marker(1)]

    asyncio.run(main())


def test_codes_on_the_wire() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            unknown = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            answer = await told(
                node,
                asked(7, {"no": [0], "a": [1]}),
                asked(7, {"no": [3, -1]}),
                asked(8, {}),
                asked(9, {"__transaction_state": [0]}),
            )
            assert answer == {
                7: dict.fromkeys([("no", 0), ("a", 1), ("no", 3), ("no", -1)], unknown),
                8: {},
                9: {("__transaction_state", 0): KafkaError.INVALID_TOPIC_EXCEPTION},
            }
            assert await told(node) == {}
            many = await told(node, asked(7, {"no": range(10_001)}))
            assert set(many[7].values()) == {KafkaError.INVALID_REQUEST}

    asyncio.run(main())


def test_operators_and_nodes_alone_write_markers() -> None:
    async def main() -> None:
        alter, action = (Operation.ALTER, ""), (Operation.CLUSTER_ACTION, "")
        for refused, code in [
            ([alter], KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
            ([action], KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
            ([alter, action], KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        ]:
            async with kafka_handlers(authorize=all_but(*refused)) as node:
                assert await told(node, asked(7, {"no": [0]})) == {7: {("no", 0): code}}

    asyncio.run(main())


def test_a_partition_that_another_node_leads() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            await node.leadership.assign(TopicPartition("a", 0), 77)
            answer = await told(node, asked(7, {"a": [0]}))
            assert answer == {7: {("a", 0): KafkaError.NOT_LEADER_OR_FOLLOWER}}

    asyncio.run(main())
