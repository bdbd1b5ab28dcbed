"""What a log does that tests conditions of appends and keeps a fencing token, beside all the rest.

`ConditionConformance` is `LogConformance` and more: inherit it for a log that does both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from streamlog.errors import (
    Closed,
    DeadlinePassed,
    Invalid,
    OffsetConflict,
    OutcomeUnknown,
    OutOfOrderSequence,
    StreamlogError,
    TokenMismatch,
)
from streamlog.log.api.abstract_log import AbstractLog, LogAppend, LogAppendInfo, ProduceContext
from streamlog.model.append_condition import AppendCondition
from streamlog.testing.logs.log_conformance import (
    LogConformance,
    LogUnderTest,
    acked,
    append,
    encoded,
    read,
    refused,
)


def only_if(offset: int | None = None, token: bytes | None = None) -> ProduceContext:
    return ProduceContext(condition=AppendCondition(offset, token))


async def append_if(
    log: AbstractLog, batches: bytes, offset: int | None = None, token: bytes | None = None
) -> LogAppendInfo:
    """Durable on return. Errors: those of both awaits."""
    return await (await log.append(batches, only_if(offset, token)))


async def sequenced_if(
    log: AbstractLog, batches: bytes, offset: int | None = None, token: bytes | None = None
) -> asyncio.Future[LogAppendInfo]:
    """The append has its place, or its refusal waits."""
    return asyncio.ensure_future(await log.append(batches, only_if(offset, token)))


async def run_of(
    log: AbstractLog, sent: Sequence[tuple[bytes, AppendCondition | None]]
) -> list[int | type[StreamlogError]]:
    """The base offset of each append of a run, or its error's type."""
    found: list[int | type[StreamlogError]] = []
    appends = [LogAppend(data, ProduceContext(condition=condition)) for data, condition in sent]
    for outcome in await log.append_many(appends):
        try:
            found.append((await acked(outcome)).base_offset)
        except StreamlogError as error:
            found.append(type(error))
    return found


async def values_of(log: AbstractLog) -> list[bytes | None]:
    return [record[3] for record in await read(log)]


class ConditionConformance(LogConformance):
    # The expected offset

    def test_an_append_is_stored_where_it_expects_to_be(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            assert (await append_if(log, encoded([b"a", b"b"]), 0)).base_offset == 0
            assert (await append_if(log, encoded([b"c"]), 2)).base_offset == 2
            for wrong in (0, 2, 4):
                error = await refused(OffsetConflict, append_if(log, encoded([b"no"]), wrong))
                assert (error.fields["expected"], error.fields["actual"]) == (wrong, 3)
            assert log.log_end_offset == 3
            assert (await append(log, encoded([b"d"]))).base_offset == 3
            assert await values_of(log) == [b"a", b"b", b"c", b"d"]

        self.run(test)

    def test_of_appends_that_expect_the_same_offset_one_is_stored(self) -> None:
        async def test(t: LogUnderTest) -> None:
            for expected in range(3):
                calls = [append_if(t.log, encoded([b"%d" % i]), expected) for i in range(20)]
                found = await asyncio.gather(*calls, return_exceptions=True)
                stored = [one for one in found if isinstance(one, LogAppendInfo)]
                assert [one.base_offset for one in stored] == [expected]
                assert sum(isinstance(one, OffsetConflict) for one in found) == 19
            assert t.log.log_end_offset == 3

        self.run(test)

    def test_a_refusal_waits_until_what_it_tells_is_durable(self) -> None:
        async def test(t: LogUnderTest) -> None:
            t.hold()
            first = await sequenced_if(t.log, encoded([b"a"]), 0)
            loser = await sequenced_if(t.log, encoded([b"b"]), 0)
            second = await sequenced_if(t.log, encoded([b"c"]), 1)
            await asyncio.sleep(0.01)
            assert not any(one.done() for one in (first, loser, second))
            t.release()
            error = await refused(OffsetConflict, loser)
            assert error.fields["actual"] == 1
            assert [(await first).base_offset, (await second).base_offset] == [0, 1]
            assert await values_of(t.log) == [b"a", b"c"]

        self.run(test)

    def test_a_refusal_by_appends_that_are_lost_is_none(self) -> None:
        async def test(t: LogUnderTest) -> None:
            t.hold()
            lost = await sequenced_if(t.log, encoded([b"lost"]))
            loser = await sequenced_if(t.log, encoded([b"again"]), 0)
            await asyncio.sleep(0)
            await t.crashed()
            t.release()
            await refused(StreamlogError, lost)
            error = await refused(StreamlogError, loser)
            assert not isinstance(error, OffsetConflict)
            assert (await append_if(t.log, encoded([b"again"]), 0)).base_offset == 0

        self.run(test)

    def test_a_run_tests_each_append_behind_those_before_it(self) -> None:
        async def test(t: LogUnderTest) -> None:
            def at(offset: int) -> AppendCondition:
                return AppendCondition(offset)

            two = encoded([b"e"]) + encoded([b"f"])
            sent = [
                (encoded([b"no"]), at(1)),
                (encoded([b"a", b"b"]), at(0)),
                (encoded([b"no"]), at(0)),
                (encoded([b"c"]), at(2)),
                (encoded([b"d"]), None),
                (encoded([b"no"]), AppendCondition(4, b"whose")),
            ]
            expected = [OffsetConflict, 0, OffsetConflict, 2, 3, TokenMismatch]
            assert await run_of(t.log, sent) == expected
            sent = [(two, at(3)), (two, at(4)), (two, at(4)), (encoded([b"g"]), at(6))]
            assert await run_of(t.log, sent) == [OffsetConflict, 4, OffsetConflict, 6]
            assert await values_of(t.log) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]

        self.run(test)

    def test_a_run_under_way_holds_its_refusals_back(self) -> None:
        async def test(t: LogUnderTest) -> None:
            t.hold()
            sent = [
                LogAppend(encoded([b"a"])),
                LogAppend(encoded([b"no"]), only_if(0)),
                LogAppend(encoded([b"b"]), only_if(1)),
            ]
            waits = [asyncio.ensure_future(acked(one)) for one in await t.log.append_many(sent)]
            await asyncio.sleep(0.01)
            assert not any(wait.done() for wait in waits)
            t.release()
            found = await asyncio.gather(*waits, return_exceptions=True)
            assert isinstance(found[1], OffsetConflict)
            assert found[1].fields["actual"] == 1
            assert await values_of(t.log) == [b"a", b"b"]

        self.run(test)

    def test_a_retry_of_what_was_stored_is_a_duplicate_and_no_conflict(self) -> None:
        async def test(t: LogUnderTest) -> None:
            first = encoded([b"a"], producer=(7, 0, 0))
            await t.log.set_fencing_token(b"old")
            assert (await append_if(t.log, first, 0, b"old")).base_offset == 0
            await append(t.log, encoded([b"b"]))
            await t.log.set_fencing_token(b"new")
            for restart in (None, t.reopened, t.crashed):
                if restart is not None:
                    await restart()
                info = await append_if(t.log, first, 0, b"old")
                assert (info.base_offset, info.is_duplicate) == (0, True)
                assert await run_of(t.log, [(first, AppendCondition(0, b"old"))]) == [0]
            late = encoded([b"c"], producer=(7, 0, 1))
            await refused(OffsetConflict, append_if(t.log, late, 1))
            await refused(TokenMismatch, append_if(t.log, late, 2, b"old"))
            gap = encoded([b"d"], producer=(7, 0, 2))
            await refused(OutOfOrderSequence, append_if(t.log, gap, 2))
            # What was refused has used up no sequence number.
            assert (await append_if(t.log, late, 2, b"new")).base_offset == 2

        self.run(test)

    def test_conditions_that_no_log_can_fulfil_are_invalid(self) -> None:
        async def test(t: LogUnderTest) -> None:
            data = encoded([b"a"])
            bad = (
                AppendCondition(-1),
                AppendCondition(1 << 63),
                AppendCondition("1"),  # type: ignore[arg-type]
                AppendCondition(None, bytes(65)),
                AppendCondition(None, "text"),  # type: ignore[arg-type]
            )
            for condition in bad:
                await refused(Invalid, t.log.append(data, ProduceContext(condition=condition)))
                assert await run_of(t.log, [(data, condition)]) == [Invalid]
                await refused(Invalid, t.log.set_fencing_token(b"", condition))
            await refused(Invalid, t.log.set_fencing_token(bytes(65)))
            await refused(Invalid, t.log.set_fencing_token("text"))  # type: ignore[arg-type]
            assert (t.log.log_end_offset, t.log.describe().fencing_token) == (0, b"")

        self.run(test)

    # The token

    def test_a_token_shuts_out_appends_with_another_one(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            assert log.describe().fencing_token == b""
            await append_if(log, encoded([b"a"]), token=b"")
            await log.set_fencing_token(b"one")
            assert log.describe().fencing_token == b"one"
            await append_if(log, encoded([b"b"]), token=b"one")
            for wrong, shown in ((b"two", "two"), (b"", ""), (b"\x00\xff", "hex:00ff")):
                error = await refused(TokenMismatch, append_if(log, encoded([b"no"]), token=wrong))
                assert (error.fields["expected"], error.fields["actual"]) == (shown, "one")
            # A token is a promise among those that have one: others are not tested.
            await append(log, encoded([b"c"]))
            both = append_if(log, encoded([b"no"]), 99, b"two")
            await refused(TokenMismatch, both)
            await refused(OffsetConflict, append_if(log, encoded([b"no"]), 99, b"one"))
            await append_if(log, encoded([b"d"]), 3, b"one")
            await log.set_fencing_token(b"")
            await refused(TokenMismatch, append_if(log, encoded([b"no"]), token=b"one"))
            await append_if(log, encoded([b"e"]), token=b"")
            assert await values_of(log) == [b"a", b"b", b"c", b"d", b"e"]

        self.run(test)

    def test_a_change_of_the_token_has_conditions_of_its_own(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await append(log, encoded([b"a"]))
            change = log.set_fencing_token(b"one", AppendCondition(0))
            assert (await refused(OffsetConflict, change)).fields["actual"] == 1
            change = log.set_fencing_token(b"one", AppendCondition(1, b"two"))
            assert (await refused(TokenMismatch, change)).fields["actual"] == ""
            assert log.describe().fencing_token == b""
            rivals = [log.set_fencing_token(b"%d" % i, AppendCondition(1, b"")) for i in range(5)]
            found = await asyncio.gather(*rivals, return_exceptions=True)
            assert found[0] is None
            assert all(isinstance(one, TokenMismatch) for one in found[1:])
            assert log.describe().fencing_token == b"0"
            await log.set_fencing_token(b"0", AppendCondition(None, b"0"))
            assert log.describe().fencing_token == b"0"

        self.run(test)

    def test_a_token_outlives_closes_crashes_and_leaders(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await t.log.set_fencing_token(b"\x00one")
            epoch = t.log.leader_epoch
            for number, restart in enumerate((t.reopened, t.crashed, t.crashed)):
                await restart()
                assert t.log.describe().fencing_token == b"\x00one"
                await refused(TokenMismatch, append_if(t.log, encoded([b"no"]), token=b""))
                await append_if(t.log, encoded([b"%d" % number]), number, b"\x00one")
            # A leader that stored no batch may leave its epoch to the next one.
            assert t.log.leader_epoch >= epoch + 2
            await t.log.set_fencing_token(b"")
            await t.crashed()
            assert t.log.describe().fencing_token == b""
            assert await values_of(t.log) == [b"0", b"1", b"2"]

        self.run(test)

    def test_a_token_outlives_rolls_and_deletions(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await t.log.set_fencing_token(b"one")
            for number in range(6):
                await append_if(t.log, encoded([b"%d" % number]), number, b"one")
                await t.log.roll()
            await t.log.delete_records(3)
            await t.log.delete_oldest_segments(5, "test")
            await t.crashed()
            assert t.log.describe().fencing_token == b"one"
            await refused(TokenMismatch, append_if(t.log, encoded([b"no"]), token=b"two"))
            await append_if(t.log, encoded([b"6"]), 6, b"one")

        self.run(test)

    def test_a_change_of_the_token_has_its_place_among_the_appends(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await log.set_fencing_token(b"old")
            t.hold()
            before = await sequenced_if(log, encoded([b"before"]), 0, b"old")
            change = asyncio.ensure_future(log.set_fencing_token(b"new", AppendCondition(1)))
            await asyncio.sleep(0)
            sent = ((b"late", b"old"), (b"behind", b"new"), (b"plain", None))
            behind = [
                asyncio.ensure_future(append_if(log, encoded([value]), token=token))
                for value, token in sent
            ]
            await asyncio.sleep(0.01)
            assert not before.done()
            assert not change.done()
            assert not any(one.done() for one in behind)
            assert log.describe().fencing_token == b"old"
            t.release()
            await change
            assert log.high_watermark >= 1
            assert (await before).base_offset == 0
            error = await refused(TokenMismatch, behind[0])
            assert error.fields["actual"] == "new"
            assert [(await one).base_offset for one in behind[1:]] == [1, 2]
            assert await values_of(log) == [b"before", b"behind", b"plain"]

        self.run(test)

    def test_a_change_that_a_crash_cuts_off_happened_or_did_not(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await t.log.set_fencing_token(b"old")
            t.hold()
            first = asyncio.ensure_future(t.log.set_fencing_token(b"new"))
            await asyncio.sleep(0.01)
            behind = asyncio.ensure_future(append_if(t.log, encoded([b"no"]), token=b"new"))
            await asyncio.sleep(0.01)
            await t.crashed()
            t.release()
            await refused(StreamlogError, first)
            await refused(StreamlogError, behind)
            token = t.log.describe().fencing_token
            assert token in (b"old", b"new")
            assert t.log.log_end_offset == 0
            await append_if(t.log, encoded([b"a"]), 0, token)
            other = b"old" if token == b"new" else b"new"
            await refused(TokenMismatch, append_if(t.log, encoded([b"no"]), token=other))

        self.run(test)

    def test_a_change_whose_caller_has_left_goes_on(self) -> None:
        async def test(t: LogUnderTest) -> None:
            t.hold()
            change = asyncio.ensure_future(t.log.set_fencing_token(b"new"))
            await asyncio.sleep(0.01)
            change.cancel()
            with pytest.raises(asyncio.CancelledError):
                await change
            behind = asyncio.ensure_future(append_if(t.log, encoded([b"a"]), token=b"new"))
            await asyncio.sleep(0.01)
            assert not behind.done()
            t.release()
            assert (await behind).base_offset == 0
            assert t.log.describe().fencing_token == b"new"

        self.run(test)

    def test_a_change_keeps_its_deadline_and_says_what_it_left(self) -> None:
        async def test(t: LogUnderTest) -> None:
            def soon() -> float:
                return t.clock.monotonic() + 0.02

            t.hold()
            under_way = await sequenced_if(t.log, encoded([b"a"]))
            late = t.log.set_fencing_token(b"never", deadline=soon())
            await refused(DeadlinePassed, late)
            t.release()
            await under_way
            assert t.log.describe().fencing_token == b""
            t.hold()
            await refused(OutcomeUnknown, t.log.set_fencing_token(b"later", deadline=soon()))
            behind = asyncio.ensure_future(append_if(t.log, encoded([b"b"]), token=b"later"))
            t.release()
            assert (await behind).base_offset == 1
            await refused(Invalid, t.log.set_fencing_token(b"x", deadline=float("nan")))

        self.run(test)

    def test_a_closed_log_changes_no_token(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await t.log.close()
            await refused(Closed, t.log.set_fencing_token(b"one"))
            await refused(Closed, t.log.append(encoded([b"a"]), only_if(0)))
            await t.reopened()
            assert t.log.describe().fencing_token == b""

        self.run(test)
