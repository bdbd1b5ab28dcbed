"""A cleaning that is given up, at any moment, harms no other file and no other reader."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from streamlog.errors import Invalid, StreamlogError
from streamlog.format.kafka_files.names import CLEANED, INDEX, SWAP
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import parse
from streamlog.log.cleaning.cleanable import log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk import system_folder
from streamlog.runtime.disk.descriptors import write_whole
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import contents, keyed, newest
from streamlog.testing.logs.log_conformance import append, refused
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.unified.disk.files import TEMPORARY
from tests.unified.harness import UnifiedLogUnderTest, unified_log

CONFIGS = {
    "log.type": "unified",
    "cleanup.policy": "compact,delete",
    "internal.segment.bytes": "600",
    "index.interval.bytes": "200",
}
WAIT_S = 30


async def filled(t: UnifiedLogUnderTest, count: int = 40) -> CleanableLog:
    for number in range(count):
        await append(t.log, keyed(b"k%d" % (number % 7), b"%d" % number))
    await t.log.roll()
    return cast(CleanableLog, t.log)


async def read_all(log: CleanableLog, start: int = 0) -> bytes:
    segments = [one for one in log.segments if not one.is_active and one.end_offset > start]
    pieces = [piece for one in segments async for piece in log.read_for_cleaning(one, start)]
    return b"".join(pieces)


def test_a_cleaning_that_a_deletion_overtakes_closes_no_file_of_another(tmp_path: Path) -> None:
    """Its file was closed when it was complete: the number of its descriptor is another's by now,
    a connection's or another topic's."""

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path / "logs"), CONFIGS) as t:
            log = await filled(t)
            old = [one for one in log.segments if not one.is_active][:2]
            replacement = await log.replace_segments(old)
            await replacement.append(await read_all(log, old[0].base_offset))
            await log.delete_oldest_segments(old[-1].end_offset, "test")
            await refused(Invalid, replacement.commit())
            others = [os.open(tmp_path, os.O_RDONLY) for _ in range(20)]
            await replacement.abandon()
            for descriptor in others:
                os.fstat(descriptor)
                os.close(descriptor)
            assert not list((tmp_path / "logs").rglob("*.cleaned"))

    asyncio.run(body())


class _SlowWrites:
    """Holds the writes of a cleaning's file in their thread, just before they reach the system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_writing = threading.Event()
        self.may_go_on = threading.Event()
        self.written_to: list[str] = []

        def slow(descriptor: int, position: int, parts: Sequence[Buffer]) -> int:
            if not _path(descriptor).endswith(CLEANED):
                return write_whole(descriptor, position, parts)
            self.is_writing.set()
            assert self.may_go_on.wait(WAIT_S)
            self.written_to.append(_path(descriptor))
            return write_whole(descriptor, position, parts)

        monkeypatch.setattr(system_folder, "write_whole", slow)


def _path(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except FileNotFoundError:
        return "closed"


def test_a_cancelled_write_of_a_cleaning_reaches_no_file_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread goes on when its caller has gone: the descriptor stays its own until then."""

    async def body() -> None:
        offload = ThreadOffload()
        async with unified_log(lambda: SystemTree(tmp_path), CONFIGS, offload=offload) as t:
            log = await filled(t)
            slow = _SlowWrites(monkeypatch)
            old = [one for one in log.segments if not one.is_active][:1]
            replacement = await log.replace_segments(old)
            write = asyncio.ensure_future(replacement.append(await read_all(log)))
            await asyncio.to_thread(slow.is_writing.wait, WAIT_S)
            write.cancel()
            await asyncio.wait({write})
            abandoned = asyncio.ensure_future(replacement.abandon())
            # A thread that does not wait for the write has closed the file by then.
            await asyncio.wait({abandoned}, timeout=0.2)
            slow.may_go_on.set()
            await abandoned
            await offload.run(Lane.FILES, lambda: None)
            assert slow.written_to
            assert all(one.endswith(CLEANED) for one in slow.written_to)
            assert not list(tmp_path.rglob("*" + CLEANED))
        await offload.close()

    asyncio.run(body())


def test_a_cleaning_that_is_cancelled_ends_even_if_its_files_cannot_be_removed() -> None:
    """Else the node's end waits for a cleaner that goes on."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, CONFIGS) as t:
            log = await filled(t)

            def strike(operation: str, name: str) -> DiskFault | None:
                if operation == "write" and name.endswith(CLEANED):
                    cleaning.cancel()
                is_removal = operation == "remove" and name.endswith(CLEANED)
                return DiskFault.IO_ERROR if is_removal and has_begun else None

            has_begun = False
            config, offload = parse(t.configs), ThreadOffload()
            chosen = log_to_clean(log, config, t.clock.now_ms())
            cleaning = asyncio.ensure_future(
                LogCleaning(offload, 1 << 20).clean(chosen, config, t.clock.now_ms())
            )
            tree.plan_faults(strike)
            has_begun = True
            await asyncio.wait({cleaning})
            assert cleaning.cancelled()
            tree.plan_faults(None)
            await offload.close()

    asyncio.run(body())


@pytest.mark.parametrize("isolation", list(Isolation))
def test_readers_hear_of_a_swap_that_failed(isolation: Isolation) -> None:
    """They would look for the segment that did not come, again and again."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        async with unified_log(lambda: tree, CONFIGS) as t:
            log = await filled(t)
            old = [one for one in log.segments if not one.is_active][:2]
            replacement = await log.replace_segments(old)
            await replacement.append(await read_all(log))

            def strike(operation: str, name: str) -> DiskFault | None:
                if operation == "write" and name.endswith(INDEX + CLEANED + TEMPORARY):
                    t.hold()  # The swap waits, and so do readers that come before it.
                is_swap = operation == "rename" and name.endswith(SWAP)
                return DiskFault.IO_ERROR if is_swap else None

            tree.plan_faults(strike)
            committing = asyncio.ensure_future(replacement.commit())
            for _ in range(20):
                await asyncio.sleep(0)
            fetch = log.fetch(old[0].base_offset, 1 << 20, isolation=isolation)
            reads = [asyncio.ensure_future(fetch)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert not reads[0].done()
            t.release()
            await refused(StreamlogError, committing)
            tree.plan_faults(None)
            done, _ = await asyncio.wait(reads, timeout=5)
            assert len(done) == 1
            assert all(isinstance(one.exception(), StreamlogError) for one in done)
            await log.close()
            await t.open()

    asyncio.run(body())


@pytest.mark.parametrize("ends", ["log goes on", "log is closed"])
def test_a_cleaning_that_is_cancelled_at_any_step_ends_no_log(ends: str) -> None:
    """A node that stops has its cleaner cancelled, and closes its logs: lazily synced records are
    synced then."""

    async def cancelled_after(steps: int) -> bool:
        """Whether the cleaning was still under way."""
        tree = TornTree(SeededRandom(1))
        lazy = {**CONFIGS, "flush.ms": "60000"}
        async with unified_log(lambda: tree, lazy, cut_power=tree.crash) as t:
            log = await filled(t, 60)
            await append(log, keyed(b"last", b"lazy"))
            config = parse(t.configs)
            work = LogCleaning(t.held, 1 << 20).clean(
                log_to_clean(log, config, t.clock.now_ms()), config, t.clock.now_ms()
            )
            cleaning = asyncio.ensure_future(work)
            for _ in range(steps):
                await asyncio.sleep(0)
            is_under_way = not cleaning.done()
            cleaning.cancel()
            await asyncio.wait({cleaning})
            if ends == "log is closed":
                await t.log.close()
                await t.crashed()
            else:
                await append(t.log, keyed(b"more", b"1"))
                await t.reopened()
            assert t.failures == []
            found = newest(await contents(t.log))
            assert found[b"last"] == b"lazy"
            assert len(found) == (8 if ends == "log is closed" else 9)
            return is_under_way

    steps = 0
    while asyncio.run(cancelled_after(steps)):
        steps += 1
    assert steps > 20
