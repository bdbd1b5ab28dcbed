"""The clients of one partition, whatever kind of log it is.

1. A client without a producer id sends several batches at once, each one time.
2. An idempotent producer keeps up to `IN_FLIGHT_MAX` batches unanswered; after a failure and on
   every new node it sends them again, in order. At times it resends what was acknowledged, comes
   back under the next epoch, or sends what must be refused.
3. Two transactional producers add batches, and end their transactions at last, as a coordinator
   does: the decision is made once, and its marker is sent until it is acknowledged.
4. Readers of both isolation levels read in order over all nodes, and here and there; a client looks
   offsets up by time; an operator deletes records, rolls segments and changes settings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol

from streamlog.codec.batch import BatchProducer, scan
from streamlog.codec.committed import committed
from streamlog.codec.control import ControlType, decode_end_marker
from streamlog.codec.records import BatchBuilder, decode
from streamlog.errors import (
    Conflict,
    DeadlinePassed,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    StreamlogError,
    Unavailable,
)
from streamlog.log.api.abstract_log import (
    EARLIEST,
    AbstractLog,
    Isolation,
    LogAppendInfo,
    LogFetch,
    ProduceContext,
    TransactionMarker,
)
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.numbered.cleaned_reads import check_all, check_read, lasting
from streamlog.testing.simulation.numbered.model import (
    MARKER,
    Content,
    NumberedBatch,
    NumberedLogModel,
    NumberedTransaction,
    ObservedNumberedBatch,
)
from streamlog.testing.simulation.world.environment import Environment
from streamlog.testing.simulation.world.world import Tally

IN_FLIGHT_MAX = 4
SKIPPED = 7
"""How many sequence numbers a wrong batch skips."""
PASSING = (Unavailable, OutcomeUnknown, Conflict, DeadlinePassed)
"""Errors that a client must expect, and after which it tries again."""
KEYS = 7
IDEMPOTENT, TRANSACTIONAL = 100, (200, 201)
"""Producer ids."""
APPEND_S_MAX = 30.0
LARGE_BYTES = 700
TRIES_MAX = 200
NUMBER = "n"
"""The header that has a record's number."""


class ServingNode(Protocol):
    """A process of a node, as clients of its logs know it."""

    @property
    def is_up(self) -> bool: ...
    @property
    def is_replaced(self) -> bool:
        """Another process is there in its place."""
        ...

    @property
    def logs(self) -> LogManager:
        """Of a node that is up."""
        ...


Operation = Callable[[ServingNode, AbstractLog], Awaitable[None]]


@dataclass
class _Producer:
    """One producer with an id. Batches that are unanswered are sent again, in order."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    unanswered: deque[NumberedBatch] = field(default_factory=deque)
    newest: NumberedBatch | None = None
    """The last one that was acknowledged, under this epoch."""
    transaction: NumberedTransaction | None = None
    to_come: int = 0
    """Batches of the transaction that are not made yet."""

    def next_epoch(self) -> None:
        self.epoch += 1
        self.sequence = 0
        self.newest = None
        self.unanswered.clear()


class PartitionClients:
    """All clients of one partition, and the model of what they saw."""

    passing: ClassVar[tuple[type[StreamlogError], ...]] = PASSING
    """Errors after which a client tries again."""

    def __init__(
        self, world: Environment, tally: Tally, partition: TopicPartition, model: NumberedLogModel
    ) -> None:
        self.world = world
        self.partition = partition
        self.model = model
        self.is_made = False
        """The topic's creation was acknowledged."""
        self._random = world.fork()
        self._tally = tally
        self._orders: dict[str, int] = {}
        self._idempotent = _Producer(IDEMPOTENT)
        self._transactional = [_Producer(one) for one in TRANSACTIONAL]
        self._positions = dict.fromkeys(Isolation, 0)
        self._transactions = 0
        self._plain_clients = 1

    def give_up(self, name: str) -> None:
        """Nobody waits for the client's call any more, which goes on: its next one is made beside
        it, as by another client."""
        if name == "plain":
            self._plain_clients += 1

    def operations(self) -> Mapping[str, tuple[float, Operation]]:
        """By client: the longest pause between two operations in seconds, and the operation."""
        by_client: dict[str, tuple[float, Operation]] = {
            "plain": (0.3, self._produce_plain),
            "idempotent": (0.25, self._produce_idempotent),
            "reader": (0.3, self._read_uncommitted),
            "committed reader": (0.3, self._read_committed),
            "random reader": (0.5, self._read_somewhere),
            "look-ups": (1.0, self._look_up),
        }
        for producer in self._transactional:
            by_client[f"transactional {producer.producer_id}"] = (
                0.3,
                partial(self._transact, producer),
            )
        if not self.model.is_compacted:
            by_client["deletions"] = (6.0, self._delete_records)
        by_client["rolls"] = (4.0, self._roll)
        return by_client

    # Producers

    def _make(
        self,
        client: str,
        producer: tuple[int, int, int] = (-1, -1, -1),
        transaction: NumberedTransaction | None = None,
    ) -> NumberedBatch:
        """A new batch of one to four records."""
        random, model = self._random.random, self.model
        count = 1 + int(random() ** 2 * 4)
        first = model.take_numbers(count)
        at_ms = self.world.now_ms
        builder = BatchBuilder(1 << 20)
        keys: list[bytes | None] = []
        tombstones: set[int] = set()
        for number in range(first, first + count):
            key = b"k%d" % int(random() * KEYS) if model.is_compacted else None
            # A batch of several sectors may be torn in its middle.
            is_large = count == 1 and random() < 0.1
            value: bytes | None = b"." * int(random() * (LARGE_BYTES if is_large else 120))
            if key is not None and random() < 0.25:
                value = None
                tombstones.add(number)
            builder.append(at_ms, key, value, [(NUMBER, b"%d" % number)])
            model.contents[number] = Content(at_ms, key, value)
            keys.append(key)
        data = bytes(
            builder.build(BatchProducer(*producer), is_transactional=transaction is not None)
        )
        order = self._orders[client] = self._orders.get(client, 0) + 1
        batch = NumberedBatch(
            client,
            order,
            first,
            tuple(keys),
            frozenset(tombstones),
            data,
            at_ms,
            transaction,
            producer_id=producer[0],
        )
        model.send(batch)
        return batch

    def _next_of(self, client: str, producer: _Producer) -> None:
        identity = (producer.producer_id, producer.epoch, producer.sequence)
        batch = self._make(client, identity, producer.transaction)
        producer.sequence += len(batch.keys)
        producer.unanswered.append(batch)

    async def _append(self, log: AbstractLog, batch: NumberedBatch) -> Awaitable[LogAppendInfo]:
        self._tally.count("transactional produce" if batch.transaction else "produce")
        if batch.end_when_sent is None:
            batch.end_when_sent = log.high_watermark
        context = ProduceContext(deadline=self.world.now + APPEND_S_MAX)
        return await log.append(batch.data, context)

    async def _produce_plain(self, _node: ServingNode, log: AbstractLog) -> None:
        """Some batches at once: a fault may come between them."""
        client = f"plain {self._plain_clients}"
        batches = [self._make(client) for _ in range(1 + int(self._random.random() * 3))]
        answers = [(batch, await self._append(log, batch)) for batch in batches]
        await self._acknowledged(answers)

    async def _acknowledged(
        self, answers: list[tuple[NumberedBatch, Awaitable[LogAppendInfo]]]
    ) -> None:
        """Awaits all answers. Errors: the first of them."""
        failure: StreamlogError | None = None
        for batch, answer in answers:
            try:
                info = await answer
            except self.passing as error:
                failure = failure or error
                continue
            self.world.trace.add("produced", self.model.name, str(batch), info.base_offset)
            self.model.acknowledge(batch, info.base_offset)
        if failure is not None:
            raise failure

    async def _produce_idempotent(self, node: ServingNode, log: AbstractLog) -> None:
        producer, random = self._idempotent, self._random.random
        if random() < 0.1:
            await self._misbehave(log, producer)
        while len(producer.unanswered) < 1 + int(random() * IN_FLIGHT_MAX):
            self._next_of("idempotent", producer)
        await self._send(node, log, producer)
        if producer.newest is not None and random() < 0.1:
            self._tally.count("needless resend")
            await self._acknowledged([(producer.newest, await self._append(log, producer.newest))])

    async def _send(self, node: ServingNode, log: AbstractLog, producer: _Producer) -> None:
        """Sends what is unanswered, in order. Errors: PASSING."""
        answers: list[tuple[NumberedBatch, Awaitable[LogAppendInfo]]] = []
        failure: StreamlogError | None = None
        for batch in list(producer.unanswered):
            try:
                if batch.transaction is not None:
                    _verify(log, producer)
                answers.append((batch, await self._append(log, batch)))
            except self.passing as error:
                failure = error
                break
            except OutOfOrderSequence:
                self.check_forgotten(node, log, batch)
                producer.next_epoch()
                self._tally.count("producer given up")
                break
        try:
            await self._acknowledged(answers)
        finally:
            while producer.unanswered and producer.unanswered[0].base_offset is not None:
                producer.newest = producer.unanswered.popleft()
        if failure is not None:
            raise failure

    def check_forgotten(self, node: ServingNode, log: AbstractLog, batch: NumberedBatch) -> None:
        """An old batch is only known while it can be read: else a resend is out of order.

        Errors: Violation.
        """
        sent = batch.end_when_sent or 0
        # A cleaning that was cut off may have taken closed segments, and not have said how far.
        oldest = log.segments[-1 if self.model.is_compacted else 0]
        first = oldest.base_offset
        if self.is_current(node, log) and first <= sent:
            raise Violation(f"{self.model.name}: {batch} is out of order, and was sent in order")

    async def _misbehave(self, log: AbstractLog, producer: _Producer) -> None:
        """Begins the next epoch, or sends what must be refused."""
        if producer.unanswered or producer.newest is None:
            return
        draw = self._random.random()
        if draw < 0.3:
            producer.next_epoch()
            self._tally.count("producer epoch")
        elif draw < 0.6:
            await self._refused(log, producer.epoch, producer.sequence + SKIPPED)
        elif producer.epoch:
            await self._refused(log, producer.epoch - 1, producer.sequence)

    async def _refused(self, log: AbstractLog, epoch: int, sequence: int) -> None:
        batch = self._make("refused", (IDEMPOTENT, epoch, sequence))
        batch.is_refused = True
        self._tally.count("refused produce")
        try:
            info = await (await self._append(log, batch))
        except (OutOfOrderSequence, ProducerFenced):
            return
        raise Violation(f"{self.model.name}: {batch} was taken at {info.base_offset}")

    async def _transact(self, producer: _Producer, node: ServingNode, log: AbstractLog) -> None:
        """One step of a transaction."""
        random, transaction = self._random.random, producer.transaction
        client = f"transactional {producer.producer_id}"
        if transaction is None:
            self._transactions += 1
            producer.transaction = NumberedTransaction(self._transactions, producer.producer_id)
            producer.to_come = 1 + int(random() * 3)
            self._tally.count("transaction begun")
        if producer.unanswered or producer.to_come:
            if not producer.unanswered:
                self._next_of(client, producer)
                producer.to_come -= 1
            epoch = producer.epoch
            await self._send(node, log, producer)
            if producer.epoch != epoch:
                producer.to_come = 0
            return
        assert transaction is not None
        if transaction.is_commit is None:
            transaction.is_commit = random() < 0.6
        await self._mark(log, producer, transaction)

    async def _mark(
        self, log: AbstractLog, producer: _Producer, transaction: NumberedTransaction
    ) -> None:
        is_commit = bool(transaction.is_commit)
        marker = TransactionMarker(producer.producer_id, producer.epoch, 0, is_commit)
        self._tally.count("committed" if is_commit else "aborted")
        info = await (await log.append_marker(marker))
        self.model.marked(info.base_offset)
        transaction.marker_offset = info.base_offset
        self.world.trace.add("marked", self.model.name, transaction.number, info.base_offset)
        producer.transaction = None

    # Readers

    def is_current(self, node: ServingNode, log: AbstractLog) -> bool:
        is_leader = node.is_up and not node.is_replaced
        return is_leader and node.logs.open_log(self.partition) is log

    def look(self, node: ServingNode, log: AbstractLog) -> None:
        """Judges the log's offsets. A log object that has failed may be behind."""
        if self.is_current(node, log):
            self.model.bounds(
                log.log_start_offset,
                log.last_stable_offset,
                log.high_watermark,
                self.world.now_ms,
            )
            self._check_open_transactions(log)

    def _check_open_transactions(self, log: AbstractLog) -> None:
        for batch in self.model.batches[-50:]:
            one, base = batch.transaction, batch.base_offset
            if one is None or one.is_commit is not None or base is None:
                continue
            if log.log_start_offset <= base < log.last_stable_offset:
                raise Violation(
                    f"{self.model.name}: {batch} is at {base} in an open transaction, and the last "
                    f"stable offset is {log.last_stable_offset}"
                )

    async def _read_uncommitted(self, node: ServingNode, log: AbstractLog) -> None:
        await self._read_on(node, log, Isolation.READ_UNCOMMITTED)

    async def _read_committed(self, node: ServingNode, log: AbstractLog) -> None:
        await self._read_on(node, log, Isolation.READ_COMMITTED)

    async def _read_on(self, node: ServingNode, log: AbstractLog, isolation: Isolation) -> None:
        self.look(node, log)
        start = max(self._positions[isolation], log.log_start_offset)
        if start < _end(log, isolation):
            following = await self.fetch(node, log, start, isolation)
            self._positions[isolation] = max(start, following)

    async def _read_somewhere(self, node: ServingNode, log: AbstractLog) -> None:
        random = self._random.random
        isolation = Isolation(int(2 * random()))
        low, high = log.log_start_offset, log.high_watermark
        await self.fetch(node, log, low + int(random() * (high - low + 1)), isolation)

    async def fetch(
        self,
        node: ServingNode,
        log: AbstractLog,
        start: int,
        isolation: Isolation,
        seen: list[ObservedNumberedBatch] | None = None,
    ) -> int:
        """Reads and judges; `seen` gets what was read. Where the next read goes on."""
        is_committed = isolation is Isolation.READ_COMMITTED
        self._tally.count("read committed" if is_committed else "consume")
        bytes_max = (1, 300, 4096)[int(self._random.random() * 3)] if seen is None else 1 << 16
        try:
            fetched = await log.fetch(start, bytes_max, isolation=isolation)
        except OffsetOutOfRange:
            # A log object that has failed meanwhile does not hear of what its successor deletes.
            if start >= log.log_start_offset and self.is_current(node, log):
                raise
            return start
        except OffsetNotAvailable:
            return start
        self.look(node, log)
        if is_committed and fetched.next_offset > max(fetched.last_stable_offset, start):
            raise Violation(
                f"{self.model.name}: a fetch up to {fetched.next_offset} went past the last stable "
                f"offset {fetched.last_stable_offset}"
            )
        batches = _batches(fetched, is_committed=is_committed)
        following = self.model.read(batches, start)
        if self.model.is_compacted:
            check_read(self.model, batches, start, following, self.world.now_ms)
        if seen is not None:
            seen += batches
        return following

    async def _look_up(self, node: ServingNode, log: AbstractLog) -> None:
        try:
            await self._look_up_some(log)
        except OffsetOutOfRange:
            if self.is_current(node, log):
                raise

    async def _look_up_some(self, log: AbstractLog) -> None:
        model, random = self.model, self._random.random
        self._tally.count("look up time")
        before = log.log_start_offset
        if random() < 0.3:
            found = await log.offset_for_timestamp(EARLIEST, Isolation.READ_UNCOMMITTED)
            if not before <= found.offset <= log.log_start_offset:
                raise Violation(f"{model.name}: {found} is the earliest, not {before}")
            return
        known = [one for one in model.batches[-80:] if one.base_offset is not None]
        stamps = [at_ms for _, at_ms in lasting(model)] if model.is_compacted else []
        stamps = stamps or [one.at_ms for one in known]
        if not stamps:
            return
        await self._look_up_at(log, stamps[int(random() * len(stamps))], known)

    async def _look_up_at(
        self, log: AbstractLog, stamp: int, known: Sequence[NumberedBatch]
    ) -> None:
        """`known`: the batches that may be found, of a log that is not compacted."""
        model, end = self.model, log.high_watermark
        found = await log.offset_for_timestamp(stamp, Isolation.READ_UNCOMMITTED)
        start = log.log_start_offset
        offsets = [one for one in self._as_late_as(stamp, known, start) if one < end]
        if offsets and not 0 <= found.offset <= min(offsets):
            raise Violation(f"{model.name}: {min(offsets)} is as late as {stamp}, found: {found}")
        if found.offset >= 0 and found.timestamp_ms < stamp:
            raise Violation(f"{model.name}: {found} is earlier than {stamp}")

    def _as_late_as(self, stamp: int, known: Sequence[NumberedBatch], start: int) -> Sequence[int]:
        """Offsets of records, from `start` on, of that time or later: a cleaning takes none."""
        if self.model.is_compacted:
            return [offset for offset, at_ms in lasting(self.model) if at_ms >= stamp]
        return [
            max(one.base_offset, start)
            for one in known
            if one.base_offset is not None
            and one.at_ms >= stamp
            and start < one.base_offset + len(one.keys)
        ]

    # The operator

    async def _delete_records(self, node: ServingNode, log: AbstractLog) -> None:
        low, high = log.log_start_offset, log.high_watermark
        before = low + int(self._random.random() * (high - low) * 0.5)
        self.model.start_asked = max(self.model.start_asked, before)
        self._tally.count("delete records")
        start = await log.delete_records(before)
        if start < before:
            raise Violation(f"{self.model.name}: deleted up to {before}, and starts at {start}")
        self.look(node, log)

    async def _roll(self, _node: ServingNode, log: AbstractLog) -> None:
        self._tally.count("roll")
        await log.roll()

    # The end

    async def end_all(self, node: ServingNode, log: AbstractLog) -> None:
        """Nothing stays unanswered, and no transaction open. Errors: PASSING."""
        while self._idempotent.unanswered:
            await self._send(node, log, self._idempotent)
        for producer in self._transactional:
            while producer.transaction is not None:
                await self._transact(producer, node, log)

    async def check(self, node: ServingNode, log: AbstractLog) -> None:
        """After healing and `end_all`: reads everything, as both kinds of readers."""
        model = self.model
        self.look(node, log)
        if log.last_stable_offset != log.high_watermark:
            raise Violation(
                f"{model.name}: no transaction is open, and it is stable up to "
                f"{log.last_stable_offset} of {log.high_watermark}"
            )
        for isolation in Isolation:
            seen, start, end = await self._read_all(node, log, isolation)
            found = _by_offset(seen)
            model.finish(found, start, end, self.world.now_ms)
            if model.is_compacted:
                check_all(model, seen, start)
                for _, at_ms in lasting(model):
                    await self._look_up_at(log, at_ms, ())
                gone = model.superseded_and_gone(found)
                by_kind = self._tally.by_kind
                by_kind["cleaned away"] = max(by_kind.get("cleaned away", 0), gone)

    async def superseded(self, node: ServingNode, log: AbstractLog) -> list[str]:
        """Records that are there though later ones of their keys are; to be asked after healing."""
        seen, _, _ = await self._read_all(node, log, Isolation.READ_UNCOMMITTED)
        newest: dict[bytes | None, int] = {}
        left: list[str] = []
        for batch in seen:
            for (offset, _), content in zip(batch.records, batch.contents, strict=True):
                if content.key in newest:
                    left.append(f"{content.key!r} at {newest[content.key]}")
                newest[content.key] = offset
        return left

    async def _read_all(
        self, node: ServingNode, log: AbstractLog, isolation: Isolation
    ) -> tuple[list[ObservedNumberedBatch], int, int]:
        """What is in the log, from its start to its end. Retention may go on meanwhile."""
        seen: list[ObservedNumberedBatch] = []
        start = offset = log.log_start_offset
        end, tries = log.high_watermark, 0
        while offset < end:
            following = await self.fetch(node, log, offset, isolation, seen)
            if log.log_start_offset > offset:
                start = offset = log.log_start_offset
            elif following > offset:
                offset = following
            elif log.has_tier and tries < TRIES_MAX:
                tries += 1  # What is remote may come later than a fetch may wait.
            elif self.model.is_compacted and all(one < offset for one in self.model.at):
                break  # Behind its last record a compacted log may have offsets without any.
            else:
                raise Violation(f"{self.model.name}: nothing at {offset} below {end}")
        return seen, start, end


def _by_offset(seen: Sequence[ObservedNumberedBatch]) -> dict[int, int]:
    found: dict[int, int] = {}
    for batch in seen:
        found |= dict(batch.records)
        if batch.is_commit is not None:
            found[batch.base_offset] = MARKER
    return found


def _verify(log: AbstractLog, producer: _Producer) -> None:
    """What a server does that has asked the coordinator."""
    if log.needs_verification(producer.producer_id, producer.epoch):
        log.verified(producer.producer_id, producer.epoch)


def _end(log: AbstractLog, isolation: Isolation) -> int:
    is_committed = isolation is Isolation.READ_COMMITTED
    return log.last_stable_offset if is_committed else log.high_watermark


def _batches(fetched: LogFetch, *, is_committed: bool) -> list[ObservedNumberedBatch]:
    aborted = [(one.first_offset, one.producer_id) for one in fetched.aborted]
    return observed(fetched.parts, aborted if is_committed else None)


def observed(
    parts: Sequence[Buffer], aborted: Sequence[tuple[int, int]] | None
) -> list[ObservedNumberedBatch]:
    """Decodes every record and checks CRCs. `aborted`: (first offset, producer) of what a
    `read_committed` reader was told; None: the reader is none."""
    scanned = scan(b"".join(parts))
    visible = {one.header.base_offset for one in committed(scanned, aborted or ())}
    batches: list[ObservedNumberedBatch] = []
    for one in scanned:
        header = one.header
        base, following = header.base_offset, header.next_offset
        if header.is_control:
            marker = decode_end_marker(one.view) if header.record_count else None
            is_commit = marker is not None and marker.control_type is ControlType.COMMIT
            batches.append(
                ObservedNumberedBatch(base, following, (), is_commit, None, header.producer_id)
            )
            continue
        decoded = decode(one.view)
        records = tuple((offset, int(bytes(h[0][1] or b"-9"))) for offset, _, _, _, h in decoded)
        contents = tuple(
            Content(stamp, _bytes(key), _bytes(value)) for _, stamp, key, value, _ in decoded
        )
        is_visible = None if aborted is None else base in visible
        batches.append(
            ObservedNumberedBatch(
                base, following, records, None, is_visible, header.producer_id, contents
            )
        )
    return batches


def _bytes(data: Buffer | None) -> bytes | None:
    return None if data is None else bytes(data)
