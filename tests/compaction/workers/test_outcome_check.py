"""The objects that a remote executor reports are checked before they are committed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from streamlog.compaction.execute.executor import InlineExecutor
from streamlog.compaction.execute.rate import RateLimit
from streamlog.compaction.execute.spool import MemorySpool
from streamlog.compaction.plan.spec import Job, MergeOutcome, SpecOutput, decode_job, encode_outcome
from streamlog.compaction.workers import remote as remote_module
from streamlog.compaction.workers.outcome_check import check_outcome
from streamlog.compaction.workers.remote import RemoteExecutor, RemoteLost, SwitchedExecutor
from streamlog.errors import Closed, Conflict, Corrupt, Invalid, ObjectNotFound, Unavailable
from streamlog.format.rows import ObjectRow, Placement, RangeRow, Rows, Tenure
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from tests.compaction.objects import Streams, job, spec
from tests.engine.harness import error_of


@dataclasses.dataclass
class Done:
    """A job that was carried out."""

    store: MemoryObjectStore
    offload: ThreadOffload
    executor: InlineExecutor
    job: Job
    outcome: MergeOutcome

    async def error(self, job: Job | None = None, outcome: MergeOutcome | None = None) -> object:
        check = check_outcome(job or self.job, outcome or self.outcome, self.store, self.offload)
        return await error_of(check)


def run(scenario: Callable[[Done], Coroutine[Any, Any, None]]) -> None:
    """With two outputs, of streams 1 and 2, and of stream 3."""

    async def all_of_it() -> None:
        offload = ThreadOffload()
        try:
            store = MemoryObjectStore(SystemClock())
            made = Streams(store, 1)
            for _ in range(3):
                await made.upload([(1, 3000), (2, 5000), (2, 5000), (3, 300)])
            rows = [[RangeRow(s, 1, 0, made.ends[s]) for s in own] for own in ((1, 2), (3,))]
            limit = RateLimit(1 << 40, SystemClock())
            executor = InlineExecutor(store, offload, limit, MemorySpool, memory_bytes=64 * 1024)
            what = job(spec(made.inputs, rows))
            await scenario(Done(store, offload, executor, what, await executor.run(what)))
        finally:
            await offload.close()

    asyncio.run(asyncio.wait_for(all_of_it(), 60))


def test_objects_as_the_job_asked_pass() -> None:
    async def scenario(done: Done) -> None:
        assert await done.error() is None

    run(scenario)


def _with_row(outcome: MergeOutcome, **changes: Any) -> MergeOutcome:
    first = dataclasses.replace(outcome.objects[0], **changes)
    objects = [first, *outcome.objects[1:]]
    return dataclasses.replace(
        outcome, objects=objects, bytes_written=sum(row.size_bytes for row in objects)
    )


def test_reported_rows_that_differ_from_the_objects_are_refused() -> None:
    async def scenario(done: Done) -> None:
        first: ObjectRow = done.outcome.objects[0]
        wrong: list[dict[str, Any]] = [
            {"object_id": 5},
            {"object_id": done.outcome.objects[1].object_id},
            {"size_bytes": first.size_bytes - 1},
            {"size_bytes": first.size_bytes + 1},
            {"size_bytes": 1 << 40},
            {"index_position": first.index_position - 1},
            {"index_position": 0},
            {"index_length": first.index_length + 1},
            {"index_length": 0},
            {"index_crc32c": first.index_crc32c ^ 1},
            {"store": 1},
            {"placements": (Placement(1, 0, 1),)},
        ]
        for changes in wrong:
            error = await done.error(outcome=_with_row(done.outcome, **changes))
            assert isinstance(error, Invalid), (changes, error)
        for outcome in (
            dataclasses.replace(done.outcome, objects=done.outcome.objects[:1]),
            dataclasses.replace(done.outcome, objects=done.outcome.objects[::-1]),
            dataclasses.replace(done.outcome, objects=[*done.outcome.objects, first]),
            dataclasses.replace(done.outcome, bytes_written=0),
        ):
            assert isinstance(await done.error(outcome=outcome), Invalid)

    run(scenario)


def test_objects_of_another_job_are_refused() -> None:
    async def scenario(done: Done) -> None:
        more = Rows(done.job.spec.outputs[0].rows)
        more.ends[-1] += 1
        outputs = [
            SpecOutput(done.job.spec.outputs[0].kind, more, 0),
            done.job.spec.outputs[1],
        ]
        for what in (
            dataclasses.replace(done.job, cluster_id="another"),
            dataclasses.replace(done.job, tenure=Tenure(7, 10)),
            dataclasses.replace(done.job, spec=dataclasses.replace(done.job.spec, outputs=outputs)),
        ):
            assert isinstance(await done.error(job=what), Invalid)
        # Rows that the footer has, and the blocks have not.
        key = data_key(done.outcome.objects[1].object_id)
        whole = bytes(await done.store.get(key))
        await done.store.put(key, [whole[:-1]])
        assert isinstance(await done.error(), Invalid)
        await done.store.put(key, [whole + b"\0"])
        assert isinstance(await done.error(), Invalid)
        await done.store.delete([key])
        error = await done.error()
        assert isinstance(error, Invalid)
        assert "another one" in str(error)
        # An input's loss is another thing.
        assert not isinstance(error, ObjectNotFound)

    run(scenario)


class Own:
    """A node's own executor: what was asked of it."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def plan(self, asked: Any) -> Any:
        return asked

    async def run(self, job: Job) -> MergeOutcome:
        self.jobs.append(job)
        return MergeOutcome([], 0, 0, 0)

    def set_busy(self, is_busy: bool) -> None:
        """Nothing is read here."""

    async def close(self) -> None:
        """Nothing is held."""


def test_jobs_go_elsewhere_and_come_back() -> None:
    async def scenario(done: Done) -> None:
        own = Own()
        switched = SwitchedExecutor(own)
        remote = RemoteExecutor("somebody", done.store, done.offload)
        with switched.lent(remote):
            with pytest.raises(Conflict, match="somebody carries out"):
                switched.lent(RemoteExecutor("other", done.store, done.offload)).__enter__()
            running = asyncio.ensure_future(switched.run(done.job))
            number, data = await remote.next_job()
            assert decode_job(data) == done.job
            with pytest.raises(Invalid, match="not under way"):
                remote.done(number + 1, b"")
            remote.done(number, encode_outcome(done.outcome))
            assert await running == done.outcome
            # A damaged input is believed; anything else is not what may be said.
            running = asyncio.ensure_future(switched.run(done.job))
            number, _ = await remote.next_job()
            for wrong in (
                Corrupt("bad", object_key=data_key(77)),
                Corrupt("bad"),
                Unavailable("tired"),
            ):
                with pytest.raises(Invalid, match="says of no input"):
                    remote.failed(number, wrong)
            key = data_key(done.job.spec.inputs[1].row.object_id)
            remote.failed(number, Corrupt("bad", object_key=key))
            with pytest.raises(Corrupt):
                await running
            assert own.jobs == []
        assert isinstance(remote.ended, Closed)
        await switched.run(done.job)
        assert own.jobs == [done.job]

    run(scenario)


def test_a_remote_that_reports_something_wrong_gets_no_more_jobs() -> None:
    async def scenario(done: Done) -> None:
        own = Own()
        switched = SwitchedExecutor(own)
        remote = RemoteExecutor("somebody", done.store, done.offload)
        with switched.lent(remote):
            running = asyncio.ensure_future(switched.run(done.job))
            number, _ = await remote.next_job()
            remote.done(number, encode_outcome(_with_row(done.outcome, object_id=5)))
            with pytest.raises(RemoteLost, match="refused"):
                await running
            assert isinstance(remote.ended, Invalid)
            await switched.run(done.job)
        assert len(own.jobs) == 1
        for answer in (b"", b"nonsense" * 8, encode_outcome(done.outcome)[:-1]):
            other = RemoteExecutor("other", done.store, done.offload)
            with switched.lent(other):
                running = asyncio.ensure_future(switched.run(done.job))
                number, _ = await other.next_job()
                other.done(number, answer)
                with pytest.raises(RemoteLost):
                    await running

    run(scenario)


def test_a_remote_that_is_gone_or_stuck_loses_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(done: Done) -> None:
        switched = SwitchedExecutor(Own())
        gone = RemoteExecutor("gone", done.store, done.offload)
        with switched.lent(gone):
            running = asyncio.ensure_future(switched.run(done.job))
            number, _ = await gone.next_job()
        with pytest.raises(RemoteLost, match="its call is over"):
            await running
        with pytest.raises(Invalid, match="not under way"):
            gone.done(number, encode_outcome(done.outcome))
        monkeypatch.setattr(remote_module, "JOB_S_MAX", 0.01)
        stuck = RemoteExecutor("stuck", done.store, done.offload)
        with switched.lent(stuck):
            with pytest.raises(RemoteLost, match="did not end a merge"):
                await switched.run(done.job)
            assert isinstance(stuck.ended, Unavailable)
        await switched.close()
        with pytest.raises(Closed):
            switched.lent(gone).__enter__()

    run(scenario)
