"""What users do to a stream in a history, each act held against the model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from streamlog.errors import (
    Closed,
    Fenced,
    OffsetConflict,
    OffsetOutOfRange,
    Overloaded,
    StreamlogError,
    Unavailable,
)
from streamlog.model.batch import AppendContext, FetchContext, RecordBatch
from streamlog.model.stream import Stream
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.model import Sent, StreamModel, Violation
from streamlog.testing.simulation.world import Incarnation

BATCH_BYTES_MAX = 4096


@dataclass
class Tally:
    """How much was done; shared by all users of one history."""

    operations: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str) -> None:
        self.operations += 1
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1


@dataclass
class Writer:
    """Appends to one stream; its numbers go on over crashes."""

    writer_id: int
    model: StreamModel
    random: SeededRandom
    tally: Tally
    next_number: int = 0

    async def work(self, node: Incarnation, stream: Stream) -> None:
        """Appends until the stream is lost; up to eight at a time."""
        pending: list[asyncio.Task[None]] = []
        while True:
            await asyncio.sleep(0.15 * self.random.random())
            pending = [task for task in pending if not task.done()]
            if len(pending) >= 8:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                continue
            pending.append(
                asyncio.get_running_loop().create_task(
                    self._append(node, stream), name=f"writer{self.writer_id}"
                )
            )

    async def _append(self, node: Incarnation, stream: Stream) -> None:
        batch = Sent(self.writer_id, self.next_number, 1 + int(self.random.random() * 5))
        self.next_number += 1
        size = int(self.random.random() * BATCH_BYTES_MAX)
        expected: int | None = None
        conditional = self.random.random() < 0.15
        if conditional:
            expected = stream.next_offset + (1 if self.random.random() < 0.5 else 0)
        deadline = node.loop.time() + 5 + 30 * self.random.random()
        self.model.send(batch)
        node.trace.add(node.loop, "append", f"{self.model.name} {batch.writer}/{batch.number}")
        self.tally.count("conditional append" if conditional else "append")
        try:
            result = await stream.append(
                RecordBatch(batch.record_count, 0, (batch.payload(size),)),
                AppendContext(deadline=deadline, expected_next_offset=expected),
            )
        except StreamlogError as error:
            node.trace.add(node.loop, "append-failed", f"{batch.number} {type(error).__name__}")
            if error.has_no_side_effects and isinstance(error, OffsetConflict | Overloaded):
                self.model.refuse(batch)
            elif not isinstance(error, Unavailable | Fenced) and error.has_no_side_effects:
                raise
            return
        if result.end_offset - result.base_offset != batch.record_count:
            raise Violation(f"{self.model.name}: {batch} was acknowledged as {result}")
        if expected is not None and result.base_offset != expected:
            raise Violation(f"{self.model.name}: {batch} expected {expected}, went to {result}")
        node.trace.add(node.loop, "ack", f"{batch.number} {result.base_offset}")
        self.model.acknowledge(batch, result.base_offset)


async def read_some(
    node: Incarnation, stream: Stream, model: StreamModel, random: SeededRandom, tally: Tally
) -> None:
    """Fetches random ranges until the stream is lost."""
    while True:
        await asyncio.sleep(0.3 * random.random())
        low, high = stream.start_offset, stream.confirm_offset
        start = low + int(random.random() * (high - low + 1))
        acknowledged_start = model.start
        tally.count("fetch")
        try:
            result = await stream.fetch(
                start, high, 1 + int(random.random() * 20_000), FetchContext()
            )
        except OffsetOutOfRange:
            if start >= max(stream.start_offset, model.trim_sent):
                raise
            continue
        except (Unavailable, Fenced) as error:
            node.trace.add(node.loop, "fetch-failed", type(error).__name__)
            if isinstance(error, Fenced | Closed):
                return
            continue
        if start < high and not result.batches:
            raise Violation(f"{model.name}: nothing read at {start} below {high}")
        end = model.read(result.batches, start, acknowledged_start)
        node.trace.add(node.loop, "fetch", f"{model.name} {start} {end}")


async def trim_some(
    node: Incarnation, stream: Stream, model: StreamModel, random: SeededRandom, tally: Tally
) -> None:
    """Trims a little now and then until the stream is lost."""
    while True:
        await asyncio.sleep(0.5 + 3 * random.random())
        span = stream.confirm_offset - stream.start_offset
        start = stream.start_offset + int(random.random() * span * 0.5)
        model.trim_sent = max(model.trim_sent, start)
        tally.count("trim")
        try:
            await stream.trim(start)
        except (Unavailable, Fenced) as error:
            node.trace.add(node.loop, "trim-failed", type(error).__name__)
            if isinstance(error, Fenced | Closed):
                return
            continue
        node.trace.add(node.loop, "trim", f"{model.name} {start}")
        model.trimmed(start)


async def read_all(stream: Stream, model: StreamModel) -> None:
    """Reads the whole stream and holds it against the model."""
    start, end = stream.start_offset, stream.confirm_offset
    found: dict[int, Sent] = {}
    position = start
    while position < end:
        result = await stream.fetch(position, end, 1 << 16)
        following = model.read(result.batches, position, model.start)
        if following <= position:
            raise Violation(f"{model.name}: no progress at {position} below {end}")
        for batch in result.batches:
            found[batch.base_offset] = Sent.parse(bytes(b"".join(batch.parts)))
        position = following
    model.finish(start, end, found)
