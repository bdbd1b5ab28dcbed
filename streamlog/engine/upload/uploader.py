"""Turns batches of appends into committed objects: build, PUT, commit, in that order.

1. FlushPolicy decides when the open batch closes. Closed batches wait while the maximum number of
   uploads is in flight.
2. Several batches are built and PUT at a time. Commits keep the order in which batches closed; one
   commit takes all finished batches at the head of the queue.
3. Only after its commit may a batch be dropped from memory, and its bytes of the budget be reused.
4. If the store's disk has no room for a batch, the batch is uploaded in pieces (`upload_size.py`),
   one after another and the oldest batch first: the WAL frees the batch piece by piece, and a later
   batch must not take the room that an earlier one needs.

With wal=object the uploader is the sink of sequenced appends, which are answered after the commit.
With wal=disk it gets appends that are already answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

from streamlog.engine.append.flush_policy import FlushDecision, FlushPolicy
from streamlog.engine.append.group import Group, trace_ids
from streamlog.engine.metrics import EngineMetrics
from streamlog.engine.stream_core import StreamAppend
from streamlog.engine.upload.object_put import ObjectPut, PutUnderWay
from streamlog.engine.upload.object_writer import ObjectWriter
from streamlog.engine.upload.upload_size import PIECE_BYTES_MIN, UploadSize
from streamlog.errors import DiskFull, Internal, MessageTooLarge
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import CommitEntry, Commits, Committed, NewObject
from streamlog.objectstore.keys import data_key
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)


class Upload:
    """One closed batch on its way to the store, or a piece of it.

    `new_object` is None when this tenure has lost all streams of the batch. `was_refused`: the
    store's disk had no room for it.
    """

    __slots__ = ("ended", "group", "is_in_store", "new_object", "object_id", "was_refused")

    def __init__(self, group: Group, ended: asyncio.Future[None]) -> None:
        self.group = group
        self.object_id: int | None = None
        self.new_object: NewObject | None = None
        self.is_in_store = False
        self.was_refused = False
        self.ended = ended
        """Done when its commit succeeded or failed; until then the task that built the object owns
        the object id."""


class UploadListener(Protocol):
    """The owner of an uploader, which it notifies."""

    def batch_committed(self, group: Group, committed: Committed | None) -> None:
        """Called for each batch, in order. `committed` None: nothing of it had to be committed."""
        ...

    def batch_waits(self, group: Group) -> None:
        """The batch is in the store, and its commit waits for an earlier batch's PUT."""
        ...

    def disk_full_changed(self, is_full: bool) -> None:
        """Whether uploads find no room on the store's disk."""
        ...


@dataclass(frozen=True, slots=True)
class UploadParts:
    """What an uploader works with."""

    metadata: Commits
    writer: ObjectWriter
    put: ObjectPut
    background: Background
    clock: Clock
    metrics: EngineMetrics


class UploaderState(Enum):
    """What will start the next upload."""

    IDLE = "idle"
    """An append, or the commit of an upload under way."""
    TIMED = "timed"
    """A timer, when FlushPolicy closes the open batch; or earlier an append."""
    DUE = "due"
    """`_start_uploads`, which is scheduled on the loop."""
    STOPPED = "stopped"
    """Nothing."""


_TRANSITIONS = {
    UploaderState.IDLE: {UploaderState.TIMED, UploaderState.DUE, UploaderState.STOPPED},
    UploaderState.TIMED: {UploaderState.DUE, UploaderState.STOPPED},
    UploaderState.DUE: {UploaderState.IDLE, UploaderState.STOPPED},
    UploaderState.STOPPED: set[UploaderState](),
}


class Uploader:
    """Owns the batches between sequencing (or the WAL) and their commit. Does not own their budget
    or memory: `listener` releases those."""

    def __init__(
        self,
        policy: FlushPolicy,
        parts: UploadParts,
        listener: UploadListener,
        *,
        uploads_in_flight_max: int,
        items_max: int,
    ) -> None:
        self._policy = policy
        self._listener = listener
        self._size = UploadSize(policy.bytes_target, self._disk_full_changed)
        self.no_room = ""
        """The store's last error for want of room."""
        overlap_bytes = policy.overlap_bytes
        self._overlap_bytes = policy.bytes_target if overlap_bytes is None else overlap_bytes
        self._in_flight_max = uploads_in_flight_max
        self._items_max = items_max
        self._metadata = parts.metadata
        self._writer = parts.writer
        self._put = parts.put
        self._background = parts.background
        self._clock = parts.clock
        self._metrics = parts.metrics
        self._loop = asyncio.get_running_loop()
        self._open = Group()
        self._closed: deque[Group] = deque()
        self._uploads: deque[Upload] = deque()
        self._bytes_in_flight = 0
        """Bytes of `_uploads`."""
        self._last_closed_at = -1e9
        self._steps = 0
        """PUTs and commits that ended; the progress watch sees from it that uploads move."""
        self._is_flush_requested = False
        self._state = UploaderState.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._head_ready = asyncio.Event()
        self._moved = asyncio.Event()
        """Set when the head changes, or the disk has room again; then replaced."""

    def add(self, append: StreamAppend) -> None:
        """One sequenced append (wal=object)."""
        group = self._open
        if not group.items:
            group.opened_at = self._clock.monotonic()
        group.items.append(append)
        group.size_bytes += append.size_bytes
        if group.size_bytes >= self._policy.bytes_target or len(group.items) >= self._items_max:
            self._close("size")
        elif self._may_rest():
            return
        self._schedule()

    def add_run(self, appends: Sequence[StreamAppend], size_bytes: int) -> None:
        """A sequenced run (wal=object)."""
        for append in appends:
            self.add(append)

    def offer(self, group: Group) -> None:
        """A confirmed group (wal=disk); groups come in WAL order."""
        self._open.extend(group)
        self._metrics.upload_backlog_bytes.inc(group.size_bytes)
        bytes_target, items_max = self._policy.bytes_target, self._items_max
        if self._open.size_bytes >= bytes_target or len(self._open.items) >= items_max:
            self._close("size")
        elif self._may_rest():
            return
        self._schedule()

    def _may_rest(self) -> bool:
        """While the timer runs, only a batch that has grown enough is due earlier."""
        return self._state is UploaderState.TIMED and self._open.size_bytes < max(
            self._overlap_bytes, self._bytes_in_flight
        )

    def request_flush(self) -> None:
        """Uploads the open batch without waiting for FlushPolicy's interval."""
        if self._open.items:
            self._is_flush_requested = True
            self._schedule()

    def flush_for_room(self) -> None:
        """Appends wait for room. Uploads in flight will make room; while there are some, the open
        batch is flushed only if it is large, so that a full budget does not make small objects."""
        if not self._uploads or self._open.size_bytes * 2 >= self._policy.bytes_target:
            self.request_flush()

    def progress(self) -> Due | None:
        """What the oldest batch waits for."""
        if self._uploads:
            upload = self._uploads[0]
            behind = f"; {len(self._uploads) + len(self._closed) - 1} more wait behind it"
            if upload.is_in_store:
                step = "the commit of an uploaded batch"
            elif upload.object_id is None:
                step = "an object id, or the CPU, for the next object"
            else:
                step = f"the PUT of {data_key(upload.object_id)}"
            return Due(self._steps, step + behind)
        if self._open.items:
            opened_at = self._open.opened_at
            return Due((self._steps, opened_at), "the upload of a batch that should be closed")
        return None

    @property
    def refusal(self) -> PutUnderWay | None:
        """The oldest upload's PUT if its last try failed: all later commits wait for it."""
        object_id = self._uploads[0].object_id if self._uploads else None
        if object_id is None:
            return None
        put = self._put.under_way.get(data_key(object_id))
        return put if put is not None and put.error is not None else None

    @property
    def limit_bytes(self) -> int | None:
        """Bound on one upload while the store's disk is nearly full; else None."""
        return self._size.limit_bytes

    def unconfirmed(self) -> Iterable[Group]:
        return [*(upload.group for upload in self._uploads), *self._closed, self._open]

    def stop(self) -> None:
        """No upload starts after this."""
        if self._state is not UploaderState.STOPPED:
            self._transition_to(UploaderState.STOPPED)

    async def run(self) -> None:
        """Commits finished uploads in order; runs until cancelled."""
        while True:
            await self._head_ready.wait()
            self._head_ready.clear()
            while self._uploads and self._uploads[0].is_in_store:
                await self._commit_head()
                self._schedule()

    def _transition_to(self, state: UploaderState) -> None:
        if state not in _TRANSITIONS[self._state]:
            raise Internal(f"an uploader cannot go from {self._state.value} to {state.value}")
        self._state = state
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._state is not UploaderState.DUE and self._state is not UploaderState.STOPPED:
            self._transition_to(UploaderState.DUE)
            self._loop.call_soon(self._start_uploads)

    def _start_uploads(self) -> None:
        """Starts uploads of closed batches, and closes the open batch if it is due."""
        if self._state is UploaderState.STOPPED:
            return
        self._transition_to(UploaderState.IDLE)
        while len(self._uploads) < self._in_flight_max:
            if not self._closed:
                if not self._open.items:
                    return
                decision = self._decide()
                wait_s = decision.due_at - self._clock.monotonic()
                if wait_s > 0:
                    self._transition_to(UploaderState.TIMED)
                    self._timer = self._loop.call_later(wait_s, self._schedule)
                    return
                self._close(decision.reason)
            upload = Upload(self._closed.popleft(), self._loop.create_future())
            self._uploads.append(upload)
            self._bytes_in_flight += upload.group.size_bytes
            self._background.spawn(self._upload(upload), name="upload")

    def _decide(self) -> FlushDecision:
        return self._policy.decide(
            size_bytes=self._open.size_bytes,
            opened_at=self._open.opened_at,
            uploads_in_flight=len(self._uploads),
            bytes_in_flight=self._bytes_in_flight,
            last_closed_at=self._last_closed_at,
            is_flush_requested=self._is_flush_requested,
        )

    def _close(self, reason: str) -> None:
        self._closed.append(self._open)
        self._open = Group()
        self._is_flush_requested = False
        self._last_closed_at = self._clock.monotonic()
        self._metrics.closed.labels(reason).inc()

    async def _upload(self, upload: Upload) -> None:
        while not upload.is_in_store:
            while not self._may_use_room(upload):
                await self._moved.wait()
            self._cut(upload)
            entries = [item.entry for item in upload.group.items if item.core.stop is None]
            if not entries:
                self._arrived(upload)
                return
            await self._try(upload, entries)

    def _may_use_room(self, upload: Upload) -> bool:
        """While the disk is nearly full only the oldest batch goes up: a later one that took the
        room could not be committed before it, and so would free nothing."""
        return self._size.limit_bytes is None or self._uploads[0] is upload

    async def _try(self, upload: Upload, entries: list[StreamEntry]) -> None:
        """On return the batch is committed, was refused for want of room, or has to wait."""
        # A batch that cannot be split is tried until there is room for it.
        may_shrink = not upload.was_refused or (
            upload.group.size_bytes > PIECE_BYTES_MIN and len(upload.group.items) > 1
        )
        async with self._writer.writing(entries, is_patient=True) as written:
            upload.object_id = written.object_id
            self._metrics.object_bytes.observe(written.size_bytes)
            try:
                is_stored = await self._put.put(
                    data_key(written.object_id),
                    written.parts,
                    full_is_final=may_shrink,
                    may_try=partial(self._may_use_room, upload),
                )
            except DiskFull as error:
                self.no_room = error.message
                upload.was_refused = True
                upload.object_id = None
            else:
                if not is_stored:
                    upload.object_id = None
                    return
                self._metrics.put_bytes.inc(written.size_bytes)
                if log.isEnabledFor(logging.DEBUG):
                    log.debug(
                        "appends are in the store, to be committed",
                        extra={
                            "object_id": written.object_id,
                            "appends": len(entries),
                            "size_bytes": written.size_bytes,
                            "trace_ids": trace_ids(upload.group.items),
                        },
                    )
                upload.new_object = written.new_object
                # The commit needs only the ranges.
                written.parts = ()
                entries.clear()
                self._size.stored(upload.group.size_bytes)
                self._arrived(upload)
                await upload.ended
        if not upload.is_in_store:
            self._size.refuse(upload.group.size_bytes)

    def _cut(self, upload: Upload) -> None:
        """Splits the batch if it exceeds the bound on uploads; the rest becomes the next upload."""
        limit_bytes = self._size.limit_bytes
        if limit_bytes is None or not self._size.is_cut(upload.group.size_bytes):
            return
        first, rest = upload.group.split(limit_bytes)
        if rest.items:
            upload.group = first
            follower = Upload(rest, self._loop.create_future())
            self._uploads.insert(1, follower)
            self._background.spawn(self._upload(follower), name="upload")

    def _disk_full_changed(self, is_full: bool) -> None:
        if is_full:
            log.warning(
                "the store's disk has no room for an upload; smaller ones are tried",
                extra={"limit_bytes": self._size.limit_bytes},
            )
        else:
            log.info("the store's disk has room for uploads again")
        self._listener.disk_full_changed(is_full)
        self._wake_uploads()

    def _wake_uploads(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _arrived(self, upload: Upload) -> None:
        upload.is_in_store = True
        self._steps += 1
        if self._uploads[0] is upload:
            self._head_ready.set()
        else:
            self._listener.batch_waits(upload.group)

    async def _commit_head(self) -> None:
        """Commits every finished upload at the head that fits into one record."""
        ready: list[Upload] = []
        objects: list[NewObject] = []
        for upload in self._uploads:
            new = upload.new_object
            if not upload.is_in_store:
                break
            if new is not None:
                if objects and not self._fits([*objects, new]):
                    break
                objects.append(new)
            ready.append(upload)
        committed: Committed | None = None
        try:
            if objects:
                started = self._clock.monotonic()
                committed = await self._metadata.commit(CommitEntry(objects=objects))
                self._metrics.commit_seconds.observe(self._clock.monotonic() - started)
        finally:
            for upload in ready:
                if not upload.ended.done():
                    upload.ended.set_result(None)
        for upload in ready:
            self._uploads.popleft()
            self._steps += 1
            self._bytes_in_flight -= upload.group.size_bytes
            self._listener.batch_committed(upload.group, committed)
        if not self._uploads and not self._closed and not self._open.items:
            self._size.end()
        self._wake_uploads()

    def _fits(self, objects: list[NewObject]) -> bool:
        try:
            self._metadata.check_fits(CommitEntry(objects=objects))
        except MessageTooLarge:
            return False
        return True
