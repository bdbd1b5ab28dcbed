"""The driver's questions before it plans: topics, offsets, places of records; and pins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from streamlog.client.calls import admin as admin_calls
from streamlog.client.calls import locate as locate_calls
from streamlog.client.calls.topic import list_offsets
from streamlog.client.channel import Caller
from streamlog.client.tls import Tls
from streamlog.errors import NotFound, UnknownTopicOrPartition
from streamlog.model.located import Located, OffsetWindow
from streamlog.reading.topics import Offsets, Topic, TopicPartition
from streamlog.spark.options import EARLIEST, LATEST

T = TypeVar("T")
CLIENT_ID = "spark"
TIMEOUT_MS = 60_000
UNPIN_TIMEOUT_MS = 5000
"""A query does not wait longer for its node: a pin that is not removed ends by itself."""


class Cluster(Protocol):
    """One thread uses it at a time. Errors of every call: Unavailable, and those named there."""

    @property
    def server(self) -> str | None: ...

    @property
    def store_url(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...

    def let_go(self) -> None:
        """Releases locks on offline metadata; later calls answer as of then."""
        ...

    def topics(self) -> dict[str, Topic]:
        """All topics by name."""
        ...

    def offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offsets]:
        """Offsets of the partitions that exist."""
        ...

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time, ms; None: no such record, or no such partition."""
        ...

    def locate(self, windows: Sequence[OffsetWindow]) -> Located:
        """Where the records lie, and which transactions among them were aborted, if the read is a
        committed one. Call it under a pin."""
        ...

    def pin(self, ttl_ms: int) -> int: ...

    def renew(self, pin_id: int) -> bool:
        """False: the pin has ended."""
        ...

    def unpin(self, pin_id: int) -> None:
        """Waits for UNPIN_TIMEOUT_MS at most."""
        ...

    def close(self) -> None: ...


class ServerCluster:
    """A cluster with a running node."""

    def __init__(
        self, server: str, isolation: str, *, store: str | None = None, tls: Tls | None = None
    ) -> None:
        """`store`: the store's URL for this machine, if it differs from the node's."""
        self.server: str | None = server
        self._isolation = isolation
        self._caller = Caller(server, client_id=CLIENT_ID, timeout_ms=TIMEOUT_MS, tls=tls)
        self._store = store
        self._status: tuple[str, str] | None = None

    def _store_and_id(self) -> tuple[str, str]:
        if self._status is None:
            status = self._caller.run(admin_calls.status())
            self._status = (status.store_url, status.cluster_id)
        return self._status

    @property
    def store_url(self) -> str:
        return self._store or self._store_and_id()[0]

    @property
    def cluster_id(self) -> str:
        return self._store_and_id()[1]

    def let_go(self) -> None:
        """Does nothing: a node locks nothing for its clients."""

    def topics(self) -> dict[str, Topic]:
        topics: dict[str, Topic] = {}
        after = ""
        while True:
            page = self._caller.run(admin_calls.list_topics(after))
            topics.update((entry.name, Topic(entry.partitions, entry.topic_id)) for entry in page)
            if len(page) < admin_calls.PAGE:
                return topics
            after = page[-1].name

    def offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offsets]:
        def look_up(asked: Sequence[TopicPartition]) -> dict[TopicPartition, Offsets]:
            starts = self._caller.run(list_offsets(dict.fromkeys(asked, EARLIEST), self._isolation))
            ends = self._caller.run(list_offsets(dict.fromkeys(asked, LATEST), self._isolation))
            return {key: Offsets(starts[key].offset, ends[key].offset) for key in asked}

        return self._of_existing(partitions, look_up)

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        def look_up(asked: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
            call = list_offsets({key: times[key] for key in asked}, self._isolation)
            places = self._caller.run(call)
            return {key: None if place is None else place.offset for key, place in places.items()}

        return {**dict.fromkeys(times), **self._of_existing(list(times), look_up)}

    def _of_existing(
        self,
        partitions: Iterable[TopicPartition],
        look_up: Callable[[Sequence[TopicPartition]], dict[TopicPartition, T]],
    ) -> dict[TopicPartition, T]:
        """Looks up; if a topic was deleted meanwhile, looks up again without it."""
        asked = list(partitions)
        if not asked:
            return {}
        try:
            return look_up(asked)
        except UnknownTopicOrPartition:
            topics = self.topics()
            left = [(t, p) for t, p in asked if t in topics and p < topics[t].partitions]
            if len(left) == len(asked):
                raise
            return look_up(left) if left else {}

    def locate(self, windows: Sequence[OffsetWindow]) -> Located:
        return locate_calls.locate_records(
            self._caller, windows, self._isolation, timeout_ms=TIMEOUT_MS
        )

    def pin(self, ttl_ms: int) -> int:
        pin_id: int = self._caller.run(locate_calls.pin_objects(None, CLIENT_ID, ttl_ms))
        return pin_id

    def renew(self, pin_id: int) -> bool:
        try:
            self._caller.run(locate_calls.pin_objects(pin_id, CLIENT_ID, 0))
        except NotFound:
            return False
        return True

    def unpin(self, pin_id: int) -> None:
        self._caller.run(locate_calls.unpin_objects(pin_id), timeout_ms=UNPIN_TIMEOUT_MS)

    def close(self) -> None:
        self._caller.close()
