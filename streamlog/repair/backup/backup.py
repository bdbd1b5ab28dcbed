"""`backup`: the metadata's keys at one revision, as the bytes of a backup file, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator

from streamlog.engine.cluster import read_cluster_id
from streamlog.errors import Invalid
from streamlog.kvstore.interface import KVStore, StoredKeyValue, prefix_end
from streamlog.metadata.keys.space import prefix_of
from streamlog.repair.backup.file import (
    CHUNK_BYTES_TARGET,
    KEY,
    BackupHead,
    encode_end,
    encode_head,
    encode_keys,
)
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Lane, Offload

PAGE = 256
ON_LEASES = (b"l/", b"p/")


async def backup(kv: KVStore, *, clock: Clock, offload: Offload) -> AsyncIterator[bytes]:
    """The pieces of the file, which is valid only when it is complete. Nodes may run meanwhile.

    Errors: Invalid (there is no cluster), RevisionCompacted (it took too long: begin again),
    MetadataUnavailable.
    """
    cluster_id = await read_cluster_id(kv)
    if cluster_id is None:
        raise Invalid("the metadata store is empty: there is nothing to back up")
    revision = await kv.revision()
    yield encode_head(BackupHead(cluster_id, revision, clock.now_ms()))
    part: list[StoredKeyValue] = []
    size = 0
    async for pair in _keys(kv, prefix_of(cluster_id), revision):
        bytes_more = KEY.size + len(pair.key) + len(pair.value)
        if part and size + bytes_more > CHUNK_BYTES_TARGET:
            yield await offload.run(Lane.CPU, encode_keys, part)
            part, size = [], 0
        part.append(pair)
        size += bytes_more
    if part:
        yield await offload.run(Lane.CPU, encode_keys, part)
    yield encode_end()


async def _keys(kv: KVStore, prefix: bytes, revision: int) -> AsyncIterator[StoredKeyValue]:
    start, end = prefix, prefix_end(prefix)
    while True:
        page = await kv.range(start, end, limit=PAGE, revision=revision)
        for pair in page.kvs:
            key = pair.key[len(prefix) :]
            if not key.startswith(ON_LEASES):
                yield StoredKeyValue(key, pair.value, pair.create_revision, pair.mod_revision)
        if not page.more:
            return
        start = page.kvs[-1].key + b"\0"
