"""Compaction against a plain list of ranges, over checkpoints, merges, transfers and restarts."""

from __future__ import annotations

import asyncio

import pytest

from tests.metadata.compacting import History


@pytest.mark.parametrize("first", range(0, 96, 12))
def test_random_histories_keep_their_content(first: int) -> None:
    compactions = conflicts = 0

    async def main(seed: int) -> None:
        nonlocal compactions, conflicts
        history = History(seed)
        await history.run(150)
        compactions += len(history.truth.compactions)
        conflicts += history.conflicts
        await history.stop()

    for seed in range(first, first + 12):
        try:
            asyncio.run(main(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    # A history in which nothing happens would prove nothing.
    assert compactions > 60
    assert conflicts > 5


@pytest.mark.slow
def test_a_long_random_history_keeps_its_content() -> None:
    async def main() -> None:
        history = History(77, streams=20)
        await history.run(1500)
        assert len(history.truth.compactions) > 100
        await history.stop()

    asyncio.run(main())
