"""Whole cleanings of an engine without streams: rounds, choice, failures, and a seeded model."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest

from streamlog.codec.batch import scan
from streamlog.codec.records import RecordReader
from streamlog.log.api.cleaning import AbortedRange, LastRecordOfProducer
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.cleaning import batch_filter, cleaned_transactions, offset_map
from streamlog.log.cleaning.cleanable import dirtiest, log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.log.cleaning.offset_map import ENTRY_BYTES, KeyOffsetMap
from streamlog.runtime.offload import ThreadOffload
from tests.log.cleaning.cleanable_list_log import CleanableListLog, batch, marker

CONFIG = TopicConfig(delete_retention_ms=50)


def run(scene):
    async def scene_with_offload():
        offload = ThreadOffload()
        try:
            return await scene(offload)
        finally:
            await offload.close()

    return asyncio.run(scene_with_offload())


async def clean(log, offload, now=1000, keys=1000, config=CONFIG):
    cleaning = LogCleaning(offload, keys * ENTRY_BYTES)
    return await cleaning.clean(log_to_clean(log, config, now), config, now)


async def filled(*values_by_segment):
    log = CleanableListLog()
    for values in values_by_segment:
        for key, value in values:
            await log.append(batch([(10, key, value)]))
        await log.roll()
    return log


def test_the_newest_value_of_each_key_stays_and_the_active_segment_is_left():
    async def scene(offload):
        log = await filled([(b"a", b"1"), (b"b", b"2")], [(b"a", b"3")])
        await log.append(batch([(10, b"b", b"4")]))
        stats = await clean(log, offload)
        assert [one[0] for one in log.records()] == [1, 2, 3]
        assert log.clean_end == 3
        assert (stats.records_read, stats.records_written) == (3, 2)
        assert len(log.segments) == 2

    run(scene)


def test_keys_that_do_not_fit_are_done_in_rounds():
    async def scene(offload):
        log = await filled([(b"%d" % (n % 10), b"%d" % n) for n in range(100)])
        ends = []
        while log.clean_end < 100:
            await clean(log, offload, keys=3)
            ends.append(log.clean_end)
        assert len(ends) > 3
        assert ends == sorted(set(ends))
        assert [one[0] for one in log.records()] == list(range(90, 100))

    run(scene)


def test_a_failed_swap_leaves_the_log_as_it_was_and_the_next_cleaning_is_whole():
    async def scene(offload):
        log = await filled([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")])
        before = log.batches()
        log.fails_at_swap = 1
        with pytest.raises(OSError, match="away"):
            await clean(log, offload)
        assert (log.batches(), log.clean_end, log.abandoned) == (before, -1, 1)
        await clean(log, offload)
        assert [one[0] for one in log.records()] == [1, 2]

    run(scene)


def test_cleaning_ends_at_the_young_segment_and_the_dirtiest_log_comes_first():
    async def scene(_):
        log = await filled([(b"a", b"1")])
        await log.append(batch([(990, b"a", b"2")]))
        await log.roll()
        chosen = log_to_clean(log, TopicConfig(min_compaction_lag_ms=20), 1000)
        assert (chosen.first_dirty_offset, chosen.first_uncleanable_offset) == (0, 1)
        half = await filled([(b"a", b"1")], [(b"a", b"2")])
        half.clean_end = 1
        config = TopicConfig(min_cleanable_dirty_ratio=0.5)
        found = log_to_clean(half, config, 1000)
        assert found.dirty_ratio == 0.5
        assert dirtiest([(found, config)]) is None
        late = TopicConfig(min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=100)
        overdue = log_to_clean(half, late, 1000)
        assert dirtiest([(overdue, late)]) is overdue
        assert dirtiest([(overdue, late), (chosen, config)]) is chosen
        half.clean_end = 99
        assert log_to_clean(half, config, 1000).first_dirty_offset == 0

    run(scene)


def test_a_full_map_stays_within_its_bound():
    tracemalloc.start()
    try:
        offsets = KeyOffsetMap(4 << 20)
        number = 0
        while offsets.put(b"%032d" % number, 1 << 40 | number):
            number += 1
        assert number == offsets.entries_max
        assert tracemalloc.get_traced_memory()[1] <= 4 << 20
    finally:
        tracemalloc.stop()


class Model:
    """A seeded history of plain and transactional appends, rolls and cleanings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = CleanableListLog()
        self.latest: dict[bytes, bytes | None] = {}
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.now = 1000
        self.sequence = dict.fromkeys(range(3), 0)

    async def append(self) -> None:
        choice = self.random
        producer = choice.randrange(3)
        records = [
            (self.now, b"k%d" % choice.randrange(6), choice.choice([None, b"%d" % self.now]))
            for _ in range(choice.randint(1, 4))
        ]
        is_transactional, is_commit = choice.random() < 0.5, choice.random() < 0.5
        base = self.log.log_end_offset
        fields = (producer, 0, self.sequence[producer])
        await self.log.append(batch(records, fields, is_transactional=is_transactional))
        self.sequence[producer] += len(records)
        self.log.last_records[producer] = LastRecordOfProducer(base + len(records) - 1, 0)
        for offset, (_, key, value) in enumerate(records, base):
            self.written[offset] = (key, value)
        if is_transactional:
            if not is_commit:
                aborted = AbortedRange(producer, base, base + len(records))
                self.log.aborted.append(aborted)
                self.log.told.append(aborted)
            if choice.random() < 0.3:
                await self.log.roll()
            await self.log.append(marker(producer, 0, is_commit, self.now))
        if is_commit or not is_transactional:
            self.latest.update((key, value) for _, key, value in records)

    def check(self) -> None:
        seen: dict[bytes, bytes | None] = {}
        starts = sorted((one.first_offset, one.producer_id) for one in self.log.told)
        ongoing: set[int] = set()
        for data in self.log.batches():
            header = scan(data)[0].header
            while starts and starts[0][0] <= header.last_offset:
                ongoing.add(starts.pop(0)[1])
            if header.is_control:
                ongoing.discard(header.producer_id)
                continue
            is_hidden = header.is_transactional and header.producer_id in ongoing
            for offset, _, key, value, _ in RecordReader(
                header, scan(data)[0].view[61:], header.base_offset
            ):
                assert key is not None
                assert self.written[offset] == (key, value)
                if not is_hidden:
                    seen[key] = value
        present = {key: value for key, value in self.latest.items() if value is not None}
        assert {key: value for key, value in seen.items() if value is not None} == present
        headers = [scan(data)[0].header for data in self.log.batches()]
        for producer, last in self.log.last_records.items():
            found = [one for one in headers if one.last_offset == last.last_data_offset]
            assert [one.last_sequence for one in found] == [self.sequence[producer] - 1]

    async def run(self, offload: ThreadOffload) -> None:
        for _ in range(40):
            self.now += self.random.randrange(40)
            await self.append()
            if self.random.random() < 0.4:
                await self.log.roll()
            if self.random.random() < 0.3:
                await clean(self.log, offload, self.now, self.random.choice([2, 1000]))
                self.check()


def run_models(seeds: int) -> None:
    async def scene(offload):
        for seed in range(seeds):
            await Model(seed).run(offload)

    run(scene)


def test_a_reader_sees_the_same_values_before_and_after_cleanings():
    run_models(40)


def loses_a_last_value(patch):
    real = offset_map.KeyOffsetMap.get
    patch.setattr(offset_map.KeyOffsetMap, "get", lambda self, key: real(self, key) + 1)


def removes_tombstones_at_once_from_a_part(patch):
    real = batch_filter.BatchFilter.keeps_record
    patch.setattr(
        batch_filter.BatchFilter,
        "keeps_record",
        lambda self, record, keeps: (
            record[3] is not None
            if record[0] > self.offsets.latest_offset
            else real(self, record, keeps)
        ),
    )


def forgets_producers(patch):
    patch.setattr(batch_filter.BatchFilter, "is_last_of_producer", lambda self, header: False)


def learns_aborted_keys(patch):
    patch.setattr(cleaned_transactions.CleanedTransactions, "is_aborted", lambda *_: False)


@pytest.mark.parametrize(
    "mutant",
    [
        loses_a_last_value,
        removes_tombstones_at_once_from_a_part,
        forgets_producers,
        learns_aborted_keys,
    ],
)
def test_the_model_finds_broken_cleaners(monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        run_models(40)
