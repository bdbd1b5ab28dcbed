"""What every log does that the cleaner can work on: inherit `CleaningConformance`.

`make` is that of LogConformance; the configs that it gets have small segments, and are compacted.
Behaviours follow Kafka's LogCleanerTest, seen by readers and producers of the log.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from streamlog.codec.batch import (
    DELETE_HORIZON,
    BatchHeader,
    BatchProducer,
    Compression,
    scan,
)
from streamlog.codec.records import BatchBuilder, Record, iterate
from streamlog.errors import InvalidRecord, OffsetOutOfRange, StreamlogError, Unavailable
from streamlog.log.api.abstract_log import MAX_TIMESTAMP, AbstractLog
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import TopicConfig, parse
from streamlog.log.cleaning.batch_filter import CleaningStats
from streamlog.log.cleaning.cleanable import LogToClean, dirtiest, log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.log.cleaning.offset_map import ENTRY_BYTES
from streamlog.log.partition.retention import expired
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.logs.log_conformance import (
    CONFIG,
    UNCOMMITTED,
    LogUnderTest,
    append,
    encoded,
    refused,
)
from streamlog.testing.logs.transaction_conformance import (
    ABORT,
    AT_MS,
    COMMIT,
    aborted_in,
    begin,
    committed_values,
    end,
)

COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "600",
    "index.interval.bytes": "200",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "0",
}
NO_PRODUCER = (-1, -1, -1)
KEYS = 10_000
Scene = Callable[[LogUnderTest], Awaitable[None]]


def keyed(
    key: bytes | None,
    value: bytes | None,
    *,
    at_ms: int = AT_MS,
    producer: tuple[int, int, int] = NO_PRODUCER,
    is_transactional: bool = False,
    compression: Compression = Compression.NONE,
) -> bytes:
    """A batch of one record."""
    return batch_of(
        [(key, value)],
        at_ms=at_ms,
        producer=producer,
        is_transactional=is_transactional,
        compression=compression,
    )


def batch_of(
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    at_ms: int = AT_MS,
    producer: tuple[int, int, int] = NO_PRODUCER,
    is_transactional: bool = False,
    compression: Compression = Compression.NONE,
) -> bytes:
    builder = BatchBuilder(1 << 20, compression=compression)
    for key, value in records:
        assert builder.append(at_ms, key, value)
    made = builder.build(BatchProducer(*producer), is_transactional=is_transactional)
    return bytes(made)


def cleanable(log: AbstractLog) -> CleanableLog:
    assert isinstance(log, CleanableLog)
    return log


def chosen(t: LogUnderTest, configs: CONFIG = COMPACT) -> LogToClean:
    """What a cleaning would begin with now."""
    return log_to_clean(cleanable(t.log), parse(configs), t.clock.now_ms())


async def clean(t: LogUnderTest, keys: int = KEYS, configs: CONFIG = COMPACT) -> CleaningStats:
    """One round; the key map holds so many keys."""
    offload = ThreadOffload()
    config: TopicConfig = parse(configs)
    try:
        cleaning = LogCleaning(offload, keys * ENTRY_BYTES)
        return await cleaning.clean(chosen(t, configs), config, t.clock.now_ms())
    finally:
        await offload.close()


async def clean_again(t: LogUnderTest, configs: CONFIG = COMPACT) -> CleaningStats:
    """As `clean`, over all closed segments, as if nothing was clean."""
    await cleanable(t.log).set_clean_end_offset(0)
    return await clean(t, configs=configs)


async def clean_away(t: LogUnderTest) -> None:
    """Cleans until markers are gone that end nothing."""
    for _ in range(4):
        t.clock.advance(2000)
        await clean_again(t)


async def batches(log: AbstractLog) -> list[tuple[BatchHeader, list[Record]]]:
    """Every visible batch from the log's start, in small pieces, with its records."""
    found: list[tuple[BatchHeader, list[Record]]] = []
    position = log.log_start_offset
    while position < log.high_watermark:
        fetched = await log.fetch(position, 1500)
        assert fetched.next_offset > position
        for one in scan(b"".join(fetched.parts)):
            records = [] if one.header.is_control else [*iterate(one.view)]
            found.append((one.header, records))
        position = fetched.next_offset
    return found


async def contents(log: AbstractLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Offset → key and value of every visible record."""
    return {
        offset: (key, value)
        for _, records in await batches(log)
        for offset, _, key, value, _ in records
    }


def newest(
    stored: Mapping[int, tuple[bytes | None, bytes | None]],
) -> dict[bytes | None, bytes | None]:
    """What a reader has at the end, who takes a value of None for a deletion."""
    state: dict[bytes | None, bytes | None] = {}
    for offset in sorted(stored):
        key, value = stored[offset]
        state[key] = value
    return {key: value for key, value in state.items() if value is not None}


async def filled(log: AbstractLog, count: int, keys: int) -> None:
    """Record n has key n mod `keys`, value n and a time of n ms; the segments are closed."""
    for number in range(count):
        await append(log, keyed(b"k%d" % (number % keys), b"%d" % number, at_ms=AT_MS + number))
    await log.roll()


class CleaningConformance(ABC):
    @abstractmethod
    def make(self, configs: CONFIG) -> AbstractAsyncContextManager[LogUnderTest]:
        """An empty log with these topic settings."""

    def run(self, scene: Scene, **configs: str) -> None:
        settings = {**COMPACT, **{k.replace("_", "."): v for k, v in configs.items()}}

        async def body() -> None:
            async with self.make(settings) as t:
                await scene(t)

        asyncio.run(body())

    def test_the_newest_value_of_each_key_stays_at_its_offset(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            choose = random.Random(5)
            sent: dict[int, tuple[bytes | None, bytes | None]] = {}
            for turn in range(4):
                for number in range(60):
                    key = b"k%d" % choose.randrange(12)
                    value = None if choose.random() < 0.1 else b"%d-%d" % (turn, number)
                    info = await append(t.log, keyed(key, value))
                    sent[info.base_offset] = (key, value)
                await t.log.roll()
                size, segments = t.log.size_bytes, len(t.log.segments)
                await clean(t)
                for _ in range(2):
                    left = await contents(t.log)
                    assert newest(left) == newest(sent)
                    assert left.items() <= sent.items()
                    assert t.log.log_end_offset == len(sent)
                    assert t.log.size_bytes < size
                    assert len(t.log.segments) <= segments
                    await (t.crashed() if turn % 2 else t.reopened())
            assert len(left) <= len({key for key, _ in sent.values()})

        self.run(scene)

    def test_look_ups_by_offset_and_time_meet_a_cleaned_log(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await filled(t.log, 120, 30)
            await clean(t)
            for _ in range(2):
                left = sorted(await contents(t.log))
                assert len(left) == 30
                for offset in range(120):
                    following = next(one for one in left if one >= offset)
                    fetched = await t.log.fetch(offset, 1)
                    assert fetched.next_offset > offset
                    found = await t.log.offset_for_timestamp(AT_MS + offset, UNCOMMITTED)
                    assert (found.offset, found.timestamp_ms) == (following, AT_MS + following)
                largest = await t.log.offset_for_timestamp(MAX_TIMESTAMP, UNCOMMITTED)
                assert (largest.offset, largest.timestamp_ms) == (119, AT_MS + 119)
                await t.reopened()

        self.run(scene)

    def test_the_largest_timestamp_is_that_of_a_record_that_is_left(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await append(t.log, keyed(b"a", b"1", at_ms=AT_MS))
            late = keyed(b"k", b"gone", at_ms=AT_MS + 50, producer=(1, 0, 0))
            await append(t.log, late)
            await append(t.log, keyed(b"k", b"kept", at_ms=AT_MS + 7))
            t.clock.advance(100)
            await append(t.log, keyed(b"b", b"1", at_ms=AT_MS + 3))
            await t.log.roll()
            appended = max(one.last_append_ms for one in t.log.segments)
            await clean(t)
            for _ in range(2):
                largest = await t.log.offset_for_timestamp(MAX_TIMESTAMP, UNCOMMITTED)
                assert (largest.offset, largest.timestamp_ms) == (2, AT_MS + 7)
                after = await t.log.offset_for_timestamp(AT_MS + 8, UNCOMMITTED)
                assert after.offset == -1
                assert t.log.segments[0].largest_timestamp_ms == AT_MS + 7
                # The producer's batch is there for its sequence, without its record.
                assert (await append(t.log, late)).is_duplicate
                await t.reopened()
            assert appended == AT_MS + 100

        self.run(scene)

    def test_a_segment_without_a_record_is_as_old_as_its_last_append(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await append(t.log, keyed(b"k", b"1"))
            t.clock.advance(100)
            await append(t.log, keyed(b"k", b"2"))
            await t.log.roll()
            await append(t.log, keyed(b"k", b"3" * 400))
            await append(t.log, keyed(b"m", b"3" * 400))
            await t.log.roll()
            before = t.log.segments[0].last_append_ms
            await clean(t)
            segment = t.log.segments[0]
            assert (segment.end_offset, segment.largest_timestamp_ms) == (2, -1)
            assert segment.last_append_ms == before == AT_MS + 100

        self.run(scene)

    def test_a_fetch_of_an_offset_that_is_gone_finds_the_next_batch(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await filled(t.log, 40, 1)
            await append(t.log, keyed(b"active", b""))
            await clean(t)
            for offset in range(41):
                fetched = await t.log.fetch(offset, 1)
                (first, *_) = scan(b"".join(fetched.parts))
                assert first.header.last_offset >= offset
                assert fetched.next_offset == first.header.next_offset
            assert sorted(await contents(t.log)) == [39, 40]

        self.run(scene)

    def test_aborted_records_go_and_committed_readers_see_no_difference(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            for number in range(20):
                producer, is_commit = 7 + number % 3, number % 2 == 0
                data = keyed(
                    b"k%d" % number,
                    b"%d" % number,
                    producer=(producer, 0, number // 3),
                    is_transactional=True,
                )
                await begin(t.log, data)
                await end(t.log, is_commit, producer)
            await t.log.roll()
            before = await committed_values(t.log)
            assert before == [b"%d" % number for number in range(0, 20, 2)]
            for _ in range(3):
                t.clock.advance(2000)
                await clean_again(t)
                assert await committed_values(t.log) == before
                assert len(await contents(t.log)) == 10
                await t.crashed()
                assert await committed_values(t.log) == before
            # Readers are told of those alone whose markers they meet: of active producers, whose
            # last batch is there.
            told = {producer for producer, _ in await aborted_in(t.log, 0)}
            markers = [header for header, _ in await batches(t.log) if header.is_control]
            assert told == {8, 9}
            assert len([one for one in markers if one.record_count]) == 12
            # The producers go on where they were.
            data = keyed(b"k", b"on", producer=(7, 0, 7), is_transactional=True)
            await begin(t.log, data)
            await end(t.log, COMMIT, 7)

        self.run(scene)

    def test_a_marker_stays_as_long_as_it_ends_something(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            data = [(b"a", b"1"), (b"b", b"1")]
            await begin(t.log, batch_of(data, producer=(5, 0, 0), is_transactional=True))
            await end(t.log, COMMIT, 5)
            # Its last batch is another one, so that it keeps none of the transaction.
            await append(t.log, keyed(b"a", b"2", producer=(5, 0, 2)))
            await append(t.log, keyed(b"c", b"3"))
            await t.log.roll()
            for _ in range(3):
                t.clock.advance(5000)
                await clean_again(t)
                markers = [header for header, _ in await batches(t.log) if header.is_control]
                assert [one.record_count for one in markers] == [1]
            await append(t.log, keyed(b"b", b"4"))
            await t.log.roll()
            # The batch goes with the first of them, and then the marker ends nothing.
            await clean(t)
            await clean_again(t)
            (marker,) = [header for header, _ in await batches(t.log) if header.is_control]
            assert marker.attributes & DELETE_HORIZON
            assert marker.base_timestamp_ms == t.clock.now_ms() + 1000
            t.clock.advance(1001)
            await clean_again(t)
            assert not [
                header
                for header, _ in await batches(t.log)
                if header.is_control and header.record_count
            ]

        self.run(scene)

    def test_a_tombstone_stays_for_its_time_from_the_first_cleaning_on(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await append(t.log, keyed(b"a", b"1"))
            await append(t.log, keyed(b"a", None))
            await append(t.log, keyed(b"b", b"1"))
            await t.log.roll()
            t.clock.advance(5000)
            await clean(t)
            horizon = t.clock.now_ms() + 1000
            for _ in range(2):
                ((header, records), *_) = await batches(t.log)
                assert [record[:4] for record in records] == [(1, AT_MS, b"a", None)]
                assert (header.attributes & DELETE_HORIZON, header.base_timestamp_ms) == (
                    DELETE_HORIZON,
                    horizon,
                )
                t.clock.advance(400)
                await clean_again(t)
                await t.crashed()
            assert sorted(await contents(t.log)) == [1, 2]
            t.clock.advance(200)
            await clean_again(t)
            assert sorted(await contents(t.log)) == [2]

        self.run(scene)

    def test_an_open_transaction_and_young_segments_are_left(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await filled(t.log, 30, 3)
            await begin(t.log, keyed(b"k0", b"x", producer=(1, 0, 0), is_transactional=True))
            await filled(t.log, 30, 3)
            assert chosen(t).first_uncleanable_offset == 30
            await clean(t)
            left = sorted(await contents(t.log))
            assert [one for one in left if one < 30] == [27, 28, 29]
            assert [one for one in left if one >= 30] == list(range(30, 61))
            await end(t.log, ABORT)
            await t.log.roll()
            young = {**COMPACT, "min.compaction.lag.ms": "1000000"}
            t.clock.advance(1_000_010)
            bound = chosen(t, young).first_uncleanable_offset
            assert 30 < bound < 61
            await clean(t, configs=young)
            after = sorted(await contents(t.log))
            assert len([one for one in after if one < bound]) <= 6
            assert [one for one in after if one >= bound] == list(range(bound, 61))

        self.run(scene)

    def test_the_dirty_part_counts_from_the_last_cleaning_on(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            config = parse(COMPACT)
            await filled(t.log, 40, 40)
            assert dirtiest([(chosen(t), config)]) is not None
            await clean(t)
            for _ in range(2):
                found = chosen(t)
                assert (found.first_dirty_offset, found.dirty_ratio) == (40, 0)
                assert dirtiest([(found, config)]) is None
                await t.crashed()
            await filled(t.log, 20, 20)
            found = chosen(t)
            assert 0.3 < found.dirty_ratio < 0.4
            assert dirtiest([(found, config)]) is None
            t.clock.advance(1000)
            overdue = {**COMPACT, "max.compaction.lag.ms": "900"}
            assert dirtiest([(chosen(t, overdue), parse(overdue))]) is not None
            await filled(t.log, 40, 20)
            assert dirtiest([(chosen(t), config)]) is not None

        self.run(scene)

    def test_keys_that_do_not_fit_are_done_in_rounds(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await filled(t.log, 100, 10)
            ends: list[int] = []
            while cleanable(t.log).clean_end_offset < 100:
                await clean(t, keys=4)
                ends.append(cleanable(t.log).clean_end_offset)
            assert len(ends) > 3
            assert ends == sorted(set(ends))
            assert sorted(await contents(t.log)) == list(range(90, 100))

        self.run(scene)

    def test_a_deletion_is_not_undone_by_rounds(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            for turn in range(3):
                for number in range(40):
                    value = None if turn == 2 and number % 2 else b"%d" % turn
                    await append(t.log, keyed(b"k%d" % number, value))
            await t.log.roll()
            expected = newest(await contents(t.log))
            assert len(expected) == 20
            while cleanable(t.log).clean_end_offset < 120:
                await clean(t, keys=7)
                assert newest(await contents(t.log)) == expected
                await t.crashed()

        self.run(scene)

    def test_the_last_batch_of_each_active_producer_stays(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            last: dict[int, tuple[bytes, int]] = {}
            for number in range(60):
                producer = number % 4
                data = keyed(b"k", b"%d" % number, producer=(producer, 0, number // 4))
                last[producer] = (data, (await append(t.log, data)).base_offset)
            await t.log.roll()
            await clean(t)
            for _ in range(2):
                kept = {one.producer_id: one for one, _ in await batches(t.log)}
                assert kept.keys() >= last.keys()
                for producer, (data, offset) in last.items():
                    assert (kept[producer].base_offset, kept[producer].base_sequence) == (
                        offset,
                        14,
                    )
                    again = await append(t.log, data)
                    assert (again.base_offset, again.is_duplicate) == (offset, True)
                await t.crashed()
            assert sorted(await contents(t.log)) == [59]

        self.run(scene)

    def test_readers_beside_a_cleaning_see_every_newest_value(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await filled(t.log, 300, 40)
            expected = newest(await contents(t.log))
            cleaning = asyncio.ensure_future(clean(t))
            rounds = 0
            while not cleaning.done() or rounds < 3:
                assert newest(await contents(t.log)) == expected
                rounds += 1
                # A loop that is never idle may keep the cleaning's threads from the interpreter.
                await asyncio.wait({cleaning}, timeout=0.001)
            await cleaning
            assert len(await contents(t.log)) == 40

        self.run(scene)

    def test_appends_and_rolls_go_on_beside_a_cleaning(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            await filled(t.log, 150, 10)
            for turn in range(5):
                cleaning = asyncio.ensure_future(clean(t))
                await filled(t.log, 30, 10)
                await append(t.log, keyed(b"k%d" % turn, b"turn"))
                await cleaning
                found = newest(await contents(t.log))
                assert found[b"k%d" % turn] == b"turn"
                assert len(found) == 10
            await t.crashed()
            assert newest(await contents(t.log)) == found

        self.run(scene)

    def test_a_record_without_a_key_is_refused(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            error = await refused(InvalidRecord, append(t.log, encoded([b"a"])))
            assert error.fields["record_index"] == 0
            assert "key" in str(error)
            for compression in (Compression.NONE, Compression.ZSTD):
                large = batch_of(
                    [(b"k", b"v" * 5000)] * 3 + [(None, b"w" * 5000)], compression=compression
                )
                error = await refused(InvalidRecord, append(t.log, large))
                assert error.fields["record_index"] == 3
            assert t.log.log_end_offset == 0
            await append(t.log, keyed(b"k", b"v"))

        self.run(scene, internal_segment_bytes="100000")

    def test_a_record_without_a_key_waits_until_the_policy_is_known(self) -> None:
        unknown = replace(parse({}), is_policy_unknown=True)

        async def scene(t: LogUnderTest) -> None:
            large = batch_of([(None, b"w" * 5000)] * 4, compression=Compression.ZSTD)
            for keyless in (encoded([b"a"]), large):
                await t.log.configure(unknown)
                error = await refused(Unavailable, append(t.log, keyless))
                assert (error.fields["record_index"], error.name) == (0, "log.cleanup.policy")
                assert error.has_no_side_effects
                await append(t.log, keyed(b"k", b"v"))
                await t.log.configure(parse({}))
                await append(t.log, keyless)

        self.run(scene, internal_segment_bytes="100000", cleanup_policy="delete")

    def test_retention_and_deletions_take_cleaned_segments(self) -> None:
        both = {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": "5000"}

        async def scene(t: LogUnderTest) -> None:
            await filled(t.log, 60, 60)
            await filled(t.log, 60, 60)
            await clean(t, configs=both)
            left = await contents(t.log)
            assert sorted(left) == list(range(60, 120))
            await t.log.delete_records(70)
            assert sorted(await contents(t.log)) == list(range(70, 120))
            await refused(OffsetOutOfRange, t.log.fetch(69, 100))
            await clean_again(t, both)
            await t.crashed()
            assert t.log.log_start_offset == 70
            assert sorted(await contents(t.log)) == list(range(70, 120))
            await append(t.log, keyed(b"new", b"1", at_ms=AT_MS + 9000))
            t.clock.advance(9000)
            for step in expired(t.log, parse(both), t.clock.now_ms()):
                await t.log.delete_oldest_segments(step.end_offset, step.reason)
            for _ in range(2):
                assert t.log.log_start_offset == 120
                assert sorted(await contents(t.log)) == [120]
                await t.reopened()

        self.run(scene, cleanup_policy="compact,delete", retention_ms="5000")

    def test_a_start_behind_cleaned_segments_leaves_what_follows(self) -> None:
        both = {**COMPACT, "cleanup.policy": "compact,delete"}

        async def scene(t: LogUnderTest) -> None:
            await filled(t.log, 60, 2)
            for _ in range(2):
                await clean_again(t, both)
            assert [one.end_offset for one in t.log.segments[:-1]] == [60]
            await filled(t.log, 60, 60)
            for start in (60, 100):
                assert await t.log.delete_records(start) == start
                assert sorted(await contents(t.log)) == list(range(start, 120))
                await t.crashed()
                assert sorted(await contents(t.log)) == list(range(start, 120))
            await clean_again(t, both)
            assert sorted(await contents(t.log)) == list(range(100, 120))
            await t.log.delete_oldest_segments(t.log.log_start_offset, "start_offset")
            await t.crashed()
            assert sorted(await contents(t.log)) == list(range(100, 120))

        self.run(scene, cleanup_policy="compact,delete")

    def test_a_deletion_beside_a_cleaning_wins(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            for bound in (20, 60, 100, 140):
                await filled(t.log, 60, 20)
                expected = newest(await contents(t.log))
                cleaning = asyncio.ensure_future(clean(t))
                for _ in range(bound // 2):
                    await asyncio.sleep(0)
                await t.log.delete_oldest_segments(bound, "start_offset")
                start = t.log.log_start_offset
                await asyncio.wait({cleaning})
                # It may have lost its segments, and says so: its owner survives that alone.
                error = cleaning.exception()
                assert error is None or isinstance(error, StreamlogError)
                await clean(t)
                assert t.log.log_start_offset == start > 0
                left = await contents(t.log)
                assert min(left) >= start
                assert newest(left) == expected
                await t.crashed()
                assert await contents(t.log) == left

        self.run(scene)

    def test_leader_epochs_end_where_they_did(self) -> None:
        async def scene(t: LogUnderTest) -> None:
            epochs = [t.log.leader_epoch]
            for _ in range(3):
                await filled(t.log, 20, 2)
                await t.crashed()
                epochs.append(t.log.leader_epoch)
            await filled(t.log, 20, 2)
            before = [t.log.end_offset_for_epoch(epoch) for epoch in epochs]
            await clean(t)
            assert [t.log.end_offset_for_epoch(epoch) for epoch in epochs] == before
            await t.reopened()
            assert [t.log.end_offset_for_epoch(epoch) for epoch in epochs] == before
            kept = {one.leader_epoch for one, records in await batches(t.log) if records}
            assert kept == {epochs[-1]}

        self.run(scene)

    @pytest.mark.parametrize("codec", [Compression.ZSTD, Compression.GZIP])
    def test_compressed_batches_keep_their_codec(self, codec: Compression) -> None:
        async def scene(t: LogUnderTest) -> None:
            for turn in range(3):
                records: list[tuple[bytes | None, bytes | None]] = [
                    (b"k%d" % (number * (turn + 1)), b"value" * 10) for number in range(20)
                ]
                await append(t.log, batch_of(records, compression=codec))
            await t.log.roll()
            expected = newest(await contents(t.log))
            await clean(t)
            left = await batches(t.log)
            assert {header.codec for header, records in left if len(records) > 5} == {codec}
            assert newest(await contents(t.log)) == expected
            assert sum(len(records) for _, records in left) == len(expected)

        self.run(scene)
