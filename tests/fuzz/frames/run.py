"""Gives damaged requests to a node, as many as wanted, and says what came of it.

Some clients have a socket; most give their bytes to the node's protocol directly, which is the same
code without the kernel. All take turns on one event loop. Every `TIDY_EVERY` requests the run comes
to rest: nothing may be under way or held then, state is put back, and memory is measured.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from streamlog.kafka.protocol.apis import ApiKey
from streamlog.server.kafka.handlers.table import Routes
from streamlog.server.process_metrics import resident_bytes
from tests.fuzz.frames.answers import Answers
from tests.fuzz.frames.client import Client, InProcess, OverSocket
from tests.fuzz.frames.corpus import Corpus, recorded
from tests.fuzz.frames.damage import Damage
from tests.fuzz.frames.findings import Findings
from tests.fuzz.frames.world import REQUEST_BYTES_MAX, Bystander, World, open_world

TIDY_EVERY = 50_000
IN_PROCESS = 63
OVER_SOCKETS = 1
BURST_MAX = 5
BURST_SHARE = 0.15
WAIT_S_MAX = 0.3
"""How long a client waits for what may take its time, before it leaves."""
ANSWER_S_MAX = 600.0
"""Everything else is answered by then, on a loaded machine, too. A client whose request gets no
answer waits so long where a fetch behind it holds the connection up."""
MAY_WAIT = {int(ApiKey.FETCH)}
SENT_IN_FRAME_MAX = 3
RESTING_S_MAX = 600.0
MIB = 1 << 20


@dataclass
class Summary:
    frames: int = 0
    seed: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    answered: int = 0
    read_by_kio: int = 0
    connections: int = 0
    over_sockets: int = 0
    """Requests that went through a socket."""
    left: int = 0
    """Clients that did not wait for their answer."""
    ended: dict[str, int] = field(default_factory=dict)
    """Connections that the node ended, by reason."""
    changes: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    """By API the error codes of answers that kio read, with how many."""
    bystander_rounds: int = 0
    rss_mib: list[int] = field(default_factory=list)
    """At rest, each time."""
    warnings: dict[str, int] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rss_growth_mib(self) -> int:
        """From the end of the first tenth, when everything has been used once, to the end."""
        return self.rss_mib[-1] - self.rss_mib[len(self.rss_mib) // 10]


class Run:
    """One run over a world of its own; `stop` ends it at its next rest."""

    def __init__(
        self,
        frames: int,
        seed: int,
        progress: Callable[[str], None] = lambda line: None,
        change: Callable[[Routes], Routes] = lambda routes: routes,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        """`change`: of the node's handlers. `answer_s_max`: a later answer is a finding."""
        self.findings = Findings()
        self._told = Summary(seed=seed)
        self._frames = frames
        self._seed = seed
        self._progress = progress
        self._change = change
        self._answer_s_max = answer_s_max
        self._answers = Answers()
        self._clients: list[Client] = []
        self._damage: Damage
        self._world: World
        self._is_stopped = False

    async def run(self) -> Summary:
        with self.findings.watching(asyncio.get_running_loop()):
            async with open_world(recorded(), self._change) as world:
                await self._all(world)
        return self._summary()

    def stop(self) -> None:
        self._is_stopped = True

    async def _all(self, world: World) -> None:
        self._world = world
        told = self._told
        ids = await world.tidy()
        corpus = Corpus.of_topics(world.recorded, ids, self._seed)
        self._damage = Damage(corpus, world.apis, self._seed)
        bystander = await Bystander.on(world)
        await bystander.make_topic()
        began, cpu_began = time.monotonic(), _cpu_seconds()
        while told.frames < self._frames and not self._is_stopped:
            undisturbed = asyncio.create_task(bystander.until_stopped())
            await self._some(min(TIDY_EVERY, self._frames - told.frames))
            await self._rest()
            bystander.is_stopped = True
            await self._check_undisturbed(undisturbed)
            self._check_nothing_held()
            ids = await world.tidy()
            self._damage.corpus = Corpus.of_topics(world.recorded, ids, self._seed)
            gc.collect()
            told.rss_mib.append(resident_bytes() // MIB)
            told.seconds, told.cpu_seconds = time.monotonic() - began, _cpu_seconds() - cpu_began
            told.bystander_rounds = bystander.rounds
            self._tell()
        await bystander.close()
        told.ended = {
            reason: count
            for reason in ("refused", "not_kafka", "bug", "idle", "bound")
            if (count := world.ended(reason))
        }

    def _tell(self) -> None:
        told = self._told
        self._progress(
            f"{told.frames:,} requests, {told.frames / told.seconds:,.0f} a second, "
            f"{told.cpu_seconds / told.frames * 1e6:.0f} µs of CPU each, "
            f"{self._answers.read:,} answers, {told.connections:,} connections, "
            f"{told.rss_mib[-1]} MiB, {len(self.findings.found)} findings"
        )

    async def _some(self, count: int) -> None:
        """Sends so many requests."""
        told, damage, loop = self._told, self._damage, asyncio.get_running_loop()
        rng = damage.rng
        end = told.frames + count
        while True:
            now, has_sent = loop.time(), False
            await self._replace_those_that_ended()
            for client in self._clients:
                if not client.is_ready:
                    if not client.is_over and now - client.sent_at > WAIT_S_MAX:
                        self._look_at_late(client, now)
                    continue
                client.check_quiet()
                if client.sent_in_frame > SENT_IN_FRAME_MAX:
                    client.leave()
                    continue
                is_alone = isinstance(client, OverSocket) or rng.random() > BURST_SHARE
                for _ in range(1 if is_alone else rng.randint(2, BURST_MAX)):
                    client.send(damage.next(), now)
                    told.frames += 1
                has_sent = True
                told.over_sockets += isinstance(client, OverSocket)
                if told.frames >= end or self._is_stopped:
                    return
            # Nothing to send: the node waits for its disk.
            await asyncio.sleep(0 if has_sent else 0.0005)

    def _look_at_late(self, client: Client, now: float) -> None:
        api = client.waits_for
        if api is None or api in MAY_WAIT or isinstance(client, OverSocket):
            self._told.left += 1
            client.leave()
        elif now - client.sent_at > self._answer_s_max:
            self.findings.add("no answer in time", str(api), client.history)
            client.leave()

    async def _replace_those_that_ended(self) -> None:
        world, loop = self._world, asyncio.get_running_loop()
        parts = (self._answers, self.findings, REQUEST_BYTES_MAX)
        if not self._clients:
            self._clients = [InProcess(world.connections.new(), *parts) for _ in range(IN_PROCESS)]
            for _ in range(OVER_SOCKETS):
                made = await loop.create_connection(
                    lambda: OverSocket(*parts), "127.0.0.1", world.port
                )
                self._clients.append(made[1])
            self._told.connections += len(self._clients)
            return
        for at, client in enumerate(self._clients):
            if client.is_over:
                self._told.answered += client.answered
                self._told.connections += 1
                if isinstance(client, InProcess):
                    self._clients[at] = InProcess(world.connections.new(), *parts)
                else:
                    made = await loop.create_connection(
                        lambda: OverSocket(*parts), "127.0.0.1", world.port
                    )
                    self._clients[at] = made[1]

    async def _rest(self) -> None:
        """Waits for what is under way, and ends all clients."""
        loop = asyncio.get_running_loop()
        for client in self._clients:
            while not (client.is_over or client.is_ready):
                if loop.time() - client.sent_at > WAIT_S_MAX:
                    self._look_at_late(client, loop.time())
                await asyncio.sleep(0.001)
            if not client.is_over:
                client.check_quiet()
                client.leave()
        async with asyncio.timeout(RESTING_S_MAX):
            while not all(client.is_over for client in self._clients):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        self._told.answered += sum(client.answered for client in self._clients)
        self._clients = []

    async def _check_undisturbed(self, bystander: asyncio.Task[None]) -> None:
        """What disturbed it is a finding; it goes on with the next requests, if it can."""
        try:
            await bystander
        except (AssertionError, EOFError, OSError) as error:
            self.findings.add("a bystander was disturbed", repr(error))

    def _check_nothing_held(self) -> None:
        held = self._world.held()
        if any(held.values()):
            self.findings.add("held at rest", str(held))

    def _summary(self) -> Summary:
        told, answers = self._told, self._answers
        told.read_by_kio = answers.read_twice
        told.changes = dict(self._damage.counts)
        by_api: dict[str, list[str]] = {}
        for (api, code), count in sorted(answers.errors.items()):
            by_api.setdefault(api, []).append(f"{code}×{count}")
        told.outcomes = {api: " ".join(codes) for api, codes in by_api.items()}
        told.warnings = dict(self.findings.warnings)
        told.findings = [asdict(finding) for finding in self.findings.found.values()]
        return told


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
