"""SharedLog with transactions against a fold over its batches, with crashes at any time.

The data, meta or txn stream alone may be held back when the process ends, so that what follows the
data comes to every state that a crash can leave.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamlog.errors import CoordinatorFenced, InvalidTxnState, ProducerFenced, StreamlogError
from streamlog.log.api.abstract_log import LATEST, Isolation, TransactionMarker
from streamlog.log.api.config import LogConfig
from streamlog.testing.logs.log_conformance import encoded
from streamlog.testing.logs.transaction_conformance import committed_values, transactional
from streamlog.testing.memory_streams import MemoryMedium
from tests.log.harness import SharedLogUnderTest
from tests.log.transaction_model import Appended, Fold, visible

COMMITTED = Isolation.READ_COMMITTED
EXPIRATION_MS = 100_000
CONFIGS = {"internal.segment.bytes": "900", "index.interval.bytes": "200"}
CONFIG = LogConfig(
    checkpoint_interval_batches=7,
    meta_compaction_bytes=1500,
    producer_id_expiration_ms=EXPIRATION_MS,
)
PRODUCERS = st.integers(0, 4)


class TransactionMachine(RuleBasedStateMachine):
    """`durable` is every acknowledged batch; `under_way` those that may yet be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.durable: list[Appended] = []
        self.under_way: list[tuple[asyncio.Future[Any], Appended]] = []
        self.start = 0
        self.stable = 0
        self.epochs = [0] * 5
        self.coordinator_epoch = 0
        self.is_held = False
        self.count = 0
        medium = MemoryMedium()

        async def client_of(clock: Any) -> Any:
            return medium.client(clock)

        self.t = SharedLogUnderTest(client_of, CONFIGS, CONFIG)
        self.do(self.t.start())

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @property
    def log(self) -> Any:
        return self.t.log

    @property
    def now_ms(self) -> int:
        return self.t.clock.now_ms()

    def fold(self, *, with_under_way: bool) -> Fold:
        later = [batch for _, batch in self.under_way] if with_under_way else []
        return Fold.of([*self.durable, *later], EXPIRATION_MS)

    def values(self, count: int) -> list[bytes]:
        self.count += count
        return [b"%d" % number for number in range(self.count - count, self.count)]

    def sequenced(self, call: Any, batch: Appended) -> None:
        async def begun() -> asyncio.Future[Any]:
            answer: asyncio.Future[Any] = asyncio.ensure_future(await call)
            return answer

        self.under_way.append((self.do(begun()), batch))
        assert self.log.log_end_offset == batch.end
        if not self.is_held:
            self.await_acks()

    def await_acks(self) -> None:
        for wait, batch in self.under_way:
            info = self.do(wait)
            assert (info.base_offset, info.last_offset) == (batch.base, batch.end - 1)
            self.durable.append(batch)
        self.under_way.clear()

    def next_sequence(self, who: int) -> int:
        known = self.fold(with_under_way=True).known(who, self.now_ms)
        if known is None or known.epoch != self.epochs[who]:
            return 0
        return known.last_sequence + 1

    def is_open(self, who: int) -> bool:
        known = self.fold(with_under_way=True).producers.get(who)
        return known is not None and known.first >= 0

    # Appends

    @rule(count=st.integers(1, 3))
    def append_plain(self, count: int) -> None:
        values = self.values(count)
        batch = Appended(self.log.log_end_offset, tuple(values), self.now_ms)
        self.sequenced(self.log.append(encoded(values, at_ms=self.now_ms)), batch)

    @rule(who=PRODUCERS, count=st.integers(1, 3))
    def append_idempotent(self, who: int, count: int) -> None:
        epoch, sequence = self.epochs[who], self.next_sequence(who)
        values = self.values(count)
        data = encoded(values, at_ms=self.now_ms, producer=(who, epoch, sequence))
        if self.is_open(who):
            with pytest.raises(InvalidTxnState):
                self.do(self.log.append(data))
            return
        base = self.log.log_end_offset
        batch = Appended(base, tuple(values), self.now_ms, who, epoch, sequence)
        self.sequenced(self.log.append(data), batch)

    @rule(who=PRODUCERS, count=st.integers(1, 3), batches=st.integers(1, 4))
    def append_transactional(self, who: int, count: int, batches: int) -> None:
        for _ in range(batches):
            epoch, sequence = self.epochs[who], self.next_sequence(who)
            values = self.values(count)
            data = transactional(values, who, epoch, sequence, at_ms=self.now_ms)
            assert self.log.needs_verification(who, epoch) != self.is_open(who)
            if not self.is_open(who):
                with pytest.raises(InvalidTxnState):
                    self.do(self.log.append(data))
                self.log.verified(who, epoch)
            base = self.log.log_end_offset
            batch = Appended(base, tuple(values), self.now_ms, who, epoch, sequence, True)
            self.sequenced(self.log.append(data), batch)

    @rule(who=PRODUCERS, is_commit=st.booleans(), bump=st.integers(0, 1), late=st.booleans())
    def end(self, who: int, is_commit: bool, bump: int, late: bool) -> None:
        self.epochs[who] += bump
        epoch, coordinator_epoch = self.epochs[who], self.coordinator_epoch
        base = self.log.log_end_offset
        batch = Appended(
            base, None, self.now_ms, who, epoch, -1, True, is_commit, coordinator_epoch
        )
        marker = TransactionMarker(who, epoch, coordinator_epoch, is_commit)
        self.sequenced(self.log.append_marker(marker), batch)
        if late:
            self.refuse_older(marker)

    def refuse_older(self, marker: TransactionMarker) -> None:
        older = marker._replace(coordinator_epoch=marker.coordinator_epoch - 1)
        with pytest.raises(CoordinatorFenced):
            self.do(self.log.append_marker(older))
        older = marker._replace(producer_epoch=marker.producer_epoch - 1)
        with pytest.raises(ProducerFenced):
            self.do(self.log.append_marker(older))

    @rule()
    def new_coordinator(self) -> None:
        self.coordinator_epoch += 1

    # What happens to the process

    @precondition(lambda self: not self.is_held)
    @rule()
    def hold(self) -> None:
        self.t.hold()
        self.is_held = True

    @precondition(lambda self: self.is_held)
    @rule()
    def release(self) -> None:
        self.t.release()
        self.is_held = False
        self.await_acks()

    @precondition(lambda self: not self.is_held)
    @rule(role=st.sampled_from(["meta", "txn", "time"]))
    def hold_what_follows_the_data(self, role: str) -> None:
        """Until a crash, or the next rule that writes there."""
        self.t.client.hold(getattr(self.log.stream_ids, role))

    @rule()
    def crash(self) -> None:
        self.do(self.t.crashed())
        for wait, _ in self.under_way:
            try:
                self.do(wait)
            except StreamlogError:
                continue
            raise AssertionError("acknowledged, and lost")
        self.under_way.clear()
        self.is_held = False
        self.t.release()
        for who, epoch in enumerate(self.epochs):
            known = self.fold(with_under_way=True).known(who, self.now_ms)
            if known is not None:
                # The marker of a newer epoch was lost: its coordinator tries again.
                assert known.epoch <= epoch
                self.epochs[who] = known.epoch

    @precondition(lambda self: not self.is_held)
    @rule()
    def reopen(self) -> None:
        self.t.release()
        self.do(self.t.reopened())

    @precondition(lambda self: not self.is_held)
    @rule()
    def roll(self) -> None:
        self.t.release()
        self.do(self.log.roll())

    @precondition(lambda self: not self.is_held)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self.t.release()
        before = int(share * self.log.high_watermark)
        self.start = max(self.start, before)
        assert self.do(self.log.delete_records(before)) == self.start

    @precondition(lambda self: not self.is_held)
    @rule(share=st.floats(0, 0.7))
    def delete_segments(self, share: float) -> None:
        self.t.release()
        self.do(self.log.delete_oldest_segments(int(share * self.log.high_watermark), "test"))
        assert self.log.log_start_offset >= self.start
        self.start = self.log.log_start_offset

    @rule(elapsed_ms=st.integers(0, 60_000))
    def wait(self, elapsed_ms: int) -> None:
        self.t.clock.advance(elapsed_ms)

    # What readers see

    @invariant()
    def offsets_agree(self) -> None:
        fold = self.fold(with_under_way=False)
        assert self.log.high_watermark == fold.end
        stable = max(min(fold.end, fold.first_open), self.start)
        assert self.log.last_stable_offset == stable
        assert stable >= self.stable, "it went back"
        self.stable = stable
        assert self.log.log_start_offset == self.start
        latest = self.do(self.log.offset_for_timestamp(LATEST, COMMITTED))
        assert latest.offset == stable
        assert not self.t.failures

    @invariant()
    def producers_agree(self) -> None:
        fold = self.fold(with_under_way=True)
        assert set(self.log.producers()) == fold.described(self.now_ms)

    @invariant()
    def what_is_committed_is_seen(self) -> None:
        fold = self.fold(with_under_way=False)
        expected = visible(self.durable, fold, self.start, self.stable)
        for max_bytes in (1, 300, 1 << 20):
            assert self.do(committed_values(self.log, max_bytes=max_bytes)) == expected

    @rule(share=st.floats(0, 1), max_bytes=st.sampled_from([1, 200, 1 << 20]))
    def fetch_anywhere(self, share: float, max_bytes: int) -> None:
        offset = self.start + int(share * (self.stable - self.start))
        fetched = self.do(self.log.fetch(offset, max_bytes, isolation=COMMITTED))
        told = [(one.producer_id, one.first_offset) for one in fetched.aborted]
        fold = self.fold(with_under_way=False)
        assert told == (fold.told(offset, fetched.next_offset) if fetched.batches else [])
        assert self.do(self.log.fetch(offset, max_bytes)).aborted == ()

    def teardown(self) -> None:
        self.t.release()
        self.await_acks()
        self.do(self.t.crashed())
        self.offsets_agree()
        self.producers_agree()
        self.what_is_committed_is_seen()
        self.do(self.t.stop())
        self.loop.close()


TransactionMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestTransactionModel = TransactionMachine.TestCase
