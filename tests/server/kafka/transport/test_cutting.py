"""Requests come out of any sequence of reads as they went in, without a socket."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from streamlog.server.kafka.transport.receive import (
    LARGE_BYTES,
    MAPPED_FROM_BYTES,
    SCRATCH_BYTES,
    FrameReceiver,
    ReceiveMemory,
)
from tests.support.kafka_wire import sized

SIZES = (10, 11, 100, 5000, LARGE_BYTES, LARGE_BYTES + 1, SCRATCH_BYTES - 4, SCRATCH_BYTES)
API = 3


class Collector(FrameReceiver):
    def __init__(self, memory: ReceiveMemory) -> None:
        super().__init__(memory)
        self.frames: list[bytes] = []
        self.refusals = 0

    def requests_received(self, frames: Sequence[memoryview]) -> None:
        self.frames += map(bytes, frames)

    def large_request_begun(self, size_bytes: int) -> None: ...

    def not_a_request(self, first_bytes: bytes, reason: str) -> None:
        self.refusals += 1


def read(receiver: FrameReceiver, data: memoryview) -> int:
    """One read, as the event loop does it; the bytes that were taken."""
    buffer = receiver.get_buffer(-1)
    assert len(buffer) > 0
    taken = min(len(buffer), len(data))
    buffer[:taken] = data[:taken]
    receiver.buffer_updated(taken)
    return taken


def frame(size: int, rng: random.Random) -> bytes:
    return struct.pack(">h", API) + rng.randbytes(min(size - 2, 64)).ljust(size - 2, b"x")


@pytest.mark.parametrize("seed", range(40))
def test_two_connections_share_the_scratch_whatever_the_reads_are(seed: int) -> None:
    rng = random.Random(seed)
    memory = ReceiveMemory(64 * 1024 * 1024)
    memory.apis = {API}
    sizes = (*SIZES, MAPPED_FROM_BYTES + 1) if seed < 3 else SIZES[: rng.randint(3, len(SIZES))]
    sent = [[frame(rng.choice(sizes), rng) for _ in range(rng.randint(1, 12))] for _ in range(2)]
    receivers = [Collector(memory), Collector(memory)]
    left = [memoryview(b"".join(map(sized, frames))) for frames in sent]
    step_max = rng.choice((3, 50, 5000, 4 * SCRATCH_BYTES))
    steps = 0
    while any(left):
        steps += 1
        which = rng.randrange(2)
        # Small steps all the way through large requests would only take long.
        step = rng.randint(1, step_max if steps < 2000 else 4 * SCRATCH_BYTES)
        if left[which]:
            left[which] = left[which][read(receivers[which], left[which][:step]) :]
    assert [receiver.frames for receiver in receivers] == sent
    assert memory.unfilled_bytes == 0


@pytest.mark.parametrize("seed", range(40))
def test_arbitrary_bytes_are_cut_or_refused_and_allocate_little(seed: int) -> None:
    rng = random.Random(seed)
    memory = ReceiveMemory(1024 * 1024)
    memory.apis = {API}
    for _ in range(50):
        receiver = Collector(memory)
        data = memoryview(rng.choice((b"", sized(frame(20, rng)))) + rng.randbytes(300))
        while data and not receiver.refusals:
            data = data[read(receiver, data[: rng.randint(1, 100)]) :]
        receiver.release_frame()
        assert receiver.refusals == 1
    assert memory.unfilled_bytes == 0
