"""Files that are gone, unreadable or damaged: a typed error, never another record, and no skip."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from streamlog.codec.batch import LENGTH_END, scan
from streamlog.codec.records import iterate
from streamlog.errors import Corrupt, OffsetOutOfRange, StoreUnavailable, StreamlogError
from streamlog.format.kafka_files.names import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.log.api.topic_config import parse
from streamlog.log.partition.producer_state_manager import ProducerLimits
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.disk.tree import FolderTree
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import COMPACT, clean, contents, keyed
from streamlog.testing.logs.log_conformance import append, encoded, refused
from streamlog.testing.logs.transaction_conformance import (
    begin,
    committed_values,
    end,
    transactional,
)
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.unified.disk.files import read_file
from streamlog.unified.disk.log_files import SyncedTo
from streamlog.unified.recovery.loader import LoadPlan, load
from streamlog.unified.state.segment import UnifiedLogSegment
from streamlog.unified.unified_log import UnifiedLog
from tests.unified.harness import UnifiedLogUnderTest, unified_log

CONFIGS = {"internal.segment.bytes": "700", "index.interval.bytes": "200"}
COUNT = 60


def filled(place: Path) -> AbstractAsyncContextManager[UnifiedLogUnderTest]:
    return filled_on(lambda: SystemTree(place))


@asynccontextmanager
async def filled_on(tree_of: Callable[[], FolderTree]) -> AsyncIterator[UnifiedLogUnderTest]:
    async with unified_log(tree_of, CONFIGS) as t:
        for number in range(COUNT):
            at_ms = 1_700_000_000_000 + number
            await append(t.log, encoded([b"%d" % number], at_ms=at_ms))
        await t.log.roll()
        yield t


def in_the_way(path: Path) -> None:
    """A folder in the file's place: it is there, and every read of it fails."""
    path.unlink()
    path.mkdir()


def test_a_segment_that_somebody_removed_is_no_deletion(tmp_path: Path) -> None:
    """A consumer that hears of one goes on elsewhere, and skips records."""

    async def body() -> None:
        async with filled(tmp_path) as t:
            lost = t.log.segments[1].base_offset
            (tmp_path / "t-0" / file_name(lost, LOG)).unlink()
            error = await refused(StreamlogError, t.log.fetch(lost, 1000))
            assert not isinstance(error, OffsetOutOfRange)
            assert file_name(lost, LOG) in str(error)
            await t.log.fetch(0, 1000)
            assert not t.failures
            await t.log.delete_oldest_segments(t.log.segments[2].base_offset, "test")
            await refused(OffsetOutOfRange, t.log.fetch(lost, 1000))

    asyncio.run(body())


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX, LOG])
def test_a_file_that_cannot_be_read_is_a_typed_error(tmp_path: Path, suffix: str) -> None:
    async def body() -> None:
        async with filled(tmp_path) as t:
            base = t.log.segments[1].base_offset
            in_the_way(tmp_path / "t-0" / file_name(base, suffix))
            outcomes = await asyncio.gather(
                t.log.fetch(base + 5, 1000),
                t.log.offset_for_timestamp(1_700_000_000_000 + base + 5, Isolation.READ_COMMITTED),
                return_exceptions=True,
            )
            errors = [one for one in outcomes if isinstance(one, BaseException)]
            assert errors
            assert all(isinstance(one, StoreUnavailable) for one in errors)
            shutil.rmtree(tmp_path / "t-0" / file_name(base, suffix))

    asyncio.run(body())


def test_records_are_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that an error of its disk has turned read-only."""
    original = os.open

    def read_only(path: str, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return original(path, flags, *args, **options)

    async def body() -> None:
        async with filled(tmp_path) as t:
            wanted = await records(t.log)
            with monkeypatch.context() as patch:
                patch.setattr(os, "open", read_only)
                for start in range(COUNT):
                    found = await records(t.log, start)
                    assert found == {at: wanted[at] for at in wanted if at >= start}
                at = await t.log.offset_for_timestamp(1_700_000_000_005, Isolation.READ_COMMITTED)
                assert at.offset == 5

    asyncio.run(body())


def test_readers_in_many_threads_keep_their_places() -> None:
    """Reads of one segment run side by side, and each notes where it ended."""
    segment, errors = UnifiedLogSegment(0), []

    def read(first: int) -> None:
        try:
            for number in range(20_000):
                segment.remember(first + number, number)
        except (RuntimeError, KeyError) as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read, args=(n * 100_000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors


def flips(data: bytes) -> list[bytes]:
    """One bit of each byte, each time another one."""
    flipped = []
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at * 5 % 8
        flipped.append(bytes(damaged))
    return flipped


def cuts(data: bytes) -> list[bytes]:
    return [data[:size] for size in range(len(data))]


@pytest.mark.parametrize("damage", [cuts, flips])
@pytest.mark.parametrize("is_last", [False, True])
def test_damage_to_aborted_transactions_shows_no_aborted_record(
    tmp_path: Path, damage: Callable[[bytes], list[bytes]], is_last: bool
) -> None:
    """An index has no CRC. Whole entries that are missing are missed by nobody, as in Kafka."""
    root, kept = tmp_path / "logs", tmp_path / "kept"

    async def body() -> None:
        async with unified_log(lambda: SystemTree(root), {}) as t:
            for number in range(6):
                producer = 7 + number % 2
                value = b"%d" % number
                await begin(t.log, transactional([value], producer, 0, number // 2))
                await append(t.log, encoded([b"between %d" % number]))
                await end(t.log, number % 3 == 0, producer)
            if not is_last:
                await t.log.roll()
            expected = await committed_values(t.log)
            await t.log.close()
            await t.folder.close()
            shutil.copytree(root, kept)
            name = file_name(0, TXN_INDEX)
            sound = (kept / "t-0" / name).read_bytes()
            assert len(sound) == 4 * 34
            wrong = []
            for data in damage(sound):
                shutil.rmtree(root)
                shutil.copytree(kept, root)
                (root / "t-0" / name).write_bytes(data)
                if damage is cuts and not len(data) % 34:
                    continue
                try:
                    await t.open_folder()
                    await t.open()
                    found = await committed_values(t.log)
                except StreamlogError:
                    continue
                finally:
                    await t.log.close()
                    await t.folder.close()
                if found != expected:
                    wrong.append(data)
            assert not wrong
            shutil.rmtree(root)
            shutil.copytree(kept, root)
            await t.open_folder()
            await t.open()

    asyncio.run(body())


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damage_to_a_sealed_segment_shows_no_wrong_offset(
    tmp_path: Path, damage: Callable[[bytes], list[bytes]]
) -> None:
    """Nobody reads it at the start. What is served lies at its own offset, or is an error."""

    async def body() -> None:
        async with filled(tmp_path) as t:
            expected = await records(t.log)
            base = t.log.segments[1].base_offset
            path = tmp_path / "t-0" / file_name(base, LOG)
            sound = path.read_bytes()
            wrong = 0
            for data in damage(sound):
                path.write_bytes(data)
                for offset in (base, base + 3):
                    try:
                        found = await records(t.log, offset, base + 9)
                    except StreamlogError:
                        continue
                    wrong += not found.items() <= expected.items()
            assert not wrong
            path.write_bytes(sound)

    asyncio.run(body())


@pytest.mark.parametrize("bit", [17, 18])
def test_behind_a_damaged_length_records_are_read_also_by_who_has_read_it(
    tmp_path: Path, bit: int
) -> None:
    """Where the next batch begins is remembered from a length that no CRC covers."""

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            batch = encoded([bytes(20_000)])
            for _ in range(40):
                await append(t.log, batch)
            await t.log.roll()
            await append(t.log, batch)
            with (tmp_path / "t-0" / file_name(0, LOG)).open("r+b") as file:
                file.seek(10 * len(batch) + 8)
                length = int.from_bytes(file.read(4), "big")
                file.seek(10 * len(batch) + 8)
                file.write((length ^ 1 << bit).to_bytes(4, "big"))
            for _ in range(2):
                await t.log.fetch(10, 1)
                for offset in (11, 12):
                    fetched = await t.log.fetch(offset, 1)
                    (found,) = scan(b"".join(fetched.parts))
                    assert found.header.base_offset == offset

    asyncio.run(body())


def test_a_recovery_leaves_index_files_that_are_right(tmp_path: Path) -> None:
    """Each that is written anew costs a sync, and a crashed Kafka leaves ten thousands of them."""

    def files(t: UnifiedLogUnderTest) -> list[Path]:
        bases = [one.base_offset for one in t.log.segments[:-1]]
        names = [file_name(base, suffix) for base in bases for suffix in (INDEX, TIME_INDEX)]
        return [tmp_path / "t-0" / name for name in names]

    async def body() -> None:
        async with filled(tmp_path) as t:
            await t.reopened()  # No file of recovery points is being written any more.
            (tmp_path / "recovery-point-offset-checkpoint").unlink()
            kept = {path: (path.stat().st_ino, path.read_bytes()) for path in files(t)}
            flipped, padded, removed = files(t)[:3]
            flipped.write_bytes(bytes([kept[flipped][1][0] ^ 1]) + kept[flipped][1][1:])
            padded.write_bytes(kept[padded][1] + bytes(1200))
            removed.unlink()
            await t.crashed()
            assert {path: path.read_bytes() for path in files(t)} == {
                path: data for path, (_, data) in kept.items()
            }
            anew = {path for path in files(t) if path.stat().st_ino != kept[path][0]}
            assert anew <= {flipped, padded, removed}
            assert len(kept) > 6

    asyncio.run(body())


def test_an_index_file_that_a_recovery_leaves_is_durable() -> None:
    """Its writer's last sync may have failed: it can be read until the power fails."""
    tree = TornTree(SeededRandom(5))

    def lose(operation: str, name: str) -> DiskFault | None:
        return DiskFault.IO_ERROR if operation == "sync" else None

    async def body() -> None:
        async with filled_on(lambda: tree) as t:
            bases = [one.base_offset for one in t.log.segments[:-1]]
            names = [file_name(base, suffix) for base in bases for suffix in (INDEX, TIME_INDEX)]
            await t.reopened()
            folder = tree.open("t-0")
            wanted = {name: read_file(folder, name) for name in names}
            for name, data in wanted.items():
                folder.remove(name)
                file = folder.create(name)
                file.append([data])
                tree.plan_faults(lose)
                with pytest.raises(OSError, match="injected"):
                    file.sync()
                tree.plan_faults(None)
            tree.top.remove("recovery-point-offset-checkpoint")
            await t.crashed()
            assert len(wanted) > 6
            assert not tree.has_pending
            found: dict[str, bytes] = {}

            def cut_power() -> None:
                tree.crash()
                found.update((name, read_file(tree.open("t-0"), name)) for name in names)

            t.cut_power = cut_power
            await t.crashed()
            assert found == wanted

    asyncio.run(body())


async def records(log: AbstractLog, start: int = 0, end: int = COUNT) -> dict[int, bytes | None]:
    """What a client makes of the bytes, which checks CRCs. Errors: those of both."""
    found: dict[int, bytes | None] = {}
    position = start
    while position < end:
        fetched = await log.fetch(position, 200)
        for batch in scan(b"".join(fetched.parts)):
            for offset, _, _, value, _ in iterate(batch.view):
                found[offset] = value
        assert fetched.next_offset > position
        position = fetched.next_offset
    return found


def test_records_at_the_offsets_of_lost_ones_are_not_deleted_with_them() -> None:
    """A log start is durable at once, and appends are not, as `flush.messages` asks."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        lazy = {"flush.messages": "100000"}
        async with unified_log(lambda: tree, lazy, cut_power=tree.crash) as t:
            for number in range(COUNT):
                await append(t.log, encoded([b"old %d" % number]))
            await t.log.delete_records(COUNT)
            await t.crashed()
            assert t.log.log_end_offset < COUNT
            for _ in range(COUNT):
                await append(t.log, encoded([b"new"]))
            start, end = t.log.log_start_offset, t.log.log_end_offset
            await t.reopened()
            assert (t.log.log_start_offset, t.log.log_end_offset) == (start, end)
            assert len(await records(t.log, start, end)) == COUNT

    asyncio.run(body())


def test_data_loss_is_accepted_once() -> None:
    """What was durable, and what was clean, is lowered to what is left."""

    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        configs = {**COMPACT, "log.type": "unified"}
        async with unified_log(lambda: tree, configs, cut_power=tree.restart) as t:
            await append(t.log, keyed(b"x", b"deleted later"))
            await t.log.roll()
            for number in range(10):
                await append(t.log, keyed(b"k%d" % number, b"lost"))
            await t.log.roll()
            await clean(t, configs=configs)
            await t.log.close()
            await t.folder.close()
            folder = tree.open("t-0")
            for name in folder.list():
                if name[:20].isdigit() and not name.startswith(file_name(0, "")):
                    folder.remove(name)
            folder.sync()
            await t.open_folder()
            with pytest.raises(Corrupt, match="--accept-data-loss"):
                await t.open()
            await t.open_folder(accepts_data_loss=True)
            await t.open()
            await append(t.log, keyed(b"y", b"acknowledged"))
            await t.crashed()
            await t.log.roll()
            await append(t.log, keyed(b"x", None))
            await t.log.roll()
            for _ in range(12):
                await append(t.log, keyed(b"y", b"behind what was clean"))
            await t.log.roll()
            for _ in range(3):
                t.clock.advance(5000)
                await append(t.log, keyed(b"z", b"dirty"))
                await t.log.roll()
                await clean(t, configs=configs)
            assert {key for key, _ in (await contents(t.log)).values()} == {b"y", b"z"}

    asyncio.run(body())


def test_leader_epochs_that_a_recovery_took_from_batches_are_there_after_a_crash() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, CONFIGS, cut_power=tree.restart) as t:
            for _ in range(3):
                await append(t.log, encoded([b"of an epoch"]))
                await t.log.roll()
                await t.reopened()
            epochs = ((1, 0), (2, 1), (3, 2))
            assert cast(UnifiedLog, t.log).leader_epochs == epochs
            await t.log.close()
            await t.folder.close()
            tree.open("t-0").remove(LEADER_EPOCHS)
            tree.top.remove(RECOVERY_POINTS)
            await t.open_folder()
            await t.open()
            for _ in range(2):
                assert cast(UnifiedLog, t.log).leader_epochs == epochs
                await t.crashed()

    asyncio.run(body())


def test_a_folder_that_cannot_be_read_ends_no_node(tmp_path: Path) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            await append(t.log, encoded([b"kept"]))
            await t.log.close()
            await t.folder.close()
            (tmp_path / "other-0" / PARTITION_METADATA).mkdir(parents=True)
            await t.open_folder()
            await t.open()
            assert t.log.log_end_offset == 1

    asyncio.run(body())


def test_transactions_that_overlap_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is taken for damage is made anew from all batches behind it, at each start."""

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path), CONFIGS) as t:
            await begin(t.log, transactional([b"long"], 1))
            await begin(t.log, transactional([b"short"], 2))
            await end(t.log, is_commit=False, producer_id=2)
            await t.log.roll()
            await begin(t.log, transactional([b"later"], 3))
            await end(t.log, is_commit=False, producer_id=1)
            await end(t.log, is_commit=False, producer_id=3)
            await t.log.roll()

            def written() -> dict[str, tuple[int, int]]:
                # Not the time of the last read: a start reads them.
                found = (tmp_path / "t-0").glob("*.txnindex")
                stats = {path.name: path.stat() for path in found}
                return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}

            before = written()
            assert len(before) == 2
            await t.reopened()
            assert await committed_values(t.log) == []
            assert written() == before

    asyncio.run(body())
    assert [one.message for one in caplog.records if "made anew" in one.message] == []


def test_a_log_that_is_refused_keeps_its_bytes(tmp_path: Path) -> None:
    """Also where what was synced is said to end before what was durable."""

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            await append(t.log, encoded([b"a"]))
            data = tmp_path / "t-0" / file_name(0, LOG)
            synced = SyncedTo(0, len(data.read_bytes()))
            await append(t.log, encoded([b"b"]))
            await t.log.close()
            content = data.read_bytes()
            plan = LoadPlan(2, 0, 0, parse({}), ProducerLimits(expiration_ms=1), synced)
            with pytest.raises(Corrupt, match="offsets 1 to 1 are lost"):
                load(SystemTree(tmp_path).open("t-0"), plan)
            assert data.read_bytes() == content

    asyncio.run(body())


def lengthen(folder: Path, number: int, size: int, more: int) -> None:
    """The length of that batch, of so many bytes as all have, leads past others behind it."""
    with (folder / "t-0" / file_name(0, LOG)).open("r+b") as file:
        file.seek(number * size + 8)
        file.write(((more + 1) * size - LENGTH_END).to_bytes(4, "big"))


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(("number", "more"), [(0, 1), (4, 1), (4, 3), (8, 1)])
@pytest.mark.parametrize("value_bytes", [10, 3000, 40_000])
def test_a_length_that_leads_to_a_later_batch_has_nobody_skip_those_between(
    tmp_path: Path, is_sealed: bool, number: int, more: int, value_bytes: int
) -> None:
    """No CRC covers it. In the last case it leads to the end of the segment."""
    count, data = 10, encoded([b"x" * value_bytes])

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            for _ in range(count):
                await append(t.log, data)
            if is_sealed:
                await t.log.roll()
                await append(t.log, data)
            lengthen(tmp_path, number, len(data), more)
            damaged, told = range(number, number + more + 1), list[tuple[int, object]]()
            for max_bytes in (1, 2 * len(data), 1 << 20):
                # The second time a reader knows where batches begin.
                for offset in [*range(count)] * 2:
                    try:
                        fetched = await t.log.fetch(offset, max_bytes)
                    except Corrupt as error:
                        told.append((offset, error.start))
                        continue
                    found = [one.header for one in scan(b"".join(fetched.parts))]
                    assert [one.base_offset for one in found] == [
                        *range(offset, fetched.next_offset)
                    ]
                    assert number not in range(offset, fetched.next_offset)
            assert all(offset in damaged for offset, _ in told)
            assert {start for _, start in told} == {number * len(data)}

    asyncio.run(body())
