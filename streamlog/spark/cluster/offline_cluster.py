"""A cluster whose nodes are stopped: the driver reads its metadata, once for each plan.

The metadata folder is locked while the driver plans, not while executors read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from streamlog.errors import DataInUse, WalPending
from streamlog.model.located import Located, OffsetWindow
from streamlog.reading.offline import OfflineTopics, open_offline
from streamlog.reading.topics import Offsets, Topic, TopicPartition
from streamlog.spark.cluster.cluster import CLIENT_ID

T = TypeVar("T")


class OfflineCluster:
    """Opens store and metadata at the first call, and releases them at `let_go`.

    Errors of every call: DataInUse, ForeignCluster, Invalid, Corrupt, Unavailable; WalPending for
    partitions with acknowledged records in the WAL of a node that did not end well.
    """

    def __init__(
        self,
        store: str,
        meta: str | None,
        isolation: str = "read_committed",
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        self.server: str | None = None
        self._urls = (store, meta)
        self._checks_wal = fail_on_data_loss
        self._is_committed = isolation == "read_committed"
        self._runner = asyncio.Runner()
        self._topics: OfflineTopics | None = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except WalPending as error:
            raise WalPending(
                f"{error.message}; failOnDataLoss=false reads what is in objects", **error.fields
            ) from error

    def _opened(self) -> OfflineTopics:
        if self._topics is None:
            try:
                self._topics = self._run(
                    open_offline(
                        *self._urls, checks_wal=self._checks_wal, is_committed=self._is_committed
                    )
                )
            except DataInUse as error:
                raise DataInUse(
                    "a node has the metadata open: give the option server instead of meta "
                    f"({error.message})",
                    **error.fields,
                ) from error
        return self._topics

    @property
    def store_url(self) -> str:
        return self._urls[0]

    @property
    def cluster_id(self) -> str:
        return self._opened().cluster_id

    def topics(self) -> dict[str, Topic]:
        return self._run(self._opened().topics())

    def offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offsets]:
        existing = self._run(self._opened().partitions(partitions))
        return {key: Offsets(partition.start, partition.end) for key, partition in existing.items()}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._run(self._opened().offsets_at(times))

    def locate(self, windows: Sequence[OffsetWindow]) -> Located:
        return self._run(self._opened().locate(windows))

    def pin(self, ttl_ms: int) -> int:
        return self._run(self._opened().pin(CLIENT_ID, ttl_ms))

    def renew(self, pin_id: int) -> bool:
        """Does nothing: the pin's lease begins anew when a node opens the metadata."""
        return True

    def unpin(self, pin_id: int) -> None:
        self._run(self._opened().unpin(pin_id))

    def let_go(self) -> None:
        """Releases the metadata for other processes; the next call reads it anew."""
        topics, self._topics = self._topics, None
        if topics is not None:
            self._run(topics.close())

    def close(self) -> None:
        try:
            self.let_go()
        finally:
            self._runner.close()
