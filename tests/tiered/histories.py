"""Random histories of a log in two tiers: a folder that tears, a remote storage that fails.

What was acknowledged stays, once, at its offset, until the log's start passes it; what a reader
could see stays as well. Copies, expiry, deletions of local segments and power cuts come at any
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from streamlog.codec.batch import TRANSACTIONAL, scan
from streamlog.codec.control import ControlType, decode_end_marker
from streamlog.codec.records import iterate
from streamlog.errors import OffsetOutOfRange, StoreUnavailable, StreamlogError
from streamlog.log.api.abstract_log import AbortedTransaction, Isolation
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import encoded
from streamlog.testing.logs.transaction_conformance import begin, end, transactional
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.tiered.api import RemoteLogSegmentState
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.reading.chunks import ChunkConfig
from tests.tiered.harness import TieredLogUnderTest, tiered_log

CONFIGS = {"internal.segment.bytes": "700", "index.interval.bytes": "150"}
CONFIG = RemoteLogConfig(
    reads_kept_bytes=2048,
    chunks=ChunkConfig(chunk_bytes=128, loads=2, pending_max=4, retry_ms=1, retry_ms_max=1),
    fetch_wait_ms=20,
    batch_bytes_max=900,
    index_cache_bytes=60,
)
STEPS = 60
PRODUCER = 8


class RemoteFault(Exception):
    """What a plug-in raises."""


class CommittedView:
    """What a client takes of answers with their lists of aborted transactions, and what the markers
    say of the same batches."""

    def __init__(self) -> None:
        self._hidden: set[int] = set()
        self._open: list[int] = []
        self._aborted: set[int] = set()

    def take(self, data: bytes, aborted: Sequence[AbortedTransaction]) -> None:
        """As Kafka's clients do: from an entry's first offset to the producer's next marker."""
        waiting = sorted(aborted, key=lambda one: one.first_offset)
        hides = False
        for batch in scan(data):
            header = batch.header
            while waiting and waiting[0].first_offset <= header.last_offset:
                assert waiting.pop(0).producer_id == PRODUCER
                hides = True
            if header.is_control:
                marker = decode_end_marker(batch.view)
                assert marker is not None
                if marker.control_type is ControlType.ABORT:
                    self._aborted.update(self._open)
                self._open = []
                hides = False
            elif header.attributes & TRANSACTIONAL:
                self._open.append(header.base_offset)
                if hides:
                    self._hidden.add(header.base_offset)

    def check(self) -> None:
        assert self._hidden == self._aborted


class TieredHistory:
    """`known`: what has to be there; `unknown`: what may be. Both by value."""

    def __init__(self, seed: int, t: TieredLogUnderTest, tree: TornTree) -> None:
        self.choose = random.Random(seed)
        self.t = t
        self.tree = tree
        self.known: dict[int, bytes] = {}
        self.unknown: list[bytes] = []
        self.start = 0
        self.start_max = 0
        """Where the log may begin at most: deletions and expiry alone move its start."""
        self.numbers = iter(range(1 << 30))
        self.disk_faults: Sequence[DiskFault] = ()
        self.remote_faults = 0.0
        self.checks = 0
        self.open_transaction = False

    def strike(self, _operation: str, _name: str) -> DiskFault | None:
        if self.disk_faults and self.choose.random() < 0.02:
            return self.choose.choice(self.disk_faults)
        return None

    async def remote(self, _call: str) -> None:
        """Now and then a call takes its time, or fails."""
        for _ in range(self.choose.randrange(3)):
            await asyncio.sleep(0)
        if self.choose.random() < self.remote_faults:
            raise RemoteFault("away")

    async def run(self) -> None:
        self.tree.plan_faults(self.strike)
        self.t.storage.strike = self.remote
        for _ in range(STEPS):
            self.disk_faults = self.choose.choice([(), (), (), tuple(DiskFault)])
            self.remote_faults = self.choose.choice([0, 0, 0, 0.3])
            step = self.choose.choice(
                [
                    *[self.append] * 8,
                    *[self.transaction] * 3,
                    *[self.copy] * 3,
                    *[self.retain] * 2,
                    self.roll,
                    self.delete_records,
                    self.expire,
                    self.cut_off_copy,
                    self.read_somewhere,
                    self.end_in_order,
                    self.crash,
                ]
            )
            self.t.clock.advance(self.choose.randrange(1000))
            try:
                await step()
            except OffsetOutOfRange:
                raise  # Nobody asks for an offset below the log's start.
            except StreamlogError:
                await self.recover()
        self.disk_faults, self.remote_faults = (), 0
        await self.crash()
        await self.copy()
        await self.copy()
        await self.check_nothing_is_left_over()

    def value(self) -> bytes:
        return b"%d:" % next(self.numbers) * self.choose.randrange(1, 30)

    async def append(self) -> None:
        values = [self.value() for _ in range(self.choose.randrange(1, 4))]
        self.unknown += values
        data = encoded(values, at_ms=self.t.clock.now_ms())
        self.acknowledged((await (await self.t.log.append(data))).base_offset, values)

    def acknowledged(self, base: int, values: Sequence[bytes]) -> None:
        for offset, value in enumerate(values, base):
            assert self.known.setdefault(offset, value) == value
            if value in self.unknown:
                self.unknown.remove(value)

    async def transaction(self) -> None:
        """Goes on with the open transaction, or begins one; ends it now and then."""
        found = [one for one in self.t.log.producers() if one.producer_id == PRODUCER]
        sequence = found[0].last_sequence + 1 if found else 0
        value = self.value()
        self.unknown.append(value)
        data = transactional([value], PRODUCER, 0, sequence)
        self.acknowledged((await begin(self.t.log, data)).base_offset, [value])
        if self.choose.random() < 0.6:
            await end(self.t.log, self.choose.random() < 0.5, PRODUCER)

    async def copy(self) -> None:
        await self.t.copy()
        assert self.t.log.copied_end_offset <= self.t.log.last_stable_offset

    async def cut_off_copy(self) -> None:
        """The process dies, or the log is closed, in the middle of the tasks."""
        await self.t.manager.tick()
        for _ in range(self.choose.randrange(40)):
            await asyncio.sleep(0)
        await self.choose.choice([self.crash, self.end_in_order])()

    async def retain(self) -> None:
        local = self.choose.choice(["0", "500", "2000", "-2"])
        await self.t.configure(local_retention_bytes=local)
        await self.t.retain()

    async def expire(self) -> None:
        limit = self.choose.choice(["1500", "4000"])
        self.start_max = 1 << 62
        await self.t.configure(retention_bytes=limit, local_retention_bytes="-2")
        await self.t.copy()
        await self.t.configure(retention_bytes="-1")

    async def roll(self) -> None:
        await self.t.log.roll()

    async def delete_records(self) -> None:
        target = self.choose.randrange(self.t.log.log_start_offset, self.t.log.high_watermark + 1)
        if self.choose.random() < 0.3:
            self.start_max = max(self.start_max, target)
            await self.t.log.delete_records(target)

    async def end_in_order(self) -> None:
        await self.t.reopened()
        await self.check()

    async def crash(self) -> None:
        self.disk_faults = ()
        await self.t.crashed()
        await self.check()

    async def recover(self) -> None:
        self.disk_faults = ()
        if not self.tree.top.has_power or self.choose.random() < 0.3:
            await self.crash()
            return
        with contextlib.suppress(StreamlogError):
            await self.t.log.close()
        await self.t.open()
        await self.check()

    async def read_somewhere(self) -> None:
        log = self.t.log
        offset = self.choose.randrange(log.log_start_offset, log.high_watermark + 1)
        fetched = await log.fetch(offset, self.choose.choice([1, 300, 5000]))
        self.compare(offset, b"".join(fetched.parts))

    def compare(self, offset: int, data: bytes) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for batch in scan(data):
            assert batch.header.next_offset > offset
            if not batch.header.is_control:
                found |= {one[0]: one[3] or b"" for one in iterate(batch.view)}
        for at, value in found.items():
            assert self.known.get(at, value) == value, at
        return found

    async def check(self) -> None:
        """Reads everything, with the remote storage at rest."""
        self.checks += 1
        faults, self.remote_faults = self.remote_faults, 0
        log = self.t.log
        assert self.start <= log.log_start_offset <= min(self.start_max, log.high_watermark)
        self.start = self.start_max = log.log_start_offset
        found: dict[int, bytes] = {}
        committed_view = CommittedView()
        position, tries = log.log_start_offset, 0
        while position < log.last_stable_offset or position < log.high_watermark:
            committed = position < log.last_stable_offset
            isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
            try:
                fetched = await log.fetch(position, 500, isolation=isolation)
            except StoreUnavailable:
                if not self.tree.top.has_power:
                    raise
                fetched = None  # An outage lasts until a try succeeds.
            if fetched is None or not fetched.size_bytes:
                tries += 1
                assert tries < 1000, "reads make no progress"
                continue
            data = b"".join(fetched.parts)
            found |= self.compare(position, data)
            if committed:
                committed_view.take(data, fetched.aborted)
            assert fetched.next_offset > position
            position = fetched.next_offset
        for offset, value in self.known.items():
            if offset >= self.start:
                assert found.get(offset) == value, offset
        fresh = [value for offset, value in sorted(found.items()) if offset not in self.known]
        assert [one for one in self.unknown if one in fresh] == fresh, "in the order of the calls"
        assert len(set(found.values())) == len(found), "nothing is there twice"
        committed_view.check()
        self.known |= found
        self.unknown = []
        self.remote_faults = faults

    async def check_nothing_is_left_over(self) -> None:
        """All that is stored is finished and known, and all that is known is stored."""
        segments = await self.t.metadata.list_remote_log_segments(self.t.partition)
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        assert {one.state for one in segments} <= {finished}
        ids = {one.remote_log_segment_id.id for one in segments}
        assert ids == set(self.t.storage.segments)
        end = -1
        for one in segments:
            assert end < one.start_offset <= one.end_offset < self.t.log.last_stable_offset
            end = one.end_offset


def run_tiered_history(seed: int) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(seed))
        async with tiered_log(tree, CONFIGS, CONFIG) as t:
            history = TieredHistory(seed, t, tree)
            await history.run()
            assert history.checks > 0

    asyncio.run(body())
