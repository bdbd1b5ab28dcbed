"""Staged writes: the batches of many tasks become visible by one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionCoordinator
from streamlog.coordinator.placement import check_id
from streamlog.errors import Invalid, PolicyViolation
from streamlog.log.staged_logs import (
    ManifestCommit,
    ManifestEntry,
    StagedBatches,
    StagedLogs,
    StagingProducer,
    WriterProgress,
)
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.server.context import (
    CLUSTER,
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
)
from streamlog.server.services.ports import Logs
from streamlog.settings.limits import LimitsConfig

OBJECTS_MAX = 50_000
"""In one commit or abort; a commit record holds so many, with 10,000 streams."""
EXPIRES_MS_MAX = 365 * 24 * 3600 * 1000
"""Longest time that a client may ask for, so that abandoned objects go at last."""


class StagingService:
    """Staging and committing need the right to write to the topics.

    A writer id is not protected: any client that knows it may use it.
    """

    def __init__(
        self,
        logs: Logs,
        coordinator: TransactionCoordinator,
        *,
        authorize: Authorize,
        limits: LimitsConfig,
    ) -> None:
        self._logs = logs
        self._coordinator = coordinator
        self._authorize = authorize
        self._limits = limits

    async def stage(
        self,
        context: RequestContext,
        writer_id: str,
        attempt: str,
        batches: Mapping[TopicPartition, Buffer],
        expires_ms: int,
        producer: ProducerIdAndEpoch | None = None,
    ) -> StagedBatches:
        """`producer`: whose transaction the batches belong to.

        Errors: those of StagedLogs.stage, Unauthorized.
        """
        self._check(context, batches)
        if not 0 <= expires_ms <= EXPIRES_MS_MAX:
            raise Invalid(
                f"an expiry of {expires_ms} ms; 1 to {EXPIRES_MS_MAX} is allowed, and 0, the "
                "server's default"
            )
        return await self._staged.stage(
            writer_id, attempt, batches, producer=_staging(producer), expires_ms=expires_ms
        )

    async def commit(
        self,
        context: RequestContext,
        writer_id: str,
        epoch: int,
        manifest: Sequence[ManifestEntry],
    ) -> ManifestCommit:
        """Errors: those of StagedLogs.commit, Unauthorized."""
        partitions = _partitions(manifest)
        if not partitions:
            # It changes no topic, and the writer's epoch all the same.
            self._authorize(context, Operation.IDEMPOTENT_WRITE, CLUSTER)
        self._check(context, partitions)
        return await self._staged.commit(writer_id, epoch, manifest)

    async def attach(
        self,
        context: RequestContext,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        epoch: int,
        manifest: Sequence[ManifestEntry],
    ) -> ManifestCommit:
        """Attaches what was staged for the producer's open transaction, as a part of it.

        Errors: those of StagedLogs.attach and of the coordinator; Unauthorized;
        TransactionAbortable (a partition is not part of the transaction).
        """
        check_id(transactional_id)
        partitions = _partitions(manifest)
        if not partitions:
            raise Invalid("there is nothing to attach: no object names a partition")
        self._authorize(
            context, Operation.WRITE, Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)
        )
        self._check(context, partitions)
        await self._verify(transactional_id, producer, partitions)
        return await self._staged.attach(StagingProducer(*producer), epoch, manifest)

    async def _verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
    ) -> None:
        """Asks the coordinator about the partitions in which the transaction is not open yet."""
        asked = {}
        for partition in sorted(partitions):
            log = await self._logs.log(partition)
            if log.needs_verification(*producer):
                asked[partition] = log, log.verification_guard()
        if not asked:
            return
        refused = await self._coordinator.verify_partitions(transactional_id, producer, list(asked))
        for error in refused.values():
            raise error
        for log, guard in asked.values():
            log.verified(*producer, guard)

    async def status(self, context: RequestContext, writer_id: str) -> WriterProgress:
        self._authorize(context, Operation.DESCRIBE, CLUSTER)
        return await self._staged.status(writer_id)

    async def abort(
        self,
        context: RequestContext,
        writer_id: str,
        object_ids: Sequence[int],
        producer: ProducerIdAndEpoch | None = None,
    ) -> int:
        """How many were dropped."""
        self._authorize(context, Operation.IDEMPOTENT_WRITE, CLUSTER)
        if len(object_ids) > OBJECTS_MAX:
            raise Invalid(f"{len(object_ids)} objects to drop; at most {OBJECTS_MAX} in a call")
        return await self._staged.abort(writer_id, object_ids, _staging(producer))

    @property
    def _staged(self) -> StagedLogs:
        staged = self._logs.staged
        if staged is None:
            raise PolicyViolation("this node's logs lie on a medium without staged writes")
        return staged

    def _check(self, context: RequestContext, partitions: Iterable[TopicPartition]) -> None:
        distinct = set(partitions)
        if len(distinct) > self._limits.partitions_per_request_max:
            raise Invalid(
                f"the request names {len(distinct)} partitions; at most "
                f"{self._limits.partitions_per_request_max} are allowed "
                "(limits.partitions_per_request_max)"
            )
        for topic in sorted({partition.topic for partition in distinct}):
            self._authorize(context, Operation.WRITE, Resource(ResourceType.TOPIC, topic))


def _staging(producer: ProducerIdAndEpoch | None) -> StagingProducer | None:
    return None if producer is None else StagingProducer(*producer)


def _partitions(manifest: Sequence[ManifestEntry]) -> set[TopicPartition]:
    """Errors: Invalid for too many objects."""
    if len(manifest) > OBJECTS_MAX:
        raise Invalid(
            f"a commit of {len(manifest)} objects; at most {OBJECTS_MAX}. Nothing was "
            "committed: have fewer and larger objects, by fewer tasks, or several commits"
        )
    return {partition for entry in manifest for partition in entry.partitions}
