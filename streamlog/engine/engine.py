"""The engine of one tenure: builds the write and read path, and runs it from start to stop.

`start`: the WAL names this tenure, earlier tenures' streams are taken over, the WAL is replayed,
then the loops start and upload the replayed appends in the background. A failure of any loop stops
the engine: every caller gets the reason. `close` drains first, so that every append is confirmed
and in the store; `kill` stops as a crash would.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry

from streamlog.cache.tail import TailCache
from streamlog.engine.append.budget import Budget
from streamlog.engine.append.group import Group, confirm
from streamlog.engine.append.group_commit import GroupCommit
from streamlog.engine.append.sequencer import Sequencer
from streamlog.engine.append.upload_credit import UploadCredit
from streamlog.engine.config import StreamEngineConfig
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.read.block_reader import BlockReader
from streamlog.engine.read.fetcher import Fetcher
from streamlog.engine.replay.after_recovery import ReplayPlan, apply_plan, plan_replay
from streamlog.engine.replay.recovery import RecoveredWal, place, read_wal, recovered_group
from streamlog.engine.stream_core import ErrorFactory, StreamCore
from streamlog.engine.upload.limits import (
    appends_per_object_max,
    flush_policy,
    uploads_in_flight_max,
)
from streamlog.engine.upload.object_put import ObjectPut, PutUnderWay
from streamlog.engine.upload.object_writer import ObjectWriter
from streamlog.engine.upload.progress_checks import UploadChecks
from streamlog.engine.upload.uploader import Uploader, UploadParts
from streamlog.errors import (
    Closed,
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
from streamlog.runtime.concurrency.catch_up_throttle import CatchUpThrottle
from streamlog.runtime.offload import Offload
from streamlog.runtime.progress import Due, ProgressWatch
from streamlog.runtime.rand import Random
from streamlog.wal.config import WalMode
from streamlog.wal.log import WriteAheadLog

log = logging.getLogger(__name__)

_TAIL_BATCH_BYTES = 400
"""Memory of a batch in a tail beside its payload: the entry, its tuples and its numbers."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is built on. `wal` with mode "object": a log that disk mode left behind."""

    mode: WalMode
    metadata: Metadata
    store: ObjectStore
    wal: WriteAheadLog | None
    clock: Clock
    random: Random
    offload: Offload
    registry: CollectorRegistry
    is_remote: bool


class EngineState(Enum):
    """Where an engine is in its life. `Engine.failure` says whether it stopped by itself."""

    STARTING = "starting"
    """Recovering; it has taken no appends yet."""
    RUNNING = "running"
    DRAINING = "draining"
    """`close` was called: new appends are refused, earlier ones go on."""
    STOPPED = "stopped"
    """Closed, killed or failed: every call gets the reason."""


_TRANSITIONS = {
    EngineState.STARTING: {EngineState.RUNNING, EngineState.DRAINING, EngineState.STOPPED},
    EngineState.RUNNING: {EngineState.DRAINING, EngineState.STOPPED},
    EngineState.DRAINING: {EngineState.STOPPED},
    EngineState.STOPPED: set[EngineState](),
}


class Engine:
    """One tenure's streams. Made inside a running loop; of use after `start`.

    Owns the parts of the write and read path and the tasks that run them. Does not own what
    `EngineParts` brings in: its maker closes metadata, store and WAL.
    """

    def __init__(self, parts: EngineParts, config: StreamEngineConfig) -> None:
        self.parts = parts
        self.config = config
        self.metadata = parts.metadata
        self.metrics = EngineMetrics(parts.registry)
        self.background = Background("engine", self._fail)
        self._state = EngineState.STARTING
        self.failure: StreamlogError | None = None
        self._stopped = asyncio.Event()
        self._progress = asyncio.Event()
        self._is_failing_due = False
        self.cores: dict[int, StreamCore] = {}
        """Streams that this tenure holds and has in memory."""
        self._replayed_bytes = 0
        """With wal=object: bytes of replayed appends that are not in the store yet."""
        self.foreign: set[int] = set()
        """Streams lost while this WAL may still hold appends of theirs."""
        self.tails = TailCache(config.read.tail_cache_bytes, _TAIL_BATCH_BYTES)
        self.budget = Budget(config.append.append_bytes_max, self._flush_for_room)
        self._make_write_path()
        self.throttle = CatchUpThrottle(
            config.read.catch_up_limits, self.background, parts.clock, self.metrics.catch_up
        )
        self.sequencer = self._make_sequencer()
        self.blocks = BlockReader(
            parts.store, parts.offload, config.read, self.background, self.metrics
        )
        self.fetcher = Fetcher(
            parts.metadata,
            self.blocks,
            config.read,
            self.background,
            parts.clock,
            self.metrics,
            self.throttle,
        )
        self._export_sizes()

    def _make_write_path(self) -> None:
        parts, config = self.parts, self.config
        is_disk, is_remote = parts.mode == "disk", parts.is_remote
        # The tail cache holds batches until their commit anyway: as many bytes as it has beyond the
        # budget may wait for a commit without being charged.
        spare_bytes = config.read.tail_cache_bytes - config.append.append_bytes_max
        self.upload_credit = UploadCredit(self.budget, 0 if is_disk else spare_bytes)
        self.put = ObjectPut(
            parts.store,
            config.append,
            config.flush,
            self.background,
            parts.clock,
            parts.random,
            self.metrics,
            is_hedging=is_remote,
        )
        self.writer = ObjectWriter(parts.metadata, parts.offload, config.object)
        policy = flush_policy(config, is_disk=is_disk, is_remote=is_remote)
        self._items_max = appends_per_object_max(config)
        self.uploader = Uploader(
            policy,
            UploadParts(
                parts.metadata, self.writer, self.put, self.background, parts.clock, self.metrics
            ),
            self,
            uploads_in_flight_max=uploads_in_flight_max(
                config, self.upload_credit.bound_bytes, is_disk=is_disk, is_remote=is_remote
            ),
            items_max=self._items_max,
        )
        self.group_commit: GroupCommit | None = None
        if is_disk:
            assert parts.wal is not None
            # A full WAL must not wait for the upload interval.
            parts.wal.on_full = self.uploader.request_flush
            self.group_commit = GroupCommit(
                config.append,
                parts.wal,
                self._items_max,
                self.uploader.offer,
                self._set_admission_error,
                parts.clock,
                parts.random,
                self.metrics,
            )
        self._checks = UploadChecks(self.uploader, policy, self.group_commit, parts.wal)

    def _make_sequencer(self) -> Sequencer:
        parts, config = self.parts, self.config.append
        if self.group_commit is not None:
            assert parts.wal is not None
            batch_bytes_max = min(config.batch_bytes_max, parts.wal.group_bytes_max // 2)
            config = dataclasses.replace(config, batch_bytes_max=batch_bytes_max)
        return Sequencer(
            config,
            self.budget,
            self.group_commit or self.uploader,
            parts.clock,
            self.metrics,
            self.throttle.note_foreground_io,
        )

    def _export_sizes(self) -> None:
        metrics = self.metrics
        metrics.queue_bytes_bound.set(self.config.append.append_bytes_max)
        metrics.queue_bytes.set_function(lambda: self.budget.used_bytes)
        metrics.tail_bytes.set_function(lambda: self.tails.memory_bytes)
        metrics.block_bytes.set_function(lambda: self.blocks.blocks.size_bytes)

    @property
    def batch_bytes_max(self) -> int:
        """Largest payload of one append."""
        return self.sequencer.batch_bytes_max

    @property
    def pending_upload_bytes(self) -> int:
        """Bytes of appends that are not in the store yet."""
        return self.tails.held_bytes

    @property
    def uploads_waiting(self) -> list[PutUnderWay]:
        """PUTs of objects whose last try failed, oldest first."""
        return [put for put in self.put.under_way.values() if put.error is not None]

    async def start(self) -> None:
        """Recovers, then serves.

        Errors: WalPending, Corrupt, Conflict, TenureFenced, Unavailable.
        """
        wal = self.parts.wal
        self.metadata.on_stream_lost(self.lost)
        if wal is not None:
            await self._take_over_with_wal(wal)
        else:
            await self.metadata.take_over_previous(frozenset())
        await self.save_attaches()
        self._transition_to(EngineState.RUNNING)
        if self.group_commit is not None:
            self.background.spawn(self.group_commit.run(), name="group_commit")
        self.background.spawn(self.uploader.run(), name="commit")
        self.background.every(lambda: 1.0, self._check_fence, name="check_fence")
        self.background.spawn(self._watch_metadata(), name="watch_metadata")
        if wal is not None:
            self.background.spawn(self._watch_wal(wal), name="watch_wal")
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
        """Adds the engine's checks: uploads, wal_writes, wal_release."""
        self._checks.watch(watch)

    def full_disk(self) -> Due | None:
        """As UploadChecks.full_disk."""
        return self._checks.full_disk()

    def core(self, row: StreamRow) -> StreamCore:
        """The stream in memory, under the epoch of `row`. This tenure holds the stream.

        There is only one core of a stream at a time: two would assign the same offsets.
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
        """Drops the core of a closed or destroyed stream, unless a newer core replaced it."""
        if self.cores.get(core.stream_id) is core:
            del self.cores[core.stream_id]

    def check_open(self) -> None:
        """Raises the reason why the engine has stopped, if it has."""
        self._check_running()
        if self.metadata.is_fenced:
            raise self._sealed()

    def lost(self, stream_id: int, epoch: int) -> None:
        """Another tenure took the stream under `epoch`: appends fail, its Stream is fenced."""
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
        """Uploads what has been appended so far without waiting for the flush interval."""
        self.uploader.request_flush()

    async def drain(self) -> None:
        """Returns when every append called so far is in the store, or its stream lost.

        Errors: the engine's failure; Closed.
        """
        self._check_running()
        for core in list(self.cores.values()):
            # A stream may be lost alone.
            with contextlib.suppress(Fenced):
                if core.stop is None:
                    await core.drained(self.request_flush)
        # A failure stops every stream, also those that were not drained.
        self._check_running()

    def _check_running(self) -> None:
        if self.sequencer.stop is not None:
            raise self.sequencer.stop()

    async def forget_foreign(self, stream_id: int) -> None:
        """On return no later replay of the WAL finds appends of the lost stream.

        Waits until everything appended before the call is in the store, because the WAL is released
        in order. Errors: DiskFull, StoreUnavailable (of the WAL); the engine's failure.
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
        """Writes a checkpoint that names where staged objects were attached.

        Objects do not name the place themselves, so a recovery from the bucket alone would take
        later appends for unacknowledged. Called before such appends are admitted; with wal=disk
        `save_attaches_late` does it afterwards. Retries while the store is away. Errors:
        TenureFenced, Closed.
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
        """As `save_attaches`, for wal=disk, where later appends may reach the bucket first. If the
        store is away, the next call tries again."""
        if self.group_commit is None or not self.metadata.has_unsaved_attach:
            return
        try:
            await self.metadata.checkpoint()
        except (Unavailable, OutcomeUnknown, Fenced) as error:
            log.warning("a commit is not in a checkpoint yet", extra={"reason": str(error)})

    async def wait_stopped(self) -> StreamlogError:
        """Returns when the engine has failed, with the reason.

        Errors: Closed, when it has ended without a failure.
        """
        await self._stopped.wait()
        if self.failure is None:
            raise _closed()
        return self.failure

    async def close(self, drain_s: float | None = None) -> None:
        """Refuses new appends, drains for at most `drain_s` (drain_timeout_ms), and stops."""
        if self._state in (EngineState.STARTING, EngineState.RUNNING):
            self._transition_to(EngineState.DRAINING)
            self.sequencer.drain_error = _closed
        if drain_s is None:
            drain_s = self.config.append.drain_timeout_ms / 1000
        if self.sequencer.stop is None:
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
        """Returns when the tails hold no batch any more, those of lost streams included."""
        while self.tails.held_batches and self.failure is None:
            self.request_flush()
            self._progress.clear()
            await self._progress.wait()

    @property
    def is_drained(self) -> bool:
        """Whether everything acknowledged is in the store."""
        return self.tails.held_batches == 0 and self.failure is None

    async def kill(self) -> None:
        """Stops at once. Appends that were sequenced and not confirmed fail with OutcomeUnknown."""
        self._stop(
            _closed,
            lambda: OutcomeUnknown("the engine was closed before the append was confirmed"),
        )
        self.throttle.close()
        await self.background.close()

    async def _plan_replay(self, recovered: RecoveredWal) -> ReplayPlan | None:
        """None when the metadata was not rebuilt since the WAL's appends.

        Errors: WalPending, UnsupportedVersion, Unavailable.
        """
        if not recovered.extents:
            return None
        plan = await plan_replay(
            recovered.extents,
            frozenset(recovered.held),
            self.metadata,
            self.parts.store,
            self.parts.offload,
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

    def batch_committed(self, group: Group, committed: Committed | None) -> None:
        """As UploadListener. With wal=object the appends are confirmed now."""
        if committed is not None:
            for stream_id in committed.stripped:
                row = self.metadata.stream(stream_id)
                self.lost(stream_id, row.epoch if row is not None else 1 << 62)
        if self.group_commit is None:
            confirm(group)
            self._count(group)
            if self._replayed_bytes:
                self._count_replayed(group)
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

    def batch_waits(self, group: Group) -> None:
        """As UploadListener."""
        self.upload_credit.grant(group)

    def disk_full_changed(self, is_full: bool) -> None:
        """As UploadListener. Where objects and WAL lie on one disk, the WAL gives up its free
        files."""
        if self.parts.wal is not None and self.parts.wal.is_beside_objects:
            self.parts.wal.give_room(is_full)

    def _count_replayed(self, group: Group) -> None:
        """With wal=object only replayed appends are acknowledged before they are stored, so the
        backlog counts them alone. They may share a group with new appends."""
        replayed = sum(item.size_bytes for item in group.items if item.is_replayed)
        self._replayed_bytes -= replayed
        self.metrics.upload_backlog_bytes.dec(replayed)

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

    async def _watch_wal(self, wal: WriteAheadLog) -> None:
        """An engine whose log has failed takes nothing any more, and says so at once."""
        raise await wal.wait_failed()

    def _transition_to(self, state: EngineState) -> None:
        if state not in _TRANSITIONS[self._state]:
            raise Internal(f"an engine cannot go from {self._state.value} to {state.value}")
        self._state = state

    def _flush_for_room(self) -> None:
        self.uploader.flush_for_room()

    def _set_admission_error(self, error: ErrorFactory | None) -> None:
        self.sequencer.admission_error = error

    def _fail_lost_appends_soon(self) -> None:
        # Many streams may be lost together: one pass serves all.
        if not self._is_failing_due:
            self._is_failing_due = True
            asyncio.get_running_loop().call_soon(self._fail_lost_appends)

    def _fail_lost_appends(self) -> None:
        self._is_failing_due = False
        self.sequencer.fail_lost_appends()

    def _fail(self, error: BaseException) -> None:
        """A loop failed: the engine stops, and every caller gets the reason."""
        if self.failure is not None:
            return
        if isinstance(error, StreamlogError):
            reason = error
        else:
            reason = Internal(f"the engine stopped after an unexpected failure: {error!r}")
            reason.__cause__ = error
        self.failure = reason
        self._stop(lambda: _again(reason, True), lambda: _again(reason, False))

    def _stop(self, refused: ErrorFactory, sequenced: ErrorFactory) -> None:
        if self._state is EngineState.STOPPED:
            return
        self._transition_to(EngineState.STOPPED)
        self._stopped.set()
        self.uploader.stop()
        self.sequencer.close(refused, sequenced)
        self._progress.set()
        for core in self.cores.values():
            core.halt(refused)


def fenced(stream_id: int, epoch: int) -> ErrorFactory:
    """The error of calls under an older epoch."""
    return lambda: StreamFenced(
        f"stream {stream_id} was opened again with epoch {epoch}; reopen it to go on",
        stream_id=stream_id,
        epoch=epoch,
    )


def _closed() -> Closed:
    return Closed("the engine was closed; open it again")


def _again(reason: StreamlogError, has_no_side_effects: bool) -> StreamlogError:
    """A copy of the error: each caller gets its own, with its own traceback."""
    error = type(reason)(reason.message, **reason.fields)
    error.has_no_side_effects = has_no_side_effects
    error.__cause__ = reason
    return error
