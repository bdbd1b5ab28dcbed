"""A broker with producers that have the same names on both sides, and markers that are waited for.

A producer's name is a number: 0 for the first id that this broker gave, 1 for the second.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

from streamlog.codec.batch import CONTROL, LENGTH_END, NO_PRODUCER, ScannedBatch, scan
from streamlog.codec.records import decode
from tests.kafka_clients.differential.side import Seen, Side, whole
from tests.kafka_clients.raw_client import part, request

NOBODY = -1
STRANGER = 1 << 40
"""Names from here on are ids that no broker gave."""
BUSY = frozenset({14, 15, 16, 51})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
CONCURRENT_TRANSACTIONS: a client asks again."""
BUSY_PRODUCE = frozenset({*BUSY, 19})
"""Where the coordinator is busy with the verification, Kafka says NOT_ENOUGH_REPLICAS."""
BUSY_TIMEOUT_S = 30.0
UNSETTLED = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
TRANSACTION_STATE = "__transaction_state"
TRANSACTIONAL_ID = 1
"""A kind of key in FindCoordinator."""


class TransactionalSide(Side):
    def __init__(self, name: str, server: str) -> None:
        super().__init__(name, server)
        self._ids: list[int] = []
        self._names: dict[int, int] = {}
        self.coordinator_epoch = 0
        """That of all partitions of the coordinator's topic."""
        self.coordinator_partitions = 0

    # ---- producers

    def name_of(self, producer_id: int) -> int:
        """The name of an id; one that was never seen gets the next name."""
        if producer_id == NO_PRODUCER.producer_id or producer_id >= STRANGER:
            return producer_id
        if producer_id not in self._names:
            self._names[producer_id] = len(self._ids)
            self._ids.append(producer_id)
        return self._names[producer_id]

    def id_of(self, name: int) -> int:
        return name if name == NOBODY or name >= STRANGER else self._ids[name]

    # ---- calls

    def ask(
        self,
        api: str,
        version: int,
        message: Any,
        codes: Callable[[Any], list[int]],
        busy: frozenset[int] = BUSY,
    ) -> Any:
        """The first response without a code that asks the client to come again."""
        give_up_at = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            answer = self.call(api, version, message)
            found = codes(answer)
            if not busy.intersection(found):
                return answer
            assert time.monotonic() < give_up_at, f"{self.name}: {api} is {found} without end"
            time.sleep(0.002)

    def await_coordinator(self, transactional_id: str) -> None:
        """Kafka makes the coordinator's topic when it is first asked for."""
        asked = request(
            "find_coordinator", key_type=TRANSACTIONAL_ID, coordinator_keys=[transactional_id]
        )
        self.ask("find_coordinator", 4, asked, lambda one: [one.coordinators[0].error_code])
        topic = part("metadata", "MetadataRequestTopic", name=TRANSACTION_STATE)
        metadata = request("metadata", topics=[topic], allow_auto_topic_creation=False)

        def is_led() -> bool:
            (found,) = self.call("metadata", 12, metadata).topics
            epochs = {one.leader_epoch for one in found.partitions}
            if not epochs or min(epochs) < 0:
                return False
            (self.coordinator_epoch,) = epochs
            self.coordinator_partitions = len(found.partitions)
            return True

        self._await(is_led, "the coordinator's partitions have no leader epochs")

    def await_settled(self, transactional_id: str) -> None:
        """Returns when no markers of the id are under way."""
        self._await(
            lambda: self.transaction(transactional_id)["state"] not in UNSETTLED,
            f"{transactional_id} stays {self.transaction(transactional_id)}",
        )

    # ---- answers in comparable form

    def transaction(self, transactional_id: str) -> Seen:
        api = "describe_transactions"
        asked = request(api, transactional_ids=[transactional_id])
        answer = self.ask(
            api, 0, asked, lambda one: [state.error_code for state in one.transaction_states]
        )
        (found,) = answer.transaction_states
        if found.error_code:
            return {"error": found.error_code, "state": found.transaction_state}
        return {
            "error": found.error_code,
            "state": found.transaction_state,
            "producer": self.name_of(found.producer_id),
            "epoch": found.producer_epoch,
            "timeout": found.transaction_timeout_ms,
            "is_open": found.transaction_start_time_ms >= 0,
            "partitions": sorted(
                (topic.topic, number) for topic in found.topics for number in topic.partitions
            ),
        }

    def offsets(self, topic: str, partitions: int) -> list[tuple[int, int, int]]:
        """Log start, last stable offset and high watermark of each partition.

        Kafka's stable end may lie before the start, where records of an open transaction were
        deleted; a node's never does.
        """
        found = [self._offsets(topic, partitions, *at) for at in ((-2, 0), (-1, 1), (-1, 0))]
        return [(start, max(start, stable), end) for start, stable, end in zip(*found, strict=True)]

    def start_of(self, topic: str, partition: int) -> int:
        """The log's start, or an error below zero."""
        return self._offsets(topic, partition + 1, -2, 0)[partition]

    def relative_epoch(self, coordinator_epoch: int) -> int:
        """By that of this broker's coordinator; -1 for one less, and for none."""
        return coordinator_epoch - self.coordinator_epoch if coordinator_epoch >= 0 else -1

    def _offsets(self, topic: str, partitions: int, timestamp: int, isolation: int) -> list[int]:
        api = "list_offsets"
        parts = [
            part(api, "ListOffsetsPartition", partition_index=one, timestamp=timestamp)
            for one in range(partitions)
        ]
        asked = part(api, "ListOffsetsTopic", name=topic, partitions=parts)
        message = request(api, replica_id=-1, isolation_level=isolation, topics=[asked])
        (found,) = self.call(api, 7, message).topics
        ordered = sorted(found.partitions, key=lambda one: int(one.partition_index))
        return [one.offset if one.error_code == 0 else -one.error_code for one in ordered]

    def batches(self, records: Any) -> list[Seen]:
        """The whole batches of a fetch's answer, without ids and clocks of this broker."""
        data = bytes(records) if not isinstance(records, list) else b"".join(map(bytes, records))
        return [self._batch(batch) for batch in scan(whole(data))]

    def _batch(self, batch: ScannedBatch) -> Seen:
        header = batch.header
        seen: Seen = {
            "offsets": (header.base_offset, header.last_offset),
            "producer": (self.name_of(header.producer_id), header.producer_epoch),
            "sequence": header.base_sequence,
            "attributes": header.attributes,
            "size": len(batch.view),
        }
        if header.attributes & CONTROL:
            ((_, _, key, value, _),) = decode(batch.view)
            assert key is not None
            assert value is not None
            # The rest of the value is the coordinator's epoch.
            return seen | {"key": key.hex(), "version": value[:2].hex()}
        normal = bytearray(batch.view)
        normal[LENGTH_END : LENGTH_END + 4] = bytes(4)
        normal[17:21] = bytes(4)
        normal[43:51] = bytes(8)
        return seen | {"digest": hashlib.sha256(normal).hexdigest()[:16]}
