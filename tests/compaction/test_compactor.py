"""The compactor's loop: what it does when its commit, its tenure or a store fails."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from streamlog.compaction.execute.executor import InlineExecutor
from streamlog.compaction.plan.catalog import Catalog
from streamlog.errors import (
    Conflict,
    Corrupt,
    DiskFull,
    Internal,
    MetadataUnavailable,
    ObjectNotFound,
    StoreUnavailable,
    StreamlogError,
    TenureFenced,
    Unauthorized,
)
from streamlog.metadata.compaction_interface import CompactionTenure, Replacement
from streamlog.metadata.interface import Committed, Tenure
from streamlog.objectstore.keys import data_key
from tests.compaction.compacting_engine import (
    BY_HAND,
    History,
    engine,
    live,
    make,
    run,
    sample,
    stored,
    with_compaction,
)
from tests.engine.harness import until


class FailingTenure:
    """Raises the errors, one at each commit, then commits."""

    def __init__(self, inner: CompactionTenure, errors: list[StreamlogError]) -> None:
        self._inner = inner
        self._errors = errors

    @property
    def tenure(self) -> Tenure:
        return self._inner.tenure

    def owned_object_ids(self, count: int) -> AbstractAsyncContextManager[list[int]]:
        return self._inner.owned_object_ids(count)

    async def commit(self, replacement: Replacement) -> Committed:
        if self._errors:
            raise self._errors.pop(0)
        return await self._inner.commit(replacement)

    async def close(self) -> None:
        await self._inner.close()

    async def kill(self) -> None:
        await self._inner.kill()


@pytest.mark.parametrize(
    ("error", "outcome", "tenures"),
    [
        (Conflict("another one came first"), "conflict", 1),
        (TenureFenced("sealed"), "fenced", 2),
        (Internal("a bug"), "failed", 2),
        (Corrupt("a damaged block", object_key="checkpoint/1.1/1"), "corrupt", 1),
    ],
)
def test_a_refused_commit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: StreamlogError,
    outcome: str,
    tenures: int,
) -> None:
    async def scenario() -> None:
        history, opened_tenures = History(1), []
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 4)
            await history.append(streams, 60)
            await opened.drain()
            before = await live(opened)
            errors = [error]
            open_tenure = opened.metadata.open_compaction_tenure

            async def failing(*, ids_max: int) -> FailingTenure:
                opened_tenures.append(await open_tenure(ids_max=ids_max))
                return FailingTenure(opened_tenures[-1], errors)

            monkeypatch.setattr(opened.metadata, "open_compaction_tenure", failing)
            await opened.compactor.tick()
            # Its ids are given up, or their tenure has ended.
            assert not opened.metadata.open_object_ids
            if outcome in ("failed", "corrupt"):  # the same inputs alone are left alone for a time
                await history.append(streams, 60)
                await opened.drain()
            await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome=outcome) == 1
            assert sample(opened, "specs_total", outcome="committed") > 0
            assert len(opened_tenures) == tenures
            assert len(await live(opened)) < len(before)
            await history.check(streams)
            left = {data_key(row.object_id) for row in await live(opened)}
            if outcome == "conflict":
                await until(lambda: stored(tmp_path) == left)

    run(scenario)


def test_damaged_metadata_costs_a_merge_and_not_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        history = History(5)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 4)
            await history.append(streams, 60)
            await opened.drain()

            async def fail(*_: Any) -> Any:
                raise Corrupt("a block fails its CRC", object_key="checkpoint/1.1/0000000000000001")

            with monkeypatch.context() as patch:
                patch.setattr(opened.metadata, "live_parts", fail)
                await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="corrupt") > 0
            assert sample(opened, "quarantined_objects") == 0
            await history.append(streams, 60)
            await opened.drain()
            await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="committed") > 0
            await history.check(streams)

    run(scenario)


def test_a_commit_is_repeated_while_the_metadata_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        history = History(2)
        monkeypatch.setattr("streamlog.compaction.compactor.COMMIT_RETRY_S", 0.0)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 4)
            await history.append(streams, 60)
            await opened.drain()
            errors: list[StreamlogError] = [MetadataUnavailable("away")] * 3
            open_tenure = opened.metadata.open_compaction_tenure

            async def failing(*, ids_max: int) -> FailingTenure:
                return FailingTenure(await open_tenure(ids_max=ids_max), errors)

            monkeypatch.setattr(opened.metadata, "open_compaction_tenure", failing)
            await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="committed") > 0
            assert sample(opened, "specs_total", outcome="unavailable") == 0
            assert not errors
            await history.check(streams)

    run(scenario)


def test_the_next_tick_goes_on_after_an_outage_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        history = History(3)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 4)
            await history.append(streams, 60)
            await opened.drain()

            async def fail(self: InlineExecutor, job: Any) -> Any:
                raise StoreUnavailable("away", operation="get")

            with monkeypatch.context() as patch:
                patch.setattr(InlineExecutor, "run", fail)
                await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="unavailable") == 1
            assert sample(opened, "specs_total", outcome="committed") == 0
            await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="committed") > 0
            await history.check(streams)

    run(scenario)


def test_a_full_spool_folder_is_not_filled_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        history = History(7)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 4)
            await history.append(streams, 60)
            await opened.drain()

            async def fail(self: InlineExecutor, job: Any) -> Any:
                raise DiskFull("no room", path="/spool")

            with monkeypatch.context() as patch:
                patch.setattr(InlineExecutor, "run", fail)
                await opened.compactor.tick()
                await opened.compactor.tick()
                assert sample(opened, "specs_total", outcome="unavailable") == 1
                patch.setattr("streamlog.compaction.compactor.DISK_FULL_S", 0.0)
                opened.compactor._resume_at = 0.0
                await opened.compactor.tick()
                assert sample(opened, "specs_total", outcome="unavailable") == 2
            await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="committed") > 0
            await history.check(streams)

    run(scenario)


def test_a_live_object_that_stays_missing_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(4)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 2)
            for _ in range(40):
                # An object each: merges of one size alone are due.
                await history.append(streams, 1, [1500])
                await opened.drain()
            victim = (await live(opened))[5]
            await opened.store.delete([data_key(victim.object_id)])
            for _ in range(3):
                await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="gone") == 3
            assert sample(opened, "quarantined_objects") == 1
            assert sample(opened, "specs_total", outcome="committed") > 0
            with pytest.raises(ObjectNotFound):
                await opened.store.head(data_key(victim.object_id))

    run(scenario)


def test_a_commit_that_keeps_failing_is_left_to_the_next_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs are orphans then, and swept; the inputs are merged again."""

    async def scenario() -> None:
        history, tries = History(8), 3
        monkeypatch.setattr("streamlog.compaction.compactor.COMMIT_RETRY_S", 0.0)
        monkeypatch.setattr("streamlog.compaction.compactor.COMMIT_TRIES", tries)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 4)
            await history.append(streams, 60)
            await opened.drain()
            assert not opened.compactor.backlog
            errors: list[StreamlogError] = [MetadataUnavailable("away")] * tries
            open_tenure = opened.metadata.open_compaction_tenure

            async def failing(*, ids_max: int) -> FailingTenure:
                return FailingTenure(await open_tenure(ids_max=ids_max), errors)

            monkeypatch.setattr(opened.metadata, "open_compaction_tenure", failing)
            await opened.compactor.tick()
            assert not errors
            assert sample(opened, "specs_total", outcome="unavailable") == 1
            assert sample(opened, "specs_total", outcome="committed") == 0
            backlog = sum(opened.compactor.backlog.values())
            assert backlog > 0
            await opened.compactor.tick()
            assert sample(opened, "specs_total", outcome="committed") > 0
            assert sum(opened.compactor.backlog.values()) < backlog
            await history.check(streams)
            left = {data_key(row.object_id) for row in await live(opened)}
            await until(lambda: stored(tmp_path) == left)

    run(scenario)


def test_more_merges_that_gain_nothing_than_are_remembered_end_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would make another one forgotten, which is tried again then: round and round."""

    async def scenario() -> None:
        history = History(9)
        monkeypatch.setattr("streamlog.compaction.compactor.FUTILE_MAX", 1)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 4)
            for size in (20, 20_000) * 5:  # of two tiers
                await history.append(streams, 1, [size])
                await opened.drain()

            async def fail(*_: Any) -> Any:
                raise Corrupt("a block fails its CRC", object_key="checkpoint/1.1/0000000000000001")

            with monkeypatch.context() as patch:
                patch.setattr(opened.metadata, "live_parts", fail)
                for ticks in (1, 2):
                    await opened.compactor.tick()
                    assert sample(opened, "specs_total", outcome="corrupt") == 1 + ticks
            await history.append(streams, 60)
            await opened.drain()
            while sample(opened, "specs_total", outcome="committed") == 0:
                await opened.compactor.tick()
            await history.check(streams)

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [
        Corrupt("a block fails its CRC", object_key="checkpoint/1.1/1"),
        Unauthorized("the credentials have expired"),
    ],
)
def test_one_wrong_answer_to_a_look_costs_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: StreamlogError
) -> None:
    async def scenario() -> None:
        history, errors = History(11), [error]
        look = Catalog.look

        async def fails_once(self: Catalog, *args: Any) -> Any:
            if errors:
                raise errors.pop()
            return await look(self, *args)

        monkeypatch.setattr(Catalog, "look", fails_once)
        async with engine(tmp_path, with_compaction(compaction_interval_ms=1)) as opened:
            streams = await make(opened, 4)
            await until(lambda: not errors)
            await history.append(streams, 60)
            await opened.drain()
            await until(
                lambda: (
                    sample(opened, "specs_total", outcome="committed") > 0
                    or sample(opened, "stopped") == 1
                )
            )
            assert sample(opened, "stopped") == 0
            await history.check(streams)

    run(scenario)


def test_a_bug_ends_compaction_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        history = History(10)

        async def fail(*_: Any) -> Any:
            raise RuntimeError("a bug in the catalog")

        monkeypatch.setattr(Catalog, "look", fail)
        async with engine(tmp_path, with_compaction(compaction_interval_ms=1)) as opened:
            await until(lambda: sample(opened, "stopped") == 1)
            streams = await make(opened, 2)
            await history.append(streams, 10)
            await opened.drain()
            await history.check(streams)
            assert sample(opened, "specs_total", outcome="committed") == 0

    run(scenario)
