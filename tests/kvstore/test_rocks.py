"""RocksKVStore: what survives restarts, kills, full disks and flipped bits; group commit."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
from rocksdict import Options, Rdict, WriteBatch

from streamlog.errors import (
    Corrupt,
    DataInUse,
    MetadataUnavailable,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    RevisionCompacted,
    UnsupportedVersion,
)
from streamlog.kvstore.interface import Delete, Get, Put, RevisionIs, StoredKeyValue
from streamlog.kvstore.rocks import database as rocks_database
from streamlog.kvstore.rocks import format as rocks_format
from streamlog.kvstore.rocks.database import RocksDatabase
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.kvstore.settings import KVSettings
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.testing.clocks import ManualClock
from streamlog.testing.kv_conformance import put, take

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CHILD = """
import asyncio, sys
from streamlog.errors import StreamlogError
from streamlog.kvstore.interface import Get, Put, ValueIs
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload

async def write(kv, writer):
    for n in range(1, 1_000_000):
        head = b"h/%d" % writer
        compare = ValueIs(head, b"%d" % (n - 1) if n > 1 else None)
        record = Put(b"c/%d/%08d" % (writer, n), bytes(5000))
        result = await kv.txn((compare,), (Put(head, b"%d" % n), record))
        assert result.succeeded
        print(writer, n, result.revision, flush=True)

async def main():
    kv = await RocksKVStore.open(sys.argv[1], SystemClock(), ThreadOffload())
    await asyncio.gather(*(write(kv, writer) for writer in range(4)))

asyncio.run(main())
"""

FULL_DISK_CHILD = """
import asyncio, resource, signal, sys
from streamlog.errors import DiskFull, OutcomeUnknown
from streamlog.kvstore.interface import Put
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload

def limit_files(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    kv = await RocksKVStore.open(sys.argv[1], SystemClock(), ThreadOffload())
    watch = kv.watch(b"k", b"l", from_revision=0)
    limit_files(1 << 20)
    stored, refused, unknown = [], [], []
    for n in range(60):
        try:
            await kv.txn((), (Put(b"k%03d" % n, bytes(50_000)),))
            stored.append(n)
        except DiskFull as error:
            refused.append(n)
            assert sys.argv[1] in str(error), error
        except OutcomeUnknown:
            unknown.append(n)
    assert stored and refused + unknown, (stored, refused, unknown)
    limit_files(resource.RLIM_INFINITY)
    await kv.txn((), (Put(b"k999", b"after"),))
    present = [int(kv.key[1:]) for kv in (await kv.range(b"k", b"l")).kvs]
    assert set(stored) | {999} <= set(present) <= set(stored) | set(unknown) | {999}, present
    seen = []
    while 999 not in seen:
        batch = await anext(watch)
        seen += [int(change.key[1:]) for change in batch.changes]
    assert sorted(seen) == present, (seen, present)
    await kv.close()
    print("stored", len(stored), "refused", len(refused), "unknown", len(unknown))

asyncio.run(main())
"""


@asynccontextmanager
async def opened(
    path: Path,
    clock: ManualClock | None = None,
    settings: KVSettings | None = None,
    offload: ThreadOffload | None = None,
) -> AsyncIterator[RocksKVStore]:
    offload = offload or ThreadOffload()
    kv = await RocksKVStore.open(path, clock or ManualClock(), offload, settings)
    try:
        yield kv
    finally:
        await kv.close()
        await offload.close()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "meta") as kv:
            await put(kv, b"a", b"1")
            await kv.txn((), (Put(b"b", b"2"), Put(b"a", b"3")))
            await kv.txn((), (Put(b"c", b"4"),))
            last = (await kv.txn((), (Delete(b"c"),))).revision
            before = (await kv.range(b"a", b"z")).kvs
        async with opened(tmp_path / "meta") as kv:
            assert await kv.revision() == last
            assert (await kv.range(b"a", b"z")).kvs == before
            assert (await kv.range(b"a", b"z", revision=last)).kvs == before
            with pytest.raises(RevisionCompacted) as raised:
                await kv.get(b"a", revision=last - 1)
            assert raised.value.oldest == last
            with pytest.raises(RevisionCompacted) as raised:
                await take(kv.watch(b"a", b"b", from_revision=last), 1)
            assert raised.value.oldest == last + 1
            watch = kv.watch(b"a", b"b", from_revision=last + 1)
            assert await put(kv, b"a", b"5") == last + 1
            assert (await take(watch, 1))[0].changes[0].previous == before[0]

    asyncio.run(main())


def test_a_raised_revision_survives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "meta") as kv:
            await kv.raise_revision(5_000)
        async with opened(tmp_path / "meta") as kv:
            assert await put(kv, b"a", b"1") == 5_001

    asyncio.run(main())


def test_leases_get_their_full_time_again_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(tmp_path / "meta", clock) as kv:
            lease = await kv.grant_lease(10_000)
            ended = await kv.grant_lease(10_000)
            await kv.txn(
                (), (Put(b"a", b"1", lease), Put(b"b", b"2", lease), Put(b"c", b"", ended))
            )
            await kv.txn((), (Put(b"b", b"3"),))
            await kv.revoke_lease(ended)
        clock.advance(9_000)
        async with opened(tmp_path / "meta", clock) as kv:
            clock.advance(9_000)
            assert await kv.get(b"a") is not None
            assert await kv.grant_lease(1_000_000) not in (lease, ended)
            with pytest.raises(NotFound):
                await kv.keep_alive(ended)
            clock.advance(1_000)
            assert await kv.get(b"a") is None
            entry = await kv.get(b"b")
            assert entry is not None
            assert (entry.value, entry.lease_id) == (b"3", 0)
        async with opened(tmp_path / "meta", clock) as kv:
            with pytest.raises(NotFound):
                await kv.keep_alive(lease)

    asyncio.run(main())


@pytest.mark.parametrize("acknowledged", [1, 37, 400])
def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "meta"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(acknowledged)]
    child.kill()
    lines += child.stdout.read().splitlines()
    child.stdout.close()
    assert child.wait() == -9
    answers = [tuple(map(int, line.split())) for line in lines if len(line.split()) == 3]
    assert len(answers) >= acknowledged - 1

    async def main() -> None:
        async with opened(path) as kv:
            for writer, n, revision in answers:
                entry = await kv.get(b"c/%d/%08d" % (writer, n))
                # The last line may be cut short in the middle of its revision.
                assert entry is not None
                assert str(entry.mod_revision).startswith(str(revision))
            assert await kv.revision() >= max(found_revision for _, _, found_revision in answers)
            for writer in range(4):
                head = await kv.get(b"h/%d" % writer)
                records = (await kv.range(b"c/%d/" % writer, b"c/%d0" % writer)).kvs
                assert len(records) == (0 if head is None else int(head.value))

    asyncio.run(main())


def test_a_second_process_is_told_who_holds_the_data(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()

    async def main() -> None:
        with pytest.raises(DataInUse) as raised:
            async with opened(path):
                pass
        assert raised.value.pid == child.pid
        assert str(path) in str(raised.value)

    try:
        asyncio.run(main())
    finally:
        child.kill()
        child.stdout.close()
        child.wait()

    async def after() -> None:
        async with opened(path) as kv:
            assert await kv.revision() > 1

    asyncio.run(after())


def test_a_full_disk_refuses_and_work_goes_on_when_there_is_room(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK_CHILD, str(tmp_path / "meta")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stored")


def _newest_wal(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda file: file.stat().st_size)


def _fill_and_crash(path: Path) -> int:
    """20 puts; the files are as a crash leaves them. The last revision."""

    async def main() -> int:
        living = path.with_name("living")
        async with opened(living) as kv:
            for n in range(20):
                await put(kv, b"k%02d" % n, bytes([n]) * 2_000)
            shutil.copytree(living, path)
            return await kv.revision()

    return asyncio.run(main())


def test_a_torn_tail_of_the_log_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    last = _fill_and_crash(path)
    wal = _newest_wal(path)
    os.truncate(wal, wal.stat().st_size - 700)

    async def main() -> None:
        async with opened(path) as kv:
            assert await kv.revision() == last - 1
            assert len((await kv.range(b"k", b"l")).kvs) == 19

    asyncio.run(main())


def test_a_flipped_bit_in_the_log_is_found(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    _fill_and_crash(path)
    wal = _newest_wal(path)
    data = bytearray(wal.read_bytes())
    data[len(data) // 2] ^= 1
    wal.write_bytes(data)

    async def main() -> None:
        with pytest.raises(Corrupt) as raised:
            async with opened(path):
                pass
        assert raised.value.object_key == str(path)

    asyncio.run(main())


def test_metadata_of_a_newer_release_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meta"
    with monkeypatch.context() as newer:
        newer.setattr(rocks_format, "VERSION", 9)
        _fill_and_crash(path)

    async def main() -> None:
        with pytest.raises(UnsupportedVersion) as raised:
            async with opened(path):
                pass
        assert (raised.value.found, raised.value.supported) == (9, 1)

    asyncio.run(main())

    async def with_the_newer_release() -> None:
        """Nothing was harmed, and nothing stayed locked."""
        async with opened(path) as kv:
            assert await kv.get(b"k00") is not None

    monkeypatch.setattr(rocks_format, "VERSION", 9)
    asyncio.run(with_the_newer_release())


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        with pytest.raises(MetadataUnavailable, match="a file stands where a folder is needed"):
            async with opened(tmp_path / "file" / "meta"):
                pass

    asyncio.run(main())


class CountingOffload(ThreadOffload):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        assert lane is Lane.META
        self.calls.append(getattr(fn, "__name__", str(fn)))
        return await super().run(lane, fn, *args)


def test_queued_transactions_share_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    original = RocksDatabase.write

    def write(self: RocksDatabase, batch: Any) -> None:
        writes.append(1)
        original(self, batch)

    monkeypatch.setattr(RocksDatabase, "write", write)

    async def main() -> None:
        async with opened(tmp_path / "meta") as kv:
            before = await kv.revision()
            results = await asyncio.gather(*(put(kv, b"k%d" % n, b"v") for n in range(100)))
            assert results == list(range(before + 1, before + 101))
            assert len(writes) == 1
            # What writes nothing is not synced.
            await kv.txn((RevisionIs(b"k1", 0),), (Put(b"x", b""),), (Get(b"k1"),))
            await kv.get(b"k1")
            assert len(writes) == 1

    asyncio.run(main())


def test_every_write_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill does not show it: the kernel keeps what was written."""
    calls: list[str] = []

    class Recording:
        def __init__(self, path: str, how: Options) -> None:
            self._db = Rdict(path, how)

        def write(self, batch: WriteBatch) -> None:
            calls.append("write")
            self._db.write(batch)

        def flush_wal(self, sync: bool) -> None:
            calls.append("sync" if sync else "flush")
            self._db.flush_wal(sync)

        def __getattr__(self, name: str) -> object:
            return getattr(self._db, name)

    monkeypatch.setattr(rocks_database, "Rdict", Recording)

    async def main() -> None:
        async with opened(tmp_path / "meta") as kv:
            lease = await kv.grant_lease(1_000)
            await put(kv, b"a", b"1", lease)
            await kv.revoke_lease(lease)
            await kv.raise_revision(100)
        assert calls == ["write", "sync"] * 4

    asyncio.run(main())


class HeldOffload(ThreadOffload):
    """The answer of a commit is held back until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        result = await super().run(lane, fn, *args)
        if getattr(fn, "__name__", "") == "run":
            self.is_written.set()
            await self.gate.wait()
        return result


def test_a_write_shows_only_when_it_is_published(tmp_path: Path) -> None:
    """Written and synced, but not yet told to watchers: no read may be ahead of them."""

    async def main() -> None:
        offload = HeldOffload()
        async with opened(tmp_path / "meta", offload=offload) as kv:
            before = await put(kv, b"a", b"0")

            async def read() -> None:
                entry = await kv.get(b"a")
                assert entry is not None
                assert entry.mod_revision <= await kv.revision()

            async def read_range() -> None:
                page = await kv.range(b"a", b"b")
                assert page.revision <= await kv.revision()
                assert page.kvs[0].mod_revision <= page.revision

            offload.gate.clear()
            offload.is_written.clear()
            writing = asyncio.create_task(put(kv, b"a", b"1"))
            await offload.is_written.wait()
            assert await kv.revision() == before
            reading = [asyncio.create_task(read()), asyncio.create_task(read_range())]
            await asyncio.wait(reading, timeout=0.05)
            offload.gate.set()
            await asyncio.gather(*reading)
            assert await writing == before + 1

    asyncio.run(main())


def test_hot_keys_are_read_without_a_thread(tmp_path: Path) -> None:
    async def main() -> None:
        offload = CountingOffload()
        async with opened(tmp_path / "meta", offload=offload) as kv:
            revision = await put(kv, b"a", b"1")
            calls = len(offload.calls)
            assert await kv.get(b"a") == StoredKeyValue(b"a", b"1", revision, revision)
            assert await kv.get(b"absent") is None
            assert len(offload.calls) == calls
            await kv.range(b"a", b"b")
            assert len(offload.calls) > calls

    asyncio.run(main())


def test_a_queue_that_is_full_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        settings = KVSettings(queue_bytes_max=1_000_000)
        async with opened(tmp_path / "meta", settings=settings) as kv:
            results = await asyncio.gather(
                *(put(kv, b"k%d" % n, bytes(300_000)) for n in range(6)), return_exceptions=True
            )
            assert [isinstance(result, Overloaded) for result in results] == [False] * 3 + [
                True
            ] * 3
            await put(kv, b"later", bytes(900_000))

    asyncio.run(main())


def test_a_cancelled_transaction_that_had_not_begun_does_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "meta") as kv:
            first = asyncio.create_task(put(kv, b"a", b"1"))
            await asyncio.sleep(0)
            second = asyncio.create_task(put(kv, b"b", b"2"))
            await asyncio.sleep(0)
            second.cancel()
            third = asyncio.create_task(put(kv, b"c", b"3"))
            revision = await first
            assert await third == revision + 1
            assert await kv.get(b"b") is None

    asyncio.run(main())


@pytest.mark.parametrize("took_effect", [True, False])
def test_the_outcome_of_a_failed_write_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_effect: bool
) -> None:
    """The database is opened anew, and tells whether the write happened."""
    original = RocksDatabase.write
    failures = [MetadataUnavailable("the disk did not answer")]

    def write(self: RocksDatabase, batch: Any) -> None:
        if not failures or took_effect:
            original(self, batch)
        if failures:
            raise failures.pop()

    async def main() -> None:
        async with opened(tmp_path / "meta") as kv:
            before = await put(kv, b"a", b"0")
            watch = kv.watch(b"a", b"b", from_revision=before + 1)
            monkeypatch.setattr(RocksDatabase, "write", write)
            if took_effect:
                assert await put(kv, b"a", b"1") == before + 1
            else:
                with pytest.raises(MetadataUnavailable, match="nothing happened"):
                    await put(kv, b"a", b"1")
            after = await put(kv, b"a", b"2")
            assert after == before + (2 if took_effect else 1)
            batches = await take(watch, 2 if took_effect else 1)
            assert [batch.revision for batch in batches] == list(range(before + 1, after + 1))

    asyncio.run(main())


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_write_in_doubt_is_resolved_when_the_disk_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_effect: bool
) -> None:
    original_write, original_open = RocksDatabase.write, RocksDatabase.open
    broken = [True]

    def write(self: RocksDatabase, batch: Any) -> None:
        if took_effect or not broken:
            original_write(self, batch)
        if broken:
            raise MetadataUnavailable("the disk did not answer")

    def reopen(self: RocksDatabase) -> rocks_format.StoreState:
        if broken:
            raise MetadataUnavailable("the disk is away")
        return original_open(self)

    async def main() -> None:
        async with opened(tmp_path / "meta") as kv:
            before = await put(kv, b"a", b"0")
            watch = kv.watch(b"a", b"b", from_revision=before + 1)
            monkeypatch.setattr(RocksDatabase, "write", write)
            monkeypatch.setattr(RocksDatabase, "open", reopen)
            with pytest.raises(OutcomeUnknown):
                await put(kv, b"a", b"1")
            for use in (put(kv, b"a", b"2"), kv.get(b"a"), kv.range(b"a", b"b")):
                with pytest.raises(MetadataUnavailable):
                    await use
            broken.clear()
            entry = await kv.get(b"a")
            assert entry is not None
            assert entry.value == (b"1" if took_effect else b"0")
            assert await kv.revision() == before + took_effect
            after = await put(kv, b"a", b"3")
            assert after == before + took_effect + 1
            batches = await take(watch, 1 + took_effect)
            assert [batch.revision for batch in batches] == list(range(before + 1, after + 1))

    asyncio.run(main())
