"""StagedWriteService: permissions and refusals, on a real engine in this process."""

from __future__ import annotations

import asyncio

from streamlog.errors import Invalid, PolicyViolation, StreamlogError, Unauthorized
from streamlog.log.staged_logs import ManifestEntry
from streamlog.model.partition import TopicPartition
from streamlog.server.context import CLUSTER, Operation, RequestContext, Resource, ResourceType
from streamlog.server.services.staging import EXPIRES_MS_MAX, StagingService
from streamlog.settings.limits import LimitsConfig
from tests.engine.harness import error_of
from tests.log.staging import encoded
from tests.repair.cluster import Cluster, run
from tests.support.fake_coordinator import FakeCoordinator

CONTEXT = RequestContext(principal="job")


class Rules:
    """An `authorize` that notes its calls and refuses `denied`."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, Resource]] = []
        self.denied: set[str] = set()

    def __call__(self, context: RequestContext, operation: Operation, resource: Resource) -> None:
        self.asked.append((operation, resource))
        if resource.name in self.denied:
            raise Unauthorized(f"{context.principal} may not {operation.value} {resource.name}")


def test_staging_and_commits_need_the_right_to_write_to_the_topics() -> None:
    async def scenario() -> None:
        async with Cluster().node() as engine:
            await engine.logs.create_topic("t", 1)
            rules = Rules()
            limits = LimitsConfig(partitions_per_request_max=2)
            service = StagingService(
                engine.logs, engine.transactions, authorize=rules, limits=limits
            )
            batches = {TopicPartition("t", 0): encoded([b"a"])}
            stored = await service.stage(CONTEXT, "w", "1", batches, 0)
            topic = Resource(ResourceType.TOPIC, "t")
            assert rules.asked == [(Operation.WRITE, topic)]
            entry = ManifestEntry(stored.staged.object_id, list(batches))
            rules.denied = {"t"}
            for call in (
                service.stage(CONTEXT, "w", "2", batches, 0),
                service.commit(CONTEXT, "w", 0, [entry]),
            ):
                assert isinstance(await error_of(call), Unauthorized)
            rules.denied = {CLUSTER.name}
            assert isinstance(await error_of(service.status(CONTEXT, "w")), Unauthorized)
            assert isinstance(await error_of(service.abort(CONTEXT, "w", [1])), Unauthorized)
            # Of no topic: it would make the writer's later epochs look committed.
            assert isinstance(await error_of(service.commit(CONTEXT, "w", 9, [])), Unauthorized)
            rules.denied = set()
            many = [TopicPartition("t", n) for n in range(3)]
            crowded = service.commit(CONTEXT, "w", 0, [ManifestEntry(1, many)])
            assert isinstance(await error_of(crowded), Invalid)
            for expires_ms in (-1, EXPIRES_MS_MAX + 1, (1 << 63) - 2):
                late = service.stage(CONTEXT, "w", "2", batches, expires_ms)
                assert isinstance(await error_of(late), Invalid)
            assert (await service.commit(CONTEXT, "w", 0, [entry])).parts[0].end_offset == 1
            assert (await service.status(CONTEXT, "w")).last_epoch == 0

    run(scenario)


def test_staged_writes_are_refused_on_a_medium_without_them() -> None:
    class Logs:
        staged = None

    service = StagingService(
        Logs(),  # type: ignore[arg-type]
        FakeCoordinator(),
        authorize=Rules(),
        limits=LimitsConfig(),
    )
    error = asyncio.run(error_of(service.status(CONTEXT, "w")))
    assert isinstance(error, PolicyViolation)
    assert isinstance(error, StreamlogError)
