"""CompactionService over gRPC: the test executes a node's merges, while appends go on.

The node and its engine are in this process, on local files.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from streamlog.compaction.execute.executor import InlineExecutor
from streamlog.compaction.execute.rate import RateLimit
from streamlog.compaction.execute.spool import MemorySpool
from streamlog.compaction.plan.spec import Job, MergeOutcome, decode_job, encode_outcome
from streamlog.errors import Corrupt, Unauthorized, by_name
from streamlog.objectstore.keys import data_key
from streamlog.repair.fsck.fsck import FsckOptions, fsck
from streamlog.server.context import CLUSTER, Operation, RequestContext, Resource
from streamlog.server.grpc import compaction as grpc_compaction
from streamlog.server.services.merging import MergeService
from streamlog.v1 import compaction_pb2
from streamlog.v1.compaction_pb2_grpc import CompactionServiceStub
from streamlog.v1support.errors import from_rpc_error, to_proto
from streamlog.wiring import OpenEngine
from tests.compaction.compacting_engine import History, compacted, live, make, sample
from tests.engine.harness import error_of, until
from tests.support.grpc_aio import END_OF_CALL
from tests.support.running_node import RunningNode, running_node

SETTINGS = {
    "engine.compaction.compaction_process": "inline",
    "engine.compaction.compaction_interval_ms": 3_600_000,
    "engine.compaction.small_objects_min": 4,
    "engine.compaction.small_object_bytes": 32 << 10,
    "engine.compaction.compacted_part_bytes": 2 << 10,
    "engine.compaction.stream_object_bytes_min": 24 << 10,
    "engine.compaction.object_bytes_max": 128 << 10,
    "engine.compaction.spec_bytes_max": 96 << 10,
    "engine.compaction.compaction_memory_bytes": 4 << 20,
    "engine.upload.upload_interval_ms": 5,
    "engine.upload.upload_bytes_target": 8 << 10,
    "engine.read.tail_cache_bytes": 0,
    "engine.metadata.checkpoint_interval_ms": 100,
    "engine.collector.collect_interval_ms": 100,
    "engine.collector.deletion_delay_ms": 50,
}


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 240))


def node(path: Path, **changes: Any) -> Any:
    named = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
    return running_node(data=str(path / "data"), **{**named, **changes})


def engine_of(running: RunningNode) -> OpenEngine:
    assert running.node.engine is not None
    return running.node.engine


class Executor:
    """An ExecuteMerges call, as a driver makes it; jobs are executed on the node's own store."""

    def __init__(self, running: RunningNode, owner: str = "test") -> None:
        self.engine = engine_of(running)
        self.call: Any = CompactionServiceStub(running.channel).ExecuteMerges()
        self.owner = owner

    async def say(self, **message: Any) -> None:
        await self.call.write(compaction_pb2.ExecuteMergesRequest(**message))

    async def begin(self) -> Executor:
        await self.say(executor=compaction_pb2.MergeExecutor(owner=self.owner))
        first = await self.call.read()
        assert first is not END_OF_CALL, await self.error()
        assert first.accepted.cluster_id == self.engine.metadata.cluster_id
        assert first.accepted.store_url == self.engine.store.url
        return self

    async def job(self) -> tuple[int, Job] | None:
        """None: all objects are fully compacted."""
        response = await self.call.read()
        assert response is not END_OF_CALL, await self.error()
        if response.WhichOneof("said") == "settled":
            self.settled = response.settled
            return None
        return response.job.number, decode_job(response.job.job)

    async def carried_out(self, job: Job) -> MergeOutcome:
        clock = self.engine.clock
        limit = RateLimit(1 << 40, clock)
        executor = InlineExecutor(
            self.engine.store, self.engine.offload, limit, MemorySpool, memory_bytes=1 << 20
        )
        return await executor.run(job)

    async def done(self, number: int, outcome: MergeOutcome) -> None:
        data = encode_outcome(outcome)
        await self.say(done=compaction_pb2.MergeDone(number=number, outcome=data))

    async def all_jobs(self) -> int:
        count = 0
        while (assigned := await self.job()) is not None:
            await self.done(assigned[0], await self.carried_out(assigned[1]))
            count += 1
        return count

    async def error(self) -> Exception:
        """The error that ended the call."""
        try:
            while await self.call.read() is not END_OF_CALL:
                """The jobs that were under way."""
            assert await self.call.code() is not grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error, may_have_happened=False)
        failure = grpc.aio.AioRpcError(  # type: ignore[call-arg]
            await self.call.code(),
            await self.call.initial_metadata(),
            await self.call.trailing_metadata(),
            await self.call.details(),
        )
        return from_rpc_error(failure, may_have_happened=False)


@asynccontextmanager
async def appending(history: History, streams: Any) -> Any:
    """Appends while the body runs."""
    ended = asyncio.Event()

    async def append() -> None:
        while not ended.is_set():
            await history.append(streams, 3)

    task = asyncio.ensure_future(append())
    try:
        yield
    finally:
        ended.set()
        await task


async def check(engine: OpenEngine, history: History, streams: Any) -> None:
    """All batches are there, and fsck finds nothing."""
    await engine.drain()
    await history.check(streams)
    await engine.metadata.checkpoint()
    report = await fsck(
        engine.kv_store,
        engine.store,
        clock=engine.clock,
        random=engine.random,
        offload=engine.offload,
        options=FsckOptions(deep=True),
    )
    assert not [finding for finding in report.findings if finding.severity.name == "ERROR"], (
        report.findings
    )


def test_another_process_merges_while_appends_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(1)
        async with node(tmp_path) as running:
            engine = engine_of(running)
            streams = await make(engine, 6)
            await history.append(streams, 60)
            await engine.drain()
            before = {row.object_id for row in await live(engine)}
            executor = await Executor(running).begin()
            assert running.metric("streamlog_compaction_lent") == 1
            async with appending(history, streams):
                count = await executor.all_jobs()
            assert 1 <= executor.settled.merges == count
            assert executor.settled.inputs >= len(before)
            assert executor.settled.inputs > executor.settled.outputs >= count
            await until(lambda: running.metric("streamlog_compaction_lent") == 0)
            assert not before & {row.object_id for row in await live(engine)}
            await check(engine, history, streams)
            # Now another executor is accepted, and its call ends at once without a job.
            await compacted(engine)
            other = await Executor(running).begin()
            await other.all_jobs()

    run(scenario)


def test_a_second_executor_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(2)
        async with node(tmp_path) as running:
            engine = engine_of(running)
            streams = await make(engine, 2)
            await history.append(streams, 20)
            await engine.drain()
            first = await Executor(running, "the first").begin()
            job = await first.job()
            assert job is not None
            second = Executor(running, "the second")
            await second.say(executor=compaction_pb2.MergeExecutor(owner="the second"))
            error = await second.error()
            assert type(error) is by_name()["Conflict"]
            assert "the first carries out" in str(error)
            await first.done(job[0], await first.carried_out(job[1]))
            await first.all_jobs()
            await check(engine, history, streams)

    run(scenario)


@pytest.mark.parametrize("zombie", [False, True])
def test_a_node_goes_on_when_its_executor_is_lost(tmp_path: Path, zombie: bool) -> None:
    """It is lost in the middle of a merge; its outputs, stored now or later, are deleted."""

    async def scenario() -> None:
        history = History(3)
        async with node(tmp_path, engine__metadata__orphan_resweep_ms=2000) as running:
            engine = engine_of(running)
            streams = await make(engine, 3)
            await history.append(streams, 40)
            await engine.drain()
            executor = await Executor(running).begin()
            assigned = await executor.job()
            assert assigned is not None
            job = assigned[1]
            keys = [data_key(object_id) for object_id in job.object_ids]
            if not zombie:
                await executor.carried_out(job)
            executor.call.cancel()
            await until(lambda: sample(engine, "specs_total", outcome="unavailable") == 1)
            if zombie:
                await executor.carried_out(job)
            await compacted(engine)
            assert sample(engine, "specs_total", outcome="committed") > 0
            assert not {row.object_id for row in await live(engine)} & set(job.object_ids)

            async def is_gone(key: str) -> bool:
                return await error_of(engine.store.head(key)) is not None

            while not all([await is_gone(key) for key in keys]):
                # Sweeping goes on as the metadata does.
                await history.append(streams, 1)
                await asyncio.sleep(0.05)
            await check(engine, history, streams)

    run(scenario)


def test_a_wrong_outcome_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(4)
        async with node(tmp_path) as running:
            engine = engine_of(running)
            streams = await make(engine, 3)
            await history.append(streams, 40)
            await engine.drain()
            before = {row.object_id for row in await live(engine)}

            async def refused(**changes: Any) -> str:
                """`is_stored`, or fields of the first object's row."""
                executor = await Executor(running, "a liar").begin()
                assigned = await executor.job()
                assert assigned is not None
                outcome = await executor.carried_out(assigned[1])
                if not changes.pop("is_stored", True):
                    await engine.store.delete([data_key(assigned[1].object_ids[0])])
                first = dataclasses.replace(outcome.objects[0], **changes)
                lie = dataclasses.replace(outcome, objects=[first, *outcome.objects[1:]])
                await executor.done(assigned[0], lie)
                error = await executor.error()
                assert type(error) is by_name()["Invalid"], error
                await until(lambda: running.metric("streamlog_compaction_lent") == 0)
                return str(error)

            assert "the outcome that a liar reports is refused" in await refused(
                object_id=min(before)
            )
            assert "says of itself" in await refused(index_crc32c=1)
            assert "is not in the store" in await refused(is_stored=False)
            assert {row.object_id for row in await live(engine)} == before
            await compacted(engine)
            await check(engine, history, streams)

    run(scenario)


def test_a_damaged_input_is_left_alone_and_the_rest_is_merged(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(5)
        async with node(tmp_path) as running:
            engine = engine_of(running)
            streams = await make(engine, 3)
            await history.append(streams, 40)
            await engine.drain()
            executor = await Executor(running).begin()
            assigned = await executor.job()
            assert assigned is not None
            damaged = assigned[1].spec.inputs[0].row.object_id
            error = to_proto(Corrupt("a flipped bit", object_key=data_key(damaged)))
            await executor.say(failed=compaction_pb2.MergeFailed(number=assigned[0], error=error))
            await executor.all_jobs()
            assert executor.settled.merges > 0
            assert sample(engine, "quarantined_objects") == 1
            assert damaged in {row.object_id for row in await live(engine)}
            await check(engine, history, streams)

    run(scenario)


def test_wrong_messages_of_an_executor_end_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        history = History(6)
        async with node(tmp_path) as running:
            engine = engine_of(running)
            streams = await make(engine, 2)
            await history.append(streams, 20)
            await engine.drain()

            async def ended(first: dict[str, Any], then: dict[str, Any] | None = None) -> Exception:
                executor = Executor(running)
                await executor.say(**first)
                if then is not None:
                    assert (await executor.call.read()).HasField("accepted")
                    assert await executor.job() is not None
                    await executor.say(**then)
                return await executor.error()

            me = {"executor": compaction_pb2.MergeExecutor(owner="me")}
            nobody = {"executor": compaction_pb2.MergeExecutor()}
            done = {"done": compaction_pb2.MergeDone(number=77, outcome=b"x")}
            tired = to_proto(Unauthorized("no rights on the bucket"))
            failed = {"failed": compaction_pb2.MergeFailed(number=1, error=tired)}
            for first, then in ((nobody, None), (done, None), ({}, None), (me, done), (me, me)):
                assert type(await ended(first, then)) is by_name()["Invalid"]
            assert "says of no input" in str(await ended(me, failed))
            with monkeypatch.context() as patched:
                patched.setattr(grpc_compaction, "SILENT_S", 0.5)
                assert "sent nothing" in str(await ended(me, {}))
            await compacted(engine)
            await check(engine, history, streams)

    run(scenario)


def test_a_node_that_stops_ends_the_call_of_its_executor(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(7)
        async with node(tmp_path) as running:
            engine = engine_of(running)
            await history.append(await make(engine, 2), 20)
            await engine.drain()
            executor = await Executor(running).begin()
            assert await executor.job() is not None
            stopping = asyncio.ensure_future(running.node.stop())
            error = await executor.error()
            assert type(error) is by_name()["Closed"]
            assert "shutting down" in str(error)
            await stopping

    run(scenario)


def test_merging_needs_a_right_and_a_compactor() -> None:
    async def scenario() -> None:
        asked: list[tuple[Operation, Resource]] = []

        def deny(context: RequestContext, operation: Operation, resource: Resource) -> None:
            asked.append((operation, resource))
            raise Unauthorized("no")

        store: Any = None
        service = MergeService(None, "c", store, authorize=deny)
        with pytest.raises(Unauthorized):
            service.lend(RequestContext(), "me").__enter__()
        assert asked == [(Operation.ALTER, CLUSTER)]
        async with running_node() as running:
            executor = Executor(running)
            await executor.say(executor=compaction_pb2.MergeExecutor(owner="me"))
            assert "does not compact" in str(await executor.error())

    run(scenario)
