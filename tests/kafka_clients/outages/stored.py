"""What a node has in the writers' topics, with the producer that each record came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from streamlog.codec.batch import ScannedBatch, scan
from streamlog.codec.records import decode
from tests.kafka_clients.outages.clients import Place
from tests.kafka_clients.outages.programs.telling import PARTITIONS, name_of
from tests.kafka_clients.raw_client import RawClient, part, request

FETCH_VERSION = 12
FETCH_BYTES = 1 << 20


class StoredRecord(NamedTuple):
    value: str
    producer: tuple[int, int]
    """Its id and epoch."""


def stored_records(server: str, clients: Iterable[str]) -> Mapping[Place, StoredRecord]:
    """`server`: an address that speaks Kafka's protocol."""
    found: dict[Place, StoredRecord] = {}
    with RawClient(server) as client:
        for topic in (name for one in clients for name in (one, f"{one}-late")):
            for partition in range(PARTITIONS):
                for batch in _batches(client, topic, partition):
                    header = batch.header
                    producer = header.producer_id, header.producer_epoch
                    for offset, _, _, value, _ in decode(batch.view):
                        place = Place(topic, partition, offset)
                        found[place] = StoredRecord(name_of(value), producer)
    return found


def _batches(client: RawClient, topic: str, partition: int) -> Iterator[ScannedBatch]:
    offset = 0
    while True:
        place = part(
            "fetch",
            "FetchPartition",
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=FETCH_BYTES,
        )
        asked = part("fetch", "FetchTopic", topic=topic, partitions=[place])
        asking = request("fetch", topics=[asked], min_bytes=1, max_wait_ms=1000)
        (answer,) = client.call("fetch", FETCH_VERSION, asking).responses[0].partitions
        records = answer.records
        data = b"".join(records) if isinstance(records, list) else bytes(records or b"")
        batches = scan(data)
        for batch in batches:
            yield batch
            offset = batch.header.base_offset + batch.header.last_offset_delta + 1
        # An error that passes, such as a read that was throttled, comes without records.
        if not answer.error_code and offset >= answer.high_watermark:
            return
