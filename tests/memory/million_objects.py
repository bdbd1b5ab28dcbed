"""A million objects and 10,000 streams in the metadata: look-ups, appends, checkpoints, a new base,
and the compactor's look at all of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
from pathlib import Path

import streamlog
from streamlog.compaction.plan.catalog import Catalog
from streamlog.engine.cluster import ensure_cluster_id
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.metadata.interface import CommitEntry, TrimEntry
from streamlog.model.batch import OpenStreamOptions, RecordBatch
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from tests.memory.process import CONFIG, tell
from tests.support.metadata_filler import RECORDS_PER_RANGE, fill_metadata

OBJECTS = 1_000_000
STREAMS = 10_000
LOOK_UPS = 300
APPENDS = 200
TRIMMED = 250
"""Streams of which so much is trimmed that the checkpoint makes a new base."""


async def fill(folder: str) -> None:
    """In a process of its own: what is measured is the node that opens it."""
    offload, clock = ThreadOffload(), SystemClock()
    store = await LocalObjectStore.open(folder, offload, clock)
    kv = await RocksKVStore.open(Path(folder) / "meta", clock, offload)
    cluster = await ensure_cluster_id(kv, store, SystemRandom())
    await fill_metadata(kv, store, cluster_id=cluster, node_id=1, objects=OBJECTS, streams=STREAMS)
    await kv.close()
    await store.close()
    await offload.close()


async def use(folder: str) -> None:
    random_ = random.Random(1)
    # The objects' data is not there: what would read it stays off, what lists it is called here.
    compaction = dataclasses.replace(CONFIG.compaction, compaction_process="off")
    merging = dataclasses.replace(CONFIG.metadata, delta_percent=1)
    config = dataclasses.replace(CONFIG, compaction=compaction, metadata=merging)
    async with streamlog.open(f"local://{folder}", wal="object", config=config) as engine:
        metadata = engine.metadata
        ids = [row.stream_id for row in metadata.streams(limit=STREAMS)]
        assert len(ids) == STREAMS
        for stream_id in random_.sample(ids, LOOK_UPS):
            row = metadata.stream(stream_id)
            assert row is not None
            at = random_.randrange(row.end)
            (found,) = await metadata.locate(stream_id, at, at + 1)
            assert found.start <= at < found.end
        for stream_id in ids[:APPENDS]:
            stream = await engine.streams.open_stream(stream_id, OpenStreamOptions())
            await stream.append(RecordBatch(1, 0, (b"x" * 100,)))
        offload = ThreadOffload()
        catalog = Catalog(metadata, engine.store, offload, CONFIG.compaction)
        told = len(await catalog.look())
        base = metadata.object_files().base
        await metadata.checkpoint()
        assert metadata.object_files().base == base
        trims = []
        for stream_id in ids[APPENDS : APPENDS + TRIMMED]:
            row = metadata.stream(stream_id)
            assert row is not None
            trims.append(TrimEntry(stream_id, row.epoch, row.end - RECORDS_PER_RANGE))
        await metadata.commit(CommitEntry(trims=trims))
        await metadata.checkpoint()
        assert metadata.object_files().base != base
        await catalog.look()
        backlog = sum(catalog.backlog.values())
        assert backlog == metadata.object_count
        written = await engine.store.head(metadata.object_files().base)
        facts = {
            "objects": metadata.object_count,
            "told": told,
            "backlog": backlog,
            "base_bytes": written.size_bytes,
        }
        await offload.close()
    tell(facts)


if __name__ == "__main__":
    asyncio.run({"fill": fill, "use": use}[sys.argv[1]](sys.argv[2]))
