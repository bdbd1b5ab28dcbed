"""One broker as the differential test sees it: a raw client, and answers in comparable form."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

from streamlog.codec.batch import LENGTH_END, LOG_APPEND_TIME, scan
from tests.kafka_clients.raw_client import ConnectionEnded, RawClient, part, request

Seen = dict[str, Any]
"""What a call's answer says, without what differs between any two brokers: ids, epochs, times."""

SETTLE_TIMEOUT_S = 20.0
ZERO_ID = bytes(16)
NO_SUCH_ID = bytes(range(16))
IDS_FROM = 10
"""The first version of Metadata with topic ids."""


class Side:
    """Runs calls on one broker; reconnects where the broker ended the connection."""

    def __init__(self, name: str, server: str) -> None:
        self.name = name
        self._server = server
        self._client: RawClient | None = None
        self.ids: dict[str, bytes] = {}
        """Topic ids by name, also those of topics that were deleted since."""

    def call(self, api: str, version: int, message: Any) -> Any:
        """The response. Errors: ConnectionEnded."""
        if self._client is None:
            self._client = RawClient(self._server)
        try:
            return self._client.call(api, version, message)
        except (ConnectionEnded, TimeoutError):
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def topic_id(self, topic: str) -> bytes:
        return self.ids.get(topic, NO_SUCH_ID)

    # ---- what Kafka answers before it is so everywhere

    def await_topic(self, topic: str, partitions: int | None) -> None:
        """Returns when metadata has the topic with so many led partitions; None: has it not."""

        def is_there() -> bool:
            asked = part("metadata", "MetadataRequestTopic", name=topic)
            fields = {"topics": [asked], "allow_auto_topic_creation": False}
            (found,) = self.call("metadata", 12, request("metadata", **fields)).topics
            if partitions is None:
                return bool(found.error_code)
            self.ids[topic] = bytes(found.topic_id)
            led = [one for one in found.partitions if one.error_code == 0]
            return len(led) == partitions and self._answers(topic, partitions)

        self._await(is_there, f"{topic} has not {partitions} partitions")

    def _answers(self, topic: str, partitions: int) -> bool:
        """Whether each partition's leader knows that it leads."""
        parts = [
            part("list_offsets", "ListOffsetsPartition", partition_index=one, timestamp=-1)
            for one in range(partitions)
        ]
        asked = part("list_offsets", "ListOffsetsTopic", name=topic, partitions=parts)
        (found,) = self.call(
            "list_offsets", 7, request("list_offsets", replica_id=-1, topics=[asked])
        ).topics
        return all(one.error_code == 0 for one in found.partitions)

    def await_config(self, topic: str, name: str, value: str | None) -> None:
        """Returns when the topic's own setting has the value; None: it has none."""

        def is_so() -> bool:
            configs = self.configs(topic, [name])
            own = [one for one in configs if one["source"] == 1]
            return [one["value"] for one in own] == ([] if value is None else [value])

        self._await(is_so, f"{name} of {topic} is not {value}")

    def _await(self, is_so: Callable[[], bool], failure: str) -> None:
        give_up_at = time.monotonic() + SETTLE_TIMEOUT_S
        while not is_so():
            assert time.monotonic() < give_up_at, f"{self.name}: {failure}"
            time.sleep(0.002)

    # ---- answers in comparable form

    def configs(self, topic: str, names: list[str] | None, version: int = 4) -> list[Seen]:
        kind = "DescribeConfigsResource"
        asked = part(
            "describe_configs",
            kind,
            resource_type=2,
            resource_name=topic,
            configuration_keys=names,
        )
        (found,) = self.call(
            "describe_configs", version, request("describe_configs", resources=[asked])
        ).results
        if found.error_code:
            return [{"error": found.error_code}]
        return [
            {
                "name": one.name,
                "value": one.value,
                "source": one.config_source,
                "read_only": one.read_only,
                "is_sensitive": one.is_sensitive,
                "type": one.config_type if version >= 3 else None,
            }
            for one in sorted(found.configs, key=lambda config: str(config.name))
        ]


def visible(records: Any) -> list[Seen]:
    """The whole batches of a fetch's answer; one that is cut short at the end is not visible."""
    data = bytes(records) if not isinstance(records, list) else b"".join(map(bytes, records))
    batches = []
    for batch in scan(whole(data)):
        header = batch.header
        normal = bytearray(batch.view)
        normal[LENGTH_END : LENGTH_END + 4] = bytes(4)
        if header.attributes & LOG_APPEND_TIME:
            # The broker's clock: the largest timestamp, and with it the CRC.
            normal[35:43] = bytes(8)
            normal[17:21] = bytes(4)
        batches.append(
            {
                "offsets": (header.base_offset, header.last_offset),
                "codec": header.codec,
                "digest": hashlib.sha256(normal).hexdigest()[:16],
            }
        )
    return batches


def whole(data: bytes) -> bytes:
    at = 0
    while at + LENGTH_END <= len(data):
        size = int.from_bytes(data[at + 8 : at + LENGTH_END], "big") + LENGTH_END
        if at + size > len(data):
            break
        at += size
    return data[:at]
