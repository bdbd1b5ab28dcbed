"""Partitions whose streams share objects with others, and buckets in which objects are missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning.cleanable import log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.stream import Stream
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import list_bucket, read_footer
from streamlog.repair.findings import no_progress
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.logs.cleaning_conformance import COMPACT
from tests.repair.cluster import Cluster, append, partition
from tests.support.log_insides import streams_of

Runs = Mapping[int, tuple[int, int]]
"""Stream → first and last offset (exclusive) in one object."""
FIRST_BLOCK_BYTE = 40
"""A position in an object's first data block."""


@asynccontextmanager
async def a_log(
    cluster: Cluster, configs: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[AbstractLog, Sequence[Stream]]]:
    """Partition 0 of the topic `t`, and two streams that need all of their objects."""
    options = CreateStreamOptions(tags={})
    async with cluster.node(crash=True) as engine:
        await engine.logs.create_topic("t", 1, dict(configs or {}))
        create = engine.streams.create_and_open_stream
        log = await partition(engine, "t")
        yield log, [await create(options), await create(options)]


async def together(kept: Sequence[Stream], work: Coroutine[Any, Any, object]) -> None:
    """What the work appends shares an object with others: the first append goes out at once, and
    those that come meanwhile follow as one."""
    first, last = kept
    await asyncio.gather(append(first, b"1"), append(last, b"2", b"3"), append(first, b"4"), work)


def starts_of(log: AbstractLog) -> dict[int, int]:
    streams = streams_of(log)
    every = (streams.meta.stream, *streams.by_id.values())
    return {stream.stream_id: stream.start_offset for stream in every}


async def lose_checkpoints(cluster: Cluster) -> None:
    files = (await cluster.store.list("checkpoint/")).objects
    await cluster.store.delete([one.key for one in files])


async def keys_of(cluster: Cluster, is_meant: Callable[[Runs], bool]) -> list[str]:
    """The objects that are chosen by what they hold; there is at least one."""
    bucket = await list_bucket(cluster.store, no_progress)
    keys = []
    for object_id, size in zip(bucket.ids, bucket.sizes, strict=True):
        footer = await read_footer(cluster.store, cluster.offload, object_id, size)
        assert footer is not None
        if is_meant({stream_id: (start, end) for stream_id, _, start, end in footer.ranges}):
            keys.append(data_key(object_id))
    assert keys
    return keys


async def lose_objects(cluster: Cluster, is_lost: Callable[[Runs], bool]) -> None:
    """Deletes the objects that are chosen by what they hold; there is at least one."""
    await cluster.store.delete(await keys_of(cluster, is_lost))


async def damage_body(cluster: Cluster, is_meant: Callable[[Runs], bool]) -> tuple[str, bytes]:
    """Flips a bit of the one object's first block; its footer stays whole. The key, and what the
    object was before."""
    (key,) = await keys_of(cluster, is_meant)
    whole = bytes(await cluster.store.get(key))
    damaged = bytearray(whole)
    damaged[FIRST_BLOCK_BYTE] ^= 1
    await cluster.store.put(key, [damaged])
    return key, whole


async def lose_objects_of(cluster: Cluster, stream_id: int, offsets: Collection[int]) -> None:
    """Deletes the objects that hold nothing but the stream, from one of the offsets on."""
    await lose_objects(
        cluster, lambda runs: runs.keys() == {stream_id} and runs[stream_id][0] in offsets
    )


async def lose(cluster: Cluster, starts: Mapping[int, int]) -> None:
    """The metadata and all checkpoints; and what a collector had deleted by then: objects of which
    everything was trimmed."""
    await lose_checkpoints(cluster)
    await lose_objects(
        cluster,
        lambda runs: all(end <= starts.get(stream_id, 0) for stream_id, (_, end) in runs.items()),
    )
    cluster.lose_metadata()


async def cleaned(log: CleanableLog) -> None:
    """Cleans the whole log, except for its open segment."""
    offload, config = ThreadOffload(), parse(COMPACT)
    try:
        await log.set_clean_end_offset(0)
        await LogCleaning(offload, 1 << 20).clean(log_to_clean(log, config, 0), config, 0)
    finally:
        await offload.close()
