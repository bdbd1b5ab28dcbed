"""Mistakes that keeping a log in two tiers invites are found by the histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamlog.errors import StreamlogError
from streamlog.log.api.tiering import AbortedInTier
from streamlog.tiered import remote_log_manager
from streamlog.tiered.copying import copier
from streamlog.tiered.copying.copier import Copier
from streamlog.tiered.reading import index_cache
from streamlog.tiered.reading.chunks import ChunkCache
from streamlog.tiered.reading.partition_tier import PartitionTier
from streamlog.tiered.remote_log_manager import RemoteLogManager
from streamlog.unified.unified_log import UnifiedLog
from tests.simulation.mutants.mutant import Patch
from tests.tiered.histories import run_tiered_history

SEEDS_MAX = 150
Install = Callable[[Patch], None]


def deletes_what_is_not_copied(patch: Patch) -> None:
    patch.set(UnifiedLog, "copied_end_offset", property(lambda self: self.high_watermark))


def finishes_a_copy_that_failed(patch: Patch) -> None:
    async def finished(*arguments: Any) -> None:
        try:
            await original(*arguments)
        except StreamlogError:
            return

    original = patch.set(Copier, "_stored", finished)


def copies_past_the_last_stable_offset(patch: Patch) -> None:
    def all_closed(log: Any, highest_offset: int, _now_ms: int) -> list[Any]:
        return [
            one
            for one in log.segments
            if not one.is_active and highest_offset < one.end_offset - 1 < log.high_watermark - 1
        ]

    patch.set(copier, "candidates", all_closed)


def deletes_before_the_log_start_moves(patch: Patch) -> None:
    def unmoved(*arguments: Any) -> Any:
        return original(*arguments)._replace(log_start_offset=-1)

    original = patch.set(remote_log_manager, "expired_segments", unmoved)


def leaves_copies_that_were_cut_off(patch: Patch) -> None:
    async def attached(self: Any, log: Any, topic_id: Any) -> None:
        await original(self, log, topic_id)
        self._led[log.topic_partition].has_left_overs = False

    original = patch.set(RemoteLogManager, "attach", attached)


def leaves_copies_that_failed(patch: Patch) -> None:
    async def nothing(*_: Any) -> None:
        return

    patch.set(Copier, "_take_back", nothing)
    leaves_copies_that_were_cut_off(patch)

    async def copies(self: Any, led: Any) -> Any:
        led.has_left_overs = False
        return await original(self, led)

    original = patch.set(RemoteLogManager, "_copy", copies)


def reads_another_chunk(patch: Patch) -> None:
    def first(self: Any, segment: Any, number: int, deadline: float) -> Any:
        return original(self, segment, min(number, 1), deadline)

    original = patch.set(ChunkCache, "get", first)


def tells_no_aborted_transactions_of_the_tier(patch: Patch) -> None:
    async def none(*_: Any) -> AbortedInTier:
        return AbortedInTier([], True)

    patch.set(PartitionTier, "aborted_between", none)


def tells_those_of_the_tier_alone(patch: Patch) -> None:
    async def complete(*arguments: Any) -> AbortedInTier:
        found: AbortedInTier = await original(*arguments)
        return found._replace(is_complete=True)

    original = patch.set(PartitionTier, "aborted_between", complete)


def begins_where_the_local_part_does(patch: Patch) -> None:
    async def local(self: Any, led: Any) -> None:
        await original(self, led)
        await led.log.raise_start(led.log.local_log_start_offset)

    original = patch.set(RemoteLogManager, "_load", local)


def forgets_what_was_copied(patch: Patch) -> None:
    patch.set(remote_log_manager, "highest_copied", lambda *_: -1)


def takes_another_segments_index(patch: Patch) -> None:
    patch.set(
        index_cache.IndexKey,
        "file_name",
        property(lambda self: f"{0:020d}_{22 * 'A'}{index_cache.SUFFIXES[self.index_type]}"),
    )
    patch.set(index_cache, "check_index", lambda *_: None)

    async def stored(self: Any, key: Any, segment: Any) -> Any:
        self._sizes.setdefault(key, 0)
        return await original(self, key, segment)

    original = patch.set(index_cache.RemoteIndexCache, "_stored", stored)


MUTANTS: list[Install] = [
    deletes_what_is_not_copied,
    finishes_a_copy_that_failed,
    copies_past_the_last_stable_offset,
    deletes_before_the_log_start_moves,
    leaves_copies_that_were_cut_off,
    leaves_copies_that_failed,
    reads_another_chunk,
    tells_no_aborted_transactions_of_the_tier,
    tells_those_of_the_tier_alone,
    begins_where_the_local_part_does,
    forgets_what_was_copied,
    takes_another_segments_index,
]


@pytest.fixture
def patch() -> Iterator[Patch]:
    made = Patch()
    try:
        yield made
    finally:
        made.undo()


@pytest.mark.parametrize("install", MUTANTS, ids=[one.__name__ for one in MUTANTS])
def test_a_mistake_in_the_tiers_is_found(install: Install, patch: Patch) -> None:
    install(patch)
    for seed in range(SEEDS_MAX):
        try:
            run_tiered_history(seed)
        except (AssertionError, StreamlogError, KeyError, IndexError):
            return
    pytest.fail(f"{SEEDS_MAX} histories did not notice: {install.__name__}")
