"""Writes checkpoints: stores the files, then replaces the checkpoint pointer in one transaction.

1. Freeze a generation. Build the delta (and base) from the files of the last checkpoint. PUT them
   under new names.
2. In one transaction: compare the checkpoint pointer as read and the own fence as LIVE, at any gen
   (a transfer changes nothing that was folded); put the new pointer; delete the covered records and
   transfer records of each tenure. Every attempt uses new names, so that the pointer never returns
   to an old value and a refusal is final.
3. Applied: drop the frozen generation and the old files, and compact the KV history at the revision
   of the previous checkpoint, so that followers have a whole interval to read it.
4. After a definite answer, delete own files that the pointer, read again, does not name.
5. Files of sealed tenures: LIST, then read the fences, then the pointer. Delete files of a sealed
   (or absent) tenure that the pointer does not name. The order matters: docs/protocol.md, 7.
6. After files were listed and before they are deleted, compare the store's lineage. A recovery for
   the same bucket stores its files after it has raised the lineage, so a sweep that saw the older
   lineage has none of these files in its list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from streamlog.errors import (
    MetadataUnavailable,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StreamlogError,
    TenureFenced,
)
from streamlog.kvstore.interface import (
    OPERATIONS_MAX,
    Compare,
    Delete,
    Get,
    Operation,
    Put,
    RevisionIs,
    StoredKeyValue,
    prefix_end,
)
from streamlog.metadata.backoff import is_transient
from streamlog.metadata.checkpoint.build import (
    BuiltCheckpoint,
    BuiltFile,
    FoldSnapshot,
    build_checkpoint,
    take_snapshot,
)
from streamlog.metadata.checkpoint.files import CheckpointReader, LevelFile, Levels
from streamlog.metadata.checkpoint.loader import MetadataState
from streamlog.metadata.checkpoint.trailer import encode_trailer
from streamlog.metadata.fold.fold import NEW_MARK
from streamlog.metadata.fold.generation import make_one
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.keys import checkpoint, fence, record, transfer
from streamlog.metadata.keys.checkpoint import CheckpointPointer, FileRef
from streamlog.metadata.keys.space import cluster_of, tenure_in
from streamlog.metadata.keyspace import KeySpace, Tools
from streamlog.objectstore.cluster.lineage import LineageCheck
from streamlog.objectstore.errors import refusals_as_unavailable
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class _Attempt:
    state: MetadataState
    snapshot: FoldSnapshot
    built: BuiltCheckpoint
    checkpoint: CheckpointPointer
    deletes: list[Operation]
    """For each tenure, its covered records and its covered transfer records, where it has any."""


class Checkpointer:
    """Writes this node's checkpoints, in a loop and on request, and deletes unused files."""

    def __init__(
        self,
        keys: KeySpace,
        store: ObjectStore,
        follower: Follower,
        reader: CheckpointReader,
        lineage: LineageCheck,
        tools: Tools,
    ) -> None:
        self._kv = keys.kv
        self._prefix = keys.prefix
        self._retry = keys.retry
        self._store = store
        self._follower = follower
        self._reader = reader
        self._config = tools.config
        self._clock = tools.clock
        self._random = tools.random
        self._offload = tools.offload
        self._metrics = tools.metrics
        self._lineage = lineage
        self._lock = asyncio.Lock()
        self._number = 0
        self._own_files: set[str] = set()
        self._last = self._clock.monotonic()
        self._failure = ""
        self._next_sweep = self._last

    # the loop

    async def run(self) -> None:
        """Runs until cancelled or sealed. Errors: Corrupt, Internal."""
        news, backoff = self._follower.news, self._retry.endless()
        while not self._follower.is_sealed:
            while not self._has_news:
                news.clear()
                await news.wait()
                if self._follower.is_sealed:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._left_s()):
                    while not self._is_full:
                        news.clear()
                        await news.wait()
            try:
                await self.checkpoint()
                await self._sweep_when_due()
                backoff, self._failure = self._retry.endless(), ""
            except TenureFenced:
                return
            except StreamlogError as error:
                if not is_transient(error):
                    raise
                self._failure = f": {error}"
                log.warning("no checkpoint was written: %s", error, extra={"error": str(error)})
                await backoff.wait()

    def progress(self, stalled_after_s: float) -> Due | None:
        """A checkpoint is due one interval after the last one, if something was folded since."""
        if not self._has_news or self._follower.is_sealed:
            return None
        after_s = stalled_after_s + self._config.checkpoint_interval_ms / 1000
        mark = (self._last, self._follower.state.checkpoint_revision)
        return Due(mark, "a checkpoint of the metadata" + self._failure, after_s)

    def _left_s(self) -> float:
        """Seconds to the next checkpoint, with jitter, so that not all nodes write it at once."""
        interval_s = (
            self._config.checkpoint_interval_ms / 1000 * (0.8 + 0.2 * self._random.random())
        )
        return max(self._last + interval_s - self._clock.monotonic(), 0.001)

    @property
    def _has_news(self) -> bool:
        return any(not g.is_empty for g in self._follower.state.fold.generations)

    @property
    def _is_full(self) -> bool:
        generations, config = self._follower.state.fold.generations, self._config
        return (
            sum(g.records for g in generations) >= config.checkpoint_records
            or sum(g.bytes for g in generations) >= config.checkpoint_record_bytes
            or sum(g.rows for g in generations) >= config.checkpoint_rows
        )

    # one checkpoint

    async def checkpoint(self) -> None:
        """Returns when a checkpoint, of this or another node, covers all that is folded now.

        Errors: StoreUnavailable, MetadataUnavailable, TenureFenced: the old checkpoint stays.
        """
        async with self._lock:
            began, revision = self._clock.monotonic(), self._follower.revision
            for _ in range(ATTEMPTS_MAX):
                covered = self._follower.state.levels.revision
                if covered >= revision or not self._has_news:
                    return
                if await self._attempt():
                    self._last = self._clock.monotonic()
                    self._metrics.checkpoint_seconds.observe(self._last - began)
                    return
            raise MetadataUnavailable(
                f"a checkpoint was overtaken {ATTEMPTS_MAX} times; the newest one stays"
            )

    async def _attempt(self) -> bool:
        """Writes one checkpoint; False: it was refused and will never be applied."""
        async with self._follower.lock:
            state = self._follower.state
            snapshot = take_snapshot(state.fold)
        try:
            attempt = await self._write(state, snapshot)
            put_at = await self._name(attempt)
        except ObjectNotFound as error:
            await self._unfreeze(state)
            await self._follower.replaced(state.checkpoint_revision, error)
            return False
        except BaseException:
            self._metrics.checkpoints.labels("failed").inc()
            await self._unfreeze(state)
            raise
        if put_at is None:
            self._metrics.checkpoints.labels("refused").inc()
            await self._unfreeze(state)
        else:
            self._metrics.checkpoints.labels("installed").inc()
            self._metrics.checkpoint_time.set(self._clock.now_ms() / 1000)
            await self._install(attempt, put_at)
            await self._delete_covered(attempt)
        await self._delete_own_files()
        return put_at is not None

    async def _write(self, state: MetadataState, snapshot: FoldSnapshot) -> _Attempt:
        built = await build_checkpoint(
            snapshot,
            state.levels,
            dict(state.dead),
            set(state.cut_streams),
            state.base_dead_ranges,
            state.live_objects,
            now_ms=self._clock.now_ms(),
            reader=self._reader,
            offload=self._offload,
            config=self._config,
        )
        base = state.levels.base.ref if state.levels.base is not None else None
        if built.base is not None:
            base = await self._put(built.base)
        named = CheckpointPointer(
            snapshot.revision, snapshot.marks, self._name_of(built.delta), base
        )
        await self._put_delta(built.delta, named)
        return _Attempt(state, snapshot, built, named, self._deletes(state, named))

    async def _put(self, file: BuiltFile) -> FileRef:
        ref = self._name_of(file)
        await self._ask(self._store.put(ref.name, file.parts))
        self._metrics.checkpoint_bytes.inc(file.size_bytes)
        return ref

    async def _put_delta(self, file: BuiltFile, named: CheckpointPointer) -> None:
        """Stores the delta with its trailer, for a recovery without the metadata store."""
        assert named.delta is not None
        trailer = encode_trailer(named, cluster_of(self._prefix))
        await self._ask(self._store.put(named.delta.name, [*file.parts, trailer]))
        self._metrics.checkpoint_bytes.inc(file.size_bytes + len(trailer))

    async def _ask(self, work: Awaitable[T]) -> T:
        """The object store's answer. Errors: StoreUnavailable for every refusal, expected or not:
        `run` logs it and tries again, without end.
        """
        # ObjectNotFound here (say, from a proxy) does not mean that a checkpoint file is gone.
        with refusals_as_unavailable("a request for checkpoint files"):
            return await work

    def _name_of(self, file: BuiltFile) -> FileRef:
        """Takes a new name for a new file."""
        self._number += 1
        ref = FileRef(
            self._follower.tenure,
            self._number,
            file.size_bytes,
            file.tail_position,
            file.tail_crc32c,
        )
        self._own_files.add(ref.name)
        return ref

    async def _name(self, attempt: _Attempt) -> int | None:
        """Puts the checkpoint pointer; its revision, or None: refused, and never applied."""
        tenure = self._follower.tenure
        key, own_key = checkpoint.key(self._prefix), fence.key(self._prefix, tenure)
        then: list[Operation] = [Put(key, checkpoint.encode(attempt.checkpoint))]
        then += attempt.deletes[: OPERATIONS_MAX - 1]
        compares: list[Compare] = [
            RevisionIs(key, attempt.state.checkpoint_revision),
            fence.is_live(own_key),
        ]
        backoff = self._retry.endless()
        while True:
            try:
                result = await self._kv.txn(compares, then, [Get(key), Get(own_key)])
            except StreamlogError as error:
                if not is_transient(error):
                    raise
                log.warning("naming the checkpoint is tried again: %s", error)
                await backoff.wait()
                continue
            break
        if result.succeeded:
            return result.revision
        keys, owns = result.responses
        if keys and checkpoint.decode(keys[0].value) == attempt.checkpoint:
            return keys[0].mod_revision
        seen = fence.decode(owns[0].value) if owns else None
        if seen is None or not seen.is_live:
            self._follower.note_sealed(tenure, seen)
            raise TenureFenced(f"tenure {tenure} was sealed: it writes no checkpoints")
        await self._follower.reach(owns[0].mod_revision)
        if keys and keys[0].mod_revision != attempt.state.checkpoint_revision:
            await self._follower.adopted(attempt.state.checkpoint_revision)
        return None

    async def _unfreeze(self, state: MetadataState) -> None:
        """Merges the generations again, so that failed attempts do not accumulate them.

        It takes the lock because a record that is being folded writes to the newest generation.
        """
        async with self._follower.lock:
            make_one(state.fold.generations)

    def _deletes(self, state: MetadataState, named: CheckpointPointer) -> list[Operation]:
        before = state.checkpoint.tenures if state.checkpoint else {}
        deletes: list[Operation] = []
        for tenure, mark in sorted(named.tenures.items()):
            old = before.get(tenure, NEW_MARK)
            is_left = tenure in state.leftover
            if mark.seq > old.seq or is_left:
                first, end = (record.key(self._prefix, tenure, n) for n in (0, mark.seq + 1))
                deletes.append(Delete(first, end))
            if mark.gen > old.gen or is_left:
                first, end = (transfer.key(self._prefix, tenure, n) for n in (0, mark.gen + 1))
                deletes.append(Delete(first, end))
        return deletes

    async def _install(self, attempt: _Attempt, put_at: int) -> None:
        state, named, built = attempt.state, attempt.checkpoint, attempt.built
        async with self._follower.lock:
            if self._follower.state is not state:
                self._follower.ask_for_reload(put_at)
                return
            assert named.delta is not None
            delta, base = LevelFile(named.delta, built.delta.tail), state.levels.base
            if built.base is not None and named.base is not None:
                base = LevelFile(named.base, built.base.tail)
            previous = state.checkpoint
            state.levels = Levels(named.revision, delta, base)
            state.cut_streams, state.base_dead_ranges = built.cut_streams, built.base_dead_ranges
            state.live_objects = built.live_objects
            for object_id in built.newly_dead:
                state.dead[object_id] = (built.now_ms, named.revision)
            state.fold.staging.forget_dead(built.newly_dead)
            state.checkpoint, state.checkpoint_revision = named, put_at
            del state.fold.generations[0]
            self._metrics.dead_objects.set(len(state.dead))
        await self._follower.installed()
        if previous is not None:
            await self._compact(previous.revision)

    async def _compact(self, revision: int) -> None:
        try:
            await self._kv.compact(revision)
        except StreamlogError as error:
            if not is_transient(error):
                raise
            log.warning("old revisions were not compacted, the next checkpoint will: %s", error)

    async def _delete_covered(self, attempt: _Attempt) -> None:
        """Deletes covered records that did not fit into the transaction.

        If this is interrupted, the next opening finds the rest (`MetadataState.leftover`).
        """
        deletes = attempt.deletes[OPERATIONS_MAX - 1 :]
        for low in range(0, len(deletes), OPERATIONS_MAX):
            await self._kv.txn([], deletes[low : low + OPERATIONS_MAX])
        attempt.state.leftover.clear()

    # files that the pointer does not name

    async def _delete_own_files(self) -> None:
        kv = await self._kv.get(checkpoint.key(self._prefix))
        named = _names(kv)
        gone = sorted(self._own_files - named)
        if await self._delete_files(gone):
            self._own_files.difference_update(gone)

    async def _delete_files(self, names: Sequence[str]) -> bool:
        """Deletes unused files; False: the store does not allow it now.

        A refusal fails no checkpoint, because the new one is in use already: otherwise a bucket
        whose policy denies deletion would get a new checkpoint at each retry. The next checkpoint
        tries again. Errors: LineageFenced.
        """
        try:
            if not names or not await self._lineage.check():
                return False
            await self._ask(self._store.delete(names))
        except (StoreUnavailable, OutcomeUnknown) as error:
            log.warning("%d unused checkpoint files were not deleted: %s", len(names), error)
            return False
        return True

    async def _sweep_when_due(self) -> None:
        now = self._clock.monotonic()
        if self._next_sweep <= now:
            await self.sweep_files()
            self._next_sweep = now + self._config.file_sweep_interval_ms / 1000

    async def sweep_files(self) -> list[str]:
        """Deletes files of sealed tenures that the checkpoint pointer does not name; their keys.

        Errors: StoreUnavailable, MetadataUnavailable, LineageFenced.
        """
        listed: list[str] = []
        token: str | None = None
        while True:
            page = await self._ask(self._store.list(checkpoint.FOLDER, token=token))
            listed += [info.key for info in page.objects]
            token = page.next_token
            if token is None:
                break
        start = self._prefix + b"f/"
        fences = await self._kv.range(start, prefix_end(start))
        live = {
            tenure_in(kv.key, self._prefix) for kv in fences.kvs if fence.decode(kv.value).is_live
        }
        named = _names(await self._kv.get(checkpoint.key(self._prefix)))
        gone = []
        for name in listed:
            tenure = checkpoint.tenure_of_name(name)
            if tenure is not None and tenure not in live and name not in named:
                gone.append(name)
        return gone if await self._delete_files(gone) else []


def _names(kv: StoredKeyValue | None) -> set[str]:
    return {file.name for file in checkpoint.decode(kv.value).files} if kv is not None else set()
