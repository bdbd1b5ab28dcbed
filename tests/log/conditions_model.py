"""Conditional appends and fencing tokens of a log against a list, with crashes at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamlog.errors import OffsetConflict, StreamlogError, TokenMismatch
from streamlog.log.api.abstract_log import AbstractLog, LogAppend, LogAppendInfo, ProduceContext
from streamlog.model.append_condition import AppendCondition
from streamlog.testing.logs.condition_conformance import values_of
from streamlog.testing.logs.log_conformance import acked, encoded

TOKENS = st.sampled_from([None, b"", b"one", b"two", b"three"])
OFFSETS = st.sampled_from([None, 0, 0, 0, -1, 1, 5])
"""Distance from the log's end."""


class ConditionsUnderTest(Protocol):
    """A log, what becomes of its process, and a medium that can be held back."""

    @property
    def log(self) -> AbstractLog: ...
    @property
    def failures(self) -> Sequence[StreamlogError]: ...
    async def start(self) -> None: ...
    async def reopened(self) -> None: ...
    async def crashed(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    async def stop(self) -> None: ...


class Sent(NamedTuple):
    """An append whose producer sends nothing else, so that it may be sent again at any time."""

    data: bytes
    values: list[bytes]
    base: int


class Refused(NamedTuple):
    kind: type[StreamlogError]
    actual: int | str


Expected = LogAppendInfo | Refused | None


class ConditionsMachine(RuleBasedStateMachine):
    """`log` and `token` are what the log will have when nothing is lost; `kept` what is durable.

    Calls are queued behind a change of the token, and get their places in the order of calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.log: list[bytes] = []
        self.token = b""
        self.kept: tuple[int, bytes] = (0, b"")
        self.sent: list[Sent] = []
        self.under_way: list[tuple[asyncio.Task[object], Expected]] = []
        self.is_held = False
        self.is_changing = False
        """A change of the token is held back, and calls wait behind it."""
        self.count = 0
        self.t = self.under_test()
        self.do(self.t.start())

    def under_test(self) -> ConditionsUnderTest:
        """A log whose segments have some 700 bytes."""
        raise NotImplementedError

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def begin(self, work: Any, expected: Expected) -> None:
        """The call gets as far as it can; when nothing is held back, to its end."""

        async def call() -> asyncio.Task[object]:
            task: asyncio.Task[object] = asyncio.ensure_future(work)
            for _ in range(5):
                await asyncio.sleep(0)
            return task

        task: asyncio.Task[object] = self.do(call())
        self.under_way.append((task, expected))
        if not self.is_held:
            self.check_answers()

    def check_answers(self) -> None:
        for task, expected in self.under_way:
            try:
                found = self.do(task)
            except (OffsetConflict, TokenMismatch) as error:
                found = Refused(type(error), error.fields["actual"])
            if isinstance(found, LogAppendInfo):
                found = found._replace(log_start_offset=0)
            assert found == expected
        self.under_way.clear()
        self.kept = (len(self.log), self.token)

    def refusal(self, condition: AppendCondition) -> Refused | None:
        offset, token = condition
        if token is not None and token != self.token:
            return Refused(TokenMismatch, self.token.decode())
        if offset is not None and offset != len(self.log):
            return Refused(OffsetConflict, len(self.log))
        return None

    def condition(self, distance: int | None, token: bytes | None) -> AppendCondition:
        offset = None if distance is None else max(0, len(self.log) + distance)
        return AppendCondition(offset, token)

    def expect_append(self, count: int, condition: AppendCondition) -> tuple[bytes, Expected]:
        """The batch, and what becomes of it."""
        values = [b"%d" % (self.count + i) for i in range(count)]
        data = encoded(values, producer=(self.count, 0, 0))
        self.count += count
        refusal = self.refusal(condition)
        if refusal is not None:
            return data, refusal
        base = len(self.log)
        self.log += values
        self.sent.append(Sent(data, values, base))
        return data, LogAppendInfo(base, base + count - 1, -1, 0)

    @rule(count=st.integers(1, 3), distance=OFFSETS, token=TOKENS)
    def append(self, count, distance, token):
        condition = self.condition(distance, token)
        data, expected = self.expect_append(count, condition)
        self.begin(self.call([LogAppend(data, ProduceContext(condition=condition))], 0), expected)

    async def call(self, appends, index):
        return await acked((await self.t.log.append_many(appends))[index])

    # Where each of its appends waits for its turn, other calls may come in between.
    @precondition(lambda self: not self.is_changing)
    @rule(run=st.lists(st.tuples(st.integers(1, 2), OFFSETS, TOKENS), min_size=2, max_size=5))
    def append_run(self, run):
        """All of it in one call, whose outcomes come one by one."""
        appends, expected = [], []
        for count, distance, token in run:
            condition = self.condition(distance, token)
            data, outcome = self.expect_append(count, condition)
            appends.append(LogAppend(data, ProduceContext(condition=condition)))
            expected.append(outcome)
        outcomes = self.loop.create_task(self.t.log.append_many(appends))

        async def one(index):
            return await acked((await asyncio.shield(outcomes))[index])

        async def begin():
            tasks = [asyncio.ensure_future(one(index)) for index in range(len(appends))]
            for _ in range(5):
                await asyncio.sleep(0)
            return tasks

        self.under_way += zip(self.do(begin()), expected, strict=True)
        if not self.is_held:
            self.check_answers()

    @precondition(lambda self: self.sent)
    @rule(which=st.integers(0, 50), distance=OFFSETS, token=TOKENS, is_run=st.booleans())
    def retry(self, which, distance, token, is_run):
        """What is there already is a duplicate, whatever the condition says by now."""
        data, values, base = self.sent[which % len(self.sent)]
        context = ProduceContext(condition=self.condition(distance, token))
        appends = [LogAppend(data, context)] * (2 if is_run else 1)
        info = LogAppendInfo(base, base + len(values) - 1, -1, 0, is_duplicate=True)
        self.begin(self.call(appends, -1), info)

    @rule(token=st.sampled_from([b"", b"one", b"two", b"three"]), distance=OFFSETS, had=TOKENS)
    def set_token(self, token, distance, had):
        condition = self.condition(distance, had)
        expected = self.refusal(condition)
        if expected is None:
            self.token = token
        self.is_changing = self.is_held
        self.begin(self.t.log.set_fencing_token(token, condition), expected)

    @precondition(lambda self: not self.is_held)
    @rule()
    def hold(self):
        self.t.hold()
        self.is_held = True

    @precondition(lambda self: self.is_held)
    @rule()
    def release(self):
        self.t.release()
        self.is_held = self.is_changing = False
        self.check_answers()

    @rule()
    def crash(self):
        """What the medium holds back is lost, and so is what waits behind it."""
        self.do(self.t.crashed())
        for task, expected in self.under_way:
            try:
                found = self.do(task)
            except (OffsetConflict, TokenMismatch) as error:
                found = Refused(type(error), error.fields["actual"])
            except StreamlogError:
                continue
            # Nothing was under way before it: what the answer told is still so.
            assert found == expected
            if isinstance(found, Refused):
                assert found.actual in (self.kept[0], self.kept[1].decode())
            else:
                assert isinstance(found, LogAppendInfo)
                assert found.is_duplicate
                assert found.last_offset < self.kept[0]
        self.under_way.clear()
        self.is_held = self.is_changing = False
        self.t.release()
        end, self.token = self.kept
        del self.log[end:]
        self.sent = [one for one in self.sent if one.base < end]

    @precondition(lambda self: not self.is_held)
    @rule()
    def reopen(self):
        self.do(self.t.reopened())

    @precondition(lambda self: not self.is_held)
    @rule()
    def roll(self):
        self.do(self.t.log.roll())

    @invariant()
    def the_log_has_what_is_durable(self):
        assert not self.t.failures
        end, token = self.kept
        assert self.t.log.high_watermark == end
        assert self.t.log.describe().fencing_token == token
        assert self.do(values_of(self.t.log)) == self.log[:end]

    def teardown(self):
        self.t.release()
        self.is_held = False
        self.check_answers()
        self.the_log_has_what_is_durable()
        self.do(self.t.stop())
        self.loop.close()


MODEL = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
