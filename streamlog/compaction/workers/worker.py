"""The compactor process: carries out jobs from stdin, and answers on stdout.

ProcessExecutor starts it as `python -m streamlog.compaction.workers.worker`. It yields the CPU to
produce and fetch (nice), logs to stderr, and ends at once when its stdin ends: so it ends with its
node, whether the node was stopped or crashed.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
from typing import BinaryIO

from streamlog.compaction.execute.executor import InlineExecutor
from streamlog.compaction.execute.rate import RateLimit
from streamlog.compaction.execute.spool import FileSpool
from streamlog.compaction.plan.planning import decode_request, encode_plan
from streamlog.compaction.plan.spec import decode_job, encode_outcome
from streamlog.compaction.workers.frames import (
    ALIVE_INTERVAL_S,
    HEADER,
    PAYLOAD_BYTES_MAX,
    Frame,
    WorkerSettings,
    encode_error,
    encode_frame,
)
from streamlog.errors import Internal, StreamlogError
from streamlog.objectstore.opening import open_store
from streamlog.objectstore.url import parse_store_url
from streamlog.runtime import allocator, logs
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, Offload, ThreadOffload

FramePayload = tuple[Frame, bytes]


def main() -> None:
    # Ctrl-C and a hang-up reach the whole group: the node decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    first = _read(stdin)
    if first is None or first[0] is not Frame.SETTINGS:
        sys.exit("this is a part of a streamlog node, and is started by it")
    settings = WorkerSettings.decode(first[1])
    os.nice(settings.nice)
    # Before the store's threads, which would have heaps of their own.
    allocator.keep_large_blocks(min(settings.memory_bytes, 1 << 30))
    logs.set_up(sys.stderr, style=settings.log_format, level=settings.log_level)
    asyncio.run(_serve(settings, stdin, stdout))


async def _serve(settings: WorkerSettings, stdin: BinaryIO, stdout: BinaryIO) -> None:
    clock, offload = SystemClock(), ThreadOffload()
    try:
        store = await open_store(
            parse_store_url(settings.store_url), offload, clock, config=settings.store
        )
    except StreamlogError as error:
        _send(stdout, Frame.ERROR, encode_error(error))
        return
    executor = InlineExecutor(
        store,
        offload,
        RateLimit(settings.rate_bytes_per_s, clock),
        functools.partial(FileSpool, settings.spool_dir),
        memory_bytes=settings.memory_bytes,
    )
    frames: asyncio.Queue[FramePayload] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        while (frame := _read(stdin)) is not None:
            kind, payload = frame
            if kind is Frame.BUSY:
                loop.call_soon_threadsafe(executor.set_busy, payload != b"\0")
            elif kind in (Frame.PLAN, Frame.JOB):
                loop.call_soon_threadsafe(frames.put_nowait, frame)
        os._exit(0)

    threading.Thread(target=listen, name="stdin", daemon=True).start()
    _send(stdout, Frame.READY)
    while True:
        kind, payload = await frames.get()
        alive = loop.create_task(_say_alive(stdout))
        try:
            answer = await _answer(executor, offload, kind, payload)
        except StreamlogError as error:
            _send(stdout, Frame.ERROR, encode_error(error))
        except Exception as error:
            # The node learns of the bug before it ends this process.
            _send(stdout, Frame.ERROR, encode_error(Internal(f"the compactor failed: {error!r}")))
            raise
        else:
            _send(stdout, *answer)
        finally:
            alive.cancel()


async def _say_alive(stdout: BinaryIO) -> None:
    while True:
        await asyncio.sleep(ALIVE_INTERVAL_S)
        _send(stdout, Frame.ALIVE)


async def _answer(
    executor: InlineExecutor, offload: Offload, kind: Frame, payload: bytes
) -> FramePayload:
    if kind is Frame.PLAN:
        return Frame.PLANNED, await offload.run(Lane.CPU, _plan, payload)
    try:
        return Frame.OUTCOME, encode_outcome(await executor.run(decode_job(payload)))
    finally:
        allocator.give_back()


def _plan(payload: bytes) -> bytes:
    """Burns CPU for seconds, on a thread: the loop goes on sending ALIVE."""
    request = decode_request(payload)
    return encode_plan(request.planned(), request)


def _read(source: BinaryIO) -> FramePayload | None:
    """None at the end."""
    head = source.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    size, kind = HEADER.unpack(head)
    if size > PAYLOAD_BYTES_MAX:
        return None
    payload = source.read(size)
    return (Frame(kind), payload) if len(payload) == size else None


def _send(target: BinaryIO, kind: Frame, payload: bytes = b"") -> None:
    target.write(encode_frame(kind, payload))
    target.flush()


if __name__ == "__main__":
    main()
