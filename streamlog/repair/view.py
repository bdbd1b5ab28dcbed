"""A read-only view of the metadata at one revision: it registers no tenure and follows nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn

from prometheus_client import CollectorRegistry

from streamlog.errors import Conflict, Corrupt, ObjectNotFound
from streamlog.kvstore.interface import KVStore, StoredKeyValue, prefix_end
from streamlog.metadata.backoff import RetryPolicy
from streamlog.metadata.checkpoint.files import CheckpointReader
from streamlog.metadata.checkpoint.loader import Loader, MetadataState
from streamlog.metadata.compaction_interface import LiveObject
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import LiveRange, ObjectRow, StreamRow, Tenure
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.keys import checkpoint
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.keyspace import KeySpace, Tools
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.metrics import MetadataMetrics
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random

PAGE = 1000
RANGES_PAGE = 256
NOBODY = Tenure(0, 0)


class _Still(Follower):
    """A follower that stays at its revision."""

    async def replaced(self, put_at: int, error: ObjectNotFound) -> NoReturn:
        kv = await self._kv.get(checkpoint.key(self._prefix))
        if kv is not None and kv.mod_revision == put_at:
            raise Corrupt(
                f"the metadata names a checkpoint file that the store does not have: {error}",
                object_key=str(error.fields.get("object_key", "?")),
            ) from error
        raise Conflict(
            "a node wrote a checkpoint while the metadata was looked at; stop the nodes, or try "
            "again"
        )


class MetadataView:
    """Made by `load_view`."""

    def __init__(
        self, kv: KVStore, cluster_id: str, prefix: bytes, state: MetadataState, lookup: Lookup
    ) -> None:
        self.kv = kv
        self.cluster_id = cluster_id
        self.prefix = prefix
        self.state = state
        self.lookup = lookup

    @property
    def revision(self) -> int:
        return self.state.fold.revision

    @property
    def is_all_checkpointed(self) -> bool:
        """Whether nothing has changed since the checkpoint, so that its counts are exact."""
        return all(generation.is_empty for generation in self.state.fold.generations)

    @property
    def live_objects_count(self) -> int:
        """An estimate: objects that died since the last checkpoint still count."""
        added = sum(len(generation.objects) for generation in self.state.fold.generations)
        return self.state.live_objects + added

    def streams(self) -> list[StreamRow]:
        """All streams, by id."""
        fold = self.state.fold
        return [row for stream_id in fold.ids if (row := fold.row(stream_id)) is not None]

    async def ranges(self, row: StreamRow) -> AsyncIterator[list[LiveRange]]:
        """The stream's live ranges in pages, in order; missing ranges are left out.

        Errors: Corrupt, StoreUnavailable.
        """
        offset = row.start
        while offset < row.end:
            page = await self.lookup.locate(row.stream_id, offset, row.end, RANGES_PAGE)
            if not page:
                return
            yield page
            offset = page[-1].end

    async def live_objects(self) -> AsyncIterator[list[LiveObject]]:
        """All live objects, by id, in pages."""
        after = 0
        while True:
            page = await self.lookup.live_objects(after, PAGE)
            if not page:
                return
            yield page
            after = page[-1].row.object_id

    async def object(self, object_id: int) -> ObjectRow | None:
        return await self.lookup.object(object_id)

    async def keys(self, start: bytes, end: bytes | None = None) -> AsyncIterator[StoredKeyValue]:
        """Keys that begin with `start`, or those in [start, end), at the view's revision."""
        next_key, end = start, prefix_end(start) if end is None else end
        while True:
            page = await self.kv.range(next_key, end, limit=PAGE, revision=self.revision)
            for kv in page.kvs:
                yield kv
            if not page.more:
                return
            next_key = page.kvs[-1].key + b"\0"


async def load_view(
    kv: KVStore,
    store: ObjectStore,
    cluster_id: str,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
) -> MetadataView:
    """Errors: Corrupt, UnsupportedVersion, MetadataUnavailable, StoreUnavailable."""
    prefix, config = prefix_of(cluster_id), MetadataConfig()
    loader = Loader(kv, store, prefix, offload)
    state = await loader.load()
    keys = KeySpace(kv, prefix, RetryPolicy(config, clock, random))
    tools = Tools(config, clock, random, offload, MetadataMetrics(CollectorRegistry()))
    still = _Still(keys, loader, state, NOBODY, None, tools)
    lookup = Lookup(still, CheckpointReader(store, config.block_cache_bytes))
    return MetadataView(kv, cluster_id, prefix, state, lookup)
