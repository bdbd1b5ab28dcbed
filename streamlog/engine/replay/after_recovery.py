"""What a WAL holds beyond metadata that was rebuilt: no acknowledged append of it goes unnoticed.

Rebuilt metadata (`Metadata.recovery`) knows what the store held and the newest checkpoint said. A
WAL that names tenures from before may hold appends of streams that are, in that metadata,
1. unknown: made again, when the WAL begins at offset 0. Else what came before was in the store and
   went: the stream was destroyed, if the checkpoint would tell of that; if not, refused;
2. closed, and go on past the end: they were opened again since the checkpoint, and are opened now;
3. another tenure's of before, under no later epoch than the WAL's: they were moved since, and are
   taken from it;
4. in the hands of a tenure that began after the rebuild: refused, unless all that the WAL has of
   them was stored before.
Refused: the node does not start, nothing is changed or released; with `accept_data_loss` it goes on
without these appends, and says so. Once all have their place the WAL forgets its tenures from
before: a stream that is unknown later was destroyed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from streamlog.errors import WalPending
from streamlog.metadata.interface import (
    RECOVERED_EPOCHS,
    CommitEntry,
    CreateEntry,
    Metadata,
    Recovery,
    StreamRow,
    Tenure,
)
from streamlog.model.batch import StreamState

log = logging.getLogger(__name__)

CREATES_PER_COMMIT = 1000
SHOWN_MAX = 5


class Fate(Enum):
    """What becomes of a stream's appends in a WAL from before a rebuild of the metadata."""

    HELD = "replayed as ever"
    CREATE = "the stream is made again"
    OPEN = "the stream is opened"
    STORED = "stored, or given up before the rebuild"
    DESTROYED = "the stream was destroyed before the rebuild"
    BEGINNING_LOST = "the metadata does not know the stream, and the log has only its end"
    LOOK = "with a tenure that began after the rebuild"
    TAKEN = "another node opened the stream after the rebuild"


@dataclass(slots=True)
class Claim:
    """What a WAL from before has of a stream: `appends` between start and end (exclusive), under
    epochs up to `epoch`.
    """

    start: int
    end: int
    epoch: int
    appends: int = 0

    def add(self, start: int, end: int, epoch: int) -> None:
        self.start = min(self.start, start)
        self.end = max(self.end, end)
        self.epoch = max(self.epoch, epoch)
        self.appends += 1


def judge(claim: Claim, row: StreamRow | None, recovery: Recovery, *, is_held: bool) -> Fate:
    """`row`: the stream in the metadata. `is_held`: its holder is one whose WAL this is. Pure."""
    if row is None:
        if claim.start == 0:
            return Fate.CREATE
        is_told = recovery.knows_deletions and recovery.from_revision > 0
        return Fate.DESTROYED if is_told else Fate.BEGINNING_LOST
    if is_held:
        is_shut = row.state is StreamState.CLOSED and claim.end > row.end
        return Fate.OPEN if is_shut else Fate.HELD
    if recovery.is_before(row.holder):
        is_newer = claim.epoch >= row.epoch - RECOVERED_EPOCHS
        return Fate.OPEN if is_newer and claim.end > row.end else Fate.STORED
    return Fate.LOOK


@dataclass(slots=True)
class Settled:
    """`creates`: stream → epoch. `left`: streams whose appends are not replayed."""

    creates: dict[int, int]
    opens: list[int]
    left: set[int]


async def settle(
    claims: Mapping[int, Claim],
    held: frozenset[int],
    metadata: Metadata,
    *,
    accept_data_loss: bool,
) -> Settled:
    """What is to be done before a replay; nothing is changed. `held`: streams
    whose holders the WAL names. Errors: WalPending, Unavailable.
    """
    recovery = metadata.recovery
    assert recovery is not None
    settled, refused = Settled({}, [], set()), dict[int, Fate]()
    for stream_id, claim in claims.items():
        row = metadata.stream(stream_id)
        fate = judge(claim, row, recovery, is_held=stream_id in held)
        if fate is Fate.LOOK:
            assert row is not None
            is_stored = await _was_stored(claim, row, metadata, recovery)
            fate = Fate.STORED if is_stored else Fate.TAKEN
        if fate is Fate.CREATE:
            settled.creates[stream_id] = claim.epoch + RECOVERED_EPOCHS
        elif fate is Fate.OPEN:
            settled.opens.append(stream_id)
        elif fate is not Fate.HELD:
            settled.left.add(stream_id)
            log.warning(
                "appends in the write-ahead log are not replayed: %s",
                _shown(stream_id, claim, fate),
            )
        if fate in (Fate.BEGINNING_LOST, Fate.TAKEN):
            refused[stream_id] = fate
    if refused:
        _refuse(refused, claims, recovery, accept_data_loss=accept_data_loss)
    return settled


async def carry_out(settled: Settled, metadata: Metadata) -> None:
    """Streams are this tenure's and open, on return. Errors: Conflict (another node opened one
    meanwhile), TenureFenced, Unavailable.
    """
    creates = [CreateEntry(stream_id, epoch) for stream_id, epoch in settled.creates.items()]
    for low in range(0, len(creates), CREATES_PER_COMMIT):
        await metadata.commit(CommitEntry(creates=creates[low : low + CREATES_PER_COMMIT]))
    if settled.opens:
        await metadata.open_streams([(stream_id, None) for stream_id in settled.opens])
    if creates or settled.opens:
        log.warning(
            "streams that the rebuilt metadata did not know so are back from the write-ahead log",
            extra={
                "made_again": sorted(settled.creates)[:100],
                "opened": sorted(settled.opens)[:100],
            },
        )


async def _was_stored(claim: Claim, row: StreamRow, metadata: Metadata, recovery: Recovery) -> bool:
    """All that the WAL has of the stream lies in objects from before the rebuild, or was trimmed.

    What a compaction wrote since counts as from after: it cannot be told from new records.
    """
    if claim.end > row.end:
        return False
    at = max(claim.start, row.start)
    while at < claim.end:
        found = await metadata.locate(row.stream_id, at, claim.end)
        if not found or any(one.object.object_id >= recovery.object_id_min for one in found):
            return False
        at = found[-1].end
    return True


def _refuse(
    refused: Mapping[int, Fate],
    claims: Mapping[int, Claim],
    recovery: Recovery,
    *,
    accept_data_loss: bool,
) -> None:
    """Errors: WalPending, unless the loss is accepted."""
    appends = sum(claims[stream_id].appends for stream_id in refused)
    shown = "; ".join(_shown(s, claims[s], fate) for s, fate in list(refused.items())[:SHOWN_MAX])
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


def _shown(stream_id: int, claim: Claim, fate: Fate) -> str:
    return f"stream {stream_id}, offsets {claim.start} to {claim.end} ({fate.value})"


def is_doubtful(recovery: Recovery | None, tenure: Tenure, named: frozenset[Tenure]) -> bool:
    """Whether the metadata may not know what `tenure` left in a WAL that names `named`."""
    return recovery is not None and tenure in named and recovery.is_before(tenure)
