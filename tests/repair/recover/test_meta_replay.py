"""A meta stream that begins with a remnant: its last whole snapshot is where it begins."""

from __future__ import annotations

from uuid import UUID

import pytest

from streamlog.errors import Corrupt
from streamlog.log.shared.meta.codec import (
    Description,
    LeaderEpoch,
    LogStart,
    MetaEntry,
    SegmentRemoved,
)
from streamlog.repair.recover.meta_replay import MetaReplay

DESCRIBED = Description("orders", UUID(int=7), 0, 11, 12, 13)
REMOVAL = MetaEntry((SegmentRemoved(40),))


def replayed(*entries: MetaEntry, first_offset: int) -> MetaReplay:
    replay = MetaReplay()
    for offset, entry in enumerate(entries, first_offset):
        replay.add(offset, entry)
    replay.check()
    return replay


def test_what_does_not_stand_on_its_own_waits_for_a_snapshot() -> None:
    replay = replayed(
        REMOVAL,
        MetaEntry((LogStart(50),), is_continuing=True),
        MetaEntry((DESCRIBED,), is_snapshot=True, is_continued=True),
        MetaEntry((LogStart(60),), is_snapshot=True, is_continuing=True),
        MetaEntry((LeaderEpoch(3, 60),)),
        first_offset=20,
    )
    assert replay.snapshot_offset == 22
    assert replay.has_remnant
    assert replay.state.description == DESCRIBED
    assert replay.state.log_start_offset == 60
    assert replay.state.epochs.entries == [(3, 60)]


def test_the_last_whole_snapshot_counts() -> None:
    replay = replayed(
        MetaEntry((DESCRIBED,)),
        MetaEntry((DESCRIBED, LogStart(60)), is_snapshot=True),
        MetaEntry((DESCRIBED,), is_snapshot=True, is_continued=True),
        first_offset=0,
    )
    assert replay.snapshot_offset == 1
    assert not replay.has_remnant
    assert replay.state.log_start_offset == 60


@pytest.mark.parametrize(
    "entries",
    [
        (REMOVAL,),
        # What continues a missing beginning is no whole snapshot.
        (MetaEntry((DESCRIBED,), is_snapshot=True, is_continuing=True),),
        (MetaEntry((DESCRIBED,), is_snapshot=True), REMOVAL),
    ],
)
def test_damage_is_told(entries: tuple[MetaEntry, ...]) -> None:
    with pytest.raises(Corrupt, match="meta stream"):
        replayed(*entries, first_offset=20)


def test_a_stream_that_was_never_trimmed_has_no_snapshot() -> None:
    replay = replayed(MetaEntry((DESCRIBED,)), first_offset=0)
    assert replay.snapshot_offset is None
    assert replay.state.description == DESCRIBED
