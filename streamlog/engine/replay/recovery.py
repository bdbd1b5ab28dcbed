"""Replays the local WAL: finds the acknowledged appends that were not uploaded.

`read_wal` runs before this tenure takes over the streams of earlier tenures of its node, `place`
afterwards. Each entry, in WAL order, meets one of these cases:

1. Its stream is gone, or another node's, or was last held by a later tenure than the entry's that
   had another WAL: the entry is skipped and logged, because the operator who moved the stream
   accepted the loss. Where the metadata was rebuilt since the entry, `after_recovery` decides.
2. It ends at or before the stream's end in the fold: it was committed, and is skipped.
3. It starts at the end of what was placed so far: it is placed.
4. It overlaps what was placed, with the same or an older epoch: it is a second copy from a write
   that failed once, and is skipped.
5. It overlaps what was placed, with a newer epoch: the newer epoch wins from its first offset on.
6. It starts past the end: an acknowledged append is missing, Corrupt.

Placed entries are uploaded under this tenure's epoch of the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlog.engine.append.group import Group
from streamlog.engine.replay.after_recovery import WalExtent, may_be_unknown
from streamlog.engine.stream_core import StreamAppend, StreamCore
from streamlog.errors import Corrupt
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import Metadata, StreamRow, Tenure
from streamlog.model.batch import StreamState
from streamlog.wal.log import WriteAheadLog

log = logging.getLogger(__name__)


class _PlacedStream:
    """The entries placed in one stream: without gaps, from the fold's end on."""

    __slots__ = ("end", "entries", "is_cut_off", "row")

    def __init__(self, row: StreamRow) -> None:
        self.row = row
        self.is_cut_off = False
        self.end = row.end
        self.entries: list[StreamEntry] = []

    def cut(self, offset: int) -> None:
        while self.entries and self.entries[-1].end_offset > offset:
            self.entries.pop()
        self.end = self.entries[-1].end_offset if self.entries else self.row.end


@dataclass(slots=True)
class RecoveredWal:
    """The WAL's groups, without entries of streams in `foreign`, which are not replayed.

    `extents`: streams with appends from before the metadata was rebuilt, by tenures in
    `older_tenures`. `held`: those of them that a tenure of this WAL holds.
    """

    groups: list[tuple[int, list[StreamEntry]]] = field(default_factory=list)
    foreign: set[int] = field(default_factory=set)
    last_sequence: int = 0
    extents: dict[int, WalExtent] = field(default_factory=dict)
    older_tenures: set[Tenure] = field(default_factory=set)
    held: set[int] = field(default_factory=set)

    def add_to_extent(self, entry: StreamEntry, *, is_held: bool) -> None:
        start, end = entry.base_offset, entry.end_offset
        extent = self.extents.setdefault(entry.stream_id, WalExtent(start, end, entry.epoch))
        extent.add(start, end, entry.epoch)
        if is_held:
            self.held.add(entry.stream_id)

    def skip(self, streams: set[int]) -> None:
        """Removes the streams' entries."""
        self.foreign |= streams
        kept = (
            (sequence, [entry for entry in entries if entry.stream_id not in streams])
            for sequence, entries in self.groups
        )
        self.groups = [(sequence, entries) for sequence, entries in kept if entries]


class PlacedGroups:
    """The placed entries, group by group in WAL order."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, list[StreamEntry]]] = []
        self.batches = 0
        self.size_bytes = 0


async def read_wal(
    wal: WriteAheadLog, metadata: Metadata, named: frozenset[Tenure]
) -> RecoveredWal:
    """Reads the whole WAL. `named`: the tenures that it named before this one. Errors: Corrupt."""
    recovered = RecoveredWal()
    async for group in wal.recover():
        recovered.last_sequence = group.sequence
        entries = []
        is_older = may_be_unknown(metadata.recovery, group.tenure, named)
        if is_older:
            recovered.older_tenures.add(group.tenure)
        for entry in group.entries:
            row = metadata.stream(entry.stream_id)
            is_held = row is not None and may_replay(row.holder, group.tenure, named)
            if is_older:
                recovered.add_to_extent(entry, is_held=is_held)
            if is_held or is_older:
                entries.append(entry)
            elif entry.stream_id not in recovered.foreign:
                recovered.foreign.add(entry.stream_id)
                log.warning(
                    "the WAL has appends of a stream that went elsewhere",
                    extra={"stream_id": entry.stream_id, "exists": row is not None},
                )
        if entries:
            recovered.groups.append((group.sequence, entries))
    return recovered


def may_replay(holder: Tenure, writer: Tenure, named: frozenset[Tenure]) -> bool:
    """Whether an entry that `writer` left in a WAL naming `named` may be replayed into a stream of
    `holder`.

    A later holder with another WAL got the stream after it was given up, so the entry is stale. An
    earlier holder comes from recovered metadata, which does not know of the writer.
    """
    return holder.node_id == writer.node_id and (holder in named or holder < writer)


def place(
    recovered: RecoveredWal, metadata: Metadata, *, accept_data_loss: bool = False
) -> PlacedGroups:
    """The entries to upload, under this tenure's epochs.

    Errors: Corrupt, unless loss is accepted: a stream then ends before its first entry that does
    not fit.
    """
    streams: dict[int, _PlacedStream | None] = {}
    candidates: list[tuple[int, list[StreamEntry]]] = []
    for sequence, entries in recovered.groups:
        placed: list[StreamEntry] = []
        for entry in entries:
            stream_id = entry.stream_id
            if stream_id not in streams:
                row = metadata.stream(stream_id)
                mine = row if row is not None and row.holder == metadata.tenure else None
                streams[stream_id] = None if mine is None else _PlacedStream(mine)
                if mine is None:
                    recovered.foreign.add(stream_id)
            stream = streams[stream_id]
            if stream is None or stream.is_cut_off:
                continue
            try:
                is_placed = _place(stream, entry, sequence)
            except Corrupt as error:
                if not accept_data_loss:
                    raise
                log.warning("acknowledged appends are given up: %s", error)
                stream.is_cut_off = True
                continue
            if is_placed:
                placed.append(entry)
        if placed:
            candidates.append((sequence, placed))
    result = _without_cut_entries(candidates, streams.values())
    if result.groups:
        # Everything behind the last group was skipped, so the WAL may release it with that group.
        result.groups[-1] = (recovered.last_sequence, result.groups[-1][1])
    return result


def _without_cut_entries(
    candidates: Iterable[tuple[int, list[StreamEntry]]], streams: Iterable[_PlacedStream | None]
) -> PlacedGroups:
    """A newer epoch may have cut entries that were placed before it."""
    result = PlacedGroups()
    epochs = {
        id(entry): stream.row.epoch
        for stream in streams
        if stream is not None
        for entry in stream.entries
    }
    for sequence, entries in candidates:
        kept = [entry._replace(epoch=epochs[id(entry)]) for entry in entries if id(entry) in epochs]
        if kept:
            result.groups.append((sequence, kept))
            result.batches += len(kept)
            result.size_bytes += sum(entry.size_bytes for entry in kept)
    return result


def _place(stream: _PlacedStream, entry: StreamEntry, sequence: int) -> bool:
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
        "together; or start once with --set engine.wal.accept_data_loss=true, which gives up what "
        "does not fit",
        object_key=f"wal:{sequence}",
        start=entry.base_offset,
        end=entry.end_offset,
    )


def recovered_group(
    sequence: int, items: list[tuple[StreamCore, StreamEntry]], overhead: int
) -> Group:
    """Replayed appends as a confirmed group, ready for the uploader; no caller waits for them."""
    group = Group()
    group.wal_sequence = sequence
    for core, entry in items:
        append = StreamAppend.replayed(core, entry, overhead)
        core.tail.push(entry, append.size_bytes)
        core.next = core.confirm = entry.end_offset
        group.items.append(append)
        group.size_bytes += append.size_bytes
    return group
