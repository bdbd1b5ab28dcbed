"""Follows the metadata store: folds every record, transfer record and fence in revision order.

1. One watch over the keys `c/` to `m/` brings all changes in order; `revision` says up to which
   revision they are folded.
2. A tenure's own record is folded from its answer when its revision is the next one, because then
   nothing can lie before it; otherwise when the watch brings it. So the order is always that of
   revisions.
3. `reach(R)` returns when everything up to R is folded. R must be the revision of a change in the
   watched keys, or the call would wait for ever.
4. Another node's checkpoint is adopted: the follower reads its files, then replaces the state under
   the lock. That frees memory, and ends the use of files that will be deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from streamlog.errors import (
    Closed,
    Corrupt,
    MetadataUnavailable,
    ObjectNotFound,
    RevisionCompacted,
    StreamlogError,
)
from streamlog.format.records.commit import CommitRecord
from streamlog.format.records.compaction import CompactionRecord
from streamlog.kvstore.interface import Change, StoredKeyValue, WatchBatch
from streamlog.metadata.backoff import MetadataBackoff
from streamlog.metadata.checkpoint.loader import Loader, MetadataState, decode_record
from streamlog.metadata.fold.fold import MovedStream
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import checkpoint, fence, transfer
from streamlog.metadata.keys.space import number_in, tenure_in
from streamlog.metadata.keys.transfer import TransferRecord
from streamlog.metadata.keyspace import KeySpace, Tools
from streamlog.objectstore.cluster.lineage import LineageCheck
from streamlog.runtime.concurrency.steps import run_cooperatively
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)

OWN_TRANSFERS_MAX = 1024


class Follower:
    """Owns the metadata's state on this node, and keeps it up to date."""

    def __init__(
        self,
        keys: KeySpace,
        loader: Loader,
        state: MetadataState,
        tenure: Tenure,
        lineage: LineageCheck | None,
        tools: Tools,
    ) -> None:
        """`lineage` None: no check, for a repair that reads older metadata on purpose."""
        self._kv = keys.kv
        self._prefix = keys.prefix
        self._loader = loader
        self._lineage = lineage
        self._retry = keys.retry
        self._offload = tools.offload
        self._metrics = tools.metrics
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ticket = count()
        self._failure: StreamlogError | None = None
        self._foreign_checkpoint = asyncio.Event()
        self._checkpoint_seen = state.checkpoint_revision
        self._adopted = asyncio.Event()
        self._awaited_checkpoints: list[int] = []
        """For each caller that waits in `adopted`, the revision of the checkpoint to replace."""
        self._on_moved: list[Callable[[MovedStream], None]] = []
        self._on_sealed: list[tuple[Tenure, Callable[[], None]]] = []
        self._own_transfers: dict[tuple[Tenure, int], bytes] = {}
        self.tenure = tenure
        self.state = state
        self.lock = asyncio.Lock()
        """Held while the fold changes."""
        self.news = asyncio.Event()
        """Set when something was folded, for the checkpoint loop."""

    # queries and waits

    @property
    def revision(self) -> int:
        return self.state.fold.revision

    @property
    def gen(self) -> int:
        """Number of folded transfers away from this tenure."""
        return self.gen_of(self.tenure)

    def gen_of(self, tenure: Tenure) -> int:
        return self.state.fold.mark(tenure).gen

    @property
    def is_sealed(self) -> bool:
        """Whether this tenure's fence was seen sealed, or gone."""
        return self.has_sealed(self.tenure)

    def has_sealed(self, tenure: Tenure) -> bool:
        """Whether the tenure's fence was seen sealed, or gone; its registration must be folded."""
        last_seen = self.state.fences.get(tenure)
        return last_seen is None or not last_seen.is_live

    def note_sealed(self, tenure: Tenure, seen: fence.Fence | None) -> None:
        """Notes that an answer showed the fence sealed, or gone (None), before the watch did."""
        if seen is None:
            self.state.fences.pop(tenure, None)
        else:
            self.state.fences[tenure] = seen
        self._tell_sealed()

    def on_sealed(self, callback: Callable[[], None], tenure: Tenure | None = None) -> None:
        """Calls back when the tenure's fence (None: the own) is seen sealed, once or more often."""
        self._on_sealed.append((tenure or self.tenure, callback))

    def forget_sealed(self, tenure: Tenure) -> None:
        """Removes the callbacks of `on_sealed` for the tenure."""
        self._on_sealed = [pair for pair in self._on_sealed if pair[0] != tenure]

    def on_moved(self, callback: Callable[[MovedStream], None]) -> None:
        """Calls back for every stream that this tenure loses, when that is folded."""
        self._on_moved.append(callback)

    def own_transfer(self, holder: Tenure, gen: int) -> bytes | None:
        """The request id of a folded transfer to this tenure; None: there is none."""
        return self._own_transfers.get((holder, gen))

    async def reach(self, revision: int) -> None:
        """Waits until everything up to `revision` is folded. Errors: what ended the follower."""
        if self._failure is not None:
            raise self._failure
        if self.revision >= revision:
            return
        future = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (revision, next(self._ticket), future))
        await future

    def progress(self) -> Due | None:
        """A fold is due while a caller waits for a revision; a reload, while for a checkpoint."""
        if self._waiting:
            wanted, folded = self._waiting[0][0], self.revision
            return Due(
                folded, f"the metadata's watch to bring revision {wanted}; it is at {folded}"
            )
        if self._awaited_checkpoints:
            old = self._awaited_checkpoints[0]
            return Due(
                ("checkpoint", old),
                f"a newer checkpoint than the one put at revision {old}, whose files are gone or "
                f"which was overtaken, to be read; {len(self._awaited_checkpoints)} wait for it",
            )
        return None

    async def catch_up(self, backoff: MetadataBackoff) -> None:
        """Returns when everything committed or transferred before the call is folded.

        Heads and fences have the revisions of every tenure's last record and transfer. The
        checkpoint, read after them, covers all records of a tenure that was retired meanwhile.
        """
        while True:
            try:
                fences_heads = await self._kv.range(self._prefix + b"f/", self._prefix + b"h0")
                covered = await self._kv.get(checkpoint.key(self._prefix))
            except StreamlogError as error:
                await backoff.after(error)
                continue
            revisions = [kv.mod_revision for kv in fences_heads.kvs]
            if covered is not None:
                revisions.append(covered.mod_revision)
            await self.reach(max(revisions, default=0))
            return

    async def fold_own_record(
        self, revision: int, seq: int, record: CommitRecord, size_bytes: int
    ) -> None:
        """Folds this tenure's record `seq`, whose answer said that it was put at `revision`."""
        async with self.lock:
            if revision == self.revision + 1:
                fold = self.state.fold
                await run_cooperatively(
                    fold.apply_record(self.tenure, seq, record, revision, size_bytes)
                )
                self._advance(revision)
        await self.reach(revision)

    async def replaced(self, put_at: int, error: ObjectNotFound) -> None:
        """Waits for a newer checkpoint than the one put at `put_at`, a file of which is gone.

        Errors: Corrupt (there is no newer checkpoint), LineageFenced (nodes on newer metadata
        deleted the file), StoreUnavailable, MetadataUnavailable.
        """
        if self.state.checkpoint_revision != put_at:
            return
        kv = await self._kv.get(checkpoint.key(self._prefix))
        if kv is None or kv.mod_revision == put_at:
            reason = (
                "the metadata names a checkpoint file that the store does not have"
                if kv is not None
                else "the metadata names no checkpoint any more, and the file of the last one is "
                "gone: the metadata was emptied under this node; restore or recover it"
            )
            missing = Corrupt(
                f"{reason}: {error}", object_key=str(error.fields.get("object_key", "?"))
            )
            raise await self._reason_for(missing) from error
        self._note_checkpoint(kv)
        await self.adopted(put_at)

    async def adopted(self, old: int) -> None:
        """Waits until a newer checkpoint than the one put at revision `old` is in use.

        Errors: what ended the follower.
        """
        self._awaited_checkpoints.append(old)
        try:
            while self.state.checkpoint_revision == old:
                if self._failure is not None:
                    raise self._failure
                self._adopted.clear()
                await self._adopted.wait()
        finally:
            self._awaited_checkpoints.remove(old)

    def _note_checkpoint(self, kv: StoredKeyValue) -> None:
        """Notes the checkpoint pointer `kv`, from the watch or from a read."""
        pointer = checkpoint.decode(kv.value)
        # The checkpointer installs this tenure's own checkpoints without a reload.
        if pointer.delta is None or pointer.delta.tenure != self.tenure:
            self.ask_for_reload(kv.mod_revision)

    def ask_for_reload(self, put_at: int) -> None:
        """Asks for a reload: the pointer put at that revision is not the state's checkpoint."""
        self._checkpoint_seen = max(self._checkpoint_seen, put_at)
        self._foreign_checkpoint.set()

    def show_compactions(self) -> None:
        """Updates the metrics of compactions and patches."""
        fold = self.state.fold
        self._metrics.compaction_counter.set(fold.compactions.counter)
        self._metrics.patches.set(sum(g.patch_count for g in fold.generations))

    async def installed(self) -> None:
        """Notes that the state stands on a newer checkpoint now."""
        self.show_compactions()
        self._adopted.set()

    def fail(self, error: StreamlogError) -> None:
        """Ends every wait, now and later, with the error."""
        self._failure = self._failure or error
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        self._adopted.set()

    # the loops

    async def follow(self) -> None:
        """Runs until cancelled. Errors: Corrupt, LineageFenced, UnsupportedVersion, Closed: all end
        the tenure."""
        start, end = self._prefix + b"c/", self._prefix + b"m0"
        backoff = self._retry.endless()
        while True:
            try:
                watcher = self._kv.watch(start, end, from_revision=self.revision + 1)
                try:
                    async for batch in watcher:
                        await self._take(batch)
                        backoff = self._retry.endless()
                finally:
                    await watcher.aclose()
                raise MetadataUnavailable("the watch of the metadata ended; it is begun again")
            except RevisionCompacted:
                log.warning("the watch fell behind; the metadata is loaded anew")
                await self._reload()
            except Closed:
                raise
            except MetadataUnavailable as error:
                log.warning("the watch of the metadata broke: %s", error)
                await backoff.wait()

    async def adopt(self) -> None:
        """Runs until cancelled: takes over the checkpoints that other tenures write."""
        while True:
            await self._foreign_checkpoint.wait()
            self._foreign_checkpoint.clear()
            if self._checkpoint_seen > self.state.checkpoint_revision:
                await self._reload()

    # folding

    async def _take(self, batch: WatchBatch) -> None:
        async with self.lock:
            if batch.revision <= self.revision:
                return
            for change in batch.changes:
                await self._take_change(change)
            self._advance(batch.revision)

    async def _take_change(self, change: Change) -> None:
        letter = change.key[len(self._prefix) : len(self._prefix) + 1]
        if letter == b"f":
            self._take_fence(change)
        elif letter == b"k" and change.kv is not None:
            self._note_checkpoint(change.kv)
        elif change.kv is None:
            return
        elif letter == b"c":
            tenure, seq = tenure_in(change.key, self._prefix), number_in(change.key)
            fold = self.state.fold
            if seq > fold.mark(tenure).seq:
                value = change.kv.value
                record = await decode_record(value, self._offload)
                await run_cooperatively(
                    fold.apply_record(tenure, seq, record, change.revision, len(value))
                )
                if isinstance(record, CompactionRecord):
                    self._metrics.compactions_folded.inc()
                    self.show_compactions()
        elif letter == b"m":
            tenure, gen = tenure_in(change.key, self._prefix), number_in(change.key)
            await self._take_transfer(tenure, gen, transfer.decode(change.kv.value))

    def _take_fence(self, change: Change) -> None:
        tenure, fold = tenure_in(change.key, self._prefix), self.state.fold
        if change.kv is not None:
            seen = fence.decode(change.kv.value)
            self.state.fences[tenure] = seen
            if not seen.is_live:
                self._tell_sealed()
            return
        self.state.fences.pop(tenure, None)
        if tenure not in fold.held:
            fold.marks.pop(tenure, None)

    async def _take_transfer(self, holder: Tenure, gen: int, record: TransferRecord) -> None:
        moved = await run_cooperatively(self.state.fold.apply_transfer(holder, gen, record))
        if record.to == self.tenure:
            self._own_transfers[holder, gen] = record.request_id
            while len(self._own_transfers) > OWN_TRANSFERS_MAX:
                del self._own_transfers[next(iter(self._own_transfers))]
        elif holder == self.tenure:
            self._tell_moved(moved)

    def _tell_sealed(self) -> None:
        if self.is_sealed:
            self.news.set()
        for tenure, callback in list(self._on_sealed):
            if self.has_sealed(tenure):
                callback()

    def _tell_moved(self, moved: list[MovedStream]) -> None:
        for stream in moved:
            for callback in self._on_moved:
                callback(stream)

    def _advance(self, revision: int) -> None:
        self.state.fold.revision = revision
        self._metrics.revision.set(revision)
        self.news.set()
        while self._waiting and self._waiting[0][0] <= revision:
            _, _, future = heappop(self._waiting)
            if not future.done():
                future.set_result(None)

    async def _reload(self) -> None:
        backoff = self._retry.endless()
        while True:
            try:
                files = await self._loader.read_files()
                async with self.lock:
                    state = await self._loader.finish(files)
                    if state is not None:
                        self._replace(state)
            except StreamlogError as error:
                await backoff.after(await self._reason_for(error))
                continue
            if state is not None:
                await self.installed()
                return

    async def _reason_for(self, error: StreamlogError) -> StreamlogError:
        return error if self._lineage is None else await self._lineage.reason_for(error)

    def _replace(self, state: MetadataState) -> None:
        """Replaces the state by one that is no older; the caller holds the lock."""
        old = self.state.fold
        self.state = state
        self._checkpoint_seen = max(self._checkpoint_seen, state.checkpoint_revision)
        lost = []
        for stream_id in sorted(old.held.get(self.tenure, ())):
            info = state.fold.info.get(stream_id)
            if info is None:
                # Destroyed meanwhile, by this tenure, which has told its handle, or by another one,
                # which took the stream first, under an epoch that is not recorded any more.
                last = old.info[stream_id]
                lost.append(MovedStream(stream_id, last.holder, last.epoch + 1))
            elif info.holder != self.tenure:
                lost.append(MovedStream(stream_id, info.holder, info.epoch))
        self._advance(state.fold.revision)
        self._tell_sealed()
        self._tell_moved(lost)
