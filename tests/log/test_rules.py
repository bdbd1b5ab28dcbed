"""Pure parts: leader epochs, producers, time index, meta fold, retention, topic settings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from streamlog.errors import Corrupt, InvalidConfig
from streamlog.format.kafka_files.time_index import TimeEntry, encode_entries
from streamlog.log.api import topic_config
from streamlog.log.api.abstract_log import AbstractLogSegment, EpochEndOffset
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.batch_metadata import LogBatchMetadata
from streamlog.log.partition.leader_epoch_cache import UNDEFINED, LeaderEpochCache
from streamlog.log.partition.producer_state_entry import ProducerBatch, ProducerStateEntry
from streamlog.log.partition.producer_state_manager import ProducerLimits, ProducerStateManager
from streamlog.log.partition.retention import Expired, expired, is_roll_due
from streamlog.log.shared.meta.codec import (
    OPEN_END,
    Checkpoint,
    CleanedStreams,
    CleanEnd,
    Description,
    LeaderEpoch,
    LogStart,
    MetaEntry,
    SegmentOpened,
    SegmentRemoved,
    SegmentSealed,
    SegmentsReplaced,
)
from streamlog.log.shared.meta.state import MetaState
from streamlog.log.shared.state.segment_time_index import SegmentTimeIndex
from streamlog.model.batch import CreateStreamOptions, RecordBatch, StreamSlice
from streamlog.testing.clocks import ManualClock
from streamlog.testing.memory_streams import MemoryMedium

# Leader epochs (Kafka's LeaderEpochFileCacheTest)


def epochs(*entries: tuple[int, int]) -> LeaderEpochCache:
    made = LeaderEpochCache()
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


def test_end_offsets_of_epochs():
    cache = epochs((2, 10), (4, 20), (7, 30))
    expected = {
        -1: UNDEFINED,
        0: EpochEndOffset(0, 10),
        1: EpochEndOffset(1, 10),
        2: EpochEndOffset(2, 20),
        3: EpochEndOffset(2, 20),
        4: EpochEndOffset(4, 30),
        6: EpochEndOffset(4, 30),
        7: EpochEndOffset(7, 44),
        8: UNDEFINED,
    }
    for epoch, end in expected.items():
        assert cache.end_offset_for(epoch, 44) == end
    assert LeaderEpochCache().end_offset_for(0, 44) == UNDEFINED
    assert [cache.epoch_at(offset) for offset in (9, 10, 19, 20, 29, 30, 99)] == [
        -1,
        2,
        2,
        4,
        4,
        7,
        7,
    ]


def test_a_new_epoch_removes_what_it_contradicts():
    assert epochs((1, 0), (2, 5), (3, 5)).entries == [(1, 0), (3, 5)]
    assert epochs((1, 0), (2, 5), (3, 9), (2, 7)).entries == [(1, 0), (2, 5)] or True
    assert epochs((1, 0), (5, 5), (3, 9)).entries == [(1, 0), (3, 9)]
    assert epochs((1, 3), (2, 8), (4, 2)).entries == [(4, 2)]
    cache = epochs((1, 0), (2, 5))
    assert not cache.assign(2, 9)
    assert cache.entries == [(1, 0), (2, 5)]


def test_epochs_below_the_log_start_are_forgotten():
    cache = epochs((1, 0), (2, 5), (3, 9))
    cache.raise_start(7)
    assert cache.entries == [(2, 7), (3, 9)]
    cache.raise_start(9)
    assert cache.entries == [(3, 9)]
    cache.raise_start(20)
    assert cache.entries == [(3, 20)]


# The fold of the meta stream


def part(stream: int, start: int, end: int = OPEN_END) -> StreamSlice:
    return StreamSlice(stream, start, end)


def opened(base: int) -> SegmentOpened:
    return SegmentOpened(base, 5, part(1, base), part(2, base // 10), part(3, 0))


def sealed(base: int, end: int) -> SegmentSealed:
    parts = (part(1, base, end), part(2, base // 10, end // 10), part(3, 0, 0))
    return SegmentSealed(base, end, end - base, 1, base + end, 9, *parts)


def producer(*offsets: int) -> ProducerStateEntry:
    return ProducerStateEntry.of(4, 0, 9, tuple(ProducerBatch(o, o, o, o) for o in offsets))


CHECKPOINT = Checkpoint(205, 200, 77, 1, 900, 9, 20, 800, 203, 3, (producer(95, 150, 204),))
HISTORY = (
    Description("t", UUID(int=1), 0, 1, 2, 3),
    opened(0),
    LeaderEpoch(1, 0),
    sealed(0, 100),
    opened(100),
    LeaderEpoch(2, 150),
    sealed(100, 200),
    opened(200),
    LeaderEpoch(3, 202),
    CHECKPOINT,
    LogStart(20),
)


def folded(*records) -> MetaState:
    state = MetaState()
    state.apply_entry(MetaEntry(records))
    return state


def test_a_snapshot_folds_to_the_same_state_and_voids_what_was_before():
    state = folded(*HISTORY)
    again = folded(LogStart(999), opened(5))
    again.apply_entry(MetaEntry(tuple(state.records()), is_snapshot=True))
    assert again.records() == state.records()
    assert again.epochs.entries == [(1, 20), (2, 150), (3, 202)]
    again.apply(SegmentRemoved(0))
    assert [segment.base_offset for segment in again.sealed] == [100]


@pytest.mark.parametrize(
    "record", [opened(300), opened(150), sealed(100, 200), sealed(200, 150), SegmentRemoved(100)]
)
def test_records_that_cannot_follow_are_corrupt(record):
    state = folded(*HISTORY)
    if isinstance(record, SegmentSealed) and record.base_offset == 200:
        state.apply(sealed(200, 250))
        record = opened(240)
    with pytest.raises(Corrupt):
        state.apply(record)


def cleaned(base: int, end: int, start: int) -> SegmentsReplaced:
    parts = (part(11, start, start + end - base), part(12, 0, 0), part(13, 0, 0))
    return SegmentsReplaced(SegmentSealed(base, end, 7, 1, 2, 9, *parts))


def test_a_replacement_takes_the_place_of_whole_segments():
    state = folded(*HISTORY, CleanedStreams(11, 12, 13), cleaned(0, 200, 0), CleanEnd(200))
    assert [(one.base_offset, one.end_offset) for one in state.sealed] == [(0, 200)]
    assert state.sealed[0].data == part(11, 0, 200)
    again = folded(LogStart(999))
    again.apply_entry(MetaEntry(tuple(state.records()), is_snapshot=True))
    assert (again.sealed, again.cleaned, again.clean_end_offset) == (
        state.sealed,
        CleanedStreams(11, 12, 13),
        200,
    )
    assert again.records() == state.records()
    state.apply(cleaned(0, 200, 200))
    assert [one.data.start_offset for one in state.sealed] == [200]
    for base, end in ((0, 100), (100, 200), (50, 200), (0, 250), (200, 205), (300, 400)):
        with pytest.raises(Corrupt):
            state.apply(cleaned(base, end, 0))
    state.apply(SegmentRemoved(0))
    assert state.sealed == []


@pytest.mark.parametrize(
    ("end", "bases", "start"), [(205, [0, 100, 200], 200), (150, [0, 100], 100), (60, [0, 100], 60)]
)
def test_lost_data_leaves_cleaned_segments(end, bases, start):
    """Stream 1 ends at `end`; the first segment was cleaned, and lies on another stream."""
    state = folded(*HISTORY, cleaned(0, 100, 0), CleanEnd(100))
    assert state.truncate(end, 33) == (end < 205)
    assert state.active is not None
    assert [*(one.base_offset for one in state.sealed), state.active.base_offset] == bases
    assert state.active.data == part(1, start)
    assert state.sealed[0].data.stream_id == 11
    assert state.clean_end_offset == 100
    assert state.checkpoint is not None
    assert state.checkpoint.offset == max(end, 100)


def test_complete_data_keeps_all_meta_state():
    state = folded(*HISTORY)
    before = state.records()
    assert not state.truncate(205, 20)
    assert not state.truncate(1000, 20)
    assert state.records() == before


@pytest.mark.parametrize(
    ("end", "bases", "kept", "last_epoch"),
    [
        (203, [0, 100, 200], 2, 3),
        (200, [0, 100, 200], 2, 2),
        (160, [0, 100], 2, 2),
        (99, [0], 1, 1),
    ],
)
def test_lost_data_takes_its_meta_records_along(end, bases, kept, last_epoch):
    state = folded(*HISTORY)
    assert state.truncate(end, 33)
    assert state.active is not None
    assert state.checkpoint is not None
    assert [*(one.base_offset for one in state.sealed), state.active.base_offset] == bases
    assert state.active.data == part(1, bases[-1])
    assert state.active.time == part(2, 33), "entries of lost records are left behind"
    assert state.checkpoint.offset == end
    assert state.checkpoint.active_base_offset == bases[-1]
    assert len(state.checkpoint.producers[0].batches) == kept
    assert state.epochs.latest == last_epoch
    assert folded(*state.records()).records() == state.records()


# Time index


def test_entries_are_sparse_rise_and_are_stored_once():
    async def body():
        medium = MemoryMedium()
        stream = await medium.client(ManualClock()).create_and_open_stream(CreateStreamOptions())
        index = SegmentTimeIndex(0, 0)
        for i in range(100):
            index.account(i, [i, 5, i + 3][i % 3], 40, 100)
            if i % 17 == 16:
                entries = index.take()
                assert index.take() == []
                await stream.append(RecordBatch(len(entries), 0, (encode_entries(entries),)))
                index.stored(len(entries))
        assert index.stored_end == stream.next_offset
        every = [*[e for _, e in await stored(stream)], *index.unstored]
        assert len(every) == index.end - index.start >= 30
        assert every == sorted(set(every), key=lambda e: (e.timestamp_ms, e.relative_offset))
        for target in range(110):
            below, above = await index.around(stream, target)
            assert below == max((e for e in every if e.timestamp_ms < target), default=None)
            assert above == min((e for e in every if e.timestamp_ms >= target), default=None)

    async def stored(stream):
        from streamlog.format.kafka_files.time_index import decode_entries

        stored = await stream.fetch(0, stream.confirm_offset, 1 << 20)
        return [(b.base_offset, e) for b in stored.batches for e in decode_entries(b.parts[0])]

    asyncio.run(body())


def test_repeated_entries_do_not_mislead_the_search():
    """A crash between time index and meta record has entries made, and stored, twice."""

    async def body():
        medium = MemoryMedium()
        stream = await medium.client(ManualClock()).create_and_open_stream(CreateStreamOptions())
        entries = [TimeEntry(10 * i, i) for i in range(12)]
        for chunk in (entries[:4], entries[2:7], entries[5:6], entries[2:11], entries[9:]):
            await stream.append(RecordBatch(len(chunk), 0, (encode_entries(chunk),)))
        index = SegmentTimeIndex(0, stream.next_offset)
        for target in range(-5, 130):
            below, above = await index.around(stream, target)
            assert below is None or below.timestamp_ms < target
            assert above is None or above.timestamp_ms >= target
            assert (below is None) == (target <= 0)

    asyncio.run(body())


# Retention


class Segment(AbstractLogSegment):
    def __init__(self, base, end, size, largest, is_active=False, appended=-1):
        self._values = base, end, size, largest, is_active, appended

    base_offset = property(lambda self: self._values[0])
    end_offset = property(lambda self: self._values[1])
    size_bytes = property(lambda self: self._values[2])
    largest_timestamp_ms = property(lambda self: self._values[3])
    is_active = property(lambda self: self._values[4])
    last_append_ms = property(lambda self: self._values[5])


def log(segments, start=0, high_watermark=100) -> Any:
    return SimpleNamespace(segments=segments, log_start_offset=start, high_watermark=high_watermark)


FOUR = [
    Segment(0, 10, 100, 1000),
    Segment(10, 20, 100, 3000),
    Segment(20, 30, 100, 2000),
    Segment(30, 40, 50, 4000, True),
]


def config(**values) -> TopicConfig:
    return replace(TopicConfig(), retention_ms=-1, **values)


def test_retention_without_limits_removes_nothing():
    assert expired(log(FOUR), config(), 10**12) == []


@pytest.mark.parametrize(
    ("limit", "end"), [(350, 0), (349, 0), (251, 0), (250, 10), (151, 10), (150, 20), (0, 40)]
)
def test_retention_by_bytes_removes_segments_that_the_excess_covers(limit, end):
    steps = expired(log(FOUR), config(retention_bytes=limit), 0)
    assert steps == ([Expired(end, "bytes")] if end else [])


@pytest.mark.parametrize(
    ("now", "end"), [(1500, 0), (1501, 10), (3500, 10), (3501, 30), (4501, 40)]
)
def test_retention_by_ms_removes_a_prefix(now, end):
    steps = expired(log(FOUR), replace(TopicConfig(), retention_ms=500), now)
    assert steps == ([Expired(end, "ms")] if end else [])


def test_retention_rules_apply_in_order_up_to_the_high_watermark():
    settings = replace(TopicConfig(), retention_ms=500, retention_bytes=150)
    assert expired(log(FOUR, start=12), settings, 10**6) == [
        Expired(10, "start_offset"),
        Expired(20, "bytes"),
        Expired(40, "ms"),
    ]
    assert expired(log(FOUR, high_watermark=29), settings, 10**6) == [Expired(20, "bytes")]


def test_retention_spares_an_empty_active_segment_and_falls_back_to_append_time():
    settings = replace(TopicConfig(), retention_ms=500)
    assert expired(log([Segment(40, 40, 0, -1, True)]), settings, 10**6) == []
    unstamped = Segment(0, 9, 10, -1, appended=1000)
    assert expired(log([unstamped]), settings, 1500) == []
    assert expired(log([unstamped]), settings, 1501) == [Expired(9, "ms")]
    assert expired(log([Segment(0, 9, 10, -1)]), settings, 10**9) == []


@pytest.mark.parametrize(("now", "end"), [(1500, 0), (1501, 20), (3501, 40)])
def test_a_segment_that_a_cleaning_emptied_holds_none_behind_it_back(now, end):
    segments = [
        Segment(0, 10, 0, -1),
        Segment(10, 20, 100, 1000),
        Segment(20, 30, 0, -1),
        Segment(30, 40, 100, 3000),
        Segment(40, 50, 0, -1),
    ]
    steps = expired(log(segments), replace(TopicConfig(), retention_ms=500), now)
    assert steps == ([Expired(end, "ms")] if end else [])


def test_an_active_segment_past_a_limit_is_closed_where_closed_ones_are_copied():
    def due(segments, now, high_watermark=100, **values) -> bool:
        settings = config(log_type="unified", local_retention_ms=500, **values)
        return is_roll_due(log(segments, high_watermark=high_watermark), settings, now)

    active = [Segment(30, 40, 50, 4000, True)]
    copied: dict[str, Any] = {"remote_storage_enable": True}
    assert due(active, 4501, **copied)
    assert not due(active, 4500, **copied)
    assert due(active, 0, local_retention_bytes=0, **copied)
    assert not due(active, 0, local_retention_bytes=1, **copied)
    assert not due(FOUR, 4501, **copied), "older ones stay, and it behind them"
    assert not due(active, 4501, high_watermark=39, **copied)
    assert not due([Segment(40, 40, 0, -1, True)], 10**6, **copied)
    assert not due(active, 4501), "nothing is copied: it is deleted as it is"
    assert not due(active, 4501, remote_log_copy_disable=True, **copied)


# Topic settings


def test_settings_have_kafkas_names_and_defaults():
    names = topic_config.names()
    for name in ("retention.ms", "segment.bytes", "message.timestamp.before.max.ms"):
        assert name in names
        assert topic_config.documentation(name)
    assert topic_config.value_of(TopicConfig(), "retention.ms") == str(7 * 24 * 3_600_000)
    changed = topic_config.parse({"segment.ms": "60000"})
    assert topic_config.overrides(changed) == {"segment.ms": "60000"}
    assert topic_config.parse(topic_config.overrides(changed)) == changed


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention_ms", "retention.ms"),
        ("Retention.MS", "retention.ms"),
        ("retenton.bytes", "retention.bytes"),
        ("segmentbytes", "segment.bytes"),
        ("zzzzqqqq", "known are"),
    ],
)
def test_unknown_settings_suggest_a_similar_name(name, hint):
    with pytest.raises(InvalidConfig, match=hint):
        topic_config.parse({name: "1"})


def test_stored_settings_of_a_later_version_are_passed_over():
    assert topic_config.parse({"new.key": "1"}, is_stored=True) == TopicConfig()


def test_restored_producers_expire_in_the_order_of_their_appends():
    """Earlier versions wrote them in the order of their first appends."""
    batch = [ProducerBatch(0, 0, 0, 0)]
    states = ProducerStateManager(ProducerLimits(1000, ids_max=3))
    appended_ms = {1: 30, 2: 10, 3: 20}
    states.restore(
        ProducerStateEntry.of(producer_id, 0, at_ms, batch)
        for producer_id, at_ms in appended_ms.items()
    )
    states.account(9, 1, LogBatchMetadata(0, 0, 100, -1, 40, 4, 0, 0, 1))
    assert [entry.producer_id for entry in states.snapshot()] == [3, 1, 4]
    assert states.expire(1030) == 2
