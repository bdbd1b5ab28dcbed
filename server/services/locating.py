"""Tells readers that go to the store themselves where records lie, and pins objects for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamlog.errors import Invalid
from streamlog.log.abstract import TopicPartition
from streamlog.log.segment import SharedLogSegment
from streamlog.log.slices import slices
from streamlog.metadata.locating import Locating, Places, Section
from streamlog.model.located import LocatedRun, ObjectTable, OffsetWindow
from streamlog.server.context import (
    CLUSTER,
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
)
from streamlog.server.services.ports import Logs

WINDOWS_MAX = 100_000


class LocatableMetadata(Places, Protocol):
    async def catch_up(self) -> int:
        """The fold holds all that the metadata store had at the call; its revision."""
        ...


class ObjectPins(Protocol):
    """As `metadata.pins.Pins`."""

    async def put(self, owner: str, ttl_ms: int) -> int: ...
    async def renew(self, pin_id: int) -> None: ...
    async def remove(self, pin_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LocatedPart:
    revision: int
    runs: Sequence[LocatedRun] = ()
    objects: ObjectTable | None = None


class LocateService:
    def __init__(
        self, logs: Logs, metadata: LocatableMetadata, pins: ObjectPins, *, authorize: Authorize
    ) -> None:
        self._logs = logs
        self._metadata = metadata
        self._pins = pins
        self._authorize = authorize

    async def pin(
        self, context: RequestContext, pin_id: int | None, owner: str, ttl_ms: int
    ) -> int:
        """A new pin's id, or the renewed one's. Errors: Invalid, NotFound (it has ended)."""
        self._authorize(context, Operation.READ, CLUSTER)
        if pin_id is None:
            return await self._pins.put(owner, ttl_ms)
        await self._pins.renew(pin_id)
        return pin_id

    async def unpin(self, context: RequestContext, pin_id: int) -> None:
        self._authorize(context, Operation.READ, CLUSTER)
        await self._pins.remove(pin_id)

    async def locate(
        self, context: RequestContext, windows: Sequence[OffsetWindow]
    ) -> AsyncIterator[LocatedPart]:
        """Ranges in the order of windows, then objects.

        Errors: UnknownTopicOrPartition, NotLeader, Unauthorized, Invalid; those of Locating.
        """
        if len(windows) > WINDOWS_MAX:
            raise Invalid(f"{len(windows)} windows in a request; at most {WINDOWS_MAX} are allowed")
        for topic in {window.topic for window in windows}:
            self._authorize(context, Operation.READ, Resource(ResourceType.TOPIC, topic))
        # The pin was put before this call: what the fold shows from here on is kept.
        revision = await self._metadata.catch_up()
        sections: list[Section] = []
        for number, window in enumerate(windows):
            log = await self._logs.log(TopicPartition(window.topic, window.partition))
            segments = [one for one in log.segments if isinstance(one, SharedLogSegment)]
            if len(segments) != len(log.segments):
                raise Invalid(f"{window.topic} has no objects that could be read past its node")
            sections += [
                Section(number, one.stream_id, one.shift, one.start, one.end, one.size_bytes)
                for one in slices(segments, window.start, window.end)
            ]
        locating = Locating(self._metadata, sections)
        async for runs in locating.ranges():
            yield LocatedPart(revision, runs)
        async for objects in locating.objects():
            yield LocatedPart(revision, objects=objects)
