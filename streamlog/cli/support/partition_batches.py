"""A partition's record batches, from a node or from the data of a stopped one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from streamlog.cli.records.record_copy import TopicPartition, batches_until, out_of_range
from streamlog.cli.remote import admin, consumer
from streamlog.cli.state import State
from streamlog.client.consume.stored_batches import StoredBatchesConsumer
from streamlog.errors import UnknownTopicOrPartition

if TYPE_CHECKING:
    from streamlog.cli.support.offline import DataLocations
    from streamlog.runtime.buffers import Buffer


class PartitionBatches(NamedTuple):
    """`pieces` hold whole batches, in order, from the one that contains offset `first` on."""

    first: int
    pieces: Iterator[Buffer]


@contextmanager
def batches_of_node(
    state: State, topic: str, partition: int, start: int | None
) -> Iterator[PartitionBatches]:
    """Up to the partition's end now, markers of transactions included.

    Errors: UsageError where there is no such partition; OffsetOutOfRange where it ends before
    `start`, and from the pieces where batches are deleted before they are read, since what follows
    would hide the gap.
    """
    tp = (topic, partition)
    with admin(state) as client:
        _check(topic, partition, len(client.describe_topic(topic).partitions))
    with consumer(state, auto_offset_reset="none", kind=StoredBatchesConsumer) as client:
        client.assign([tp])
        begin = client.beginning_offsets([tp])[tp]
        end = client.end_offsets([tp])[tp]
        first = _first(tp, start, begin, end)
        client.seek(topic, partition, first)
        fetched = batches_until(client, {tp: end}, state.timeout_s)
        yield PartitionBatches(first, (batch.data for batch in fetched))


@contextmanager
def batches_of_files(
    locations: DataLocations, topic: str, partition: int, start: int | None
) -> Iterator[PartitionBatches]:
    """As of a node, from the objects; no node may run on the data meanwhile.

    Errors: DataInUse, WalPending, Corrupt, Unavailable; UsageError, UnknownTopicOrPartition;
    OffsetOutOfRange where the partition ends before `start`.
    """
    from streamlog.reading.offline import open_offline

    tp = (topic, partition)
    with asyncio.Runner() as runner:
        opened = runner.run(open_offline(locations.store, locations.meta, checks_wal=True))
        try:
            topic_record = runner.run(opened.topics()).get(topic)
            if topic_record is None:
                raise UnknownTopicOrPartition(f"there is no topic {topic}", topic=topic)
            _check(topic, partition, topic_record.partitions)
            offsets = runner.run(opened.partitions([tp]))[tp]
            first = _first(tp, start, offsets.start, offsets.end)
            batches = opened.batches(tp, first, sys.maxsize)

            async def following() -> Buffer | None:
                return await anext(batches, None)

            yield PartitionBatches(first, iter(lambda: runner.run(following()), None))
        finally:
            runner.run(opened.close())


def _first(tp: TopicPartition, start: int | None, begin: int, end: int) -> int:
    """Below the log's start lies nothing that could be missed; a `start` behind the end is wrong,
    and a segment of that name would say that the log begins there. Errors: OffsetOutOfRange."""
    if start is None or start <= begin:
        return begin
    if start > end:
        raise out_of_range(tp, start, begin, end)
    return start


def _check(topic: str, partition: int, partitions: int) -> None:
    if partition >= partitions:
        raise click.UsageError(f"{topic} has partitions 0 to {partitions - 1}, not {partition}")
