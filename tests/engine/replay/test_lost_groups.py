"""Groups of appends whose streams were all lost do not keep the WAL from being released."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from streamlog.engine.config import UploadConfig
from streamlog.errors import StreamFenced
from tests.engine.harness import QUICK, World, batch, error_of, run, sent, until


@pytest.mark.parametrize("failures", [1, 2], ids=["nothing stored", "stored by the failed write"])
def test_a_stream_opens_after_a_group_whose_streams_were_all_lost(failures: int) -> None:
    """The lost group joins the batch of one that waits to be uploaded."""

    async def scenario() -> None:
        config = dataclasses.replace(
            QUICK,
            append=dataclasses.replace(
                QUICK.append, retry_backoff_ms=200, retry_backoff_ms_max=200
            ),
            upload=UploadConfig(upload_interval_ms=1000),
        )
        world = World("disk", config)
        wal = world.wal
        assert wal is not None
        async with world.engine(crash=True) as (client, engine):
            kept = await client.create_and_open_stream()
            lost = await client.create_and_open_stream()
            await kept.append(batch(b"kept"))
            wal.failures = failures
            waiting = sent(lost.append(batch(b"lost")))
            await until(lambda: engine.sequencer.admission_error is not None)
            wal.failures = 0
            world.metadata.steal(lost.stream_id)
            assert isinstance(await error_of(waiting), StreamFenced)
            await until(lambda: engine.sequencer.admission_error is None)
            opened = await asyncio.wait_for(client.open_stream(lost.stream_id), 10)
            assert (await opened.append(batch(b"again"))).base_offset == 0
            await kept.append(batch(b"more"))
            await engine.drain()
            assert wal.groups == []

    run(scenario)
