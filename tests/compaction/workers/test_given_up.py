"""A merge that an executor elsewhere carries out, and whose caller goes away here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.compaction.execute.executor import InlineExecutor
from streamlog.compaction.execute.rate import RateLimit
from streamlog.compaction.execute.spool import MemorySpool
from streamlog.compaction.plan.spec import decode_job, encode_outcome
from streamlog.compaction.workers.remote import RemoteExecutor
from streamlog.errors import Corrupt, Invalid
from streamlog.objectstore.keys import data_key
from streamlog.wiring import OpenEngine
from tests.compaction.compacting_engine import (
    BY_HAND,
    History,
    engine,
    live,
    make,
    run,
    sample,
    stored,
)
from tests.engine.harness import until


async def carried_out(opened: OpenEngine, data: bytes) -> bytes:
    limit = RateLimit(1 << 40, opened.clock)
    executor = InlineExecutor(
        opened.store, opened.offload, limit, MemorySpool, memory_bytes=1 << 20
    )
    return encode_outcome(await executor.run(decode_job(data)))


async def given_up(opened: OpenEngine, remote: RemoteExecutor) -> tuple[int, bytes]:
    """A job that the executor got, and whose caller was cancelled."""
    assert opened.compactor is not None
    call = asyncio.ensure_future(opened.compactor.compact_all())
    number, data = await remote.next_job()
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    return number, data


@pytest.mark.parametrize("comes_late", [False, True])
def test_its_answer_is_passed_over_and_its_outputs_are_deleted(
    tmp_path: Path, comes_late: bool
) -> None:
    """The answer comes before the next job, or while that is under way."""

    async def scenario() -> None:
        history = History(1)
        async with engine(tmp_path, BY_HAND) as opened:
            streams = await make(opened, 3)
            await history.append(streams, 40)
            await opened.drain()
            compactor = opened.compactor
            assert compactor is not None
            with compactor.lent("somebody") as remote:
                number, data = await given_up(opened, remote)
                if not comes_late:
                    remote.done(number, await carried_out(opened, data))
                call = asyncio.ensure_future(compactor.compact_all())
                following, next_data = await remote.next_job()
                if comes_late:
                    remote.done(number, await carried_out(opened, data))
                assert decode_job(next_data).tenure != decode_job(data).tenure
                while not call.done():
                    remote.done(following, await carried_out(opened, next_data))
                    asked = asyncio.ensure_future(remote.next_job())
                    await asyncio.wait({asked, call}, return_when=asyncio.FIRST_COMPLETED)
                    if asked.done():
                        following, next_data = asked.result()
                    asked.cancel()
                await call
                assert remote.ended is None
                with pytest.raises(Invalid, match="not under way"):
                    remote.done(number, b"")
            assert sample(opened, "specs_total", outcome="committed") > 0
            await history.check(streams)
            left = {data_key(row.object_id) for row in await live(opened)}
            assert not left & {data_key(one) for one in decode_job(data).object_ids}
            await until(lambda: stored(tmp_path) == left)

    run(scenario)


def test_a_failure_of_it_is_nobodys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine(tmp_path, BY_HAND) as opened:
            await History(2).append(await make(opened, 3), 40)
            await opened.drain()
            assert opened.compactor is not None
            with opened.compactor.lent("somebody") as remote:
                number, data = await given_up(opened, remote)
                following, _ = await given_up(opened, remote)
                damaged = decode_job(data).spec.inputs[0].row.object_id
                error = Corrupt("a flipped bit", object_key=data_key(damaged))
                for one in (following, number):
                    remote.failed(one, error)
                    with pytest.raises(Invalid, match="not under way"):
                        remote.failed(one, error)
            await opened.compactor.compact_all()
            assert sample(opened, "quarantined_objects") == 0
            assert sample(opened, "specs_total", outcome="committed") > 0

    run(scenario)
