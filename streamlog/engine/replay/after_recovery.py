"""Plans the replay of a WAL into metadata that was rebuilt after the WAL's appends.

Rebuilt metadata (`Metadata.recovery`) knows what the store held and what the newest checkpoint
said. A WAL that names tenures from before the rebuild may hold acknowledged appends of streams that
the metadata shows

1. not at all: the stream is created again if the WAL has it from offset 0. Otherwise its beginning
   was in the store and is gone: the stream was destroyed, if the checkpoint would have recorded
   that; if not, replay is refused;
2. as closed, before the end of the appends: the stream was opened again after the checkpoint, and
   is opened now;
3. as held by another tenure from before the rebuild, under no later epoch than the WAL's: the
   stream moved after the checkpoint, and is opened by this node;
4. as held by a tenure that began after the rebuild: replay is refused, unless everything that the
   WAL has of the stream was in the store before, under its epochs or later ones;
5. as reaching past the first append of an epoch of which the rebuild saw no object: that epoch's
   holder began behind all commits, so what the store has from there on was never committed, which
   the rebuild could not tell. Replay is refused: the appends were acknowledged, and their offsets
   are taken.

When replay is refused, the node does not start, and nothing is changed or released. With
`accept_data_loss` the node logs the appends and goes on without them. Afterwards the WAL forgets
its tenures from before the rebuild: a stream that is unknown then was destroyed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from streamlog.engine.commit_parts import commit_parts
from streamlog.errors import Corrupt, ObjectNotFound, WalPending
from streamlog.format.object.footer import decode_rows
from streamlog.metadata.interface import (
    RECOVERED_EPOCHS,
    CommitEntry,
    CreateEntry,
    LiveRange,
    Metadata,
    Recovery,
    StreamRow,
    Tenure,
)
from streamlog.model.batch import StreamState
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import get_tail
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

log = logging.getLogger(__name__)

SHOWN_MAX = 5


class ReplayDecision(Enum):
    """What happens to one stream's appends in a WAL from before a rebuild of the metadata."""

    REPLAY = "replayed as ever"
    CREATE = "the stream is made again"
    OPEN = "the stream is opened"
    STORED = "stored, or given up before the rebuild"
    DESTROYED = "the stream was destroyed before the rebuild"
    BEGINNING_LOST = "the metadata does not know the stream, and the log has only its end"
    CHECK_STORED = "with a tenure that began after the rebuild"
    TAKEN_OVER = "another node opened the stream after the rebuild"
    DISPLACED = "their offsets went to what another node had stored and never committed"


REFUSED = (ReplayDecision.BEGINNING_LOST, ReplayDecision.TAKEN_OVER, ReplayDecision.DISPLACED)


@dataclass(slots=True)
class WalExtent:
    """What the WAL has of one stream from before the rebuild: `appends` appends between `start` and
    `end` (exclusive), under epochs up to `epoch`. `starts`: epoch → where its first one begins."""

    start: int
    end: int
    epoch: int
    appends: int = 0
    starts: dict[int, int] = field(default_factory=dict)

    def add(self, start: int, end: int, epoch: int) -> None:
        self.start = min(self.start, start)
        self.end = max(self.end, end)
        self.epoch = max(self.epoch, epoch)
        self.appends += 1
        self.starts[epoch] = min(start, self.starts.get(epoch, start))

    def start_above(self, epoch: int) -> int | None:
        """Where the first append under a later epoch begins; None: there is none."""
        return min((at for of, at in self.starts.items() if of > epoch), default=None)


def decide(
    extent: WalExtent, row: StreamRow | None, recovery: Recovery, *, is_held: bool
) -> ReplayDecision:
    """Pure. `row`: the stream in the metadata. `is_held`: a tenure of this WAL holds the stream."""
    if row is None:
        if extent.start == 0:
            return ReplayDecision.CREATE
        has_record = recovery.knows_deletions and recovery.from_revision > 0
        return ReplayDecision.DESTROYED if has_record else ReplayDecision.BEGINNING_LOST
    # All that the rebuild found of the stream is of this epoch or an earlier one.
    seen = row.epoch - RECOVERED_EPOCHS
    if recovery.is_before(row.holder):
        unseen_from = extent.start_above(seen)
        # Of a stream that has nothing, the rebuild may have guessed the epoch.
        if unseen_from is not None and max(unseen_from, row.start) < row.end:
            return ReplayDecision.DISPLACED
    if is_held:
        is_closed = row.state is StreamState.CLOSED and extent.end > row.end
        return ReplayDecision.OPEN if is_closed else ReplayDecision.REPLAY
    if recovery.is_before(row.holder):
        is_newer = extent.epoch >= seen
        return ReplayDecision.OPEN if is_newer and extent.end > row.end else ReplayDecision.STORED
    return ReplayDecision.CHECK_STORED


@dataclass(slots=True)
class ReplayPlan:
    """What the metadata needs before the replay.

    `creates`: stream → epoch. `skipped`: streams whose appends are not replayed.
    """

    creates: dict[int, int]
    opens: list[int]
    skipped: set[int]


async def plan_replay(
    extents: Mapping[int, WalExtent],
    held: frozenset[int],
    metadata: Metadata,
    store: ObjectStore,
    offload: Offload,
    *,
    accept_data_loss: bool,
) -> ReplayPlan:
    """Changes nothing. `held`: streams that a tenure of this WAL holds.

    Errors: WalPending, UnsupportedVersion, Unavailable.
    """
    recovery = metadata.recovery
    assert recovery is not None
    plan, refused = ReplayPlan({}, [], set()), dict[int, ReplayDecision]()
    decisions, rows = dict[int, ReplayDecision](), dict[int, StreamRow]()
    for stream_id, extent in extents.items():
        row = metadata.stream(stream_id)
        decisions[stream_id] = decide(extent, row, recovery, is_held=stream_id in held)
        if decisions[stream_id] is ReplayDecision.CHECK_STORED:
            assert row is not None
            rows[stream_id] = row
    stored = await _stored(rows, extents, metadata, recovery, store, offload)
    for stream_id, decision in decisions.items():
        extent = extents[stream_id]
        if decision is ReplayDecision.CHECK_STORED:
            is_stored = stream_id in stored
            decision = ReplayDecision.STORED if is_stored else ReplayDecision.TAKEN_OVER
        if decision is ReplayDecision.CREATE:
            plan.creates[stream_id] = extent.epoch + RECOVERED_EPOCHS
        elif decision is ReplayDecision.OPEN:
            plan.opens.append(stream_id)
        elif decision is not ReplayDecision.REPLAY:
            plan.skipped.add(stream_id)
            log.warning(
                "appends in the write-ahead log are not replayed: %s",
                _shown(stream_id, extent, decision),
            )
        if decision in REFUSED:
            refused[stream_id] = decision
    if refused:
        _refuse(refused, extents, recovery, accept_data_loss=accept_data_loss)
    return plan


async def apply_plan(plan: ReplayPlan, metadata: Metadata) -> None:
    """On return this tenure holds the plan's streams, open.

    Errors: Conflict (another node opened one meanwhile), TenureFenced, Unavailable.
    """
    creates = [CreateEntry(stream_id, epoch) for stream_id, epoch in plan.creates.items()]
    for part in commit_parts(creates, _creating, metadata):
        await metadata.commit(_creating(part))
    if plan.opens:
        await metadata.open_streams([(stream_id, None) for stream_id in plan.opens])
    if creates or plan.opens:
        log.warning(
            "streams were made again or opened for appends in the write-ahead log",
            extra={
                "made_again": sorted(plan.creates)[:100],
                "opened": sorted(plan.opens)[:100],
            },
        )


def _creating(creates: Sequence[CreateEntry]) -> CommitEntry:
    return CommitEntry(creates=creates)


async def _stored(
    rows: Mapping[int, StreamRow],
    extents: Mapping[int, WalExtent],
    metadata: Metadata,
    recovery: Recovery,
    store: ObjectStore,
    offload: Offload,
) -> set[int]:
    """Those of the streams of which all of the extent lies in objects from before the rebuild,
    under its epochs or later ones, or was trimmed.

    Many streams share an object, so each footer is read once.
    Errors: UnsupportedVersion, StoreUnavailable.
    """
    stored, shared = set[int](), dict[int, list[_AskedRange]]()
    for stream_id, row in rows.items():
        ranges = await _ranges_before(extents[stream_id], row, metadata, recovery)
        if ranges is None:
            continue
        stored.add(stream_id)
        for live in ranges:
            # What was staged has a place by its commit alone.
            if not live.object.placements:
                asked = _AskedRange(stream_id, extents[stream_id], live)
                shared.setdefault(live.object.object_id, []).append(asked)
    for of_object in shared.values():
        stored -= await _displaced(of_object, store, offload)
    return stored


class _AskedRange(NamedTuple):
    """A range at offsets of the stream's extent."""

    stream_id: int
    extent: WalExtent
    live: LiveRange


async def _ranges_before(
    extent: WalExtent, row: StreamRow, metadata: Metadata, recovery: Recovery
) -> list[LiveRange] | None:
    """What lies at the extent's offsets; None: not all of it is from before the rebuild.

    Ranges that a compaction has written since count as new: they look the same as new records.
    """
    found, offset = list[LiveRange](), max(extent.start, row.start)
    while offset < extent.end:
        ranges = await metadata.locate(row.stream_id, offset, extent.end)
        if not ranges or any(live.object.object_id >= recovery.object_id_min for live in ranges):
            return None
        found += ranges
        offset = ranges[-1].end
    return found


async def _displaced(
    ranges: Sequence[_AskedRange], store: ObjectStore, offload: Offload
) -> set[int]:
    """The streams of which an append has an offset that one object, which all the ranges are in,
    has under an earlier epoch: this was never committed. A stream's own epoch tells nothing of it
    any more, because each open since the rebuild has raised it. All of the streams, if the object
    is gone or damaged and does not tell it."""
    row = ranges[0].live.object
    try:
        tail = await get_tail(store, row)
        return await offload.run(Lane.CPU, _find_displaced, ranges, tail)
    except (Corrupt, ObjectNotFound) as error:
        log.warning("appends in the write-ahead log do not count as stored: %s", error)
        return {asked.stream_id for asked in ranges}


def _find_displaced(ranges: Sequence[_AskedRange], tail: Buffer) -> set[int]:
    """As `_displaced`. `tail`: the object's end. Errors: Corrupt, UnsupportedVersion."""
    row = ranges[0].live.object
    key, displaced = data_key(row.object_id), set[int]()
    rows = decode_rows(tail, size_bytes=row.size_bytes, object_key=key)
    for stream_id, extent, live in ranges:
        for written in rows.between(stream_id, stream_id + 1):
            start, end = max(written.start, live.start), min(written.end, live.end)
            later = extent.start_above(written.epoch)
            if start < end and later is not None and later < end:
                displaced.add(stream_id)
    return displaced


def _refuse(
    refused: Mapping[int, ReplayDecision],
    extents: Mapping[int, WalExtent],
    recovery: Recovery,
    *,
    accept_data_loss: bool,
) -> None:
    """Errors: WalPending, unless the loss is accepted."""
    appends = sum(extents[stream_id].appends for stream_id in refused)
    shown = "; ".join(
        _shown(stream_id, extents[stream_id], decision)
        for stream_id, decision in list(refused.items())[:SHOWN_MAX]
    )
    more = f"; and {len(refused) - SHOWN_MAX} more" if len(refused) > SHOWN_MAX else ""
    if accept_data_loss:
        log.warning(
            "%d acknowledged appends to %d streams are given up: %s%s",
            appends,
            len(refused),
            shown,
            more,
        )
        return
    raise WalPending(
        f"the write-ahead log holds {appends} acknowledged appends to {len(refused)} streams that "
        f"have no place in the metadata, which was rebuilt after them: {shown}{more}. Nothing was "
        "changed. Keep a copy of the log's folder; `streamlog wal show DIR --store URL --meta URL` "
        "lists what it holds. To go on without these appends start once with "
        "--set engine.wal.accept_data_loss=true",
        recovered_ms=recovery.at_ms,
        streams=len(refused),
    )


def _shown(stream_id: int, extent: WalExtent, decision: ReplayDecision) -> str:
    return f"stream {stream_id}, offsets {extent.start} to {extent.end} ({decision.value})"


def may_be_unknown(recovery: Recovery | None, tenure: Tenure, named: frozenset[Tenure]) -> bool:
    """Whether rebuilt metadata may not know all that `tenure` left in a WAL that names `named`."""
    return recovery is not None and tenure in named and recovery.is_before(tenure)
