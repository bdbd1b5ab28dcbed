"""Requests and answers of produce and fetch, as listeners hand them to the services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AbortedTransaction, EpochEndOffset, Isolation
from streamlog.model.append_condition import AppendCondition
from streamlog.runtime.buffers import Buffer


@dataclass(frozen=True, slots=True)
class PlainRecord:
    """One record in plain form; `timestamp_ms` None: the server's. `offset` in answers only."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    offset: int = 0


class ProducePartition(NamedTuple):
    """Kafka v2 batches one after another, or plain records. `condition`: as in ProduceContext."""

    partition: int
    batches: Buffer | None
    records: Sequence[PlainRecord] = ()
    condition: AppendCondition | None = None


class ProduceTopic(NamedTuple):
    """`topic_id` empty: any topic of that name. `topic` empty: the topic with that id."""

    topic: str
    partitions: Sequence[ProducePartition]
    topic_id: str = ""


class ProduceCall(NamedTuple):
    """`wait_durable` False answers with offset -1 as soon as the batches are sequenced.

    `may_create` False: a topic that does not exist is not created, whatever the settings say.
    `received_at`: since when, on the clock, the request's time runs until its batches have their
    places; None: since it is sequenced. `transactional_id`: of the transactional batches; those of
    partitions that are not in its transaction are refused, or, with `adds_partitions`, added to it.
    """

    topics: Sequence[ProduceTopic]
    wait_durable: bool = True
    timeout_ms: int = 0
    transactional_id: str = ""
    may_create: bool = True
    received_at: float | None = None
    adds_partitions: bool = False


class ProducePartitionResult(NamedTuple):
    partition: int
    error: StreamlogError | None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    is_duplicate: bool = False


class ProduceTopicResult(NamedTuple):
    topic: str
    partitions: Sequence[ProducePartitionResult]


class FetchPartition(NamedTuple):
    partition: int
    offset: int
    max_bytes: int = 0
    current_leader_epoch: int | None = None


class FetchTopic(NamedTuple):
    """`topic_id` empty: any topic of that name."""

    topic: str
    partitions: Sequence[FetchPartition]
    topic_id: str = ""


class AnswerRoom(Protocol):
    """The part of one fetch in what the answers of several may hold together."""

    def take(self, max_bytes: int) -> int:
        """Of so many bytes those that the answer may have by now, with what it has already. They
        are the fetch's until `keep`."""
        ...

    def keep(self, size_bytes: int) -> None:
        """The answer has so many, and reads no more until the next `take`."""
        ...


class FetchCall(NamedTuple):
    """`room`: as in FetchBounds."""

    topics: Sequence[FetchTopic]
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 0
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    as_records: bool = False
    room: AnswerRoom | None = None


class FetchBounds(NamedTuple):
    """When a fetch is answered, and with how much at most.

    `max_bytes` 0: as much as the node allows. `partitions`: how many the consumer reads, where it
    asks again and again by Kafka's rules: beside others, a partition that is unknown or forbidden
    from the beginning does not end the wait, and whether it is known is answered from memory. 0:
    every error ends the wait. `is_complete`: every partition that has changed is in the answer,
    also those that find no room in it. `room`: what the answer may have of `max_bytes`, and less
    than `min_bytes` suffices then; asked before each read, for what the partitions that are read
    may return, so that a fetch that waits takes nothing from others.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation
    partitions: int = 0
    is_complete: bool = True
    room: AnswerRoom | None = None


@dataclass(slots=True)
class FetchPartitionResult:
    """`parts` joined are whole record batches; `records` only where they were asked for.

    `diverging`: the reader's last record is not in this log; where the logs part (KIP-595).
    """

    partition: int
    next_offset: int
    error: StreamlogError | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    parts: Sequence[Buffer] = ()
    size_bytes: int = 0
    records: Sequence[PlainRecord] = ()
    diverging: EpochEndOffset | None = None


class FetchTopicResult(NamedTuple):
    topic: str
    partitions: Sequence[FetchPartitionResult]
