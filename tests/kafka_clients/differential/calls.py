"""The calls that a sequence is made of: each runs on one side, and says what it saw there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.kafka_clients.differential.batches import BASE_MS, SPAN_MS
from tests.kafka_clients.differential.side import ZERO_ID, Seen, Side, visible
from tests.kafka_clients.raw_client import ConnectionEnded, part, request

TIMEOUT_MS = 20_000
PRODUCE_BY_ID = FETCH_BY_ID = 13
DELETE_BY_STATE = 6
EARLIEST, MAX_TIMESTAMP = -2, -3


@dataclass(frozen=True)
class Call:
    """`version` is the API's."""

    version: int
    topic: str

    def on(self, side: Side) -> Seen:
        try:
            return self._on(side)
        except ConnectionEnded:
            return {"closed": True}
        except TimeoutError:
            return {"silent": True}

    def _on(self, side: Side) -> Seen:
        raise NotImplementedError

    def wait_until_seen(self, side: Side, seen: Seen) -> None:
        """Waits until what the call changed is so everywhere on that side."""


@dataclass(frozen=True)
class CreateTopic(Call):
    partitions: int
    configs: tuple[tuple[str, str], ...]
    replication_factor: int = 1
    validate_only: bool = False

    def _on(self, side: Side) -> Seen:
        api = "create_topics"
        configs = [
            part(api, "CreatableTopicConfig", name=name, value=value)
            for name, value in self.configs
        ]
        topic = part(
            api,
            "CreatableTopic",
            name=self.topic,
            num_partitions=self.partitions,
            replication_factor=self.replication_factor,
            configs=configs,
        )
        asked = request(
            api, topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=self.validate_only
        )
        (found,) = side.call(api, self.version, asked).topics
        seen: Seen = {"error": found.error_code}
        if self.version >= 5 and not found.error_code:
            seen |= {"partitions": found.num_partitions, "replicas": found.replication_factor}
        if self.version >= 7:
            has_id = bytes(found.topic_id) != ZERO_ID
            seen |= {"has_id": has_id and not self.validate_only}
        return seen

    def wait_until_seen(self, side: Side, seen: Seen) -> None:
        if seen.get("error") == 0 and not self.validate_only:
            side.await_topic(self.topic, 1 if self.partitions == -1 else self.partitions)


@dataclass(frozen=True)
class DeleteTopic(Call):
    def _on(self, side: Side) -> Seen:
        api = "delete_topics"
        if self.version >= DELETE_BY_STATE:
            state = part(api, "DeleteTopicState", name=self.topic)
            asked = request(api, topics=[state], timeout_ms=TIMEOUT_MS)
        else:
            asked = request(api, topic_names=[self.topic], timeout_ms=TIMEOUT_MS)
        (found,) = side.call(api, self.version, asked).responses
        return {"error": found.error_code, "name": found.name}

    def wait_until_seen(self, side: Side, seen: Seen) -> None:
        if seen.get("error") == 0:
            side.await_topic(self.topic, None)


@dataclass(frozen=True)
class CreatePartitions(Call):
    count: int

    def _on(self, side: Side) -> Seen:
        api = "create_partitions"
        topic = part(
            api, "CreatePartitionsTopic", name=self.topic, count=self.count, assignments=None
        )
        asked = request(api, topics=[topic], timeout_ms=TIMEOUT_MS)
        (found,) = side.call(api, self.version, asked).results
        return {"error": found.error_code, "name": found.name}

    def wait_until_seen(self, side: Side, seen: Seen) -> None:
        if seen.get("error") == 0:
            side.await_topic(self.topic, self.count)


@dataclass(frozen=True)
class Produce(Call):
    partition: int
    kind: str
    data: bytes | None
    acks: int = -1

    def __repr__(self) -> str:
        size = None if self.data is None else len(self.data)
        place = f"{self.topic}-{self.partition}"
        return f"Produce(v{self.version}, {place}, {self.kind}, {size} bytes, acks={self.acks})"

    def _on(self, side: Side) -> Seen:
        api = "produce"
        data = part(api, "PartitionProduceData", index=self.partition, records=self.data)
        by_id = self.version >= PRODUCE_BY_ID
        topic = part(
            api,
            "TopicProduceData",
            **({"topic_id": side.topic_id(self.topic)} if by_id else {"name": self.topic}),
            partition_data=[data],
        )
        asked = request(api, acks=self.acks, timeout_ms=TIMEOUT_MS, topic_data=[topic])
        (found_topic,) = side.call(api, self.version, asked).responses
        (found,) = found_topic.partition_responses
        seen: Seen = {"error": found.error_code, "offset": found.base_offset}
        if self.version >= 5:
            seen["start"] = found.log_start_offset
        if self.version >= 8:
            seen["records"] = [one.batch_index for one in found.record_errors]
        return seen | {"has_append_time": found.log_append_time_ms >= 0}


@dataclass(frozen=True)
class Fetch(Call):
    partition: int
    offset: int
    max_bytes: int
    isolation: int
    leader_epoch: int = -1

    def _on(self, side: Side) -> Seen:
        api = "fetch"
        place = part(
            api,
            "FetchPartition",
            partition=self.partition,
            fetch_offset=self.offset,
            partition_max_bytes=self.max_bytes,
            current_leader_epoch=self.leader_epoch,
        )
        by_id = self.version >= FETCH_BY_ID
        topic = part(
            api,
            "FetchTopic",
            **({"topic_id": side.topic_id(self.topic)} if by_id else {"topic": self.topic}),
            partitions=[place],
        )
        asked = request(
            api, topics=[topic], max_wait_ms=0, min_bytes=0, isolation_level=self.isolation
        )
        answer = side.call(api, self.version, asked)
        if answer.error_code:
            return {"error": answer.error_code}
        (found,) = answer.responses[0].partitions
        seen: Seen = {
            "error": found.error_code,
            "high_watermark": found.high_watermark,
            "stable": found.last_stable_offset,
            "batches": visible(found.records or b""),
        }
        return seen | ({"start": found.log_start_offset} if self.version >= 5 else {})


@dataclass(frozen=True)
class ListOffsets(Call):
    partition: int
    timestamp: int
    isolation: int = 0

    def _on(self, side: Side) -> Seen:
        found = self._found(side, self.timestamp)
        seen: Seen = {
            "error": found.error_code,
            # LogAppendTime: the broker's clock.
            "timestamp": min(found.timestamp, BASE_MS + SPAN_MS),
            "offset": found.offset,
            "has_epoch": found.leader_epoch >= 0,
        }
        if self.timestamp == MAX_TIMESTAMP or self.timestamp >= 0:
            seen["start"] = self._found(side, EARLIEST).offset
        return seen

    def _found(self, side: Side, timestamp: int) -> Any:
        api = "list_offsets"
        place = part(
            api, "ListOffsetsPartition", partition_index=self.partition, timestamp=timestamp
        )
        topic = part(api, "ListOffsetsTopic", name=self.topic, partitions=[place])
        more: dict[str, Any] = {"timeout_ms": TIMEOUT_MS} if self.version >= 10 else {}
        asked = request(api, replica_id=-1, topics=[topic], isolation_level=self.isolation, **more)
        (answer,) = side.call(api, self.version, asked).topics[0].partitions
        return answer


@dataclass(frozen=True)
class DeleteRecords(Call):
    partition: int
    offset: int

    def _on(self, side: Side) -> Seen:
        api = "delete_records"
        place = part(
            api, "DeleteRecordsPartition", partition_index=self.partition, offset=self.offset
        )
        topic = part(api, "DeleteRecordsTopic", name=self.topic, partitions=[place])
        asked = request(api, topics=[topic], timeout_ms=TIMEOUT_MS)
        (found,) = side.call(api, self.version, asked).topics[0].partitions
        return {"error": found.error_code, "low_watermark": found.low_watermark}


@dataclass(frozen=True)
class AlterConfig(Call):
    """`operation`: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT."""

    name: str
    value: str | None
    operation: int
    validate_only: bool = False

    def _on(self, side: Side) -> Seen:
        api = "incremental_alter_configs"
        config = part(
            api,
            "AlterableConfig",
            name=self.name,
            value=self.value,
            config_operation=self.operation,
        )
        resource = part(
            api,
            "AlterConfigsResource",
            resource_type=2,
            resource_name=self.topic,
            configs=[config],
        )
        asked = request(api, resources=[resource], validate_only=self.validate_only)
        (found,) = side.call(api, self.version, asked).responses
        return {"error": found.error_code, "name": found.resource_name}

    def wait_until_seen(self, side: Side, seen: Seen) -> None:
        if seen.get("error") == 0 and not self.validate_only:
            side.await_config(self.topic, self.name, None if self.operation == 1 else self.value)


@dataclass(frozen=True)
class ReplaceConfigs(Call):
    """AlterConfigs: what is not named goes back to its default."""

    configs: tuple[tuple[str, str], ...]

    def _on(self, side: Side) -> Seen:
        api = "alter_configs"
        configs = [
            part(api, "AlterableConfig", name=name, value=value) for name, value in self.configs
        ]
        resource = part(
            api,
            "AlterConfigsResource",
            resource_type=2,
            resource_name=self.topic,
            configs=configs,
        )
        (found,) = side.call(api, self.version, request(api, resources=[resource])).responses
        return {"error": found.error_code, "name": found.resource_name}

    def wait_until_seen(self, side: Side, seen: Seen) -> None:
        if seen.get("error") == 0:
            for name, value in self.configs:
                side.await_config(self.topic, name, value)


@dataclass(frozen=True)
class DescribeConfigs(Call):
    names: tuple[str, ...]

    def _on(self, side: Side) -> Seen:
        return {"configs": side.configs(self.topic, list(self.names), self.version)}


@dataclass(frozen=True)
class Metadata(Call):
    def _on(self, side: Side) -> Seen:
        api = "metadata"
        topic = part(api, "MetadataRequestTopic", name=self.topic)
        asked = request(api, topics=[topic], allow_auto_topic_creation=self.version < 4)
        (found,) = side.call(api, self.version, asked).topics
        return {
            "error": found.error_code,
            "name": found.name,
            "is_internal": found.is_internal,
            "partitions": sorted(
                (one.partition_index, one.error_code, one.leader_id in one.replica_nodes)
                for one in found.partitions
            ),
        }
