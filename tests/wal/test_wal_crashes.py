"""Random appends, releases, disk faults, crashes: what was acknowledged is recovered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamlog.errors import Unavailable
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import DiskFault
from streamlog.wal.log import WriteAheadLog
from tests.wal.wal_helpers import TIGHT, begin, group, kill_others, payload_of, turns


@dataclass
class Model:
    """What must be, and what may be, in the log."""

    stored: dict[int, bytes] = field(default_factory=dict)
    """Acknowledged or yielded, by sequence."""
    released: int = 0
    doubtful: list[list[bytes]] = field(default_factory=list)
    """What was tried after the last stored group, and failed: the first of a try, and those that
    were being written behind it."""
    count: int = 0

    @property
    def last(self) -> int:
        return max(self.stored, default=0)

    def check(self, groups: list[tuple[int, bytes]]) -> None:
        sequences = [sequence for sequence, _ in groups]
        if sequences:
            assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
            assert sequences[0] <= self.released + 1
            assert sequences[-1] >= self.last
        else:
            assert self.released == self.last
        for sequence, payload in groups:
            assert payload == self.stored.get(sequence, payload)
        beyond = [payload for sequence, payload in groups if sequence > self.last]
        assert not beyond or any(tried[: len(beyond)] == beyond for tried in self.doubtful)
        self.stored.update(groups)
        self.doubtful.clear()


def fault_plan(random: SeededRandom, rate: float) -> Callable[[str, str], DiskFault | None]:
    def plan(operation: str, name: str) -> DiskFault | None:
        if random.random() >= rate:
            return None
        return (DiskFault.POWER, DiskFault.IO_ERROR, DiskFault.FULL)[int(random.random() * 3)]

    return plan


async def append(wal: WriteAheadLog, model: Model, size: int, *, count: int) -> None:
    """`count` overlapping appends: those before the first failure are stored, none behind it."""
    payloads = [b"%06d" % (model.count + n) * (size // 6 + 1) for n in range(count)]
    model.count += count
    tasks = [asyncio.ensure_future(wal.append(group(payload))) for payload in payloads]
    for _ in range(50):
        await turns(20)
        if all(task.done() for task in tasks):
            break
        model.released = wal.last_sequence  # full: the groups before are uploaded
        wal.release(model.released)
    failed: list[bytes] = []
    outcomes: list[bool] = []
    for task, payload in zip(tasks, payloads, strict=True):
        try:
            sequence = await task
        except Unavailable as error:
            outcomes.append(error.has_no_side_effects)
            if not error.has_no_side_effects:
                failed.append(payload)
        else:
            assert not failed
            assert sequence == model.last + 1
            model.stored[sequence] = payload
            model.doubtful.clear()
    # Those that were never begun are behind those that were.
    assert outcomes == sorted(outcomes)
    if failed:
        model.doubtful.append(failed)


STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([0, 100, 3000, 6000, 12_000, 20_000])),
    st.tuples(st.just("append"), st.integers(0, 9000)),
    st.tuples(st.just("burst"), st.integers(0, 9000)),
    st.tuples(st.just("release"), st.integers(0, 10)),
    st.tuples(st.just("give_room"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["crash", "restart", "close"]), st.just(0)),
)


async def run(steps: list[tuple[str, int]], seed: int, rate: float) -> None:
    random = SeededRandom(seed)
    disk = TornDisk(random)
    model = Model()
    epoch = 1
    wal = await begin(disk, epoch, TIGHT)
    disk.plan_faults = fault_plan(random, rate)
    for kind, argument in [*steps, ("crash", 0), ("crash", 0)]:
        if kind in ("append", "burst"):
            await append(wal, model, argument, count=1 if kind == "append" else 4)
        elif kind == "release":
            model.released = max(model.released, wal.last_sequence - argument)
            wal.release(model.released)
        elif kind == "give_room":
            wal.give_room(argument == 1)
            await turns()
        if kind in ("crash", "restart", "close") or not disk.has_power:
            disk.plan_faults = None
            if kind == "close" and disk.has_power:
                await wal.close()
            await kill_others()
            if kind == "restart" and disk.has_power:
                disk.restart()
            else:
                disk.crash()
            epoch += 1
            wal = await begin(disk, epoch, TIGHT)
            groups = [(g.sequence, payload_of(g.entries)) async for g in wal.recover()]
            model.check(groups)
            disk.plan_faults = fault_plan(random, rate)
    disk.plan_faults = None
    await wal.close()


@settings(max_examples=250, deadline=None)
@given(
    st.lists(STEPS, min_size=1, max_size=25),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.05, 0.3]),
)
@example([("append", 0), ("append", 1956), ("append", 0), ("restart", 0)], 5752, 0.3)
def test_acknowledged_groups_survive(steps: list[tuple[str, int]], seed: int, rate: float) -> None:
    asyncio.run(run(steps, seed, rate))
