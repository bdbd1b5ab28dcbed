"""StreamClient over an engine: creates, opens, trims, closes and destroys streams.

Every change but an open is an entry of a commit record. Changes of one stream run one after
another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from streamlog.codec.crc import crc32c_parts
from streamlog.engine.engine import Engine, fenced
from streamlog.engine.stream_core import StreamCore
from streamlog.engine.streams.stream import EngineStream
from streamlog.engine.streams.token_change import TokenChange
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    MessageTooLarge,
    OffsetOutOfRange,
    OutcomeUnknown,
    StreamFenced,
    StreamlogError,
    StreamNotFound,
    TenureFenced,
    Unavailable,
)
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import (
    CommitEntry,
    CreateEntry,
    NewObject,
    ObjectRow,
    RangeRow,
    StreamEpoch,
    StreamRow,
    TrimEntry,
    check_epoch,
)
from streamlog.model.batch import (
    AppendContext,
    CloseStreamOptions,
    CreateStreamOptions,
    DeleteStreamOptions,
    OpenStreamOptions,
    RecordBatch,
    StreamDescription,
    StreamState,
)
from streamlog.model.batch_limits import check_tags, refusal_of
from streamlog.model.numbers import OFFSET_MAX, checked_int, whole_number
from streamlog.model.stream import Stream
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import parts_size
from streamlog.runtime.concurrency.keyed_lock import KeyedLock

log = logging.getLogger(__name__)

TAGS_BYTES_MAX = 1024
_FIRST_EPOCH = 1
_CREATE_TRIES_MAX = 5

FirstBatches = Callable[[Sequence[int]], Sequence[tuple[int, RecordBatch]]]

_CREATE = CreateStreamOptions()
_OPEN = OpenStreamOptions()
_CLOSE = CloseStreamOptions()
_DELETE = DeleteStreamOptions()


class EngineStreamClient:
    """The StreamClient protocol."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._metadata = engine.metadata
        self._changing = KeyedLock[int]()
        """One open, close or destroy of a stream at a time."""

    async def create_and_open_streams(
        self,
        options: Sequence[CreateStreamOptions],
        first_batches: FirstBatches | None = None,
    ) -> list[Stream]:
        self._engine.check_open()
        for option in options:
            check_tags(option.tags, TAGS_BYTES_MAX)
        if not options:
            return []
        ids = await self._metadata.allocate_stream_ids(len(options))
        creates = [
            CreateEntry(stream_id, _FIRST_EPOCH, dict(option.tags))
            for stream_id, option in zip(ids, options, strict=True)
        ]
        entries: list[StreamEntry] = []
        if first_batches is not None:
            size_max = self._engine.config.append.batch_bytes_max
            entries = _first_entries(ids, first_batches(ids), size_max)
        # Before anything is stored.
        self._metadata.check_fits(CommitEntry(creates, [_outline(entries)] if entries else []))
        if entries:
            async with self._engine.writer.writing(entries) as written:
                await self._engine.put.put(
                    data_key(written.object_id), written.parts, tries_max=_CREATE_TRIES_MAX
                )
                await self._create(CommitEntry(creates, [written.new_object]))
        else:
            await self._create(CommitEntry(creates))
        try:
            self._engine.check_open()
        except StreamlogError as error:
            error.has_no_side_effects = False
            raise
        by_stream: dict[int, list[StreamEntry]] = {}
        for entry in entries:
            by_stream.setdefault(entry.stream_id, []).append(entry)
        return [self._new(stream_id, by_stream.get(stream_id, ())) for stream_id in ids]

    async def create_and_open_stream(self, options: CreateStreamOptions = _CREATE) -> Stream:
        (stream,) = await self.create_and_open_streams([options])
        return stream

    async def open_stream(self, stream_id: int, options: OpenStreamOptions = _OPEN) -> Stream:
        engine = self._engine
        engine.check_open()
        stream_id = whole_number("stream_id", stream_id)
        # Checked first: the stream must stay usable under its old epoch.
        check_epoch(stream_id, options.epoch)
        await engine.save_attaches()
        async with self._changing.holding(stream_id):
            row = self._metadata.stream(stream_id)
            if row is not None and row.holder == self._metadata.tenure:
                core = engine.cores.get(stream_id)
                if options.epoch is not None and options.epoch < row.epoch:
                    # It raises: StreamFenced, or what other nodes have made of the stream since.
                    await self._metadata.open_streams([(stream_id, options.epoch)])
                is_first = core is None or not core.is_handed_out
                if row.state is StreamState.OPEN and (
                    options.epoch == row.epoch or (options.epoch is None and is_first)
                ):
                    return self._handed_out(engine.core(row))
            if row is not None and row.holder.node_id == self._metadata.tenure.node_id:
                self._check_newest(row)
            await self._give_up_old_epoch(stream_id)
            try:
                (row,) = await self._metadata.open_streams(
                    [(stream_id, options.epoch)], accept_data_loss=options.accept_data_loss
                )
            except BaseException as error:
                self._reopen_old_epoch(stream_id, error)
                raise
            old = engine.cores.pop(stream_id, None)
            if old is not None:
                old.halt(fenced(stream_id, row.epoch))
            core = engine.core(row)
            # For the attaches of the stream's last holder.
            await engine.save_attaches()
            return self._handed_out(core)

    async def close_stream(self, stream_id: int, options: CloseStreamOptions = _CLOSE) -> None:
        row = self._held(stream_id)
        if row.state is StreamState.CLOSED:
            return
        await self.close_core(self._engine.core(row))

    async def delete_stream(self, stream_id: int, options: DeleteStreamOptions = _DELETE) -> None:
        self._engine.check_open()
        row = self._row(stream_id)
        if options.epoch is not None and options.epoch < row.epoch:
            raise fenced(stream_id, row.epoch)()
        if row.holder != self._metadata.tenure or row.state is StreamState.CLOSED:
            await self.open_stream(stream_id)
            row = self._row(stream_id)
        await self.destroy_core(self._engine.core(row))

    async def describe_stream(self, stream_id: int) -> StreamDescription:
        return self._describe(self._row(stream_id))

    async def list_streams(self, *, after: int = 0, limit: int = 1000) -> list[StreamDescription]:
        return [self._describe(row) for row in self._metadata.streams(after=after, limit=limit)]

    def holding(self, stream_id: int) -> AbstractAsyncContextManager[None]:
        """While it is held, the stream is not opened, closed or destroyed."""
        return self._changing.holding(stream_id)

    async def set_token(self, core: StreamCore, token: bytes, context: AppendContext) -> None:
        """As Stream.set_fencing_token."""
        change = TokenChange(self._engine, self._changing, self._check_kept, core, token, context)
        await change.apply()

    async def trim(self, core: StreamCore, new_start_offset: int) -> None:
        """As Stream.trim. Waits until everything below the offset is in the store, because the fold
        trims only that."""
        _check_core(core)
        # Checks the type; the range is checked below. A value of another type would end the
        # commit loop.
        new_start_offset = checked_int(
            "new_start_offset", new_start_offset, -OFFSET_MAX - 1, 2 * OFFSET_MAX
        )
        if new_start_offset > core.confirm:
            raise OffsetOutOfRange(
                f"cannot trim stream {core.stream_id} to {new_start_offset}: it ends at "
                f"{core.confirm}",
                offset=new_start_offset,
                start_offset=core.start,
                end_offset=core.confirm,
            )
        if new_start_offset <= core.start:
            return
        await core.committed_to(new_start_offset, self._engine.request_flush)
        committed = await self._metadata.commit(
            CommitEntry(trims=[TrimEntry(core.stream_id, core.epoch, new_start_offset)])
        )
        self._check_kept(core, committed.stripped)
        core.start = max(core.start, new_start_offset)

    async def close_core(self, core: StreamCore) -> None:
        """As Stream.close."""
        await self._end(
            core, CommitEntry(closes=[StreamEpoch(core.stream_id, core.epoch)]), _closed
        )

    async def destroy_core(self, core: StreamCore) -> None:
        """As Stream.destroy. Appends under way finish first, because they have offsets."""
        await self._end(
            core, CommitEntry(destroys=[StreamEpoch(core.stream_id, core.epoch)]), _destroyed
        )

    async def _end(
        self, core: StreamCore, entry: CommitEntry, reason: Callable[[int], StreamlogError]
    ) -> None:
        _check_core(core)
        async with AsyncExitStack() as locked:
            await locked.enter_async_context(self._changing.holding(core.stream_id))
            _check_core(core)
            core.is_closing = True
            try:
                await core.drained(self._engine.request_flush)
            except BaseException:
                core.is_closing = False
                raise

            async def finish() -> None:
                committed = await self._metadata.commit(entry)
                self._check_kept(core, committed.stripped)
                self._engine.forget(core)
                core.halt(lambda: reason(core.stream_id))

            # The entry may be applied even if this call is cancelled, so no append may follow; and
            # the lock is held to the end, or an open meanwhile would make a second core.
            await self._engine.background.shielded_holding(locked, finish, name="end_stream")

    def _check_newest(self, row: StreamRow) -> None:
        """Raises if a later tenure of this node holds the stream: this tenure was sealed."""
        if row.holder.node_epoch > self._metadata.tenure.node_epoch:
            raise TenureFenced(
                f"stream {row.stream_id} is held by {row.holder}, a later process of this node; "
                f"{self._metadata.tenure} must stop"
            )

    async def _give_up_old_epoch(self, stream_id: int) -> None:
        """On return everything appended under the old epoch is in the store.

        A commit under the old epoch would be stripped after the move; and appends of a lost epoch
        that are still in the WAL could be taken for appends of the new one.
        """
        engine = self._engine
        await engine.forget_foreign(stream_id)
        core = engine.cores.get(stream_id)
        if core is not None:
            core.is_closing = True
            try:
                await core.drained(engine.request_flush)
            except BaseException:
                core.is_closing = False
                raise

    def _reopen_old_epoch(self, stream_id: int, error: BaseException) -> None:
        """The stream was not opened, so the handle of the old epoch becomes usable again.

        Not so with wal=disk if the move may still take place: an append acknowledged out of the WAL
        could then never be committed, so the handle stays closed.
        """
        core = self._engine.cores.get(stream_id)
        is_definite = isinstance(error, StreamlogError) and not isinstance(
            error, Unavailable | OutcomeUnknown
        )
        if core is not None and (is_definite or self._engine.group_commit is None):
            core.is_closing = False

    def _check_kept(self, core: StreamCore, stripped: frozenset[int]) -> None:
        if core.stream_id in stripped:
            row = self._metadata.stream(core.stream_id)
            epoch = row.epoch if row is not None else core.epoch + 1
            self._engine.lost(core.stream_id, epoch)
            raise fenced(core.stream_id, epoch)()

    async def _create(self, entry: CommitEntry) -> None:
        """Commits the entry. If the caller is cancelled, the new streams are destroyed again,
        because no caller knows their ids.

        If the process ends before that, they stay: `list_streams` shows them, with their tags.
        """
        background = self._engine.background
        is_created = is_cancelled = False

        async def commit() -> None:
            nonlocal is_created
            await self._metadata.commit(entry)
            is_created = True
            if is_cancelled:
                await self._destroy_new(entry.creates)

        try:
            await background.shielded(commit, name="create")
        except asyncio.CancelledError:
            is_cancelled = True
            if is_created:
                background.spawn(self._destroy_new(entry.creates), name="undo_create")
            raise

    async def _destroy_new(self, creates: Sequence[CreateEntry]) -> None:
        destroys = [StreamEpoch(create.stream_id, create.epoch) for create in creates]
        try:
            await self._metadata.commit(CommitEntry(destroys=destroys))
        except StreamlogError as error:
            log.warning(
                "streams of a cancelled create stay",
                extra={
                    "stream_ids": [create.stream_id for create in creates],
                    "reason": str(error),
                },
            )

    def _new(self, stream_id: int, entries: Sequence[StreamEntry]) -> EngineStream:
        row = self._metadata.stream(stream_id)
        if row is None:
            raise Internal(f"stream {stream_id} was created and is not in the fold")
        core = self._engine.core(row)
        if entries and core.tail.first == core.next == row.end:
            # The first batches are usually read back soon, so the tail keeps them.
            core.tail = self._engine.tails.tail(entries[0].base_offset)
            for entry in entries:
                core.tail.push(entry, entry.size_bytes)
            self._engine.tails.committed(
                [(core.tail, entry, entry.size_bytes) for entry in entries]
            )
        return self._handed_out(core)

    def _handed_out(self, core: StreamCore) -> EngineStream:
        core.is_handed_out = True
        engine = self._engine
        return EngineStream(core, engine.sequencer, engine.fetcher, self)

    def _row(self, stream_id: int) -> StreamRow:
        row = self._metadata.stream(whole_number("stream_id", stream_id))
        if row is None:
            raise _destroyed(stream_id)
        return row

    def _held(self, stream_id: int) -> StreamRow:
        self._engine.check_open()
        row = self._row(stream_id)
        if row.holder != self._metadata.tenure:
            raise StreamFenced(
                f"stream {stream_id} is held by {row.holder}; open it first",
                stream_id=stream_id,
                epoch=row.epoch,
            )
        return row

    def _describe(self, row: StreamRow) -> StreamDescription:
        core = self._engine.cores.get(row.stream_id)
        end = row.end if core is None or core.epoch != row.epoch else core.confirm
        return StreamDescription(
            row.stream_id,
            row.epoch,
            row.state,
            row.start,
            end,
            str(row.holder),
            row.tags,
            row.token,
        )


def _check_core(core: StreamCore) -> None:
    if core.stop is not None:
        raise core.stop()


def _first_entries(
    ids: Sequence[int], batches: Sequence[tuple[int, RecordBatch]], batch_bytes_max: int
) -> list[StreamEntry]:
    following = dict.fromkeys(ids, 0)
    entries: list[StreamEntry] = []
    for stream_id, batch in batches:
        if stream_id not in following:
            raise Invalid(f"first batches are for the new streams only, not for {stream_id}")
        refusal = refusal_of(batch)
        if refusal is not None:
            raise refusal
        size_bytes = parts_size(batch.parts)
        if size_bytes > batch_bytes_max:
            raise MessageTooLarge(
                f"a first batch of {size_bytes} bytes; at most {batch_bytes_max} "
                "(batch_bytes_max): append the rest after the stream was created",
                size_bytes=size_bytes,
                max_bytes=batch_bytes_max,
            )
        entries.append(
            StreamEntry(
                stream_id,
                _FIRST_EPOCH,
                following[stream_id],
                batch.record_count,
                batch.base_timestamp_ms,
                batch.parts,
                batch.attributes,
                crc32c_parts(batch.parts),
            )
        )
        following[stream_id] += batch.record_count
    return entries


def _outline(entries: Sequence[StreamEntry]) -> NewObject:
    """An object that takes as much of a commit record as the real one will."""
    rows = [
        RangeRow(entry.stream_id, entry.epoch, entry.base_offset, entry.end_offset)
        for entry in entries
    ]
    return NewObject(ObjectRow(0, 0, 0, 0, 0), rows)


def _closed(stream_id: int) -> StreamlogError:
    return Closed(f"stream {stream_id} was closed; open it again")


def _destroyed(stream_id: int) -> StreamlogError:
    return StreamNotFound(f"no stream {stream_id}", stream_id=stream_id)
