"""The node that a writing task stages on."""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.client.calls import topic as topic_calls
from streamlog.client.channel import Caller
from streamlog.client.closing import Closing
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.staging import StagedObject
from streamlog.client.tls import Tls
from streamlog.errors import UnknownTopicOrPartition
from streamlog.runtime.buffers import Buffer
from streamlog.spark.cluster.cluster import CLIENT_ID
from streamlog.spark.cluster.staged_writers import staged_writer

DROP_TIMEOUT_MS = 5000


class NodeTarget(Closing):
    """One thread uses it at a time."""

    def __init__(
        self,
        server: str,
        writer_id: str,
        timeout_ms: int,
        tls: Tls | None = None,
        producer: ProducerIdentity | None = None,
    ) -> None:
        """`producer`: whose transaction commits what is staged; None: a node commits it."""
        self._tls = tls
        self._server = server
        self._producer = producer
        self._caller = Caller(server, client_id=CLIENT_ID, timeout_ms=timeout_ms, tls=tls)
        self._writer = staged_writer(server, writer_id, producer, timeout_ms, tls)

    def partition_count(self, topic: str) -> int:
        """Creates the topic, if the node creates topics automatically."""
        try:
            count: int = self._caller.run(topic_calls.partition_count(topic))
        except UnknownTopicOrPartition as error:
            raise UnknownTopicOrPartition(
                f"there is no topic {topic}, which the option or column topic names; make it first"
            ) from error
        return count

    def batch_bytes_max(self, topic: str) -> int:
        limit: int = self._caller.run(topic_calls.batch_bytes_max(topic))
        return limit

    def stage(
        self, attempt: str, batches: dict[tuple[str, int], Buffer], *, expires_ms: int
    ) -> list[StagedObject]:
        return self._writer.stage(attempt, batches, expires_ms=expires_ms)

    def drop(self, objects: Iterable[StagedObject]) -> None:
        writer_id = self._writer.writer_id
        with staged_writer(
            self._server, writer_id, self._producer, DROP_TIMEOUT_MS, self._tls
        ) as writer:
            writer.drop(objects)

    def close(self) -> None:
        self._caller.close()
        self._writer.close()
