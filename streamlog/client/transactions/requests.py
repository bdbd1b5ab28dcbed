"""What the coordinator is asked, and what the application waits for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from streamlog.client.calls.topic import TopicPartition
from streamlog.client.channel import Call
from streamlog.errors import StreamlogError

NEVER = float("inf")


class RequestKind(Enum):
    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS = "AddPartitions"
    END_TRANSACTION = "EndTransaction"


@dataclass(frozen=True, slots=True, eq=False)
class TransactionRequest:
    """One call to the coordinator; at most one of a producer is under way."""

    kind: RequestKind
    call: Call
    timeout_s: float
    partitions: tuple[TopicPartition, ...] = ()


class Goal(Enum):
    """What the application waits for."""

    INITIALIZED = "init_transactions()"
    COMMITTED = "commit_transaction()"
    ABORTED = "abort_transaction()"


class OperationWaiter(Protocol):
    """Set once, when the operation has ended."""

    def set(self) -> object: ...


@dataclass(slots=True, eq=False)
class TransactionOperation:
    """One init, commit or abort under way, until `done`; then `error` tells how it ended.

    It goes on when its caller has stopped waiting; a further call of the same kind gets its result
    while nobody has taken it.
    """

    goal: Goal
    waiter: OperationWaiter
    deadline: float = NEVER
    may_have_happened: bool = False
    """An attempt ended, and the coordinator did not say that it decided nothing."""
    done: bool = False
    error: StreamlogError | None = None
    is_taken: bool = field(default=False)

    def end(self, error: StreamlogError | None) -> None:
        self.error = error
        self.done = True
        self.waiter.set()

    def result(self) -> None:
        """Errors: why it failed."""
        self.is_taken = True
        if self.error is not None:
            raise self.error.with_traceback(None)
