"""Plans a read of all streams of a store with a million objects, and says what that took."""

from __future__ import annotations

import asyncio
import json
import pickle
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from streamlog.engine.cluster import ensure_cluster_id
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.metadata.lookup.locating import LocateSection
from streamlog.model.located import OffsetWindow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.reading.locating import located_in
from streamlog.repair.view import load_view
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.plan.planning import plan_store
from tests.support.metadata_filler import OBJECT_BYTES, RANGES_PER_OBJECT, fill_metadata

STREAMS = 10_000
MAX_BYTES = 128 << 20


async def fill(folder: str, objects: int) -> None:
    """In a process of its own: what is measured is the one that plans."""
    offload, clock = ThreadOffload(), SystemClock()
    store = await LocalObjectStore.open(folder, offload, clock)
    kv = await RocksKVStore.open(Path(folder) / "meta", clock, offload)
    cluster = await ensure_cluster_id(kv, store, SystemRandom())
    await fill_metadata(kv, store, cluster_id=cluster, node_id=1, objects=objects, streams=STREAMS)
    await kv.close()
    await store.close()
    await offload.close()


class Counted:
    """A store, and how often each of its calls was made."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if callable(found):
            self.calls[name] += 1
        return found


async def plan(folder: str, objects: int) -> None:
    offload, clock, random = ThreadOffload(), SystemClock(), SystemRandom()
    store = Counted(await LocalObjectStore.open(folder, offload, clock))
    kv = await RocksKVStore.open(Path(folder) / "meta", clock, offload)
    cluster = await ensure_cluster_id(kv, store, random)
    store.calls.clear()
    before = _rss_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    view = await load_view(kv, store, cluster, clock=clock, random=random, offload=offload)
    windows: list[OffsetWindow] = []
    sections: list[LocateSection] = []
    size = OBJECT_BYTES // RANGES_PER_OBJECT
    for row in view.streams():
        ranges = (row.end - row.start) // 10
        sections.append(
            LocateSection(len(windows), row.stream_id, 0, row.start, row.end, ranges * size)
        )
        windows.append(OffsetWindow("t", len(windows), row.start, row.end))
    located = await located_in(view, sections)
    told = time.perf_counter()
    planned = plan_store(windows, located, max_bytes=MAX_BYTES, min_tasks=None, has_node=False)
    pickled = sum(len(pickle.dumps(task, 5)) for task in planned.tasks)
    facts = {
        "seconds": time.perf_counter() - began,
        "locating_s": told - began,
        "cpu_s": time.process_time() - cpu,
        "memory_bytes": _rss_bytes() - before,
        "objects": len(set(located.objects.ids)),
        "ranges": sum(len(piece.ends) for task in planned.tasks for piece in task.pieces),  # type: ignore[misc, union-attr]
        "tasks": len(planned.tasks),
        "pickled_bytes": pickled,
        "records": planned.store_records,
        "store_calls": dict(store.calls),
    }
    print(json.dumps(facts))
    await kv.close()
    await store.close()
    await offload.close()


def _rss_bytes() -> int:
    """The highest so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    asyncio.run({"fill": fill, "plan": plan}[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
