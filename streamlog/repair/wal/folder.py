"""A WAL folder beside the metadata: what of it is stored, and how the rest is brought there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.engine.cluster import read_cluster_id
from streamlog.engine.config import StreamEngineConfig
from streamlog.engine.replay.after_recovery import ReplayDecision, WalExtent, decide, may_be_unknown
from streamlog.engine.replay.recovery import may_replay
from streamlog.errors import Conflict, Corrupt, DataInUse, ForeignCluster, Invalid
from streamlog.kvstore.interface import KVStore
from streamlog.metadata.checkpoint.loader import Loader
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.interface import Recovery, Tenure
from streamlog.metadata.keys import lease, node
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.open import read_recovery
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.disk.lockfile import check_free
from streamlog.runtime.disk.read_only_disk import ReadOnlyDisk
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wal.inspection import SeenEntry, WalContent, inspect
from streamlog.wiring import (
    WAL_LOCK_NAME,
    Components,
    check_is_there,
    is_shared,
    open_metadata_store,
    open_object_store,
)

MIB = 1 << 20
PROGRESS_S = 0.5
STORED, PENDING, ELSEWHERE, GONE = "stored", "pending", "elsewhere", "gone"


@dataclass(frozen=True, slots=True)
class ClusterUrls:
    """Store and metadata of a cluster, as URLs."""

    store: str
    meta: str | None


@dataclass(frozen=True, slots=True)
class StreamShare:
    """Neighbouring appends of one stream that are in the same state; bytes of payloads.

    stored: committed as well. pending: acknowledged, and only in this log; a start with the log, or
    an upload, commits them. elsewhere: another node took the stream and continued without them.
    gone: the stream does not exist. Empty: not known.
    """

    stream_id: int
    epoch: int
    start_offset: int
    end_offset: int
    appends: int
    size_bytes: int
    state: str


@dataclass(frozen=True, slots=True)
class Seen:
    """`in_use`: the process that holds the folder; empty: none does."""

    content: WalContent
    in_use: str
    streams: list[StreamShare]


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The appends that were uploaded.

    `left`: streams that another node took meanwhile, whose appends were left out. `given_up`:
    streams with readable appends that have no place, if the loss was accepted.
    """

    node_id: int
    appends: int
    size_bytes: int
    streams: int
    left: tuple[int, ...]
    given_up: tuple[int, ...] = ()


async def look(folder: Path, urls: ClusterUrls | None, config: StreamEngineConfig) -> Seen:
    """Errors: Invalid, ForeignCluster, DataInUse (the metadata store), UnsupportedVersion, OSError,
    Unavailable.
    """
    offload = ThreadOffload()
    try:
        content = await offload.run(Lane.WAL, _inspected, folder)
        fold, recovery = None, None
        if urls is not None:
            async with _metadata(urls, offload) as (kv, cluster_id):
                _check_cluster(content, cluster_id, urls)
                fold = await _fold(kv, cluster_id, urls, config, offload)
                recovery = await _recovery(kv, cluster_id)
    finally:
        await offload.close()
    return Seen(content, _user(folder), shares(content, fold, recovery))


async def upload(
    folder: Path,
    urls: ClusterUrls,
    config: StreamEngineConfig,
    say: Callable[[str], None],
    *,
    force: bool = False,
) -> Uploaded:
    """Commits all acknowledged appends of the folder; then any node can open the streams.

    `force`: even if another process runs as the node, which is fenced. A damaged folder is uploaded
    by the rules of a start: only if `config` accepts the loss.

    Errors: Invalid (no WAL, or several nodes'), Corrupt, DataInUse (the folder's node runs),
    Conflict (the node runs elsewhere), ForeignCluster, OSError, Unavailable.
    """
    accept_data_loss = config.wal.accept_data_loss
    offload = ThreadOffload()
    try:
        check_free(str(folder / WAL_LOCK_NAME))
        content = await offload.run(Lane.WAL, _inspected, folder)
        if content.damage and not accept_data_loss:
            raise _damaged(folder, content)
        if len(content.node_ids) != 1:
            names = ", ".join(map(str, sorted(content.node_ids))) or "no node"
            raise Invalid(
                f"{folder} holds acknowledged appends of {names}; a folder is uploaded for one "
                "node: give the folder of a write-ahead log"
            )
        async with _metadata(urls, offload) as (kv, cluster_id):
            _check_cluster(content, cluster_id, urls)
            (node_id,) = content.node_ids
            if cluster_id is not None and not force and is_shared(urls.meta, urls.store):
                await check_away(kv, cluster_id, node_id)
            fold = await _fold(kv, cluster_id, urls, config, offload)
            recovery = await _recovery(kv, cluster_id)
    finally:
        await offload.close()
    for damage in content.damage:
        say(f"… given up: {damage.file}, bytes {damage.start} to {damage.end}: {damage.what}")
    states = shares(content, fold, recovery)
    pending = [append for append in states if append.state == PENDING]
    size_bytes = sum(append.size_bytes for append in pending)
    say(f"… uploading {_appends(pending)} appends of node {node_id}, {size_bytes / MIB:.1f} MiB")
    await _drain(folder, urls, node_id, config, say)
    after = _inspected(folder)
    if after.entries:
        raise Corrupt(f"{len(after.entries)} appends in {folder} were not uploaded")
    done, lost = pending, list[StreamShare]()
    if accept_data_loss:
        # The appends behind a hole were given up; only the metadata tells from which offset on.
        done, lost = await _outcome(content, pending, urls, config)
    return Uploaded(
        node_id,
        _appends(done),
        sum(append.size_bytes for append in done),
        len({append.stream_id for append in done}),
        _streams(append for append in states if append.state in (ELSEWHERE, GONE)),
        _streams(lost),
    )


async def _outcome(
    content: WalContent,
    pending: Sequence[StreamShare],
    urls: ClusterUrls,
    config: StreamEngineConfig,
) -> tuple[list[StreamShare], list[StreamShare]]:
    """The appends that were pending: those that the metadata has now, and those that it lacks."""
    offload = ThreadOffload()
    try:
        async with _metadata(urls, offload) as (kv, cluster_id):
            fold = await _fold(kv, cluster_id, urls, config, offload)
    finally:
        await offload.close()
    first: dict[tuple[int, int], int] = {}
    for share in pending:
        first.setdefault((share.stream_id, share.epoch), share.start_offset)
    were_pending = [
        entry
        for entry in content.entries
        if entry.base_offset >= first.get((entry.stream_id, entry.epoch), entry.end_offset)
    ]
    states = shares(replace(content, entries=were_pending), fold)
    return (
        [share for share in states if share.state == STORED],
        [share for share in states if share.state != STORED],
    )


def _appends(stream_shares: Iterable[StreamShare]) -> int:
    return sum(share.appends for share in stream_shares)


def _streams(stream_shares: Iterable[StreamShare]) -> tuple[int, ...]:
    return tuple(sorted({share.stream_id for share in stream_shares}))


async def check_away(kv: KVStore, cluster_id: str, node_id: int) -> None:
    """Checks that no process runs as the node: the upload would fence it. Errors: Conflict."""
    prefix = prefix_of(cluster_id)
    stored = await kv.get(node.key(prefix, node_id))
    if stored is None:
        return
    current = node.decode(stored.value)
    tenure = Tenure(node_id, current.node_epoch)
    if await kv.get(lease.key(prefix, tenure)) is None:
        return
    where = f" at {current.address}" if current.address else ""
    raise Conflict(
        f"node {node_id} seems to run{where}: its tenure {tenure} keeps its lease alive, and an "
        "upload would fence it. Stop it first, or start it with this folder; if it has just died, "
        "try again when its lease has ended, or use --force",
        holder=str(tenure),
    )


async def _drain(
    folder: Path,
    urls: ClusterUrls,
    node_id: int,
    config: StreamEngineConfig,
    say: Callable[[str], None],
) -> None:
    registry = CollectorRegistry()

    async def report() -> None:
        told = None
        while True:
            left = registry.get_sample_value("streamlog_wal_live_bytes")
            if left is not None and left != told:
                say(f"… {left / MIB:.1f} MiB of the log left")
                told = left
            await asyncio.sleep(PROGRESS_S)

    reporter = asyncio.create_task(report())
    try:
        async with streamlog.open(
            urls.store,
            meta=urls.meta,
            wal="object",
            wal_dir=folder,
            node_id=node_id,
            config=config,
            components=Components(registry=registry),
            upkeep=False,
        ) as engine:
            await engine.drain()
    finally:
        reporter.cancel()


def shares(
    content: WalContent, fold: Fold | None, recovery: Recovery | None = None
) -> list[StreamShare]:
    """The shares of each stream, in the order of offsets."""
    result: list[StreamShare] = []
    extents = _extents(content, recovery)
    for entry in sorted(content.entries, key=lambda e: (e.stream_id, e.base_offset, e.sequence)):
        state = _state(entry, content, fold, extents.get(entry.stream_id), recovery)
        last = result[-1] if result else None
        if (
            last is not None
            and (last.stream_id, last.epoch, last.state) == (entry.stream_id, entry.epoch, state)
            and last.end_offset == entry.base_offset
        ):
            result[-1] = StreamShare(
                last.stream_id,
                last.epoch,
                last.start_offset,
                entry.end_offset,
                last.appends + 1,
                last.size_bytes + entry.size_bytes,
                state,
            )
        else:
            result.append(
                StreamShare(
                    entry.stream_id,
                    entry.epoch,
                    entry.base_offset,
                    entry.end_offset,
                    1,
                    entry.size_bytes,
                    state,
                )
            )
    return result


def _extents(content: WalContent, recovery: Recovery | None) -> dict[int, WalExtent]:
    """Appends that rebuilt metadata may not know, by stream."""
    extents: dict[int, WalExtent] = {}
    named = content.identity.tenures if content.identity is not None else frozenset()
    for entry in content.entries:
        if may_be_unknown(recovery, entry.tenure, named):
            added = entry.base_offset, entry.end_offset, entry.epoch
            extents.setdefault(entry.stream_id, WalExtent(*added)).add(*added)
    return extents


def _state(
    entry: SeenEntry,
    content: WalContent,
    fold: Fold | None,
    extent: WalExtent | None,
    recovery: Recovery | None,
) -> str:
    if fold is None:
        return ""
    row = fold.row(entry.stream_id)
    tenures = content.identity.tenures if content.identity is not None else frozenset()
    is_held = row is not None and (
        row.holder == entry.tenure or may_replay(row.holder, entry.tenure, tenures)
    )
    if extent is not None and recovery is not None:
        decision = decide(extent, row, recovery, is_held=is_held)
        if decision is ReplayDecision.DISPLACED:
            return ELSEWHERE
        is_held = decision in (ReplayDecision.CREATE, ReplayDecision.OPEN, ReplayDecision.REPLAY)
    if row is not None and entry.end_offset <= row.end:
        return STORED
    if is_held:
        return PENDING
    return GONE if row is None else ELSEWHERE


async def _recovery(kv: KVStore, cluster_id: str | None) -> Recovery | None:
    return None if cluster_id is None else await read_recovery(kv, prefix_of(cluster_id))


def _inspected(folder: Path) -> WalContent:
    return inspect(ReadOnlyDisk(folder))


def _user(folder: Path) -> str:
    try:
        check_free(str(folder / WAL_LOCK_NAME))
    except DataInUse as error:
        return f"process {error.pid} on {error.host}"
    return ""


def _damaged(folder: Path, content: WalContent) -> Corrupt:
    first = content.damage[0]
    return Corrupt(
        f"{folder}: {first.what}; nothing was uploaded. `streamlog wal show {folder}` lists what "
        "can be read; restore the folder from a copy. Without one, keep what is there, and "
        "--set engine.wal.accept_data_loss=true gives up what is missing, and of each stream that "
        "it belonged to what came after it",
        object_key=first.file,
        start=first.start,
        end=first.end,
    )


@asynccontextmanager
async def _metadata(
    urls: ClusterUrls, offload: ThreadOffload
) -> AsyncIterator[tuple[KVStore, str | None]]:
    await check_is_there(urls.store, offload)
    kv = await open_metadata_store(
        urls.meta, urls.store, SystemClock(), offload, if_absent="refuse"
    )
    try:
        yield kv, await read_cluster_id(kv)
    finally:
        await kv.close()


def _check_cluster(content: WalContent, cluster_id: str | None, urls: ClusterUrls) -> None:
    if content.identity is None or content.identity.cluster_id == cluster_id:
        return
    raise ForeignCluster(
        f"the write-ahead log belongs to cluster {content.identity.cluster_id}, the metadata of "
        f"{urls.store} {'to ' + cluster_id if cluster_id else 'is empty'}; give the store and "
        "the metadata of the log's cluster",
        store_cluster=content.identity.cluster_id,
        meta_cluster=cluster_id or "",
    )


async def _fold(
    kv: KVStore,
    cluster_id: str | None,
    urls: ClusterUrls,
    config: StreamEngineConfig,
    offload: ThreadOffload,
) -> Fold:
    if cluster_id is None:
        return Fold()
    store = await open_object_store(
        urls.store, config, SystemClock(), SystemRandom(), offload, CollectorRegistry()
    )
    try:
        return (await Loader(kv, store, prefix_of(cluster_id), offload).load()).fold
    finally:
        await store.close()


def groups_of(entries: Sequence[SeenEntry]) -> int:
    return len({entry.sequence for entry in entries})
