"""Mutants of cleanings of shared logs: which records stay, when slices are named, and when they go.

The rules are those of topics in local files, too, and have mutants there (`unified.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from streamlog.codec.batch import ScannedBatch, scan
from streamlog.codec.control import EndMarker, decode_end_marker
from streamlog.codec.records import iterate
from streamlog.log.cleaning import batch_filter, cleaner, log_cleaner
from streamlog.log.cleaning.batch_filter import BatchFilter
from streamlog.log.shared.cleaning import replacement
from streamlog.log.shared.cleaning.cleaned_streams import CleanedStreamSet
from streamlog.log.shared.cleaning.replacement import SharedReplacement
from streamlog.log.shared.cleaning.slice_trimmer import SliceTrimmer
from streamlog.log.shared.shared_log import SharedLog
from streamlog.testing.simulation.history import COMPACTED_PLAN
from tests.simulation.mutants.cleaning_rules import (
    aborted_supersedes,
    marker_gone_early,
    tombstone_gone_at_once,
)
from tests.simulation.mutants.mutant import Mutant, Patch

# Which records stay.


def _last_value_lost(patch: Patch) -> None:
    """The newest record of a key goes when it is the last of the cleaned range."""

    def keeps(self: Any, record: Any, keeps_tombstones: bool) -> bool:
        is_last = record[0] == self.offsets.latest_offset
        return not is_last and bool(original(self, record, keeps_tombstones))

    original = patch.set(BatchFilter, "keeps_record", keeps)


def _tombstone_supersedes_nothing(patch: Patch) -> None:
    """Older records of a deleted key stay, and are the newest once the tombstone goes."""

    def add_keys(
        batches: Any, start_offset: int, end_offset: int, offsets: Any, transactions: Any
    ) -> bool:
        for batch in scan(batches):
            header = batch.header
            if header.base_offset >= end_offset:
                return False
            if header.is_control:
                transactions.is_marker_empty(header, marker_of(batch))
            elif not transactions.is_aborted(header) and header.record_count:
                for offset, _, key, value, _ in iterate(batch.view):
                    if value is not None and offset >= start_offset:
                        offsets.put(key, offset)
            if header.last_offset >= start_offset:
                offsets.latest_offset = header.last_offset
        return True

    def marker_of(batch: ScannedBatch) -> EndMarker | None:
        return decode_end_marker(batch.view) if batch.header.record_count else None

    patch.set(cleaner, "add_keys", add_keys)


def _last_batch_gone(patch: Patch) -> None:
    patch.set(BatchFilter, "is_last_of_producer", lambda self, header: False)


def _past_the_stable_end(patch: Patch) -> None:
    """Keys of open transactions are learned, too."""

    def to_clean(log: Any, config: Any, now_ms: int) -> Any:
        found = original(log, config, now_ms)
        active = [one.base_offset for one in log.segments if one.is_active]
        return found._replace(first_uncleanable_offset=min([log.log_end_offset, *active]))

    original = patch.set(log_cleaner, "log_to_clean", to_clean)


def _lag_ignored(patch: Patch) -> None:
    """Segments are cleaned however young their records are."""

    def to_clean(log: Any, config: Any, now_ms: int) -> Any:
        return original(log, replace(config, min_compaction_lag_ms=0), now_ms)

    original = patch.set(log_cleaner, "log_to_clean", to_clean)


def _times_changed(patch: Patch) -> None:
    """Records of a batch that gets a delete horizon have the horizon for their time."""
    patch.set(batch_filter, "wrapped", lambda delta: 0)


# What the new slices say.


def _offsets_close_up(patch: Patch) -> None:
    """A batch takes its own offsets alone in the stream, and none of those that went before it."""

    async def put(self: Any, header: Any, data: Any, marker: Any) -> None:
        self._next = header.base_offset
        await original(self, header, data, marker)

    original = patch.set(SharedReplacement, "_put", put)


def _no_header_at_the_end(patch: Patch) -> None:
    """Where nothing is left at a segment's end, nothing stands for it."""

    async def put(self: Any, header: Any, data: Any, marker: Any) -> None:
        is_filler = header.record_count == 0 and header.producer_id < 0
        if is_filler and (self._unanswered or self._data_start is not None):
            self._next = self._end
        else:
            await original(self, header, data, marker)

    original = patch.set(SharedReplacement, "_put", put)


def _first_time_is_the_latest(patch: Patch) -> None:
    """A cleaned segment is said to be as late as its first batch."""

    def sealed(*arguments: Any) -> Any:
        made = original(*arguments)
        return replace(made, largest_timestamp_ms=made.first_timestamp_ms)

    original = patch.set(replacement, "SegmentSealed", sealed)


def _clean_end_ahead(patch: Patch) -> None:
    """A cleaning remembers the log's end as what it has come to."""

    async def remember(self: Any, _: int) -> None:
        await original(self, self.log_end_offset)

    original = patch.set(SharedLog, "set_clean_end_offset", remember)


# When slices are named.


def _switched_before_durable(patch: Patch) -> None:
    """Appends of the new slice are under way when the meta stream names it."""

    async def answered(self: Any) -> None:
        _, size = self._unanswered.popleft()
        self._pending_bytes -= size
        if self._data_start is None:
            self._data_start = self._data.next_offset - (self._next - self._base)

    patch.set(SharedReplacement, "_answered", answered)


def _switch_in_memory(patch: Patch) -> None:
    """The switch is not written to the meta stream; old slices go nevertheless."""

    async def switch(self: Any, old: Any, new: Any) -> None:
        async def pretend(_: Any) -> None:
            return

        self._write_meta = pretend
        try:
            await original(self, old, new)
        finally:
            del self._write_meta

    original = patch.set(SharedLog, "switch", switch)


def _fetch_takes_both(patch: Patch) -> None:
    """A fetch takes batches of an old segment and the aborted transactions of the new one."""

    async def switch(self: Any, old: Any, new: Any) -> None:
        before = self._swaps
        await original(self, old, new)
        self._swaps = before

    original = patch.set(SharedLog, "switch", switch)


# When slices go.


def _old_slices_at_once(patch: Patch) -> None:
    async def trim_later(self: Any, held: Any, delay_s: float) -> None:
        sleep = asyncio.sleep
        self._trimmer.release(held)
        async with self._removing:
            if self._lifecycle.is_open:
                await self._trimmer.trim()
        await sleep(0)

    patch.set(SharedLog, "_trim_later", trim_later)


def _written_slices_not_held(patch: Patch) -> None:
    """What a cleaning writes is trimmed when old slices of the one before go."""
    patch.set(SliceTrimmer, "hold", lambda self, slices: ())


def _old_slices_stay(patch: Patch) -> None:
    async def trim(self: Any) -> None:
        return

    patch.set(SliceTrimmer, "trim", trim)


def _streams_of_the_dead_stay(patch: Patch) -> None:
    """Streams that a cleaning made, and no record names, are not looked for."""

    async def sweep(self: Any) -> None:
        return

    patch.set(CleanedStreamSet, "sweep", sweep)


def _mutant(
    name: str, broken: str, install: Any, *, is_quick: bool = True, found_by: str = ""
) -> Mutant:
    is_quick = is_quick and not found_by
    return Mutant(f"clean: {name}", broken, "object", install, is_quick, found_by, COMPACTED_PLAN)


CLEANING_MUTANTS = (
    _mutant(
        "last value lost",
        "a cleaning drops a key's newest record",
        _last_value_lost,
        is_quick=False,
    ),
    _mutant(
        "tombstone supersedes nothing",
        "a deleted key has its old value again once the tombstone goes",
        _tombstone_supersedes_nothing,
    ),
    _mutant(
        "tombstone gone at once",
        "a tombstone goes with its first cleaning",
        tombstone_gone_at_once,
    ),
    _mutant(
        "aborted supersedes",
        "a cleaning takes aborted records for committed ones",
        aborted_supersedes,
    ),
    _mutant(
        "marker gone early",
        "a cleaning drops markers of transactions whose records stay",
        marker_gone_early,
    ),
    _mutant("last batch gone", "a cleaning drops the last batch of a producer", _last_batch_gone),
    _mutant(
        "past the stable end",
        "a cleaning learns keys of transactions that are open",
        _past_the_stable_end,
    ),
    _mutant("lag ignored", "young segments are cleaned, too", _lag_ignored),
    _mutant("times changed", "a cleaning changes timestamps of records", _times_changed),
    _mutant("offsets close up", "batches of a cleaned segment move up", _offsets_close_up),
    _mutant(
        "no header at the end",
        "a cleaned segment's slice ends before the segment does",
        _no_header_at_the_end,
    ),
    _mutant(
        "first time is the latest",
        "a cleaned segment is said to be as late as its first batch",
        _first_time_is_the_latest,
    ),
    _mutant("clean end ahead", "a cleaning says that it came to the log's end", _clean_end_ahead),
    _mutant(
        "switched before durable",
        "new slices are named before they are durable",
        _switched_before_durable,
        found_by="tests/log/cleaning/test_shared_switches.py::"
        "test_the_switch_waits_for_every_batch",
    ),
    _mutant("switch in memory", "the switch is in memory alone", _switch_in_memory),
    _mutant(
        "fetch takes both",
        "a fetch takes batches of an old segment and the aborted transactions of a new one",
        _fetch_takes_both,
        found_by="tests/log/cleaning/test_shared_switches.py::"
        "test_a_committed_fetch_beside_the_switch_takes_nothing_aborted",
    ),
    _mutant("old slices at once", "replaced slices go at once", _old_slices_at_once),
    _mutant(
        "written slices not held",
        "slices that are being written are trimmed",
        _written_slices_not_held,
        is_quick=False,
    ),
    _mutant("old slices stay", "replaced slices stay", _old_slices_stay),
    _mutant(
        "streams of the dead stay",
        "streams that a dead cleaning made are not looked for",
        _streams_of_the_dead_stay,
    ),
)
