"""Streams under writers, readers, trims and token changes, each call checked against the model.

A stream has one session at a time that means to own it: it opens the stream at a serving node. When
that node is lost, the next session begins elsewhere; a session that was left at a paused or
replaced node goes on working.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from streamlog.errors import (
    Closed,
    Conflict,
    DeadlinePassed,
    Fenced,
    Invalid,
    MetadataUnavailable,
    OffsetConflict,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    StreamlogError,
    StreamNotFound,
    TokenMismatch,
    Unavailable,
    WalPending,
)
from streamlog.model.batch import AppendContext, FetchContext, OpenStreamOptions, RecordBatch
from streamlog.model.run import AppendsRuns
from streamlog.model.stream import Stream
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.checker import Sent, StreamModel, TokenModel, Violation
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

BATCH_BYTES_MAX = 4096
WRITERS = 2
PENDING_MAX = 8
RUN_RATE = 0.2
"""How many of all appends are runs, of up to RUN_BATCHES_MAX batches."""
RUN_BATCHES_MAX = 6
UNFIT = (
    RecordBatch(1 << 32, 0, (b"x",)),
    RecordBatch(1, 1 << 63, (b"x",)),
    RecordBatch(1, 0, (b"x",), payload_crc32c=1 << 32),
)
"""Batches of which each has one number that is too wide for its field."""
POLL_S = 0.25
WRONG_TOKEN = b"another owner's"
LOST = (Fenced, Closed)
"""Errors after which a stream must be opened again."""
PASSING = (Unavailable, OutcomeUnknown, Fenced, Conflict, WalPending, DeadlinePassed)
"""Errors that a client must expect, and after which it retries."""

Session = Callable[[SimulationNode], Coroutine[Any, Any, None]]


async def run_sessions(world: World, random: SeededRandom, session: Session, name: str) -> None:
    """Runs one session after another at serving nodes; a session of a lost node is left behind."""
    home: SimulationNode | None = None
    while True:
        serving = world.serving()
        if not serving:
            await asyncio.sleep(POLL_S)
            continue
        if home not in serving or random.random() < 0.3:
            home = serving[int(random.random() * len(serving))]
        node = home
        task = node.incarnation.start(session(node), name=name)
        task.add_done_callback(partial(note_failure, world, node))
        world.sessions.append(task)
        while not task.done() and node.is_serving:
            await asyncio.wait([task], timeout=POLL_S)
        await asyncio.sleep(0.3 * random.random())


def check_attached(node: SimulationNode) -> None:
    """Errors: Closed, if a recovery has replaced the metadata that the node runs on."""
    if node.is_detached:
        raise Closed(f"{node} runs on metadata that a recovery replaced")


def note_failure(world: World, node: SimulationNode, task: asyncio.Task[None]) -> None:
    """An error of a session ends the history, unless its node was lost."""
    if task.cancelled():
        return
    error = task.exception()
    if node.is_detached and isinstance(error, StreamlogError):
        return  # the nodes on the newer metadata may have deleted its objects
    if error is not None and node.incarnation.is_alive:
        world.fail(error)


async def together(works: list[Coroutine[Any, Any, None]]) -> None:
    """Runs all until one ends, then cancels the others. Raises the error of the one that ended."""
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    # A set has an order of its own, and a seed the same error each time.
    for task in tasks:
        if task in done:
            task.result()


@dataclass
class _Writer:
    number: int
    next_batch: int = 0


class StreamWorkload:
    """All clients of one stream."""

    def __init__(self, world: World, stream_id: int, number: int) -> None:
        self.world = world
        self.stream_id = stream_id
        self.model = StreamModel(f"s{stream_id}")
        self.token = TokenModel(f"s{stream_id}")
        self._random = world.fork()
        self._tally = world.tally
        self._writers = [_Writer(10 * number + i) for i in range(WRITERS)]
        self._position = 0
        """Position of the reader that continues at each node that opens the stream."""

    def sessions(self) -> Coroutine[Any, Any, None]:
        return run_sessions(self.world, self._random, self._session, f"s{self.stream_id}")

    async def _session(self, node: SimulationNode) -> None:
        stream = await self._open(node)
        if stream is None:
            await asyncio.sleep(0.3 + 0.5 * self._random.random())
            return
        works = [self._write(node, stream, writer) for writer in self._writers]
        works += [
            self._read_some(node, stream),
            self._read_on(node, stream),
            self._trim_some(node, stream),
            self._change_token(node, stream),
            self._append_refused(node, stream),
            self._leave(node, stream),
        ]
        await together(works)

    async def _open(self, node: SimulationNode) -> Stream | None:
        model, trace = self.model, self.world.trace
        start_before, end_before = model.start_seen, model.end
        options = OpenStreamOptions()
        row = node.engine.metadata.stream(self.stream_id)
        if row is not None and self._random.random() < 0.3:
            # Some opens name an epoch that was used already: they are fenced.
            options = OpenStreamOptions(
                epoch=max(0, row.epoch + int(self._random.random() * 5) - 1)
            )
        self._tally.count("open")
        try:
            if row is not None and row.holder != node.tenure and self._random.random() < 0.2:
                # Takes the stream from its holder, which may be alive.
                await node.metadata.take_streams([(self.stream_id, None)])
                self._tally.count("take")
                options = OpenStreamOptions()
            with self.world.waiting(node, f"open of {model.name}"):
                stream = await node.engine.streams.open_stream(self.stream_id, options)
        except PASSING as error:
            trace.add("open-stream-failed", node.name, model.name, type(error).__name__)
            return None
        except StreamNotFound:
            if node.is_detached:
                return None
            raise Violation(f"{model.name}: {node} does not know it") from None
        if node.is_detached:
            return None
        trace.add("opened", node.name, str(stream))
        start, end, epoch = stream.start_offset, stream.confirm_offset, stream.stream_epoch
        model.opened(node.name, epoch, start, end, start_before, end_before)
        return stream

    async def _leave(self, node: SimulationNode, stream: Stream) -> None:
        """Ends the session after a while: by closing the stream, or by leaving it open."""
        await asyncio.sleep(1 + 6 * self._random.random())
        await self.world.until_ending()
        if self._random.random() < 0.5:
            return
        self._tally.count("close")
        try:
            with self.world.waiting(node, f"close of {self.model.name}"):
                await stream.close()
        except PASSING as error:
            self.world.trace.add("close-failed", node.name, self.model.name, type(error).__name__)
        else:
            self.world.trace.add("closed-stream", node.name, self.model.name)

    async def _write(self, node: SimulationNode, stream: Stream, writer: _Writer) -> None:
        """Appends until the stream is lost, up to PENDING_MAX at a time."""
        pending: list[asyncio.Task[bool]] = []
        try:
            while True:
                await asyncio.sleep(0.3 * self._random.random())
                if len(pending) >= PENDING_MAX:
                    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                ended = [task for task in pending if task.done()]
                pending = [task for task in pending if not task.done()]
                if any(task.result() for task in ended):
                    return
                append = self._append_run if self._random.random() < RUN_RATE else self._append
                pending.append(asyncio.get_running_loop().create_task(append(node, stream, writer)))
        finally:
            for task in pending:
                task.cancel()

    async def _append_run(self, node: SimulationNode, stream: Stream, writer: _Writer) -> bool:
        """Appends batches in one call, if there is room; returns whether the stream is lost."""
        assert isinstance(stream, AppendsRuns)
        random, model, trace = self._random.random, self.model, self.world.trace
        batches = [
            Sent(writer.number, writer.next_batch + number, 1 + int(random() * 5))
            for number in range(1 + int(random() * RUN_BATCHES_MAX))
        ]
        payloads = [batch.payload(int(random() * BATCH_BYTES_MAX)) for batch in batches]
        reservation = stream.try_reserve_run([len(payload) for payload in payloads])
        if reservation is None:
            return False
        writer.next_batch += len(batches)
        for batch in batches:
            model.send(batch)
        self._tally.count("append run")
        base = stream.next_offset
        trace.add("append-run", node.name, model.name, batches[0].writer, len(batches), base)
        try:
            ack = stream.append_run(
                [
                    RecordBatch(batch.record_count, 0, (payload,))
                    for batch, payload in zip(batches, payloads, strict=True)
                ],
                reservation,
                [""] * len(batches),
            )
            for number, batch in enumerate(batches, 1):
                with self.world.waiting(node, f"append {batch.number} of a run to {model.name}"):
                    await ack.reached(number)
                if node.is_detached:
                    return True
                trace.add("ack", node.name, model.name, batch.writer, batch.number, base)
                model.acknowledge(batch, base)
                base += batch.record_count
        except PASSING as error:
            trace.add("append-failed", node.name, model.name, type(error).__name__)
            return node.is_detached or isinstance(error, LOST)
        finally:
            reservation.release()
        return False

    async def _append(self, node: SimulationNode, stream: Stream, writer: _Writer) -> bool:
        """Appends one batch; returns whether the stream is lost."""
        random, model, trace = self._random.random, self.model, self.world.trace
        batch = Sent(writer.number, writer.next_batch, 1 + int(random() * 5))
        writer.next_batch += 1
        draw, expected, token = random(), None, None
        if draw < 0.15:
            wrong = stream.confirm_offset if random() < 0.5 else stream.next_offset + 1
            expected = stream.next_offset if random() < 0.5 else wrong
        elif draw < 0.16:
            token = WRONG_TOKEN
        elif draw < 0.25:
            # A token that the stream has, or had: then this writer was shut out since.
            tokens = sorted(self.token.ever if random() < 0.3 else self.token.possible)
            token = tokens[int(random() * len(tokens))]
        # While the store is away many waits for budget expire: they must release what they hold.
        short = 0.4 if self.world.now < self.world.faults.store_away_until else 0.05
        deadline = self.world.now + (0.05 if random() < short else 5 + 30 * random())
        model.send(batch)
        trace.add("append", node.name, model.name, batch.writer, batch.number)
        self._tally.count("append" if expected is None and token is None else "conditional append")
        try:
            with (
                self.world.waiting(node, f"append {batch.number} to {model.name}"),
                self.token.call() as tokens_seen,
            ):
                result = await stream.append(
                    RecordBatch(
                        batch.record_count, 0, (batch.payload(int(random() * BATCH_BYTES_MAX)),)
                    ),
                    AppendContext(
                        deadline=deadline, expected_next_offset=expected, fencing_token=token
                    ),
                )
        except StreamlogError as error:
            trace.add("append-failed", node.name, model.name, batch.number, type(error).__name__)
            if node.is_detached:
                return True
            if isinstance(error, OffsetConflict):
                # The error tells where the stream ends: all records before that must stay.
                model.saw_end(int(error.fields["actual"]))
            if isinstance(error, TokenMismatch) and token is not None and self._is_newest(stream):
                self.token.refused(token, tokens_seen)
            if error.has_no_side_effects and isinstance(
                error, OffsetConflict | TokenMismatch | Overloaded | DeadlinePassed
            ):
                model.refuse(batch)
            elif not isinstance(error, PASSING):
                raise
            return isinstance(error, LOST)
        if node.is_detached:
            return True
        if result.end_offset - result.base_offset != batch.record_count:
            raise Violation(f"{model.name}: {batch} was acknowledged as {result}")
        if expected is not None and result.base_offset != expected:
            raise Violation(f"{model.name}: {batch} expected {expected}, went to {result}")
        if token is not None:
            self.token.passed(token, tokens_seen)
            self.token.appended(token, result.base_offset)
        trace.add("ack", node.name, model.name, batch.writer, batch.number, result.base_offset)
        model.acknowledge(batch, result.base_offset)
        return False

    async def _read_some(self, node: SimulationNode, stream: Stream) -> None:
        """Fetches random ranges until the stream is lost."""
        random = self._random.random
        while True:
            await asyncio.sleep(0.5 * random())
            low, high = stream.start_offset, stream.confirm_offset
            if node.is_detached:
                return
            self.model.saw(low, high)
            start = low + int(random() * (high - low + 1))
            if await self._fetch(node, stream, start, high) is None:
                return

    async def _read_on(self, node: SimulationNode, stream: Stream) -> None:
        """Reads every record once, in order, over all takeovers."""
        while True:
            await asyncio.sleep(0.4 * self._random.random())
            start = self._position = max(self._position, stream.start_offset)
            high = stream.confirm_offset
            if start >= high:
                continue
            end = await self._fetch(node, stream, start, high)
            if end is None:
                return
            self._position = max(self._position, end)

    async def _fetch(
        self, node: SimulationNode, stream: Stream, start: int, high: int
    ) -> int | None:
        """Returns where the read ended; None when the stream is lost."""
        model, random = self.model, self._random.random
        # A holder that was replaced and does not know it yet shows what it had.
        start_before = stream.start_offset
        self._tally.count("fetch")
        try:
            context = FetchContext(is_catch_up=random() < 0.2)
            with self.world.waiting(node, f"fetch of {model.name} at {start}"):
                result = await stream.fetch(start, high, 1 + int(random() * 20_000), context)
        except OffsetOutOfRange:
            if start >= max(stream.start_offset, model.trim_sent):
                raise
            return start
        except PASSING as error:
            self.world.trace.add("fetch-failed", node.name, model.name, type(error).__name__)
            return None if isinstance(error, LOST) else start
        if node.is_detached:
            return None
        if start < high and not result.batches:
            raise Violation(f"{model.name}: nothing read at {start} below {high}")
        end = model.read(result.batches, start, start_before)
        self.world.trace.add("fetch", node.name, model.name, start, end)
        return end

    async def _trim_some(self, node: SimulationNode, stream: Stream) -> None:
        """Trims a little at times until the stream is lost."""
        model, random = self.model, self._random.random
        while True:
            await asyncio.sleep(0.4 + 2.5 * random())
            span = stream.confirm_offset - stream.start_offset
            start = stream.start_offset + int(random() * span * (1 if random() < 0.2 else 0.5))
            model.trim_sent = max(model.trim_sent, start)
            self._tally.count("trim")
            try:
                with self.world.waiting(node, f"trim of {model.name} to {start}"):
                    await stream.trim(start)
            except PASSING as error:
                self.world.trace.add("trim-failed", node.name, model.name, type(error).__name__)
                if isinstance(error, LOST):
                    return
                continue
            if node.is_detached:
                return
            self.world.trace.add("trim", node.name, model.name, start)
            if stream.start_offset < start:
                raise Violation(f"{model.name}: trimmed to {start}, starts at {stream}")
            model.trimmed(start)

    async def _change_token(self, node: SimulationNode, stream: Stream) -> None:
        """Sets a new token, or removes it, at times. Some changes expect an earlier token, and some
        callers stop waiting early."""
        random = self._random.random
        while True:
            await asyncio.sleep(1 + 4 * random())
            token = b"" if random() < 0.2 else b"token %d" % len(self.token.ever)
            expected: bytes | None = None
            if random() < 0.4:
                tokens = sorted(self.token.ever)
                expected = tokens[int(random() * len(tokens))]
            # A change that expects this end is durable only after all records below it.
            end = stream.next_offset if random() < 0.3 else None
            was_possible = token in self.token.possible
            request = self.token.change(token)
            self._tally.count("change token")
            patience_s = 0.1 * random() if random() < 0.1 else 60.0
            try:
                with (
                    self.world.waiting(node, f"change of the token of {self.model.name}"),
                    self.token.call() as seen,
                ):
                    context = AppendContext(
                        fencing_token=expected,
                        expected_next_offset=end,
                        deadline=self.world.now + 20,
                    )
                    async with asyncio.timeout(patience_s):
                        await stream.set_fencing_token(token, context)
            except PASSING as error:
                kind = type(error).__name__
                self.world.trace.add("token-failed", node.name, self.model.name, kind)
                if isinstance(error, LOST) or node.is_detached:
                    return
                if isinstance(error, TokenMismatch) and self._is_newest(stream):
                    assert expected is not None
                    # The new token is not among the values that the change was compared with.
                    self.token.refused(expected, seen if was_possible else seen - {token})
                continue
            except TimeoutError:
                continue
            if node.is_detached:
                return
            if expected is not None:
                self.token.passed(expected, seen)
            if end is not None:
                self.model.saw_end(end)
                self.token.placed(request, end)
            self.token.changed(token)
            self.world.trace.add("token", node.name, self.model.name, token)

    async def _append_refused(self, node: SimulationNode, stream: Stream) -> None:
        """Appends batches that no encoder takes: past validation they would end the engine."""
        while True:
            await asyncio.sleep(2 + 6 * self._random.random())
            batch = UNFIT[int(len(UNFIT) * self._random.random())]
            self._tally.count("refused append")
            try:
                with self.world.waiting(node, f"refused append to {self.model.name}"):
                    await stream.append(batch, AppendContext(deadline=self.world.now + 20))
            except PASSING as error:
                if isinstance(error, LOST):
                    return
            except Invalid:
                continue
            else:
                raise Violation(f"{self.model.name}: {batch} was acknowledged")

    def _is_newest(self, stream: Stream) -> bool:
        """False for a holder that was replaced and does not know it yet: its token may be old."""
        return stream.stream_epoch >= max(self.model.openers, default=0)

    async def _check_token(self, stream: Stream) -> None:
        """One of the possible tokens is the stream's."""
        for token in sorted(self.token.possible):
            try:
                await stream.set_fencing_token(token, AppendContext(fencing_token=token))
            except TokenMismatch:
                continue
            self.token.changed(token)
            return
        raise Violation(f"{self.model.name}: none of {self.token.possible} is its token")

    def recovered(self) -> None:
        """The metadata was rebuilt from the bucket."""
        self.model.recovered()
        self.token.recovered()

    async def check(self, node: SimulationNode) -> None:
        """After healing: reads the whole stream and checks it against the model."""
        stream = await open_at_last(node, self.stream_id)
        await self._check_token(stream)
        self.token.finish()
        model = self.model
        start, end, epoch = stream.start_offset, stream.confirm_offset, stream.stream_epoch
        model.opened(node.name, epoch, start, end, model.start_seen, model.end)
        batches: dict[int, Sent] = {}
        position = start
        while position < end:
            result = await stream.fetch(position, end, 1 << 16)
            self._tally.count("fetch")
            following = model.read(result.batches, position, model.start)
            if following <= position:
                raise Violation(f"{model.name}: no progress at {position} below {end}")
            for batch in result.batches:
                batches[batch.base_offset] = Sent.parse(bytes(b"".join(batch.parts)))
            position = following
        model.finish(start, end, batches)


async def open_at_last(node: SimulationNode, stream_id: int) -> Stream:
    """Opens the stream once the lease of its holder has ended."""
    while True:
        try:
            return await node.engine.streams.open_stream(stream_id)
        except Conflict:
            await take_over_holder(node, stream_id)


async def take_over_holder(node: SimulationNode, stream_id: int) -> None:
    """Takes all streams of this stream's dead holder; waits a little while its lease lasts."""
    row = node.engine.metadata.stream(stream_id)
    if row is None or row.holder == node.tenure:
        return
    try:
        await node.take_over(row.holder)
    except (Conflict, MetadataUnavailable):
        await asyncio.sleep(1.0)
