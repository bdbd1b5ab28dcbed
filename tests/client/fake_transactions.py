"""A coordinator over real sockets for FakeNode, which fails on command.

It keeps Kafka's rules: epochs, partitions that are added before they are written, one decision for
each transaction, repeated with the same answer. `faults` are taken one per call, in order.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import grpc

from streamlog.errors import (
    InvalidProducerIdMapping,
    InvalidTxnState,
    StreamlogError,
    TransactionAbortable,
    TransactionalIdFenced,
)
from streamlog.v1 import log_pb2, transaction_pb2, transaction_pb2_grpc
from streamlog.v1support.errors import to_proto, to_status

Producer = tuple[int, int]
TopicPartition = tuple[str, int]


class CoordinatorFault(Enum):
    LOSE_ANSWER = "does it, then breaks the connection"
    BREAK = "breaks the connection before it does anything"
    HANG = "does nothing, and never answers"


@dataclass
class TransactionalId:
    producer: Producer
    partitions: set[TopicPartition] = field(default_factory=set)
    is_open: bool = False
    last: tuple[Producer, bool] | None = None
    """The last decision: by whom, and whether it was a commit."""
    initialised_from: Producer | None = None
    """Who asked for the next epoch, which is the newest still."""


class FakeTransactions(transaction_pb2_grpc.TransactionServiceServicer):
    def __init__(self) -> None:
        self.ids: dict[str, TransactionalId] = {}
        self.committed: set[Producer] = set()
        """(producer id, epoch): each transaction has its own."""
        self.aborted: set[Producer] = set()
        self.calls: list[str] = []
        self.faults: deque[CoordinatorFault | StreamlogError | None] = deque()
        self.refused: dict[TopicPartition, StreamlogError] = {}
        """Partitions that cannot be added."""
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self._next_id = 5000

    # -- calls

    def init_producer_id(self, request: Any, context: Any) -> Any:
        fault = self._enter("InitProducerId", context)
        with self.lock:
            state = self.ids.get(request.transactional_id)
            expected = (request.producer_id, request.producer_epoch)
            if state is None:
                self._next_id += 1
                state = self.ids[request.transactional_id] = TransactionalId((self._next_id, 0))
            elif request.HasField("producer_id") and expected == state.initialised_from:
                # A repetition whose first answer was lost (KIP-360).
                pass
            elif request.HasField("producer_id") and expected != state.producer:
                abort(context, TransactionalIdFenced("another instance"))
            else:
                if state.is_open:
                    self.aborted.add(state.producer)
                from_producer = expected if request.HasField("producer_id") else None
                self._next_epoch(state)
                state.last, state.initialised_from = None, from_producer
            producer_id, epoch = state.producer
        self._leave(fault, context)
        return log_pb2.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)

    def AddPartitions(self, request: Any, context: Any) -> Any:
        fault = self._enter("AddPartitions", context)
        response = transaction_pb2.AddPartitionsResponse()
        with self.lock:
            state = self._state(request, context)
            named = {(one.topic, one.partition) for one in request.partitions}
            for topic, partition in sorted(named & self.refused.keys()):
                out = response.refused.add(error=to_proto(self.refused[topic, partition]))
                out.partition.topic, out.partition.partition = topic, partition
            if not response.refused:
                state.partitions |= named
                state.is_open = True
        self._leave(fault, context)
        return response

    def EndTransaction(self, request: Any, context: Any) -> Any:
        fault = self._enter("Commit" if request.commit else "Abort", context)
        with self.lock:
            asking = (request.producer_id, request.producer_epoch)
            state = self.ids.get(request.transactional_id)
            is_repeated = state is not None and state.last == (asking, request.commit)
            if not is_repeated:
                state = self._state(request, context)
                if not state.is_open:
                    abort(context, InvalidTxnState("nothing is open"))
                (self.committed if request.commit else self.aborted).add(asking)
                self._next_epoch(state)
                state.last = (asking, request.commit)
            assert state is not None
            producer_id, epoch = state.producer
        self._leave(fault, context)
        return transaction_pb2.EndTransactionResponse(producer_id=producer_id, producer_epoch=epoch)

    # -- what the node asks

    def check_batch(
        self,
        transactional_id: str,
        tp: TopicPartition,
        producer: Producer,
        *,
        is_transactional: bool,
    ) -> None:
        """Errors: InvalidTxnState, TransactionAbortable, TransactionalIdFenced."""
        if not is_transactional:
            raise InvalidTxnState("a batch of a transaction does not say so")
        with self.lock:
            state = self.ids.get(transactional_id)
            if state is None or state.producer != producer:
                raise TransactionalIdFenced("another epoch")
            if tp not in state.partitions:
                raise TransactionAbortable(f"{tp} is not part of the transaction")

    def expire(self, transactional_id: str) -> None:
        """The transaction was open for too long: aborted under the next epoch."""
        with self.lock:
            state = self.ids[transactional_id]
            self.aborted.add(state.producer)
            self._next_epoch(state)
            state.last = None

    # -- inside

    def _enter(self, call: str, context: Any) -> CoordinatorFault | None:
        self.calls.append(call)
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, StreamlogError):
            abort(context, fault)
        if fault is CoordinatorFault.BREAK:
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken on command")
        if fault is CoordinatorFault.HANG:
            while context.is_active() and not self.stopping.wait(0.02):
                pass
            context.abort(grpc.StatusCode.UNAVAILABLE, "hung up")
        return fault if isinstance(fault, CoordinatorFault) else None

    @staticmethod
    def _leave(fault: CoordinatorFault | None, context: Any) -> None:
        if fault is CoordinatorFault.LOSE_ANSWER:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost on command")

    def _state(self, request: Any, context: Any) -> TransactionalId:
        state = self.ids.get(request.transactional_id)
        if state is None or state.producer[0] != request.producer_id:
            abort(context, InvalidProducerIdMapping("another producer id"))
        assert state is not None
        if state.producer[1] != request.producer_epoch:
            abort(context, TransactionalIdFenced("another instance"))
        return state

    @staticmethod
    def _next_epoch(state: TransactionalId) -> None:
        state.producer = (state.producer[0], state.producer[1] + 1)
        state.partitions = set()
        state.is_open = False
        state.initialised_from = None


def abort(context: Any, error: StreamlogError) -> None:
    status = to_status(error)
    context.set_trailing_metadata(status.trailers)
    context.abort(status.code, status.message)
