"""SharedLog against a list: appends, retries, losses, crashes, trims, rolls, retention."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamlog.codec.batch import SEQUENCE_MAX
from streamlog.errors import OffsetOutOfRange, OutOfOrderSequence, StreamlogError
from streamlog.log.api.abstract_log import Isolation
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import parse
from streamlog.log.partition.retention import expired
from streamlog.testing.logs.log_conformance import encoded, read
from streamlog.testing.memory_streams import MemoryMedium
from tests.log.harness import SharedLogUnderTest

CONFIGS = {
    "internal.segment.bytes": "900",
    "segment.ms": "5000",
    "index.interval.bytes": "200",
    "retention.ms": "60000",
}
UNCOMMITTED = Isolation.READ_UNCOMMITTED
PRODUCERS = 3


class SharedLogMachine(RuleBasedStateMachine):
    """`stored` is every acknowledged record by offset; `under_way` what may yet be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stored: list[tuple[bytes, int]] = []
        self.start = 0
        self.under_way: list[tuple[asyncio.Future[Any], list[tuple[bytes, int]], int]] = []
        self.is_held = False
        self.next_sequence = [SEQUENCE_MAX - 2, 0, 0]
        self.sent: list[list[tuple[bytes, int, int]]] = [[] for _ in range(PRODUCERS)]
        self.count = 0
        self.has_crashed = False
        medium = MemoryMedium()

        async def client_of(clock):
            return medium.client(clock)

        config = LogConfig(checkpoint_interval_batches=7, meta_compaction_bytes=1500)
        self.t = SharedLogUnderTest(client_of, CONFIGS, config)
        self.do(self.t.start())

    def do(self, work):
        return self.loop.run_until_complete(work)

    @property
    def log(self):
        return self.t.log

    def values(self, count):
        self.count += count
        return [b"%d" % i for i in range(self.count - count, self.count)]

    def append(self, data, records, producer=None):
        async def call():
            return asyncio.ensure_future(await self.log.append(data))

        wait = self.do(call())
        base = self.log.log_end_offset - len(records)
        self.under_way.append((wait, records, base))
        if not self.is_held:
            self.await_acks()

    def await_acks(self):
        for wait, records, base in self.under_way:
            info = self.do(wait)
            assert (info.base_offset, info.last_offset) == (base, base + len(records) - 1)
            assert not info.is_duplicate
            assert base == len(self.stored)
            self.stored += records
        self.under_way.clear()

    @rule(count=st.integers(1, 4), late_ms=st.integers(-3000, 3000), batches=st.integers(1, 6))
    def append_plain(self, count, late_ms, batches):
        for _ in range(batches):
            stamp = self.t.clock.now_ms() + late_ms
            values = self.values(count)
            self.append(encoded(values, at_ms=stamp), [(value, stamp) for value in values])

    @rule(
        who=st.integers(0, PRODUCERS - 1),
        count=st.integers(1, 3),
        batches=st.integers(1, 12),
    )
    def append_idempotent(self, who, count, batches):
        for _ in range(batches):
            self.append_one(who, count)

    def append_one(self, who, count):
        stamp, values = self.t.clock.now_ms(), self.values(count)
        sequence = self.next_sequence[who]
        data = encoded(values, at_ms=stamp, producer=(who, 0, sequence))
        base = self.log.log_end_offset
        self.append(data, [(value, stamp) for value in values])
        self.sent[who].append((data, base, count))
        self.next_sequence[who] = (sequence + count) & SEQUENCE_MAX

    @rule(who=st.integers(0, PRODUCERS - 1), back=st.integers(1, 32))
    def retry(self, who, back):
        if back > len(self.sent[who]):
            return
        data, base, count = self.sent[who][-back]

        async def call():
            return asyncio.ensure_future(await self.log.append(data))

        end = self.log.log_end_offset
        wait = self.do(call())
        assert self.log.log_end_offset == end
        assert wait.done() is False or not self.is_held or base < len(self.stored)
        if not self.is_held:
            info = self.do(wait)
            assert info.is_duplicate
            assert (info.base_offset, info.last_offset) == (base, base + count - 1)

    @rule(who=st.integers(0, PRODUCERS - 1), ahead=st.integers(1, 3))
    def gap(self, who, ahead):
        if not self.sent[who]:
            return
        sequence = (self.next_sequence[who] + ahead) & SEQUENCE_MAX
        with pytest.raises(OutOfOrderSequence) as caught:
            self.do(self.log.append(encoded([b"gap"], producer=(who, 0, sequence))))
        assert caught.value.expected == self.next_sequence[who]

    @precondition(lambda self: not self.is_held)
    @rule()
    def hold(self):
        self.t.hold()
        self.is_held = True

    @precondition(lambda self: self.is_held)
    @rule()
    def release(self):
        self.t.release()
        self.is_held = False
        self.await_acks()

    @rule()
    def crash(self):
        """What is under way is lost: the medium holds it back; producers send it again."""
        lost = len(self.stored) if self.is_held else None
        self.has_crashed = True
        self.do(self.t.crashed())
        for wait, _, _ in self.under_way:
            try:
                self.do(wait)
            except StreamlogError:
                continue
            raise AssertionError("acknowledged, and lost")
        self.under_way.clear()
        self.is_held = False
        self.t.release()
        if lost is not None:
            for who in range(PRODUCERS):
                kept = [batch for batch in self.sent[who] if batch[1] < lost]
                gone = self.sent[who][len(kept) :]
                self.sent[who] = kept
                count = sum(batch[2] for batch in gone)
                self.next_sequence[who] = (self.next_sequence[who] - count) & SEQUENCE_MAX
        self.retry_all()

    @precondition(lambda self: not self.is_held)
    @rule()
    def reopen(self):
        """Afterwards every batch that is to be remembered is."""
        self.do(self.t.reopened())
        self.retry_all()

    def retry_all(self):
        for who in range(PRODUCERS):
            for back in range(1, 33):
                self.retry(who, back)

    @precondition(lambda self: not self.is_held)
    @rule()
    def roll(self):
        self.do(self.log.roll())

    @precondition(lambda self: not self.is_held)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share):
        before = int(share * len(self.stored))
        self.start = max(self.start, before)
        assert self.do(self.log.delete_records(before)) == self.start

    @precondition(lambda self: not self.is_held)
    @rule(elapsed_ms=st.integers(0, 40_000))
    def retain(self, elapsed_ms):
        self.t.clock.advance(elapsed_ms)
        now = self.t.clock.now_ms()
        for step in expired(self.log, parse(CONFIGS), now):
            assert all(
                stamp < now - 60_000 or offset < self.start
                for offset, (_, stamp) in enumerate(self.stored[: step.end_offset])
            )
            self.do(self.log.delete_oldest_segments(step.end_offset, step.reason))
            self.start = max(self.start, step.end_offset)

    @rule(target_ms=st.integers(-70_000, 4000))
    def find_timestamp(self, target_ms):
        target = self.t.clock.now_ms() + target_ms
        expected = next(
            (i for i in range(self.start, len(self.stored)) if self.stored[i][1] >= target), -1
        )
        record = self.do(self.log.offset_for_timestamp(target, UNCOMMITTED))
        assert record.offset == expected

    @invariant()
    def offsets_agree(self):
        assert self.log.log_start_offset == self.start
        assert self.log.high_watermark == len(self.stored)
        assert self.log.log_end_offset == len(self.stored) + sum(
            len(records) for _, records, _ in self.under_way
        )
        segments = self.log.segments
        assert [segment.end_offset for segment in segments[:-1]] == [
            segment.base_offset for segment in segments[1:]
        ]
        assert segments[0].base_offset <= self.start
        # A crash loses rolls that no meta record has yet: their segments become one.
        assert self.has_crashed or all(segment.size_bytes <= 900 for segment in segments)
        assert not self.t.failures

    @rule()
    def read_everything(self):
        records = self.do(read(self.log))
        assert [(r[3], r[1]) for r in records] == self.stored[self.start :]
        assert [r[0] for r in records] == list(range(self.start, len(self.stored)))
        if self.start:
            try:
                self.do(self.log.fetch(self.start - 1, 10))
            except OffsetOutOfRange:
                return
            raise AssertionError("fetched below the start")

    def teardown(self):
        self.t.release()
        self.is_held = False
        self.await_acks()
        self.read_everything()
        self.do(self.t.stop())
        self.loop.close()


SharedLogMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestSharedLogModel = SharedLogMachine.TestCase
