"""Both kinds of log are cleaned by the same rules, and what breaks a rule is found.

Mutants change the cleaner, or what a shared log does for it, so that one promise is broken.
"""

from __future__ import annotations

import asyncio

import pytest

from streamlog.codec.batch import scan
from streamlog.codec.records import Record
from streamlog.errors import Closed, StreamlogError
from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning import batch_filter, cleaned_transactions, offset_map
from streamlog.log.cleaning.log_cleaner import LogCleaner
from streamlog.log.shared.cleaning import replacement
from streamlog.model.batch import RecordBatch
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.byte_pace import UNLIMITED
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.logs.cleaning_conformance import (
    COMPACT,
    CleaningConformance,
    clean,
    cleanable,
    contents,
    filled,
)
from tests.log.cleaning.cleanable_list_log import CleanableListLog
from tests.log.cleaning.kinds import SharedInMemory, UnifiedInAFolder, UnifiedInMemory
from tests.support.metrics import value_of


class TestShared(SharedInMemory):
    """Over streams in memory."""


class TestUnified(UnifiedInMemory):
    """Over a disk in memory, with power cuts."""


class TestUnifiedInAFolder(UnifiedInAFolder):
    """Over the file system."""


def loses_a_last_value(patch: pytest.MonkeyPatch) -> None:
    real = offset_map.KeyOffsetMap.get
    patch.setattr(offset_map.KeyOffsetMap, "get", lambda self, key: real(self, key) + 1)


def resurrects_a_deleted_value(patch: pytest.MonkeyPatch) -> None:
    """Tombstones go at once, also past the keys that the round has learned."""
    filtering = batch_filter.BatchFilter
    real = filtering.keeps_record

    def keeps(self: batch_filter.BatchFilter, record: Record, _: bool) -> bool:
        return record[3] is not None and real(self, record, False)

    patch.setattr(filtering, "keeps_record", keeps)


def forgets_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch_filter.BatchFilter, "is_last_of_producer", lambda self, header: False)


def takes_aborted_records_for_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleaned_transactions.CleanedTransactions, "is_aborted", lambda *_: False)


def drops_markers_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleaned_transactions.CleanedTransactions, "is_marker_empty", lambda *_: True)


def counts_batches_without_gaps(patch: pytest.MonkeyPatch) -> None:
    """Batches follow one another in the stream, whatever went between them."""
    real = RecordBatch

    def own_span(count: int, stamp: int, parts: tuple[bytes], attributes: bytes = b"") -> object:
        if attributes:
            count = scan(parts[0])[0].header.last_offset_delta + 1
        return real(count, stamp, parts, attributes)

    patch.setattr(replacement, "RecordBatch", own_span)


def test_one_cleaner_cleans_every_kind_of_log_the_dirtiest_first() -> None:
    """Of a third kind, too, which knows neither streams nor files."""

    async def body() -> None:
        offload, cleaned = ThreadOffload(), []
        config = parse({**COMPACT, "min.cleanable.dirty.ratio": "0"})
        async with SharedInMemory().make(COMPACT) as shared, UnifiedInMemory().make(COMPACT) as own:
            plain = CleanableListLog()
            logs = [shared.log, own.log, plain]
            for log, count in zip(logs, (60, 60, 60), strict=True):
                await filled(log, count, 10)
            await clean(shared)
            await filled(shared.log, 20, 10)
            cleaner = LogCleaner(shared.environment(), offload, lambda: UNLIMITED, lambda _: True)
            ends = [cleanable(log).clean_end_offset for log in logs]
            while await cleaner.clean_one([(log, config) for log in logs]):
                now = [cleanable(log).clean_end_offset for log in logs]
                cleaned += [number for number in range(3) if now[number] != ends[number]]
                ends = now
            assert sorted(cleaned) == [0, 1, 2]
            assert cleaned[-1] == 0
            assert ends == [80, 60, 60]
            for log in (shared.log, own.log):
                assert len(await contents(log)) == 10
            assert [one[0] for one in plain.records()] == list(range(50, 60))
        await offload.close()

    asyncio.run(body())


class FailingLog(CleanableListLog):
    """It has just ended."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition("failing", 0)

    def first_batch_timestamp_ms(self, segment: AbstractLogSegment) -> int:
        raise Closed("the log was closed")


def test_a_log_that_cannot_be_looked_at_keeps_no_other_from_being_cleaned() -> None:
    async def body() -> None:
        offload, config = ThreadOffload(), parse({**COMPACT, "min.cleanable.dirty.ratio": "0"})
        failing = FailingLog()
        await filled(failing, 60, 10)
        async with SharedInMemory().make(COMPACT) as shared:
            await filled(shared.log, 60, 10)
            environment = shared.environment()
            cleaner = LogCleaner(environment, offload, lambda: UNLIMITED, lambda _: True)
            assert await cleaner.clean_one([(failing, config), (shared.log, config)])
            assert len(await contents(shared.log)) == 10
            assert value_of(environment.metrics.cleaning_errors) == 1
        await offload.close()

    asyncio.run(body())


BOTH = (SharedInMemory, UnifiedInMemory)
NEWEST = "test_the_newest_value_of_each_key_stays_at_its_offset"
ABORTED = "test_aborted_records_go_and_committed_readers_see_no_difference"
MUTANTS = [
    (loses_a_last_value, NEWEST, BOTH),
    (resurrects_a_deleted_value, "test_a_deletion_is_not_undone_by_rounds", BOTH),
    (
        resurrects_a_deleted_value,
        "test_a_tombstone_stays_for_its_time_from_the_first_cleaning_on",
        BOTH,
    ),
    (forgets_producers, "test_the_last_batch_of_each_active_producer_stays", BOTH),
    (takes_aborted_records_for_committed, ABORTED, BOTH),
    (drops_markers_at_once, "test_a_marker_stays_as_long_as_it_ends_something", BOTH),
    (
        counts_batches_without_gaps,
        "test_look_ups_by_offset_and_time_meet_a_cleaned_log",
        (SharedInMemory,),
    ),
]


@pytest.mark.parametrize(
    ("mutant", "test", "kind"),
    [
        pytest.param(mutant, test, kind, id=f"{mutant.__name__}-{test}-{kind.__name__}")
        for mutant, test, kinds in MUTANTS
        for kind in kinds
    ],
)
def test_broken_cleaners_are_found(
    monkeypatch: pytest.MonkeyPatch,
    mutant: object,
    test: str,
    kind: type[CleaningConformance],
) -> None:
    assert callable(mutant)
    getattr(kind(), test)()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, StreamlogError)):
        getattr(kind(), test)()
