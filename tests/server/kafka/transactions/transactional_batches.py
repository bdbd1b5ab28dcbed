"""Batches of transactional producers, and where they come to lie."""

from __future__ import annotations

from streamlog.codec.batch import TRANSACTIONAL, BatchProducer, resealed
from streamlog.codec.records import encode_values
from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.model.partition import TopicPartition
from tests.server.kafka.handlers.produce_world import ProduceWorld

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def begun(world: ProduceWorld, tx: str = "tx") -> ProducerIdAndEpoch:
    return await world.coordinator.init_producer_id(tx, 60_000)


def batch_of(producer: ProducerIdAndEpoch, sequence: int = 0, value: bytes = b"v") -> bytes:
    """A transactional batch of one record."""
    made = bytearray(
        encode_values([value], timestamp_ms=1000, producer=BatchProducer(*producer, sequence)).data
    )
    made[22] |= TRANSACTIONAL
    return bytes(resealed(made))


async def ends(world: ProduceWorld) -> list[int]:
    return [int((await world.logs.log(one)).log_end_offset) for one in (P0, P1)]
