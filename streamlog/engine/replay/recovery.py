"""Replays the local WAL: everything acknowledged and not uploaded takes its place again.

`read_wal` before this tenure takes the streams that earlier tenures of its node hold, `place` when
the fold shows it as their holder. For each entry, in WAL order:
1. its stream is gone, or another node's, or was last held by a later tenure than the entry's that
   had another WAL: skipped and logged; whoever moved it accepted the loss. Where the metadata was
   rebuilt since the entry, `after_recovery` decides;
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
from dataclasses import dataclass, field

from streamlog.engine.append.group import Group, Pending
from streamlog.engine.replay.after_recovery import Claim, is_doubtful
from streamlog.engine.stream_core import StreamCore
from streamlog.errors import Corrupt
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import Metadata, StreamRow, Tenure
from streamlog.model.batch import StreamState
from streamlog.wal.log import WriteAheadLog

log = logging.getLogger(__name__)


class _Taken:
    """What one stream gets back; entries meet, from the fold's end on."""

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
class Found:
    """The WAL's groups, without what is not to be replayed: streams in `foreign`.

    `claims`: streams with appends from before the metadata was rebuilt, by tenures in `doubtful`;
    of those in `held` this WAL's tenures are the holders.
    """

    groups: list[tuple[int, list[StreamEntry]]] = field(default_factory=list)
    foreign: set[int] = field(default_factory=set)
    last_sequence: int = 0
    claims: dict[int, Claim] = field(default_factory=dict)
    doubtful: set[Tenure] = field(default_factory=set)
    held: set[int] = field(default_factory=set)

    def claim(self, entry: StreamEntry, *, is_held: bool) -> None:
        start, end = entry.base_offset, entry.end_offset
        known = self.claims.setdefault(entry.stream_id, Claim(start, end, entry.epoch))
        known.add(start, end, entry.epoch)
        if is_held:
            self.held.add(entry.stream_id)

    def leave_out(self, streams: set[int]) -> None:
        """They are not replayed."""
        self.foreign |= streams
        kept = (
            (sequence, [entry for entry in entries if entry.stream_id not in streams])
            for sequence, entries in self.groups
        )
        self.groups = [(sequence, entries) for sequence, entries in kept if entries]


class Replay:
    """`groups`: what was taken, in WAL order."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, list[StreamEntry]]] = []
        self.batches = 0
        self.size_bytes = 0


async def read_wal(wal: WriteAheadLog, metadata: Metadata, named: frozenset[Tenure]) -> Found:
    """Reads the whole WAL. `named`: the tenures that it named before this one. Errors: Corrupt."""
    found = Found()
    async for group in wal.recover():
        found.last_sequence = group.sequence
        entries = []
        may_be_unknown = is_doubtful(metadata.recovery, group.tenure, named)
        if may_be_unknown:
            found.doubtful.add(group.tenure)
        for entry in group.entries:
            row = metadata.stream(entry.stream_id)
            is_held = row is not None and is_ours(row.holder, group.tenure, named)
            if may_be_unknown:
                found.claim(entry, is_held=is_held)
            if is_held or may_be_unknown:
                entries.append(entry)
            elif entry.stream_id not in found.foreign:
                found.foreign.add(entry.stream_id)
                log.warning(
                    "the WAL has appends of a stream that went elsewhere",
                    extra={"stream_id": entry.stream_id, "exists": row is not None},
                )
        if entries:
            found.groups.append((group.sequence, entries))
    return found


def is_ours(holder: Tenure, writer: Tenure, named: frozenset[Tenure]) -> bool:
    """Whether what `writer` left in a WAL that names `named` still belongs to a stream of `holder`.

    A holder that came later, with another WAL, got the stream from somebody who had given it up. An
    earlier one is what recovered metadata says: it does not know of the writer.
    """
    return holder.node_id == writer.node_id and (holder in named or holder < writer)


def place(found: Found, metadata: Metadata, *, accept_data_loss: bool = False) -> Replay:
    """What goes to the store, under this tenure's epochs.

    Errors: Corrupt; where loss is accepted, a stream ends before what does not fit.
    """
    result = Replay()
    taken: dict[int, _Taken | None] = {}
    places: list[tuple[int, list[StreamEntry]]] = []
    for sequence, entries in found.groups:
        placed: list[StreamEntry] = []
        for entry in entries:
            stream_id = entry.stream_id
            if stream_id not in taken:
                row = metadata.stream(stream_id)
                mine = row if row is not None and row.holder == metadata.tenure else None
                taken[stream_id] = None if mine is None else _Taken(mine)
                if mine is None:
                    found.foreign.add(stream_id)
            stream = taken[stream_id]
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
            places.append((sequence, placed))
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
        result.groups[-1] = (found.last_sequence, result.groups[-1][1])
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
        "together; or start once with --set engine.wal.accept_data_loss=true, which gives up what "
        "does not fit",
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
