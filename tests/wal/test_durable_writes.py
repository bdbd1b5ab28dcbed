"""Writes that a loop hands over, by the thread in C and by a lane's: in order, durable, told."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog.runtime import writer_threads
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.durable_writes import DurableWrites
from streamlog.runtime.disk.interface import DiskFile
from streamlog.runtime.disk.system_disk import SystemDisk, SystemFile
from streamlog.runtime.offload import Lane, ThreadOffload

COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="nothing is compiled without one")

SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from streamlog.runtime.disk.durable_writes import DurableWrites
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.runtime.offload import Lane, ThreadOffload

def written(writes, file, position, parts):
    ended = asyncio.get_running_loop().create_future()
    writes.start(file, position, parts, ended.set_result)
    return ended

async def main():
    file, offload = SystemDisk(Path(sys.argv[1])).open("a"), ThreadOffload()
    writes = DurableWrites(offload)
"""


@pytest.fixture(params=["thread in C", "lane"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "lane":
        monkeypatch.setattr(writer_threads, "ARE_THERE", False)
    elif COMPILER is None:
        pytest.skip("nothing is compiled without a C compiler")
    else:
        assert writer_threads.ARE_THERE, "say `make setup`: the extension is not compiled"
    return str(request.param)


@asynccontextmanager
async def some_writes(threads: int = 1) -> AsyncIterator[DurableWrites]:
    offload = ThreadOffload({Lane.WAL: threads})
    yield DurableWrites(offload)
    await offload.close()


async def write(
    writes: DurableWrites, file: DiskFile, position: int, parts: Sequence[Buffer]
) -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if error is None:
            ended.set_result(None)  # A second call would raise.
        else:
            ended.set_exception(error)

    writes.start(file, position, parts, done)
    await ended


def test_writes_are_made_in_order_whatever_their_parts(way: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = SystemDisk(tmp_path).create("a", 20_000)
        async with some_writes() as writes:
            many = [b"%04d" % number for number in range(3000)]
            await asyncio.gather(
                write(writes, file, 0, [b"one", b"", bytearray(b"two"), memoryview(b"-three")[1:]]),
                write(writes, file, 100, many),
                write(writes, file, 3, [b"TWO"]),
                write(writes, file, 50, []),
            )
        assert file.read(0, 11) == b"oneTWOthree"
        assert file.read(100, 12_000) == b"".join(many)
        file.close()

    asyncio.run(scenario())


def test_what_fails_is_told_and_the_next_write_is_made(way: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = SystemDisk(tmp_path).create("a", 100)
        unwritable = SystemFile(os.open(tmp_path / "a", os.O_RDONLY))
        async with some_writes() as writes:
            failing = asyncio.ensure_future(write(writes, unwritable, 0, [b"never"]))
            await write(writes, file, 0, [b"there"])
            with pytest.raises(OSError, match="Bad file descriptor") as caught:
                await failing
            assert caught.value.errno == errno.EBADF
            with pytest.raises(TypeError):
                await write(writes, file, 0, ["no bytes"])  # type: ignore[list-item]
        assert file.read(0, 5) == b"there"
        unwritable.close()
        file.close()

    asyncio.run(scenario())


def test_the_bytes_are_let_go_when_they_are_written(way: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = SystemDisk(tmp_path).create("a", 100)
        data = bytearray(b"held")
        async with some_writes() as writes:
            written = asyncio.ensure_future(write(writes, file, 0, [data]))
            await written
            data.clear()  # BufferError while somebody holds it
        file.close()

    asyncio.run(scenario())


def test_an_end_waits_for_what_was_handed_over(tmp_path: Path) -> None:
    """Also where nobody looks at what has become of it."""

    async def scenario() -> None:
        file = SystemDisk(tmp_path).create("a", 100)
        async with some_writes() as writes:
            for number in range(50):
                writes.start(file, number, [b"x"], lambda error: None)
        assert file.read(0, 50) == b"x" * 50
        file.close()

    asyncio.run(scenario())


@needs_compiler
def test_what_became_of_writes_is_told_though_the_end_is_cancelled(tmp_path: Path) -> None:
    """And a write that is handed over by what is told is made, too."""

    async def scenario() -> None:
        file = SystemDisk(tmp_path).create("a", 100)
        offload = ThreadOffload()
        threads = offload.writers(Lane.WAL)
        assert threads is not None
        writes, told = DurableWrites(offload), list[BaseException | None]()
        again = asyncio.Event()

        def done(error: BaseException | None) -> None:
            told.append(error)
            if len(told) == 20:
                writes.start(file, 20, [b"y"], lambda error: again.set())

        for number in range(20):
            writes.start(file, number, [b"x"], done)
        closing = asyncio.ensure_future(offload.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait_for(again.wait(), 30)
        assert told == [None] * 20
        assert file.read(0, 21) == b"x" * 20 + b"y"
        await offload.close()
        await threads.end()
        assert threads.count == 0
        file.close()

    asyncio.run(scenario())


@needs_compiler
def test_a_write_that_waited_and_is_wrong_is_told_and_so_are_those_beside_it(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        file = SystemDisk(tmp_path).create("a", 100)
        async with some_writes() as writes:
            first = asyncio.ensure_future(write(writes, file, 0, [b"first"]))
            wrong = asyncio.ensure_future(write(writes, file, 5, ["no bytes"]))  # type: ignore[list-item]
            last = asyncio.ensure_future(write(writes, file, 10, [b"last"]))
            await asyncio.wait_for(first, 30)
            with pytest.raises(OSError, match="could not be handed over"):
                await asyncio.wait_for(wrong, 30)
            await asyncio.wait_for(last, 30)
        assert file.read(10, 4) == b"last"
        file.close()

    asyncio.run(scenario())


@needs_compiler
def test_where_the_system_gives_no_thread_the_lane_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EAGAIN, "no more threads")

    async def scenario() -> None:
        monkeypatch.setattr("streamlog.runtime._native.WriterThread", none_left)
        file = SystemDisk(tmp_path).create("a", 100)
        async with some_writes() as writes:
            await write(writes, file, 0, [b"there"])
        assert file.read(0, 5) == b"there"
        file.close()

    asyncio.run(scenario())


def run_script(folder: Path, body: str, **environment: str) -> None:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    script = f"{SCRIPT}{lines}\n\nasyncio.run(main())\n"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_a_process_ends_while_its_thread_is_there(tmp_path: Path) -> None:
    SystemDisk(tmp_path).create("a", 100).close()
    run_script(tmp_path, 'writes.start(file, 0, [b"x"], print)\nraise SystemExit(0)')


@needs_compiler
def test_a_forked_child_has_no_thread_to_end(tmp_path: Path) -> None:
    """It neither waits for one nor hands writes to nobody."""
    SystemDisk(tmp_path).create("a", 100).close()
    body = """
await written(writes, file, 0, [b"parent"])
child = os.fork()
if child == 0:
    try:
        writes.start(file, 0, [b"child"], print)
    except RuntimeError:
        del writes, offload  # waits for no thread
        os._exit(7)
    os._exit(1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
await written(writes, file, 6, [b" again"])
await offload.close()
assert file.read(0, 12) == b"parent again"
"""
    run_script(tmp_path, body)


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    library = tmp_path_factory.mktemp("library") / "kernel_writes.so"
    source = Path(__file__).with_name("kernel_writes.c")
    subprocess.run(
        [COMPILER, "-O1", "-Wall", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True
    )
    return library


def calls_of(noting: Path, folder: Path, body: str, **environment: str) -> list[str]:
    SystemDisk(folder).create("a", 20_000).close()
    noted = folder / "noted"
    run_script(
        folder,
        body,
        LD_PRELOAD=" ".join(filter(None, (os.environ.get("LD_PRELOAD"), str(noting)))),
        WRITES_OF=str(folder.resolve() / "a"),
        WRITES_TO=str(noted),
        **environment,
    )
    return noted.read_text().splitlines()


@needs_compiler
def test_a_write_is_durable_by_its_flags_or_by_a_sync_behind_it(
    noting: Path, tmp_path: Path
) -> None:
    """One call with RWF_DSYNC; a sync behind it where a group has more parts than a call takes."""
    few = 'await written(writes, file, 0, [b"one", b"two"])\n'
    assert calls_of(noting, tmp_path / "few", few) == ["write dsync"]
    many = 'await written(writes, file, 0, [b"%04d" % n for n in range(2000)])\n'
    assert calls_of(noting, tmp_path / "many", many) == ["write", "write", "fdatasync"]


@needs_compiler
def test_a_file_system_that_knows_no_flags_gets_syncs(noting: Path, tmp_path: Path) -> None:
    body = """
for position in (0, 3):
    assert await written(writes, file, position, [b"one"]) is None
assert file.read(0, 6) == b"oneone"
"""
    calls = calls_of(noting, tmp_path, body, WRITES_REFUSE="1")
    assert calls == ["write", "fdatasync"] * 2


@needs_compiler
def test_a_write_that_the_kernel_cuts_short_goes_on(noting: Path, tmp_path: Path) -> None:
    body = """
assert await written(writes, file, 5, [b"abcdefg", b"", b"hij"]) is None
assert file.read(5, 10) == b"abcdefghij"
"""
    assert calls_of(noting, tmp_path, body, WRITES_SHORT="3") == ["write dsync"] * 4
