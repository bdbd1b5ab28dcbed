"""Random histories over a folder that tears: what was acknowledged stays, once, at its offset.

Power cuts, failed writes and syncs, and full disks strike at any call; processes end in order or
not. What a reader could see stays as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.errors import StreamlogError
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from tests.unified.harness import DEFAULTS, UnifiedLogUnderTest, unified_log

CONFIGS = {"internal.segment.bytes": "900", "index.interval.bytes": "200"}
STEPS = 60
PRODUCER, TRANSACTIONAL = 7, 8


class History:
    """One log's life. `known`: what has to be there; `unknown`: what may be, in this order."""

    def __init__(self, seed: int, t: UnifiedLogUnderTest, tree: TornTree) -> None:
        self.choose = random.Random(seed)
        self.t = t
        self.tree = tree
        self.known: dict[int, bytes] = {}
        self.unknown: list[bytes] = []
        self.markers: set[int] = set()
        self.start = 0
        self.sequence = 0
        self.pending: tuple[int, bytes] | None = None
        """The idempotent batch that was not acknowledged: it is sent again."""
        self.last_sent: deque[tuple[int, bytes]] = deque(
            maxlen=DEFAULTS.producer_batches_remembered
        )
        """Offsets and batches of the idempotent producer, acknowledged: to send them again changes
        nothing."""
        self.numbers = iter(range(1 << 30))
        self.faults: Sequence[DiskFault] = ()
        self.reopens = 0

    def strike(self, _operation: str, _name: str) -> DiskFault | None:
        if self.faults and self.choose.random() < 0.03:
            return self.choose.choice(self.faults)
        return None

    async def run(self) -> None:
        self.tree.plan_faults(self.strike)
        for _ in range(STEPS):
            self.faults = self.choose.choice([(), (), tuple(DiskFault)])
            step: Callable[[], object] = self.choose.choice(
                [
                    *[self.append] * 4,
                    *[self.append_idempotent] * 3,
                    *[self.append_together] * 2,
                    self.transaction,
                    self.roll,
                    self.delete_records,
                    self.delete_segments,
                    self.end_in_order,
                    self.crash,
                ]
            )
            try:
                result = step()
                assert asyncio.iscoroutine(result)
                await result
            except StreamlogError:
                await self.recover()
        self.faults = ()
        await self.crash()

    def value(self) -> bytes:
        return b"%d:" % next(self.numbers) * self.choose.randrange(1, 30)

    async def append(self) -> None:
        await self.send(encoded([self.value() for _ in range(self.choose.randrange(1, 4))]))

    async def append_idempotent(self) -> None:
        if self.pending is None:
            self.pending = (self.sequence, self.value())
            self.sequence += 1
        sequence, value = self.pending
        data = encoded([value], producer=(PRODUCER, 0, sequence))
        self.last_sent.append((await self.send(data), data))
        self.pending = None

    async def send(self, data: bytes) -> int:
        values = [one[3] or b"" for batch in scan(data) for one in iterate(batch.view)]
        fresh = [one for one in values if one not in self.unknown]
        self.unknown += fresh
        info = await (await self.t.log.append(data))
        self.acknowledged(info.base_offset, values)
        return info.base_offset

    async def append_together(self) -> None:
        """Several appends are under way at once; a fault may come between them."""
        batches = [encoded([self.value()]) for _ in range(self.choose.randrange(2, 6))]
        waits = []
        for data in batches:
            self.unknown += [one[3] or b"" for b in scan(data) for one in iterate(b.view)]
            waits.append(await self.t.log.append(data))
        done = await asyncio.gather(*waits, return_exceptions=True)
        errors = [one for one in done if isinstance(one, BaseException)]
        for data, info in zip(batches, done, strict=True):
            if not isinstance(info, BaseException):
                (value,) = [one[3] or b"" for b in scan(data) for one in iterate(b.view)]
                self.acknowledged(info.base_offset, [value])
        if errors:
            raise errors[0]

    def acknowledged(self, base: int, values: Sequence[bytes]) -> None:
        for offset, value in enumerate(values, base):
            assert self.known.setdefault(offset, value) == value
            if value in self.unknown:
                self.unknown.remove(value)

    async def transaction(self) -> None:
        found = [one for one in self.t.log.producers() if one.producer_id == TRANSACTIONAL]
        sequence = found[0].last_sequence + 1 if found else 0
        value = self.value()
        self.unknown.append(value)
        info = await begin(self.t.log, transactional([value], TRANSACTIONAL, 0, sequence))
        self.acknowledged(info.base_offset, [value])
        await end(self.t.log, self.choose.random() < 0.5, TRANSACTIONAL)

    async def roll(self) -> None:
        await self.t.log.roll()

    async def delete_records(self) -> None:
        target = self.choose.randrange(self.t.log.log_start_offset, self.t.log.high_watermark + 1)
        self.start = await self.t.log.delete_records(target)

    async def delete_segments(self) -> None:
        bound = self.choose.choice([one.end_offset for one in self.t.log.segments])
        await self.t.log.delete_oldest_segments(min(bound, self.t.log.high_watermark), "test")
        self.start = self.t.log.log_start_offset

    async def end_in_order(self) -> None:
        await self.t.reopened()
        await self.check()

    async def crash(self) -> None:
        self.faults = ()
        await self.t.crashed()
        await self.check()

    async def recover(self) -> None:
        """After an error: a new process where the power is off, else the next open in this one."""
        if not self.tree.top.has_power or self.choose.random() < 0.3:
            await self.crash()
            return
        self.faults = ()
        with contextlib.suppress(StreamlogError):
            await self.t.log.close()
        await self.t.open()
        await self.check()

    async def check(self) -> None:
        self.reopens += 1
        log = self.t.log
        assert self.start <= log.log_start_offset <= log.high_watermark
        # A deletion that was not acknowledged may have been done.
        self.start = log.log_start_offset
        found: dict[int, bytes] = {}
        position = log.log_start_offset
        while position < log.high_watermark:
            fetched = await log.fetch(position, 500)
            for batch in scan(b"".join(fetched.parts)):
                assert batch.header.base_offset <= position
                position = batch.header.next_offset
                if batch.header.is_control:
                    self.markers.add(batch.header.base_offset)
                    continue
                for offset, _, _, value, _ in iterate(batch.view):
                    found[offset] = value or b""
        offsets = [*found, *(one for one in self.markers if one >= self.start)]
        assert sorted(one for one in offsets if one >= self.start) == list(
            range(self.start, log.log_end_offset)
        )
        for offset, value in self.known.items():
            if offset >= self.start:
                assert found[offset] == value, offset
        fresh = [value for offset, value in sorted(found.items()) if offset not in self.known]
        assert [one for one in self.unknown if one in fresh] == fresh, "in the order of the calls"
        assert len(set(found.values())) == len(found), "nothing is there twice"
        self.known |= found
        if self.pending is None and not self.faults:
            # The newest batch is in each snapshot; those before it are read, where they are kept.
            newest = self.last_sent[-1][0] if self.last_sent else 0
            for offset, data in self.last_sent:
                if offset >= min(newest, log.segments[0].base_offset):
                    again = await (await log.append(data))
                    assert (again.base_offset, again.is_duplicate) == (offset, True)
        if self.pending is None or self.pending[1] not in found.values():
            self.unknown = []
        else:
            self.unknown = [self.pending[1]]


def run_history(seed: int) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(seed))
        async with unified_log(lambda: tree, CONFIGS, cut_power=tree.crash) as t:
            history = History(seed, t, tree)
            await history.run()
            assert history.reopens > 0

    asyncio.run(body())
