"""Replays the local WAL: everything acknowledged and not uploaded takes its place again.

Called when the fold shows this tenure as holder of the streams that earlier tenures of this node
held. For each entry, in WAL order:
1. its stream is gone, or another node's: skipped and logged; whoever moved it accepted the loss;
2. it ends at or before the stream's end in the fold: it was committed;
3. it starts at the current end: taken;
4. it overlaps what was taken, with the same or an older epoch: a second copy of a write that failed
   once; skipped;
5. it overlaps what was taken, with a newer epoch: the newer epoch wins from its first offset on;
6. it starts past the current end: an acknowledged append is missing, Corrupt.
Taken entries are written on under this tenure's epoch of the stream.
"""

from __future__ import annotations

import dataclasses
import logging

from streamlog.engine.group import Group, Pending
from streamlog.engine.stream_core import StreamCore
from streamlog.errors import Corrupt
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import Metadata, StreamRow
from streamlog.model.batch import StreamState
from streamlog.wal.log import WriteAheadLog

log = logging.getLogger(__name__)


class _Taken:
    """What one stream gets back; entries meet, from the fold's end on."""

    __slots__ = ("end", "entries", "row")

    def __init__(self, row: StreamRow) -> None:
        self.row = row
        self.end = row.end
        self.entries: list[StreamEntry] = []

    def cut(self, offset: int) -> None:
        while self.entries and self.entries[-1].end_offset > offset:
            self.entries.pop()
        self.end = self.entries[-1].end_offset if self.entries else self.row.end


class Replay:
    """`groups`: what was taken, in WAL order. `foreign`: streams whose entries were skipped."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, list[StreamEntry]]] = []
        self.foreign: set[int] = set()
        self.last_sequence = 0
        self.batches = 0
        self.size_bytes = 0


async def replay(wal: WriteAheadLog, metadata: Metadata) -> Replay:
    """Reads the whole WAL. Errors: Corrupt."""
    result = Replay()
    taken: dict[int, _Taken | None] = {}
    places: list[tuple[int, list[StreamEntry]]] = []
    async for group in wal.recover():
        result.last_sequence = group.sequence
        placed: list[StreamEntry] = []
        for entry in group.entries:
            stream_id = entry.stream_id
            if stream_id not in taken:
                row = metadata.stream(stream_id)
                mine = row if row is not None and row.holder == metadata.tenure else None
                taken[stream_id] = None if mine is None else _Taken(mine)
                if mine is None:
                    result.foreign.add(stream_id)
                    log.warning(
                        "the WAL has appends of a stream that this node no longer holds",
                        extra={"stream_id": stream_id, "exists": row is not None},
                    )
            stream = taken[stream_id]
            if stream is not None and _place(stream, entry, group.sequence):
                placed.append(entry)
        if placed:
            places.append((group.sequence, placed))
    # Later entries may have cut earlier ones.
    kept = {
        id(entry): stream.row.epoch
        for stream in taken.values()
        if stream is not None
        for entry in stream.entries
    }
    for sequence, entries in places:
        alive = [
            dataclasses.replace(entry, epoch=kept[id(entry)])
            for entry in entries
            if id(entry) in kept
        ]
        if alive:
            result.groups.append((sequence, alive))
            result.batches += len(alive)
            result.size_bytes += sum(entry.size_bytes for entry in alive)
    if result.groups:
        # What follows was skipped: it may go together with the last group taken.
        result.groups[-1] = (result.last_sequence, result.groups[-1][1])
    return result


def _place(stream: _Taken, entry: StreamEntry, sequence: int) -> bool:
    row = stream.row
    if entry.end_offset <= row.end:
        return False
    if row.state is not StreamState.OPEN:
        raise _wrong(entry, sequence, f"the stream is closed at {row.end}")
    if entry.epoch > row.epoch:
        raise _wrong(entry, sequence, f"the stream's epoch is only {row.epoch}")
    if entry.base_offset < stream.end:
        if not stream.entries or entry.epoch <= stream.entries[-1].epoch:
            if entry.end_offset <= stream.end:
                return False
            raise _wrong(entry, sequence, f"it overlaps what ends at {stream.end}")
        stream.cut(entry.base_offset)
    if entry.base_offset != stream.end:
        raise _wrong(entry, sequence, f"what came before it ends at {stream.end}")
    stream.entries.append(entry)
    stream.end = entry.end_offset
    return True


def _wrong(entry: StreamEntry, sequence: int, why: str) -> Corrupt:
    return Corrupt(
        f"the write-ahead log's group {sequence} has an append to stream {entry.stream_id} at "
        f"offset {entry.base_offset} (epoch {entry.epoch}) that does not fit: {why}. "
        "An acknowledged append is missing: restore the WAL folder and the metadata that belong "
        "together",
        object_key=f"wal:{sequence}",
        start=entry.base_offset,
        end=entry.end_offset,
    )


def recovered_group(
    sequence: int, items: list[tuple[StreamCore, StreamEntry]], overhead: int
) -> Group:
    """The appends as a confirmed group on its way to the store; nobody waits for them."""
    group = Group()
    group.wal_sequence = sequence
    for core, entry in items:
        size_bytes = entry.size_bytes
        core.tail.push(entry, size_bytes)
        core.next = core.confirm = entry.end_offset
        group.items.append(Pending(core, entry, size_bytes, size_bytes + overhead, None, None))
        group.size_bytes += size_bytes
    return group
