"""Staged writes: many tasks store invisible record batches, one driver makes them visible at once.

1. A task calls `stage`, and sends the `StagedObject`s that it returns to the driver.
2. The driver calls `commit(epoch, objects)`: all of them become visible in one step, or none does.
   The same epoch again, or an earlier one, changes nothing, and the result says so.
3. Objects that are not committed stay invisible; `abort` drops them at once, else they expire.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamlog.client.calls import staging as staging_calls
from streamlog.client.channel import Call, Retry
from streamlog.client.closing import CallingClient
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.tls import Tls
from streamlog.codec.batch import scan
from streamlog.errors import (
    Conflict,
    OutcomeUnknown,
    StagedNotFound,
    StreamlogError,
    Unavailable,
)
from streamlog.runtime.buffers import Buffer

OBJECT_BYTES_TARGET = 16 << 20
"""A call of this many bytes takes no further batch; a message holds 32 MiB by default."""
ABORTED_AT_ONCE = 10_000
"""How many objects one call drops; a server takes 50,000."""
TIMEOUT_MS = 120_000


class StagedPart(NamedTuple):
    """One partition's part of a staged object."""

    topic: str
    partition: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StagedObject:
    """One stored, invisible object. Can be pickled and, by `to_json`, written down."""

    writer_id: str
    attempt: str
    object_id: int
    expires_ms: int
    """Epoch milliseconds; a later commit raises StagedNotFound."""
    parts: tuple[StagedPart, ...]

    def to_json(self) -> str:
        return json.dumps(
            [self.writer_id, self.attempt, self.object_id, self.expires_ms, self.parts]
        )

    @classmethod
    def from_json(cls, text: str) -> StagedObject:
        """Errors: ValueError, TypeError for a text that `to_json` did not write."""
        writer_id, attempt, object_id, expires_ms, parts = json.loads(text)
        return cls(
            writer_id, attempt, object_id, expires_ms, tuple(StagedPart(*part) for part in parts)
        )


class CommittedPart(NamedTuple):
    """Where a commit's records of one partition lie: start (inclusive) to end (exclusive)."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """`parts` is empty for an epoch before the writer's last one."""

    epoch: int
    parts: tuple[CommittedPart, ...]
    was_committed: bool
    """This epoch, or a later one, was committed before the call, which changed nothing."""


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """`last_epoch` None: nothing was committed in the last seven days."""

    last_epoch: int | None
    committed_ms: int
    parts: tuple[CommittedPart, ...]
    """Of the last epoch."""
    staged_objects: int
    """How many objects of this writer are neither committed nor dropped."""


class StagedWriter(CallingClient):
    """The staged writes of one writer id; a `CallingClient`."""

    def __init__(
        self,
        server: str,
        writer_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        client_id: str = "",
        tls: Tls | bool | None = None,
    ) -> None:
        """`writer_id`: 1 to 200 bytes, the same for all runs of a job that must not write twice."""
        super().__init__(server, timeout_ms=timeout_ms, client_id=client_id, tls=tls)
        self.writer_id = writer_id

    def stage(
        self, attempt: str, batches: Mapping[tuple[str, int], Buffer], *, expires_ms: int = 0
    ) -> list[StagedObject]:
        """Stores whole Kafka v2 record batches, by (topic, partition), durable and invisible.

        Batches carry no producer id, no transaction and any base offset. `attempt` is unique per
        task attempt, at most 180 bytes; a repeated call with the same content returns the objects
        stored before. Batches beyond one message become several objects, in order. `expires_ms`:
        how long objects are kept; 0: the server's default, a day. Retries by itself.

        Errors: those of a produce (UnknownTopicOrPartition, MessageTooLarge, …), Unavailable.
        """
        return self._stage(attempt, batches, expires_ms, None)

    def _stage(
        self,
        attempt: str,
        batches: Mapping[tuple[str, int], Buffer],
        expires_ms: int,
        producer: ProducerIdentity | None,
    ) -> list[StagedObject]:
        staged: list[StagedObject] = []
        for number, parts in enumerate(_calls(batches)):
            call = staging_calls.stage(
                self.writer_id, f"{attempt}#{number}", parts, expires_ms, producer
            )
            response = self._caller.run(call)
            staged.append(
                StagedObject(
                    self.writer_id,
                    f"{attempt}#{number}",
                    response.object_id,
                    response.expires_at_ms,
                    tuple(
                        StagedPart(p.topic, p.partition, p.records, p.size_bytes)
                        for p in response.parts
                    ),
                )
            )
        return staged

    def commit(self, epoch: int, objects: Iterable[StagedObject]) -> StagedCommit:
        """Makes all objects visible in all their partitions, in the order given, or none of them.

        Epochs (≥ 0) of a writer rise. An epoch at or below the last committed one changes nothing,
        whatever `objects` holds. Retries by itself, also after a lost answer. Errors:
        StagedNotFound (expired or dropped: stage again), Conflict (a topic was deleted or made
        anew), OutcomeUnknown (a try may have committed, and the time is over, or the last try was
        refused for another reason than those two: ask `status`, or commit the same epoch again).
        After any other error of this call nothing is committed.
        """
        call = staging_calls.commit(self.writer_id, epoch, manifest_of(objects))
        response = self._repeated(call)
        return StagedCommit(response.epoch, parts_of(response.parts), response.was_committed)

    def last_epoch(self) -> int | None:
        """The writer's last committed epoch; None: nothing was committed in the last seven days."""
        return self.status().last_epoch

    def status(self) -> WriterStatus:
        """The writer's last committed epoch, and its uncommitted objects."""
        status = self._caller.run(staging_calls.status(self.writer_id))
        last_epoch = status.last_epoch if status.HasField("last_epoch") else None
        return WriterStatus(
            last_epoch, status.committed_ms, parts_of(status.parts), status.staged_objects
        )

    def abort(self, objects: Iterable[StagedObject]) -> int:
        """Drops uncommitted objects; returns how many this call dropped.

        After a commit of unknown outcome ask `status` first: objects that it did not attach go.
        """
        return self.drop(objects)

    def drop(self, objects: Iterable[StagedObject]) -> int:
        """As `abort`, for one task's objects alone."""
        return self._drop(objects, None)

    def _drop(self, objects: Iterable[StagedObject], producer: ProducerIdentity | None) -> int:
        ids = [staged.object_id for staged in objects]
        dropped = 0
        for low in range(0, len(ids), ABORTED_AT_ONCE):
            part = ids[low : low + ABORTED_AT_ONCE]
            call = staging_calls.abort(self.writer_id, part, producer)
            dropped += self._repeated(call).dropped
        return dropped

    def _repeated(self, call: Call) -> Any:
        """The result of a call that may be repeated after any broken connection.

        Errors: OutcomeUnknown where one of the tries may have taken effect.
        """
        retry = Retry(self._caller, self._timeout_ms)
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return self._caller.run_once(call, retry.left_s() * 1000)
            except OutcomeUnknown as error:
                unknown = error
                wait_s = _wait_s(retry, Unavailable(error.message, **error.fields), unknown)
            except StreamlogError as error:
                wait_s = _wait_s(retry, error, unknown)
            time.sleep(wait_s)


def manifest_of(objects: Iterable[StagedObject]) -> list[tuple[int, list[tuple[str, int]]]]:
    """Object ids, each with the partitions that no object before it has."""
    manifest: list[tuple[int, list[tuple[str, int]]]] = []
    seen: set[tuple[str, int]] = set()
    for staged in objects:
        new = {(part.topic, part.partition) for part in staged.parts} - seen
        seen |= new
        manifest.append((staged.object_id, sorted(new)))
    return manifest


def _wait_s(retry: Retry, error: StreamlogError, unknown: OutcomeUnknown | None) -> float:
    """As `Retry.wait_s`. `unknown`: the error of an earlier try that may have taken effect.

    A server looks for the epoch before it refuses objects or topics: these errors say that no try
    has committed it, or will.
    """
    try:
        return retry.wait_s(error)
    except (Conflict, StagedNotFound):
        raise
    except StreamlogError as final:
        if unknown is None:
            raise
        if type(final) is Unavailable and error.message == unknown.message:
            what = f"the call may have taken effect: {unknown.message}; its time is over"
        else:
            what = f"an earlier try may have taken effect: {unknown.message}; then: {final.message}"
        raise OutcomeUnknown(f"{what}. The same call again is safe", **final.fields) from final


def _calls(
    batches: Mapping[tuple[str, int], Buffer],
) -> Iterator[list[tuple[str, int, bytes]]]:
    """The parts of each call. Equal batches are always cut in the same way."""
    parts: list[tuple[str, int, bytes]] = []
    size = 0
    for (topic, partition), data in sorted(batches.items()):
        for piece in _pieces(data):
            if parts and size + len(piece) > OBJECT_BYTES_TARGET:
                yield parts
                parts, size = [], 0
            parts.append((topic, partition, piece))
            size += len(piece)
    if parts:
        yield parts


def _pieces(data: Buffer) -> Iterator[bytes]:
    """Runs of whole batches."""
    if len(data) <= OBJECT_BYTES_TARGET:
        yield bytes(data)
        return
    start = end = 0
    view = memoryview(data)
    for batch in scan(data, verify_crc=False):
        if end > start and end + len(batch.view) - start > OBJECT_BYTES_TARGET:
            yield bytes(view[start:end])
            start = end
        end += len(batch.view)
    yield bytes(view[start:end])


def parts_of(parts: Iterable[Any]) -> tuple[CommittedPart, ...]:
    return tuple(
        CommittedPart(part.topic, part.partition, part.start_offset, part.end_offset)
        for part in parts
    )
