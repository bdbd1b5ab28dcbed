"""One tenure's streams: the parts of the write and read path put together, and their life.

Opening: the WAL names this tenure, earlier tenures' streams are taken over, the WAL is replayed,
then the loops start; what was replayed goes to the store behind the scenes. A failure of any loop
ends the engine: every caller hears the reason.
`close` drains (all is confirmed and in the store) and seals; `kill` stops as a crash would.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from streamlog.cache.tail import TailCache
from streamlog.engine.append.budget import Budget
from streamlog.engine.append.flush_policy import FlushPolicy
from streamlog.engine.append.group import ITEMS_MAX, Group, confirm
from streamlog.engine.append.group_commit import GroupCommit
from streamlog.engine.append.sequencer import Sequencer
from streamlog.engine.append.upload_credit import UploadCredit
from streamlog.engine.config import StreamEngineConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.read.block_reader import BlockReader
from streamlog.engine.read.catch_up_throttle import CatchUpThrottle
from streamlog.engine.read.fetcher import Fetcher
from streamlog.engine.replay.after_recovery import ReplayPlan, apply_plan, plan_replay
from streamlog.engine.replay.recovery import RecoveredWal, place, read_wal, recovered_group
from streamlog.engine.stream_core import ErrorFactory, StreamCore
from streamlog.engine.upload.object_put import ObjectPut, PutUnderWay
from streamlog.engine.upload.object_writer import ObjectWriter
from streamlog.engine.upload.uploader import Uploader
from streamlog.errors import (
    Closed,
    DiskFull,
    Fenced,
    Internal,
    OutcomeUnknown,
    StreamFenced,
    StreamlogError,
    TenureFenced,
    Unavailable,
)
from streamlog.metadata.interface import Committed, Metadata, StreamRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.backoff import Backoff
from streamlog.runtime.offload import Offload
from streamlog.runtime.progress import Due, ProgressWatch
from streamlog.runtime.rand import Random
from streamlog.wal.config import WalMode
from streamlog.wal.log import WriteAheadLog

log = logging.getLogger(__name__)

_TAIL_BATCH_BYTES = 400
"""Memory of a batch in a tail beside its payload: the entry, its tuples and its numbers."""
_UPLOADS_IN_FLIGHT_MAX = 32
"""Half of the ids that a tenure may hold at a time."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of. `wal` with mode "object": left behind by disk mode, replayed."""

    mode: WalMode
    metadata: Metadata
    store: ObjectStore
    wal: WriteAheadLog | None
    clock: Clock
    random: Random
    offload: Offload
    registry: CollectorRegistry
    is_remote: bool


class Engine:
    """Made inside a running loop; of use after `start`."""

    def __init__(self, parts: EngineParts, config: StreamEngineConfig) -> None:
        self.parts = parts
        self.config = config
        self.metadata = parts.metadata
        self.metrics = metrics = EngineMetrics(parts.registry)
        self.background = Background("engine", self._fail)
        self.failure: StreamlogError | None = None
        self._failed = asyncio.Event()
        self._progress = asyncio.Event()
        self._is_failing_due = False
        self.cores: dict[int, StreamCore] = {}
        """Streams that this tenure holds and has in memory."""
        self._replayed_bytes = 0
        """With wal=object: of appends from a WAL that are not in the store yet."""
        self.foreign: set[int] = set()
        """Streams lost while this WAL may still hold appends of theirs."""
        self.tails = TailCache(config.read.tail_cache_bytes, _TAIL_BATCH_BYTES)
        self.budget = Budget(config.append.append_bytes_max, self._make_room)
        is_disk = parts.mode == "disk"
        # So much more may wait for its commit within the memory that the tail cache has anyhow.
        spare = config.read.tail_cache_bytes - config.append.append_bytes_max
        self.upload_credit = UploadCredit(self.budget, 0 if is_disk else spare)
        self.put = ObjectPut(
            parts.store,
            config.append,
            config.flush,
            self.background,
            parts.clock,
            parts.random,
            metrics,
            is_hedging=parts.is_remote,
        )
        self.writer = ObjectWriter(parts.metadata, parts.offload, config.object)
        append = config.append
        self.uploader = Uploader(
            self._policy(is_disk),
            self._uploads_in_flight_max(is_disk),
            self._items_max,
            parts.metadata,
            self.writer,
            self.put,
            self._stored,
            self.upload_credit.grant,
            self._give_room,
            self.background,
            parts.clock,
            metrics,
        )
        self.group_commit: GroupCommit | None = None
        if is_disk:
            assert parts.wal is not None
            batch_bytes_max = min(append.batch_bytes_max, parts.wal.group_bytes_max // 2)
            append = dataclasses.replace(append, batch_bytes_max=batch_bytes_max)
            self.group_commit = GroupCommit(
                config.append,
                parts.wal,
                self._items_max,
                self.uploader.offer,
                self._set_admission_error,
                parts.clock,
                parts.random,
                metrics,
            )
        self.throttle = CatchUpThrottle(config.read, self.background, parts.clock, metrics)
        self.sequencer = Sequencer(
            append,
            self.budget,
            self.group_commit or self.uploader,
            parts.clock,
            metrics,
            self.throttle.note_foreground_io,
        )
        self.blocks = BlockReader(parts.store, parts.offload, config.read, self.background, metrics)
        self.fetcher = Fetcher(
            parts.metadata,
            self.blocks,
            config.read,
            self.background,
            parts.clock,
            metrics,
            self.throttle,
        )
        metrics.queue_bytes_bound.set(config.append.append_bytes_max)
        metrics.queue_bytes.set_function(lambda: self.budget.used_bytes)
        metrics.tail_bytes.set_function(lambda: self.tails.memory_bytes)
        metrics.block_bytes.set_function(lambda: self.blocks.blocks.size_bytes)

    @property
    def batch_bytes_max(self) -> int:
        """Payload of the largest append that is taken."""
        return self.sequencer.batch_bytes_max

    @property
    def pending_upload_bytes(self) -> int:
        """Bytes of appends that are not in the store yet."""
        return self.tails.held_bytes

    @property
    def uploads_waiting(self) -> list[PutUnderWay]:
        """PUTs of objects whose last try failed, oldest first: each with since when, and why."""
        return [one for one in self.put.under_way.values() if one.error is not None]

    async def start(self) -> None:
        """Recovers, then takes appends. Errors: WalPending, Corrupt, Conflict, TenureFenced,
        Unavailable.
        """
        wal = self.parts.wal
        self.metadata.on_stream_lost(self.lost)
        if wal is not None:
            await self._take_over_with_wal(wal)
        else:
            await self.metadata.take_over_previous(frozenset())
        await self.save_attaches()
        if self.group_commit is not None:
            self.background.spawn(self.group_commit.run(), name="group_commit")
        self.background.spawn(self.uploader.run(), name="commit")
        self.background.every(lambda: 1.0, self._check_fence, name="check_fence")
        self.background.spawn(self._watch_metadata(), name="watch_metadata")
        if wal is not None and self.group_commit is None:
            # The appends that disk mode left in the WAL are uploaded now; new appends queue behind
            # them.
            self.request_flush()

    async def _take_over_with_wal(self, wal: WriteAheadLog) -> None:
        """Takes over earlier tenures' streams and replays the WAL into them."""
        metadata = self.metadata
        named = wal.tenures
        if self.group_commit is not None or wal.live_bytes:
            await wal.begin(metadata.tenure, cluster_id=metadata.cluster_id)
        recovered = await read_wal(wal, metadata, named)
        plan = await self._plan_replay(recovered)

        async def release_stale_groups() -> None:
            # Nothing in the WAL is replayed. Once the WAL names another tenure, the next replay
            # would take these groups for that tenure's own.
            if recovered.last_sequence and not recovered.groups:
                wal.release(recovered.last_sequence)
                await wal.persist_release()

        await metadata.take_over_previous(named, before_taking=release_stale_groups)
        if plan is not None:
            await apply_plan(plan, metadata)
            await wal.forget_tenures(frozenset(recovered.older_tenures))
        self._replay(wal, recovered)

    def watch_progress(self, watch: ProgressWatch) -> None:
        """Adds its checks: uploads, wal_writes, wal_release."""
        stalled_after_s = watch.config.stalled_after_ms / 1000
        unanswered_after_s = watch.config.unanswered_after_ms / 1000
        watch.watch("uploads", lambda: self._uploads_due(stalled_after_s, unanswered_after_s))
        if self.group_commit is not None:
            commit = self.group_commit

            def wal_writes() -> Due | None:
                due = commit.progress()
                # A disk that refuses is known to be away; one that is full is told as such.
                is_refused = commit.refusal is not None
                return due._replace(after_s=unanswered_after_s) if due and is_refused else due

            watch.watch("wal_writes", wal_writes)
        if self.parts.wal is not None:
            watch.watch("wal_release", lambda: self._release_due(stalled_after_s))

    def _uploads_due(self, stalled_after_s: float, unanswered_after_s: float) -> Due | None:
        """What waits to be closed may do so for the interval between uploads. A PUT that is refused
        again and again is told as soon as a store that does not answer."""
        due, refused = self.uploader.progress(), self.uploader.refusal
        if due is None:
            return None
        # One failure at once, and a second try that is slow: that is no store which refuses.
        if refused is None or (
            refused.failures == 1 and refused.failed_at - refused.since < unanswered_after_s
        ):
            return due._replace(after_s=stalled_after_s + self._upload_interval_s)
        reason = f"{due.waits_for}: it failed {refused.failures} times, last with {refused.error}"
        return Due(due.moved, reason, unanswered_after_s, refused.since)

    def _release_due(self, stalled_after_s: float) -> Due | None:
        wal = self.parts.wal
        if wal is None or wal.released_through >= wal.last_sequence:
            return None
        return Due(
            wal.released_through,
            f"{wal.live_bytes} bytes of the WAL to be in the store; a lost disk would cost them",
            stalled_after_s + self._upload_interval_s,
        )

    @property
    def _upload_interval_s(self) -> float:
        """How long a batch may stay open by rule: for the interval, and for what the PUT rate asks
        for between two uploads."""
        policy = self._policy(self.group_commit is not None)
        return max(policy.interval_s, policy.put_distance_s)

    def full_disk(self) -> Due | None:
        """A check: the WAL's disk took no more at the last try, or the store's disk has no room for
        uploads of full size."""
        refusal = None if self.group_commit is None else self.group_commit.refusal
        if isinstance(refusal, DiskFull):
            return Due("", refusal.message, 0.0)
        limit = self.uploader.limit_bytes
        if limit is None:
            return None
        return Due("", f"{self.uploader.no_room} (uploads are cut to {limit} bytes)", 0.0)

    def _give_room(self, is_wanted: bool) -> None:
        """Objects and WAL may lie on one disk."""
        if self.parts.wal is not None:
            self.parts.wal.give_room(is_wanted)

    def core(self, row: StreamRow) -> StreamCore:
        """The stream in memory, under the epoch of `row`, which this tenure holds.

        There is one at a time: two would give out the same offsets.
        """
        core = self.cores.get(row.stream_id)
        if core is None or core.epoch != row.epoch:
            if core is not None:
                core.halt(fenced(row.stream_id, row.epoch))
                self._fail_lost_appends_soon()
            core = StreamCore(row, self.tails.tail(row.end))
            self.cores[row.stream_id] = core
        return core

    def forget(self, core: StreamCore) -> None:
        """The stream is closed or gone; another core of it stays."""
        if self.cores.get(core.stream_id) is core:
            del self.cores[core.stream_id]

    def check_open(self) -> None:
        """Raises the reason why the engine is closed, if it is."""
        if self.sequencer.stop is not None:
            raise self.sequencer.stop()
        if self.metadata.is_fenced:
            raise self._sealed()

    def lost(self, stream_id: int, epoch: int) -> None:
        """Another tenure took the stream under `epoch`: its appends fail, its Stream is fenced."""
        core = self.cores.get(stream_id)
        if core is None or core.epoch >= epoch:
            return
        del self.cores[stream_id]
        if core.next > core.committed:
            log.warning(
                "a stream with appends that are not stored was taken over",
                extra={"stream_id": stream_id, "from": core.committed, "to": core.next},
            )
        self.foreign.add(stream_id)
        core.halt(fenced(stream_id, epoch))
        self._fail_lost_appends_soon()

    def request_flush(self) -> None:
        """What has been appended so far is wanted in the store soon."""
        self.uploader.request_flush()

    async def drain(self) -> None:
        """Returns when every append called so far is in the store, or its stream lost.

        Errors: the engine's failure.
        """
        for core in list(self.cores.values()):
            try:
                if core.stop is None:
                    await core.drained(self.request_flush)
            except Fenced:
                if self.failure is not None:
                    raise

    async def forget_foreign(self, stream_id: int) -> None:
        """No replay finds an append of a stream that was lost any more, on return.

        Waits until what was appended before the call is in the store, for the WAL is released in
        order. Errors: DiskFull, StoreUnavailable (of the WAL); the engine's failure.
        """
        wal = self.parts.wal
        if stream_id not in self.foreign:
            return
        if wal is not None:
            through = wal.last_sequence
            while wal.released_through < through:
                self.check_open()
                self.request_flush()
                self._progress.clear()
                await self._progress.wait()
            await wal.persist_release()
        self.foreign.discard(stream_id)

    async def save_attaches(self) -> None:
        """A checkpoint tells where staged objects were attached: they do not say it.

        Before appends go on behind them, or a recovery from the bucket alone would take these for
        never acknowledged. With wal=disk `save_attaches_late` follows. Waits for the store;
        errors: TenureFenced, Closed.
        """
        if self.group_commit is not None or not self.metadata.has_unsaved_attach:
            return
        backoff: Backoff | None = None
        while True:
            try:
                await self.metadata.checkpoint()
            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(error, Closed):
                    raise
                if backoff is None:
                    backoff = self.config.append.backoff(self.parts.random)
                    log.warning("a commit waits for a checkpoint", extra={"reason": str(error)})
                await backoff.sleep()
            else:
                return

    async def save_attaches_late(self) -> None:
        """As `save_attaches`, with wal=disk: what comes behind an attach may be in the bucket
        before it. With the store away the next call tries again."""
        if self.group_commit is None or not self.metadata.has_unsaved_attach:
            return
        try:
            await self.metadata.checkpoint()
        except (Unavailable, OutcomeUnknown, Fenced) as error:
            log.warning("a commit is not in a checkpoint yet", extra={"reason": str(error)})

    async def wait_stopped(self) -> StreamlogError:
        """Returns when the engine has failed, with the reason."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    async def close(self, drain_s: float | None = None) -> None:
        """Takes nothing more, drains for `drain_s` (drain_timeout_ms) at most, and stops."""
        self.sequencer.closing = _closed
        if drain_s is None:
            drain_s = self.config.append.drain_timeout_ms / 1000
        if self.failure is None:
            try:
                async with asyncio.timeout(drain_s):
                    await self.drain()
                    await self._all_committed()
                    await self.save_attaches_late()
            except TimeoutError:
                log.warning(
                    "closed before everything was in the store",
                    extra={"pending_bytes": self.pending_upload_bytes},
                )
            except StreamlogError:
                if self.failure is None:
                    raise
        await self.kill()

    async def _all_committed(self) -> None:
        """Returns when nothing is held any more, what belonged to lost streams included."""
        while self.tails.held_batches and self.failure is None:
            self.request_flush()
            self._progress.clear()
            await self._progress.wait()

    @property
    def is_drained(self) -> bool:
        """Nothing acknowledged lies outside the store."""
        return self.tails.held_batches == 0 and self.failure is None

    async def kill(self) -> None:
        """Stops at once. What was sequenced and not confirmed: OutcomeUnknown."""
        self._stop(
            _closed,
            lambda: OutcomeUnknown("the engine was closed before the append was confirmed"),
        )
        self.throttle.close()
        await self.background.close()

    async def _plan_replay(self, recovered: RecoveredWal) -> ReplayPlan | None:
        """None when the metadata was not rebuilt since the WAL's appends. Errors: WalPending."""
        if not recovered.extents:
            return None
        plan = await plan_replay(
            recovered.extents,
            frozenset(recovered.held),
            self.metadata,
            accept_data_loss=self.config.wal.accept_data_loss,
        )
        recovered.skip(plan.skipped)
        return plan

    def _replay(self, wal: WriteAheadLog, recovered: RecoveredWal) -> None:
        """Hands the WAL's appends to the uploader."""
        accept_data_loss = self.config.wal.accept_data_loss
        placed = place(recovered, self.metadata, accept_data_loss=accept_data_loss)
        if recovered.groups:
            self.foreign |= recovered.foreign
        overhead = self.config.append.batch_overhead_bytes
        for sequence, entries in placed.groups:
            items = []
            for entry in entries:
                row = self.metadata.stream(entry.stream_id)
                assert row is not None
                items.append((self.core(row), entry))
            for low in range(0, len(items), self._items_max):
                # The sequence goes with the group's last piece: the WAL may release the group only
                # when all of it is stored.
                piece = items[low : low + self._items_max]
                is_last = low + self._items_max >= len(items)
                group = recovered_group(sequence if is_last else 0, piece, overhead)
                group.opened_at = self.parts.clock.monotonic()
                self.budget.take_unbounded(sum(item.charge for item in group.items))
                self.uploader.offer(group)
                if self.group_commit is None:
                    self._replayed_bytes += group.size_bytes
        if placed.groups:
            log.info(
                "replayed the WAL",
                extra={"appends": placed.batches, "size_bytes": placed.size_bytes},
            )
        elif recovered.last_sequence:
            wal.release(recovered.last_sequence)

    @property
    def _items_max(self) -> int:
        """Appends in one object: as many rows fit into one commit record twice over, for with
        wal=disk a batch passes its bound by one group of the WAL."""
        metadata = self.config.metadata
        rows = min(metadata.object_streams_max, (metadata.record_bytes_max - 256) // 8)
        return max(1, min(ITEMS_MAX, rows // 2))

    def _policy(self, is_disk: bool) -> FlushPolicy:
        if is_disk:
            upload = self.config.upload
            return FlushPolicy(upload.upload_bytes_target, upload.upload_interval_ms / 1000, False)
        flush, is_remote = self.config.flush, self.parts.is_remote
        return FlushPolicy(
            flush.flush_bytes_target,
            flush.flush_interval_ms / 1000,
            True,
            1 / flush.put_rate_max_per_s if is_remote else 0.0,
            flush.flush_bytes_overlap_remote if is_remote else flush.flush_bytes_overlap,
        )

    def _uploads_in_flight_max(self, is_disk: bool) -> int:
        """A remote store's latency is made up for by more uploads, within the byte bound."""
        config = self.config
        configured = (config.upload if is_disk else config.flush).uploads_in_flight_max
        if not self.parts.is_remote:
            return configured
        target = self._policy(is_disk).bytes_target
        fitting = (config.append.append_bytes_max + self.upload_credit.bound_bytes) // target + 1
        return max(configured, min(fitting, _UPLOADS_IN_FLIGHT_MAX))

    def _stored(self, group: Group, committed: Committed | None) -> None:
        """A batch is committed: with wal=object it is confirmed now; its room is free."""
        if committed is not None:
            for stream_id in committed.stripped:
                row = self.metadata.stream(stream_id)
                self.lost(stream_id, row.epoch if row is not None else 1 << 62)
        if self.group_commit is None:
            confirm(group)
            self._count(group)
            if self._replayed_bytes:
                self._replayed_stored(group)
        else:
            self.metrics.upload_backlog_bytes.dec(group.size_bytes)
        touched: dict[StreamCore, None] = {}
        charge = 0
        for item in group.items:
            item.core.committed = item.entry.end_offset
            touched[item.core] = None
            charge += item.charge
        self.tails.committed(
            [(item.core.tail, item.entry, item.size_bytes) for item in group.items]
        )
        for core in touched:
            core.progressed()
        self.upload_credit.release(group, charge)
        self._progress.set()
        if group.wal_sequence and self.parts.wal is not None:
            self.parts.wal.release(group.wal_sequence)

    def _replayed_stored(self, group: Group) -> None:
        """With wal=object the only acknowledged bytes that wait are those that a WAL brought: they
        may share a group with appends, of which the caller is told now."""
        stored = sum(item.size_bytes for item in group.items if item.future is None)
        self._replayed_bytes -= stored
        self.metrics.upload_backlog_bytes.dec(stored)

    def _count(self, group: Group) -> None:
        metrics = self.metrics
        metrics.appends.inc(len(group.items))
        metrics.append_bytes.inc(group.size_bytes)
        metrics.group_bytes.observe(group.size_bytes)
        metrics.ack_seconds.observe(self.parts.clock.monotonic() - group.opened_at)

    async def _check_fence(self) -> None:
        if self.metadata.is_fenced:
            raise self._sealed()

    def _sealed(self) -> TenureFenced:
        return TenureFenced(
            f"tenure {self.metadata.tenure} was sealed: another process runs as this node; "
            "stop one of the two"
        )

    async def _watch_metadata(self) -> None:
        raise await self.metadata.wait_failed()

    def _make_room(self) -> None:
        self.uploader.flush_for_room()

    def _set_admission_error(self, error: ErrorFactory | None) -> None:
        self.sequencer.admission_error = error

    def _fail_lost_appends_soon(self) -> None:
        # Many streams are lost together: one sweep serves all.
        if not self._is_failing_due:
            self._is_failing_due = True
            asyncio.get_running_loop().call_soon(self._fail_lost_appends)

    def _fail_lost_appends(self) -> None:
        self._is_failing_due = False
        self.sequencer.fail_lost_appends()

    def _fail(self, error: BaseException) -> None:
        """A loop failed: the engine stops, and everybody hears why."""
        if self.failure is not None:
            return
        if isinstance(error, StreamlogError):
            reason = error
        else:
            reason = Internal(f"the engine stopped after an unexpected failure: {error!r}")
            reason.__cause__ = error
        self.failure = reason
        self._failed.set()
        self._stop(lambda: _again(reason, True), lambda: _again(reason, False))

    def _stop(self, refused: ErrorFactory, sequenced: ErrorFactory) -> None:
        if self.sequencer.stop is not None:
            return
        self.uploader.stop()
        self.sequencer.close(refused, sequenced)
        self._progress.set()
        for core in self.cores.values():
            core.halt(refused)


def fenced(stream_id: int, epoch: int) -> ErrorFactory:
    """Why nothing more can be done under an older epoch."""
    return lambda: StreamFenced(
        f"stream {stream_id} was opened again with epoch {epoch}; reopen it to go on",
        stream_id=stream_id,
        epoch=epoch,
    )


def _closed() -> Closed:
    return Closed("the engine was closed; open it again")


def _again(reason: StreamlogError, has_no_side_effects: bool) -> StreamlogError:
    """A new error that says the same: each caller gets one with a traceback of its own."""
    error = type(reason)(reason.message, **reason.fields)
    error.has_no_side_effects = has_no_side_effects
    error.__cause__ = reason
    return error
