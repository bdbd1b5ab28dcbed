"""Appends that a thread in C makes: what they share with those of the lane, and where they end."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from streamlog.codec.records import encode_values
from streamlog.errors import Internal, StoreUnavailable, StreamlogError
from streamlog.runtime import writer_threads
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.system_folder import SystemFolder
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.runtime.writer_threads import Done, WriterThreads
from streamlog.unified.disk import log_files
from streamlog.unified.disk.log_files import AppendBatches, Epochs, LogFiles, Step
from tests.support.kernel_calls import recorded
from tests.unified.harness import UnifiedLogUnderTest

pytestmark = pytest.mark.skipif(
    not writer_threads.ARE_THERE, reason="nothing is compiled without a C compiler"
)
ONE = AppendBatches((b"one ",))


class HeldThreads(WriterThreads):
    """Their writes end when the test says so, with what it says."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: list[tuple[Sequence[Buffer], bool, Done]] = []

    def write(
        self,
        descriptor: int,
        position: int,
        parts: Sequence[Buffer],
        done: Done,
        *,
        flags: int = 0,
        is_synced: bool = False,
    ) -> bool:
        self.held.append((parts, is_synced, done))
        return True


def on_a_loop(test: Callable[..., object]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*arguments: object, **named: object) -> None:
        async def main() -> None:
            test(*arguments, **named)

        asyncio.run(main())

    return wrapped


def a_batch(values: list[bytes]) -> Buffer:
    return encode_values(values, timestamp_ms=1).data


def files_in(folder: Path) -> LogFiles:
    folder.mkdir()
    growing = SystemFolder(folder)
    growing.create("00000000000000000000.log").close()
    return LogFiles.open(growing, 0)


def test_appends_reach_the_disk_past_the_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_append(self: LogFiles, steps: Sequence[Step], *, sync: bool) -> None:
        assert not any(isinstance(step, AppendBatches) for step in steps)

    async def scenario() -> None:
        offload = ThreadOffload()
        test = UnifiedLogUnderTest(lambda: SystemTree(tmp_path), {}, offload=offload)
        await test.start()
        await (await test.log.append(a_batch([b"0"])))  # Behind a checkpoint of its epoch.
        with monkeypatch.context() as patch:
            patch.setattr(LogFiles, "carry_out", no_append)
            for number in range(1, 20):
                info = await (await test.log.append(a_batch([b"%d" % number])))
                assert info.base_offset == number
        await test.reopened()
        fetched = await test.log.fetch(0, 1 << 20)
        assert fetched.next_offset == 20
        await test.log.close()
        await test.folder.close()
        await offload.close()

    asyncio.run(scenario())


def test_an_append_that_the_disk_refuses_ends_the_log_and_is_told(tmp_path: Path) -> None:
    """What was acknowledged before is there at the next open."""

    async def scenario() -> None:
        offload = ThreadOffload()
        test = UnifiedLogUnderTest(lambda: SystemTree(tmp_path), {}, offload=offload)
        await test.start()
        await (await test.log.append(a_batch([b"before"])))
        (segment,) = tmp_path.glob("t-0/*.log")
        unwritable = os.open(segment, os.O_RDONLY)
        for name in os.listdir("/proc/self/fd"):
            if name != str(unwritable) and _is(int(name), segment):
                os.dup2(unwritable, int(name))
        with pytest.raises(StoreUnavailable, match="Bad file descriptor") as caught:
            await (await test.log.append(a_batch([b"lost"])))
        assert not caught.value.has_no_side_effects
        with pytest.raises(StreamlogError):
            await (await test.log.append(a_batch([b"behind"])))
        assert len(test.failures) == 1
        os.close(unwritable)
        await test.log.close()
        await test.open()
        assert test.log.high_watermark == 1
        await test.log.close()
        await test.folder.close()
        await offload.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("step", ["start", "rescue", "carry_out"])
def test_a_bug_is_told_to_the_append_that_it_ends(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for ever: what has failed tells its owner alone."""

    def bug(self: LogFiles, *_: object, **__: object) -> None:
        raise ZeroDivisionError

    def fails(self: LogFiles, steps: object, threads: object, done: Any, *, sync: bool) -> bool:
        asyncio.get_running_loop().call_soon(done, OSError(errno.EIO, "the disk fails"))
        return True

    async def scenario() -> None:
        offload = ThreadOffload()
        test = UnifiedLogUnderTest(lambda: SystemTree(tmp_path), {}, offload=offload)
        await test.start()
        if step != "carry_out":
            await (await test.log.append(a_batch([b"before"])))
        with monkeypatch.context() as patch:
            if step == "rescue":
                patch.setattr(LogFiles, "start", fails)
            patch.setattr(LogFiles, step, bug)
            with pytest.raises(Internal, match="ZeroDivisionError") as caught:
                await (await test.log.append(a_batch([b"lost"])))
        assert not caught.value.has_no_side_effects
        assert len(test.failures) == 1
        await test.log.close()
        await test.folder.close()
        await offload.close()

    asyncio.run(scenario())


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


@pytest.mark.parametrize("is_written", [True, False], ids=["sync fails", "write fails"])
@on_a_loop
def test_a_failed_write_is_followed_by_a_sync_and_a_failed_sync_by_none(
    is_written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written before may have been acknowledged; but pages of a failed sync are not
    trusted again."""
    files, threads = files_in(tmp_path / "t-0"), HeldThreads()
    files.carry_out([ONE], sync=False)
    told: list[OSError | None] = []
    assert files.start([ONE], threads, told.append, sync=True)
    error = OSError(errno.EIO, "the disk fails")
    with recorded(tmp_path, monkeypatch) as calls:
        threads.held[0][2](error, is_written)
        files.rescue()
        assert len(calls.take()) == (0 if is_written else 1)
    assert told == [error]
    assert files.synced.size_bytes == (0 if is_written else len(b"one "))
    for begins in (lambda: files.start([ONE], threads, told.append, sync=True), files_again(files)):
        with pytest.raises(OSError, match="the disk fails"):
            begins()
    files.close()


def files_again(files: LogFiles) -> Callable[[], None]:
    return lambda: files.carry_out([ONE], sync=True)


@pytest.mark.parametrize(
    "steps", [[], [ONE, Epochs(b"0\n0\n")]], ids=["a sync alone", "more than appends"]
)
def test_what_is_no_append_is_the_lanes(steps: list[Step], tmp_path: Path) -> None:
    files, threads = files_in(tmp_path / "t-0"), HeldThreads()
    assert not files.start(steps, threads, print, sync=True)
    files.carry_out(steps, sync=True)
    files.close()


@on_a_loop
def test_a_close_waits_for_the_append_under_way(tmp_path: Path) -> None:
    """The next one would write into a file of somebody else by its number."""
    files, threads = files_in(tmp_path / "t-0"), HeldThreads()
    told: list[OSError | None] = []
    assert files.start([ONE], threads, told.append, sync=False)
    closing = threading.Thread(target=files.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    assert not files.start([ONE], threads, told.append, sync=False)
    threads.held[0][2](None, True)
    closing.join(30)
    assert not closing.is_alive()
    assert told == [None]
    with pytest.raises(OSError, match="were closed"):
        files.start([ONE], threads, told.append, sync=False)
    files.rescue()  # of a caller that comes late


@on_a_loop
def test_a_close_syncs_what_was_written_before_an_append_that_failed_untold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller was cancelled meanwhile; what was acknowledged from the page cache is not lost."""
    files, threads = files_in(tmp_path / "t-0"), HeldThreads()
    files.carry_out([ONE], sync=False)
    assert files.start([ONE], threads, lambda error: None, sync=False)
    threads.held[0][2](OSError(errno.ENOSPC, "no room"), False)
    with recorded(tmp_path, monkeypatch) as calls:
        files.close()
        assert len(calls.take()) == 1
    assert files.synced.size_bytes == len(b"one ")


def test_nobody_waits_for_a_loop_that_has_ended_in_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "LOOP_CHECK_S", 0.01)
    files, threads = files_in(tmp_path / "t-0"), HeldThreads()
    on_a_loop(lambda: files.start([ONE], threads, lambda error: None, sync=False))()
    for late in (files.close, lambda: files.carry_out([ONE], sync=True), files.rescue):
        with pytest.raises(OSError, match="the event loop ended"):
            late()


@on_a_loop
def test_where_the_system_gives_no_thread_the_lane_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EAGAIN, "no more threads")

    monkeypatch.setattr("streamlog.runtime._native.WriterThread", none_left)
    files = files_in(tmp_path / "t-0")
    assert not files.start([ONE], WriterThreads(1), lambda error: None, sync=True)
    files.carry_out([ONE], sync=True)
    files.close()


@on_a_loop
def test_a_thread_that_waits_for_the_files_comes_before_the_next_append(tmp_path: Path) -> None:
    """The loop lets go of them and takes them back before a thread has woken up."""
    files, threads = files_in(tmp_path / "t-0"), HeldThreads()
    assert files.start([ONE], threads, lambda error: None, sync=False)
    seen: list[str] = []
    waiting = threading.Thread(target=lambda: files.exclusively(lambda: seen.append("thread")))
    waiting.start()
    while not files.is_wanted:
        waiting.join(0.001)
    threads.held[0][2](None, True)
    begun = files.start([ONE], threads, lambda error: None, sync=False)
    assert seen or not begun
    for _, _, done in threads.held[1:]:
        done(None, True)
    waiting.join(30)
    assert seen == ["thread"]
    files.close()


def _tell(told: asyncio.Future[OSError | None], error: OSError | None, is_written: bool) -> None:
    assert is_written == (error is None)
    told.set_result(error)


def test_appends_of_several_logs_are_made_beside_each_other(tmp_path: Path) -> None:
    """A sync takes as long as the disk says: one thread for all logs would queue them."""

    async def scenario() -> None:
        offload = ThreadOffload({Lane.FILES: 2})
        threads = offload.writers(Lane.FILES)
        assert threads is not None
        descriptors = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
        loop = asyncio.get_running_loop()
        ended: list[asyncio.Future[OSError | None]] = []
        for descriptor in descriptors:
            told: asyncio.Future[OSError | None] = loop.create_future()
            ended.append(told)
            threads.write(descriptor, 0, [b"x"], partial(_tell, told))
        assert await asyncio.gather(*ended) == [None, None]
        assert threads.count == 2
        await offload.close()
        for descriptor in descriptors:
            os.close(descriptor)

    asyncio.run(scenario())
