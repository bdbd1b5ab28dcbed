"""Calls about one partition: an append that the caller waits for, its token, its description.

`PartitionAppends` and `AppendTries` make an append safe to repeat; pure but for the clock of
`Retry`, so that the blocking and the asyncio client share them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from streamlog.client.calls.topic import only_topic
from streamlog.client.channel import Call, Retry
from streamlog.client.producer_identity import NO_IDENTITY, ProducerIdentity
from streamlog.codec.batch import SEQUENCE_MAX, BatchProducer
from streamlog.codec.records import encode_values
from streamlog.errors import (
    Conflict,
    DeadlinePassed,
    Internal,
    Invalid,
    OutcomeUnknown,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.model.fencing_token import check_token
from streamlog.model.numbers import OFFSET_MAX, checked_int
from streamlog.runtime.buffers import Buffer
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto

PARTITION_MAX = 2**31 - 1


class Record(NamedTuple):
    """A record to append. `timestamp_ms` None: the client's time of the call."""

    value: Buffer | None
    key: Buffer | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


class PartitionAppendResult(NamedTuple):
    """The records are durable at base_offset (inclusive) to end_offset (exclusive)."""

    base_offset: int
    end_offset: int


class PartitionInfo(NamedTuple):
    """A partition at one moment. `fencing_token` b"": it has none."""

    topic: str
    partition: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    fencing_token: bytes


class ConditionalAppend(NamedTuple):
    """What one append asks for; checked."""

    topic: str
    partition: int
    records: Sequence[Record]
    expected_next_offset: int | None
    fencing_token: bytes | None

    @classmethod
    def of(
        cls,
        topic: str,
        partition: int,
        records: Buffer | Record | Iterable[Buffer | Record],
        expected_next_offset: int | None,
        fencing_token: bytes | None,
    ) -> ConditionalAppend:
        """Errors: Invalid."""
        _check_partition(topic, partition)
        _check_condition(expected_next_offset, fencing_token)
        if isinstance(records, (bytes, bytearray, memoryview, Record)):
            records = (records,)
        several = [one if isinstance(one, Record) else Record(one) for one in records]
        if not several:
            raise Invalid("an append without records; give at least one")
        return cls(topic, partition, several, expected_next_offset, fencing_token)

    def encoded(self, producer: BatchProducer) -> bytes:
        """One batch, because it is stored as a whole or not at all. Errors: Invalid, TypeError."""
        now_ms = time.time_ns() // 1_000_000
        records = self.records
        stamps = [now_ms if one.timestamp_ms is None else one.timestamp_ms for one in records]
        batch = encode_values(
            [one.value for one in records],
            timestamp_ms=now_ms,
            keys=[one.key for one in records],
            timestamps_ms=stamps,
            headers=[list(one.headers) for one in records],
            producer=producer,
        )
        return bytes(batch.data)

    def call(self, batch: bytes, timeout_ms: float) -> Call:
        """Result: the base offset. Reading it raises the partition's error."""
        request = log_pb2.ProduceRequest(timeout_ms=max(1, min(int(timeout_ms), PARTITION_MAX)))
        part = request.topics.add(topic=self.topic).partitions.add(
            partition=self.partition, record_batches=batch
        )
        if self.expected_next_offset is not None:
            part.expected_next_offset = self.expected_next_offset
        if self.fencing_token is not None:
            part.fencing_token = self.fencing_token
        return Call(
            "LogService/Produce", request, log_pb2.ProduceResponse, _base_offset, writes=True
        )


class PartitionAppends:
    """What makes appends of one client to one partition safe to repeat: id and sequence number.

    One append at a time has its turn. `forget` when it is not known whether the last one is stored:
    the next one gets another id, under which no late attempt of the last can be.
    """

    def __init__(self) -> None:
        self.identity = NO_IDENTITY
        self._next_sequence = 0

    def needs_identity(self, count: int) -> bool:
        return self.identity == NO_IDENTITY or self._next_sequence + count > SEQUENCE_MAX

    def begin(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self._next_sequence = 0

    @property
    def producer(self) -> BatchProducer:
        return BatchProducer(self.identity.producer_id, self.identity.epoch, self._next_sequence)

    def stored(self, count: int) -> None:
        self._next_sequence += count

    def forget(self) -> None:
        self.identity = NO_IDENTITY


class AppendTries:
    """The tries of one append, all with the same batch: it is stored once, or not at all.

    A Conflict counts even where an earlier try may still be under way: the end of a log does not
    come back, and a token is not meant to. Where the end is not reached yet, or the token not set,
    that try may be stored later; the next append must not be taken for it.
    """

    def __init__(self, retry: Retry) -> None:
        self.retry = retry
        self._unknown: OutcomeUnknown | None = None

    def wait_s(self, error: StreamlogError) -> float:
        """Errors: what the caller is told, where there is no further try."""
        if isinstance(error, OutcomeUnknown):
            self._unknown = error
            error = Unavailable(error.message, **error.fields)
        try:
            return self.retry.wait_s(error)
        except Conflict:
            raise
        except StreamlogError as final:
            if self._unknown is None:
                raise
            raise OutcomeUnknown(
                f"an earlier try of the append may be stored: {self._unknown.message}; then: "
                f"{final.message}. With expected_next_offset, read the record at that offset, or "
                "append again",
                **final.fields,
            ) from final

    def used_no_sequence_number(self, error: BaseException) -> bool:
        """`error` ended the tries, and none of them is stored, or will be."""
        return isinstance(error, Conflict) and self._unknown is None


def waited_in_vain(topic: str, partition: int, timeout_ms: int) -> DeadlinePassed:
    """The time was up before the append had its turn."""
    return DeadlinePassed(
        f"earlier appends of this client to {topic[:80]}-{partition} took {timeout_ms / 1000:g} s; "
        "nothing of this one was stored: append it again"
    )


def set_fencing_token(
    topic: str,
    partition: int,
    token: bytes,
    expected_token: bytes | None,
    expected_next_offset: int | None,
    timeout_ms: int,
) -> Call:
    """Errors: Invalid."""
    _check_partition(topic, partition)
    check_token(token)
    _check_condition(expected_next_offset, expected_token)
    request = log_pb2.LogServiceSetFencingTokenRequest(
        topic=topic, partition=partition, fencing_token=token, timeout_ms=timeout_ms
    )
    if expected_token is not None:
        request.expected_fencing_token = expected_token
    if expected_next_offset is not None:
        request.expected_next_offset = expected_next_offset
    return Call(
        "LogService/SetFencingToken",
        request,
        log_pb2.LogServiceSetFencingTokenResponse,
        lambda _: None,
        writes=True,
    )


def describe(topic: str, partition: int) -> Call:
    """Result: PartitionInfo. Reading it raises the topic's or the partition's error."""
    _check_partition(topic, partition)

    def read(response: Any) -> PartitionInfo:
        for found in only_topic(response, topic).partitions:
            if found.partition != partition:
                continue
            if found.HasField("error"):
                raise from_proto(found.error)
            return PartitionInfo(
                topic,
                partition,
                found.leader_epoch,
                found.log_start_offset,
                found.high_watermark,
                found.log_end_offset,
                found.fencing_token,
            )
        raise UnknownTopicOrPartition(
            f"{topic} has no partition {partition}", topic=topic, partition=partition
        )

    request = admin_pb2.DescribeTopicsRequest(names=[topic])
    return Call("AdminService/DescribeTopics", request, admin_pb2.DescribeTopicsResponse, read)


def _base_offset(response: Any) -> int:
    results = [result for topic in response.topics for result in topic.partitions]
    if len(results) != 1:
        raise Internal(f"{len(results)} partitions in the answer to an append to one")
    if results[0].HasField("error"):
        raise from_proto(results[0].error)
    return int(results[0].base_offset)


def _check_partition(topic: str, partition: int) -> None:
    if not isinstance(topic, str):
        raise Invalid(f"a topic's name is text, not {topic!r}")
    checked_int("partition", partition, 0, PARTITION_MAX)


def _check_condition(expected_next_offset: int | None, token: bytes | None) -> None:
    if expected_next_offset is not None:
        checked_int("expected_next_offset", expected_next_offset, 0, OFFSET_MAX)
    if token is not None:
        check_token(token)
