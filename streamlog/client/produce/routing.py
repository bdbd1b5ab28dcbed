"""Sorts the records of one call by partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamlog.client.produce.accumulator import PartitionQueue, TopicQueues
from streamlog.client.produce.partitioner import Partitioner, partitions_for_keys
from streamlog.errors import UnknownTopicOrPartition
from streamlog.runtime.buffers import Buffer

Column = Sequence[Buffer | None]


class PartitionRecords(NamedTuple):
    """The records of a list that go to one partition. `places`: their indexes in the list."""

    partition: int | None
    places: Sequence[int]
    values: Column
    keys: Column | None


def checked_partition(queues: TopicQueues, partition: int) -> int:
    """Errors: UnknownTopicOrPartition."""
    if not 0 <= partition < len(queues.queues):
        raise UnknownTopicOrPartition(
            f"{queues.name} has partitions 0 to {len(queues.queues) - 1}, not {partition}",
            topic=queues.name,
            partition=partition,
        )
    return partition


def queue_for(queues: TopicQueues, partition: int | None) -> PartitionQueue:
    """The partition's queue; None: that of the sticky one. Errors: UnknownTopicOrPartition."""
    if partition is None:
        return queues.sticky
    return queues.queues[checked_partition(queues, partition)]


def grouped(
    queues: TopicQueues,
    values: Column,
    keys: Column | None,
    partition: int | None,
    choose: Partitioner | None,
) -> tuple[list[int] | None, list[PartitionRecords]]:
    """A send_many's records by partition, and the partition of each, None where all go together."""
    if partition is None and (keys is not None or choose is not None):
        return _by_partition(queues, values, keys, choose)
    return None, [PartitionRecords(partition, range(len(values)), values, keys)]


def _by_partition(
    queues: TopicQueues, values: Column, keys: Column | None, choose: Partitioner | None
) -> tuple[list[int], list[PartitionRecords]]:
    """The partition of each record, and each partition's records in the order given."""
    partitions = _partitions_of(queues, len(values), keys, choose)
    places: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        indexes = places.get(partition)
        if indexes is None:
            places[partition] = [index]
        else:
            indexes.append(index)
    groups = [
        PartitionRecords(
            partition,
            indexes,
            [values[index] for index in indexes],
            None if keys is None else [keys[index] for index in indexes],
        )
        for partition, indexes in places.items()
    ]
    return partitions, groups


def _partitions_of(
    queues: TopicQueues, total: int, keys: Column | None, choose: Partitioner | None
) -> list[int]:
    count = len(queues.queues)
    column: Column = [None] * total if keys is None else keys
    if choose is not None:
        return [checked_partition(queues, choose(queues.name, key, count)) for key in column]
    sticky = queues.sticky.partition
    return partitions_for_keys(column, count, sticky)
