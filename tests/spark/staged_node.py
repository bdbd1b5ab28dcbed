"""The services of staged writes and of transactions over an engine in memory, and clients that
reach them without a socket.

The engine can be killed in the middle of a call and opened again on the same data.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.client import channel
from streamlog.client.channel import Call, Caller
from streamlog.client.diagnosis import Diagnosis
from streamlog.client.forking import CallGuard
from streamlog.client.producer_identity import NO_IDENTITY, ProducerIdentity
from streamlog.client.staged_transactions import TransactionalStagedWriter
from streamlog.client.staging import StagedObject, StagedWriter
from streamlog.codec.batch import scan
from streamlog.codec.committed import committed
from streamlog.codec.records import decode
from streamlog.engine.config import StagingConfig, StreamEngineConfig, UploadConfig
from streamlog.errors import OutcomeUnknown, StreamlogError, Unavailable, UnknownTopicOrPartition
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.log.api.abstract_log import Isolation
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.clock import SystemClock
from streamlog.server.context import RequestContext, allow_all
from streamlog.server.grpc.staging import GrpcStaging
from streamlog.server.grpc.transactions import GrpcTransactions
from streamlog.server.limits.in_flight import Budgets
from streamlog.server.metrics import ServerMetrics
from streamlog.server.services.staging import StagingService
from streamlog.server.services.transactions import TransactionService
from streamlog.settings.limits import LimitsConfig
from streamlog.v1 import log_pb2
from streamlog.wiring import Components, OpenEngine

T = TypeVar("T")
WAIT_S = 120
CONFIG = StreamEngineConfig(
    upload=UploadConfig(upload_interval_ms=5), staging=StagingConfig(sweep_interval_ms=50)
)


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Any


class StagedNode:
    """Use it in `with`; called from any thread."""

    def __init__(self) -> None:
        clock = SystemClock()
        self._store = MemoryObjectStore(clock)
        self._kv = MemoryKVStore(clock)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._engine: OpenEngine | None = None
        self._opened: Any = None

    def __enter__(self) -> StagedNode:
        self._thread.start()
        self.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._close(is_killed=False))
        self.run(self._kv.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _open(self) -> None:
        self._opened = streamlog.open(
            "memory://",
            meta="memory://",
            wal="object",
            config=CONFIG,
            components=Components(store=self._store, kv=self._kv, registry=CollectorRegistry()),
        )
        engine = self._engine = await self._opened.__aenter__()
        service = StagingService(
            engine.logs, engine.transactions, authorize=allow_all, limits=LimitsConfig()
        )
        budgets = Budgets(
            LimitsConfig().in_flight_bytes_per_connection_max, ServerMetrics(CollectorRegistry())
        )
        self._transactions = GrpcTransactions(
            TransactionService(
                engine.transactions,
                engine.logs,
                node_id=1,
                clock=SystemClock(),
                authorize=allow_all,
                limits=LimitsConfig(),
            ),
            calls=None,  # type: ignore[arg-type]
        )
        self._staging = GrpcStaging(service, calls=None, budgets=budgets)  # type: ignore[arg-type]

    def _handler(self, name: str) -> Any:
        """The method that answers the rpc."""
        snake = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
        if name == "InitProducerId":
            return self._init_producer_id
        if hasattr(self._transactions, f"_{snake}"):
            return getattr(self._transactions, f"_{snake}")
        return getattr(self._staging, f"_on_{snake}")

    async def _init_producer_id(
        self, _: RequestContext, request: log_pb2.InitProducerIdRequest, __: Any
    ) -> log_pb2.InitProducerIdResponse:
        pair = await self.engine.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms
        )
        return log_pb2.InitProducerIdResponse(
            producer_id=pair.producer_id, producer_epoch=pair.producer_epoch
        )

    async def _close(self, *, is_killed: bool) -> None:
        assert self._engine is not None
        if is_killed:
            await self._engine.kill()
        await self._opened.__aexit__(None, None, None)

    async def _restart(self) -> None:
        await self._close(is_killed=True)
        await self._open()

    def restart(self) -> None:
        """Killed, as by a crash, and opened again."""
        self.run(self._restart())

    # calls

    def answer(self, call: Call, *, kill_after: int | None = None) -> Any:
        """As a server's; `kill_after` so many turns of its event loop it is killed and started.

        Errors: those of the service; OutcomeUnknown or Unavailable where it was killed meanwhile.
        """
        return self.run(self._answer(call, kill_after))

    async def _answer(self, call: Call, kill_after: int | None) -> Any:
        name = call.rpc.rpartition("/")[2]
        handle = self._handler(name)
        request = call.request.SerializeToString()
        asked = request if name == "Stage" else type(call.request).FromString(request)
        task = asyncio.ensure_future(handle(RequestContext(), asked, None))
        if kill_after is None:
            return call.response_class.FromString((await task).SerializeToString())
        for _ in range(kill_after):
            if not task.done():
                await asyncio.sleep(0)
        await self._restart()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise broken_off(call)

    # topics

    def create_topic(self, name: str, partitions: int) -> None:
        self.run(self.engine.logs.create_topic(name, partitions, {}))

    @property
    def engine(self) -> OpenEngine:
        assert self._engine is not None
        return self._engine

    def partition_count(self, topic: str) -> int:
        found = self.engine.logs.topic(topic)
        if found is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic}")
        return found.partitions

    def rows(self, topic: str) -> dict[int, list[Row]]:
        """All that a reader of committed records sees, by partition."""
        return {
            n: self.run(self._rows(TopicPartition(topic, n)))
            for n in range(self.partition_count(topic))
        }

    async def _rows(self, partition: TopicPartition) -> list[Row]:
        log = await self.engine.logs.log(partition)
        stored: list[Row] = []
        position = log.log_start_offset
        while position < log.last_stable_offset:
            fetched = await log.fetch(position, 1 << 20, isolation=Isolation.READ_COMMITTED)
            aborted = [(one.first_offset, one.producer_id) for one in fetched.aborted]
            for batch in committed(scan(join(fetched.parts)), aborted):
                for offset, _, key, value, headers in decode(batch.view):
                    if offset >= position:
                        stored.append(Row(offset, key, value, headers))
            position = fetched.next_offset
        assert log.last_stable_offset == log.high_watermark, "a transaction is open"
        if not self.engine.transactions.hosted.count:
            assert [row.offset for row in stored] == list(range(len(stored)))
        return stored

    # clients

    def writer(
        self,
        writer_id: str,
        through: Through | None = None,
        producer: ProducerIdentity | None = None,
        *,
        timeout_ms: int = 60_000,
    ) -> StagedWriter:
        """`producer`: whose transaction commits; None: the node commits."""
        if producer is None:
            writer = StagedWriter("localhost:1", writer_id, timeout_ms=timeout_ms)
        else:
            writer = TransactionalStagedWriter(
                "localhost:1", writer_id, producer, timeout_ms=timeout_ms
            )
        writer._caller.close()
        writer._caller = DirectCaller(self, timeout_ms, through)
        return writer

    def initialised(self, writer_id: str, through: Through | None = None) -> ProducerIdentity:
        with self.writer(writer_id, through, NO_IDENTITY) as writer:
            assert isinstance(writer, TransactionalStagedWriter)
            return writer.initialise()

    def target(
        self,
        writer_id: str,
        through: Through | None = None,
        producer: ProducerIdentity | None = None,
    ) -> DirectTarget:
        return DirectTarget(self, self.writer(writer_id, through, producer))


def broken_off(call: Call) -> StreamlogError:
    """What a client knows when no answer comes."""
    return OutcomeUnknown("no answer") if call.writes else Unavailable("no answer")


Through = Callable[[StagedNode, Call], Any]
"""How a call gets to the node and its answer back; `StagedNode.answer` when nothing goes wrong."""


class DirectCaller(Caller):
    """Calls a StagedNode; retries as the real one."""

    def __init__(self, node: StagedNode, timeout_ms: int, through: Through | None) -> None:
        self.server = "a node in this process"
        self.guard = CallGuard()
        self.diagnosis = Diagnosis(self.server, None)
        self._timeout_ms = timeout_ms
        self._node = node
        self._through = through or StagedNode.answer

    def run_once(self, call: Call, timeout_ms: float) -> Any:
        self.guard.check()
        return call.read(self._through(self._node, call))

    def close(self) -> None:
        self.guard.close()


class DirectTarget:
    """As NodeTarget."""

    def __init__(self, node: StagedNode, writer: StagedWriter) -> None:
        self._node = node
        self._writer = writer
        self.batch_bytes = 1 << 20
        self.stages = 0
        self.dropped: list[StagedObject] = []

    def partition_count(self, topic: str) -> int:
        return self._node.partition_count(topic)

    def batch_bytes_max(self, topic: str) -> int:
        return self.batch_bytes

    def stage(
        self, attempt: str, batches: dict[tuple[str, int], Buffer], *, expires_ms: int
    ) -> list[StagedObject]:
        self.stages += 1
        return self._writer.stage(attempt, batches, expires_ms=expires_ms)

    def drop(self, objects: Iterable[StagedObject]) -> None:
        self.dropped += objects
        self._writer.drop(self.dropped)


@contextmanager
def quick_retries() -> Iterator[None]:
    """A failed call is repeated at once."""
    with patch.object(channel, "backoff_s", lambda *_: 0.0):
        yield
