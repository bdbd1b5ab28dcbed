"""Which appends of a WAL are placed, and which are damage (engine/replay/recovery.py)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamlog.codec.crc import crc32c
from streamlog.engine.replay.recovery import RecoveredWal, place, read_wal
from streamlog.errors import Corrupt
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import StreamRow, Tenure
from streamlog.model.batch import StreamState
from tests.engine.fakes import FakeGroup, FakeMetadata, FakeWal
from tests.engine.harness import run

STREAM, OTHER = 7, 8
BEFORE, NOW = Tenure(1, 1), Tenure(1, 2)


def entry(base: int, count: int, epoch: int, stream_id: int = STREAM) -> StreamEntry:
    payload = b"%d.%d" % (epoch, base)
    return StreamEntry(stream_id, epoch, base, count, 1000, (payload,), b"", crc32c(payload))


def metadata_with(
    *, end: int, epoch: int = 9, holder: Tenure = NOW, state: StreamState = StreamState.OPEN
) -> FakeMetadata:
    """STREAM as given; OTHER is empty, open and held under epoch 9."""
    metadata = FakeMetadata()
    metadata.tenure = NOW
    metadata.rows[STREAM] = StreamRow(STREAM, epoch, holder, 0, end, state, b"", {})
    metadata.rows[OTHER] = StreamRow(OTHER, 9, NOW, 0, 0, StreamState.OPEN, b"", {})
    return metadata


def recovered_wal(*groups: Sequence[StreamEntry]) -> RecoveredWal:
    """Groups 1, 2, … as read from a WAL."""
    return RecoveredWal(list(enumerate(map(list, groups), start=1)), last_sequence=len(groups))


Placed = list[tuple[int, list[tuple[int, int, bytes]]]]


def placed(
    wal: RecoveredWal, metadata: FakeMetadata, *, accept_data_loss: bool = False, epoch: int = 9
) -> Placed:
    """By group: stream, base offset, payload. All are under the stream's own epoch."""
    result = place(wal, metadata.as_metadata, accept_data_loss=accept_data_loss)
    assert {stored.epoch for _, entries in result.groups for stored in entries} <= {epoch}
    return [
        (
            sequence,
            [(stored.stream_id, stored.base_offset, b"".join(stored.parts)) for stored in entries],
        )
        for sequence, entries in result.groups
    ]


def test_a_newer_epoch_wins_from_its_first_offset_on() -> None:
    """The stream went away with its end at 4 and came back: what the WAL has from 4 on under the
    old epoch was never acknowledged."""
    wal = recovered_wal(
        [entry(0, 2, 1), entry(0, 1, 9, OTHER)],
        [entry(2, 2, 1), entry(4, 2, 1)],
        [entry(6, 3, 1)],
        [entry(4, 1, 3)],
        [entry(5, 1, 3)],
    )
    assert placed(wal, metadata_with(end=0)) == [
        (1, [(STREAM, 0, b"1.0"), (OTHER, 0, b"9.0")]),
        (2, [(STREAM, 2, b"1.2")]),
        (4, [(STREAM, 4, b"3.4")]),
        (5, [(STREAM, 5, b"3.5")]),
    ]


def test_a_newer_epoch_may_win_over_all_that_was_not_committed() -> None:
    wal = recovered_wal(
        [entry(4, 2, 1)], [entry(6, 2, 1)], [entry(4, 5, 2)], [entry(0, 1, 9, OTHER)]
    )
    assert placed(wal, metadata_with(end=4)) == [
        (3, [(STREAM, 4, b"2.4")]),
        (4, [(OTHER, 0, b"9.0")]),
    ]


def test_the_last_placed_group_releases_the_rest_of_the_wal() -> None:
    """So that the WAL can be released to its end."""
    wal = recovered_wal([entry(4, 1, 1)], [entry(3, 1, 1)], [entry(4, 1, 1)])
    assert placed(wal, metadata_with(end=4)) == [(3, [(STREAM, 4, b"1.4")])]


def test_a_stream_that_was_lost_after_the_wal_was_read_is_left_out() -> None:
    async def scenario() -> None:
        metadata = metadata_with(end=0, holder=BEFORE)
        wal = FakeWal()
        wal.groups = [FakeGroup(1, BEFORE, [entry(0, 2, 1), entry(0, 1, 9, OTHER)])]
        read = await read_wal(wal.as_wal, metadata.as_metadata, frozenset({BEFORE, NOW}))
        assert not read.foreign
        metadata.steal(STREAM)
        assert placed(read, metadata) == [(1, [(OTHER, 0, b"9.0")])]
        assert read.foreign == {STREAM}

    run(scenario)


@pytest.mark.parametrize(
    ("metadata", "appends", "why"),
    [
        (
            metadata_with(end=4, state=StreamState.CLOSED),
            [entry(2, 2, 1), entry(4, 1, 1)],
            "closed at 4",
        ),
        (metadata_with(end=4), [entry(4, 1, 10)], "epoch is only 9"),
        (metadata_with(end=4), [entry(5, 1, 1)], "came before it ends at 4"),
        (metadata_with(end=4), [entry(4, 2, 1), entry(5, 2, 1)], "overlaps what ends at 6"),
        (metadata_with(end=4), [entry(3, 2, 1)], "overlaps what ends at 4"),
    ],
)
def test_an_entry_that_does_not_fit_is_damage_and_can_be_given_up(
    metadata: FakeMetadata, appends: list[StreamEntry], why: str
) -> None:
    groups = [*([append] for append in appends), [entry(20, 1, 1)], [entry(0, 1, 9, OTHER)]]
    with pytest.raises(Corrupt, match=why) as caught:
        place(recovered_wal(*groups), metadata.as_metadata)
    assert caught.value.object_key == f"wal:{len(appends)}"
    taken = placed(recovered_wal(*groups), metadata, accept_data_loss=True)
    assert taken[-1] == (len(groups), [(OTHER, 0, b"9.0")])
    # What fits before it stays; nothing behind it is taken for it.
    fits = len(appends) == 2 and metadata.rows[STREAM].state is StreamState.OPEN
    assert taken[:-1] == ([(1, [(STREAM, 4, b"1.4")])] if fits else [])
