"""Where records lie in the object store, for readers that fetch objects themselves, and pins that
keep those objects from being deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from streamlog.errors import Invalid, QuotaExceeded
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.log.stream_slices import LiesOnStreams, SlicesView
from streamlog.metadata.lookup.locating import LocateSection, Locating, LookupPort
from streamlog.model.located import AbortedSpan, LocatedRun, ObjectTable, OffsetWindow
from streamlog.model.partition import TopicPartition
from streamlog.server.context import (
    CLUSTER,
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
)
from streamlog.server.services.ports import Logs, opened_within
from streamlog.server.services.support.in_order import in_order
from streamlog.settings.limits import LimitsConfig

WINDOWS_MAX = 100_000
WAITING_PER_TURN_MAX = 16
ABORTED_AT_ONCE = 2000
"""Aborted transactions in one part of an answer: some 64 KiB."""
RETRY_AFTER_MS = 1000


class LocatableMetadata(LookupPort, Protocol):
    async def catch_up(self) -> int:
        """The fold holds all that the metadata store had at the call; its revision."""
        ...


class ObjectPins(Protocol):
    """As `metadata.pins.Pins`."""

    async def put(self, owner: str, ttl_ms: int) -> int: ...
    async def count(self, most: int) -> int: ...
    async def renew(self, pin_id: int) -> None: ...
    async def remove(self, pin_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LocatedPart:
    """`aborted`: pairs of a window's number and an aborted transaction that overlaps it.

    `without_objects`: numbers of windows whose log has its records elsewhere than on streams.
    """

    revision: int
    runs: Sequence[LocatedRun] = ()
    objects: ObjectTable | None = None
    aborted: Sequence[tuple[int, AbortedSpan]] = ()
    without_objects: Sequence[int] = ()


class LocateService:
    def __init__(
        self,
        logs: Logs,
        metadata: LocatableMetadata,
        pins: ObjectPins,
        *,
        authorize: Authorize,
        limits: LimitsConfig,
    ) -> None:
        self._logs = logs
        self._metadata = metadata
        self._pins = pins
        self._authorize = authorize
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.locates_max)
        self._waiting = 0

    async def pin(
        self, context: RequestContext, pin_id: int | None, owner: str, ttl_ms: int
    ) -> int:
        """A new pin's id, or the renewed one's.

        Errors: Invalid, NotFound (it has ended), QuotaExceeded.
        """
        self._authorize(context, Operation.READ, CLUSTER)
        if pin_id is None:
            most = self._limits.pins_max
            if await self._pins.count(most) >= most:
                raise QuotaExceeded(
                    f"{most} reads hold pins, which is limits.pins_max: let reads end, give batch "
                    "reads a smaller pinTtlMs, for their pins last that long, or raise the setting",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            return await self._pins.put(owner, ttl_ms)
        await self._pins.renew(pin_id)
        return pin_id

    async def unpin(self, context: RequestContext, pin_id: int) -> None:
        self._authorize(context, Operation.READ, CLUSTER)
        await self._pins.remove(pin_id)

    async def locate(
        self,
        context: RequestContext,
        windows: Sequence[OffsetWindow],
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> AsyncGenerator[LocatedPart, None]:
        """Ranges in the order of windows, then objects. Close it: it holds a turn of locates_max.

        First of all come windows without objects; with READ_COMMITTED, aborted transactions next.
        Errors: UnknownTopicOrPartition, NotLeader, Unauthorized, Invalid, QuotaExceeded; those of
        Locating.
        """
        if len(windows) > WINDOWS_MAX:
            raise Invalid(f"{len(windows)} windows in a request; at most {WINDOWS_MAX} are allowed")
        for topic in {window.topic for window in windows}:
            self._authorize(context, Operation.READ, Resource(ResourceType.TOPIC, topic))
        _check_apart(windows)
        async with self._turn(), aclosing(self._located(windows, isolation)) as parts:
            async for part in parts:
                yield part

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Errors: QuotaExceeded."""
        most = WAITING_PER_TURN_MAX * self._limits.locates_max
        if self._waiting >= most:
            raise QuotaExceeded(
                f"{most} requests for the places of records wait for their turn, and "
                f"{self._limits.locates_max} have it, which is limits.locates_max: try again later",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    async def _located(
        self, windows: Sequence[OffsetWindow], isolation: Isolation
    ) -> AsyncGenerator[LocatedPart, None]:
        # The pin was put before this call, so objects that the fold has from here on are kept.
        revision = await self._metadata.catch_up()
        keys = {TopicPartition(window.topic, window.partition): None for window in windows}
        opened = await in_order([self._opened(key) for key in keys])
        # Slices and aborted transactions are of one moment, whatever a cleaning replaces meanwhile.
        slices = {key: _slices_view(log) for key, log in zip(keys, opened, strict=True)}
        with ExitStack() as kept:
            # From this moment on: `file.delete.delay.ms` may be 0, and a plan is not made at once.
            for taken in slices.values():
                if taken is not None:
                    kept.enter_context(taken.kept())
            async for part in self._located_in(slices, windows, revision, isolation):
                yield part

    async def _located_in(
        self,
        slices: Mapping[TopicPartition, SlicesView | None],
        windows: Sequence[OffsetWindow],
        revision: int,
        isolation: Isolation,
    ) -> AsyncIterator[LocatedPart]:
        views = [slices[TopicPartition(window.topic, window.partition)] for window in windows]
        elsewhere = [number for number, view in enumerate(views) if view is None]
        if elsewhere:
            yield LocatedPart(revision, without_objects=elsewhere)
        if isolation is Isolation.READ_COMMITTED:
            async for aborted in _aborted(windows, views):
                yield LocatedPart(revision, aborted=aborted)
        sections: list[LocateSection] = []
        for number, (window, view) in enumerate(zip(windows, views, strict=True)):
            if view is None:
                continue
            sections += [
                LocateSection(
                    number,
                    segment.stream_id,
                    segment.shift,
                    segment.start,
                    segment.end,
                    segment.size_bytes,
                )
                for segment in view.slices(window.start, window.end)
            ]
        locating = Locating(self._metadata, sections)
        async for runs in locating.ranges():
            yield LocatedPart(revision, runs)
        async for objects in locating.objects():
            yield LocatedPart(revision, objects=objects)

    async def _opened(self, key: TopicPartition) -> AbstractLog:
        """Waits for each partition by itself: a plan has none that it could do without."""
        return await opened_within(self._limits.open_wait_ms / 1000, self._logs.log(key), key)


def _slices_view(log: AbstractLog) -> SlicesView | None:
    """None: the log's records are elsewhere than on streams."""
    return log.slices_view() if isinstance(log, LiesOnStreams) else None


async def _aborted(
    windows: Sequence[OffsetWindow], views: Sequence[SlicesView | None]
) -> AsyncIterator[Sequence[tuple[int, AbortedSpan]]]:
    """Aborted transactions by the numbers of windows, some thousand at once."""
    together: list[tuple[int, AbortedSpan]] = []
    for number, (window, view) in enumerate(zip(windows, views, strict=True)):
        if view is None:
            continue
        for entry in await view.aborted(window.start, window.end):
            span = AbortedSpan(entry.producer_id, entry.first_offset, entry.last_offset)
            together.append((number, span))
            if len(together) >= ABORTED_AT_ONCE:
                yield together
                together = []
    if together:
        yield together


def _check_apart(windows: Sequence[OffsetWindow]) -> None:
    """Overlapping windows would make the answer longer than the metadata. Errors: Invalid."""
    ordered = sorted(windows, key=lambda window: (window.topic, window.partition, window.start))
    for window, following in pairwise(ordered):
        is_same = (window.topic, window.partition) == (following.topic, following.partition)
        if is_same and following.start < window.end:
            raise Invalid(
                f"windows of {window.topic}-{window.partition} overlap at offset "
                f"{following.start}: ask for each offset once"
            )
