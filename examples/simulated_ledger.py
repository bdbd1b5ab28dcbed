"""A ledger on a stream, tested on a simulated engine that crashes.

    python examples/simulated_ledger.py [SEEDS]

The ledger pays out only what it holds. Each entry is appended at the offset up to which its author
had read the ledger: where two authors read the same balance, the second append is refused. The test
remembers what callers were told, and compares it with the stream in the end.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from streamlog import OpenEngine
from streamlog.errors import DeadlinePassed, OffsetConflict, OutcomeUnknown
from streamlog.model import AppendContext, OpenStreamOptions, Stream, single
from streamlog.runtime import Clock
from streamlog.testing.simulation import Life, simulate


class Ledger:
    """The balance, as read from the stream up to `end`."""

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self.balance = 0
        self.lowest = 0
        self.entries: list[str] = []
        self.end = 0

    async def read(self) -> None:
        while self.end < self._stream.confirm_offset:
            fetched = await self._stream.fetch(self.end, self._stream.confirm_offset, 1 << 16)
            for batch in fetched.batches:
                name, amount = bytes(b"".join(batch.parts)).decode().split("=")
                self.entries.append(name)
                self.balance += int(amount)
                self.lowest = min(self.lowest, self.balance)
                self.end = batch.end_offset

    async def change(self, name: str, amount: int) -> bool:
        """Whether the entry was made. After OutcomeUnknown it may have been made."""
        await self.read()
        if self.balance + amount < 0:
            return False
        context = AppendContext(
            deadline=self._clock.monotonic() + 1.0, expected_next_offset=self.end
        )
        try:
            await self._stream.append(single(f"{name}={amount}".encode()), context)
        except (OffsetConflict, DeadlinePassed):
            return False
        return True


class Scenario:
    """What the ledger's users were told; it outlives every crash."""

    def __init__(self, ledger: type[Ledger]) -> None:
        self._ledger = ledger
        self.stream_id: int | None = None
        self.made: list[str] = []
        self.open: set[str] = set()
        """Entries of unknown outcome: they may be in the ledger or not."""
        self.next_name = 0

    async def application(self, engine: OpenEngine, life: Life) -> None:
        """One life of the process: two users change the ledger until it ends."""
        stream = await self.opened(engine)
        await asyncio.gather(*(self.user(self._ledger(stream, life.clock), life) for _ in range(2)))

    async def opened(self, engine: OpenEngine) -> Stream:
        if self.stream_id is None:
            stream = await engine.streams.create_and_open_stream()
            self.stream_id = stream.stream_id
            return stream
        return await engine.streams.open_stream(self.stream_id, OpenStreamOptions())

    async def user(self, ledger: Ledger, life: Life) -> None:
        while True:
            await asyncio.sleep(0.2 * life.random.random())
            name = f"e{self.next_name}"
            self.next_name += 1
            self.open.add(name)
            try:
                was_made = await ledger.change(name, int(200 * life.random.random()) - 100)
            except OutcomeUnknown:
                continue
            self.open.discard(name)
            if was_made:
                self.made.append(name)
                life.note("made", name)

    async def check(self, engine: OpenEngine, life: Life) -> None:
        """After the last crash, without faults: every promise was kept."""
        ledger = self._ledger(await self.opened(engine), life.clock)
        await ledger.read()
        assert ledger.lowest >= 0, f"it paid out {-ledger.lowest} that it did not hold"
        assert len(set(ledger.entries)) == len(ledger.entries), "an entry was made twice"
        lost = set(self.made) - set(ledger.entries)
        assert not lost, f"acknowledged, and lost: {lost}"
        unexplained = set(ledger.entries) - set(self.made) - self.open
        assert not unexplained, f"refused, and there: {unexplained}"


def run(seed: int, ledger: type[Ledger] = Ledger) -> int:
    """Entries made in one simulation."""
    scenario = Scenario(ledger)
    wal = "disk" if seed % 2 else "object"
    simulate(scenario.application, check=scenario.check, seed=seed, wal=wal)
    return len(scenario.made)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    made = sum(run(seed) for seed in range(seeds))
    print(f"{seeds} simulations, {made} entries, every promise kept")
