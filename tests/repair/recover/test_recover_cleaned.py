"""Metadata is lost behind a cleaning: the bucket tells where the cleaned segments lie."""

from __future__ import annotations

from typing import cast

import pytest

from streamlog.log.api.cleaning import CleanableLog
from streamlog.testing.logs.cleaning_conformance import (
    COMPACT,
    contents,
    filled,
    keyed,
    newest,
)
from streamlog.testing.logs.log_conformance import append
from tests.repair.cluster import Cluster, partition, recovered, run
from tests.repair.remnants import cleaned


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_cleaned_log_comes_back_from_the_bucket(crash: bool, has_checkpoint: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=crash) as engine:
            await engine.logs.create_topic("t", 1, COMPACT)
            log = cast(CleanableLog, await partition(engine, "t"))
            await filled(log, 60, 10)
            if has_checkpoint:
                await engine.metadata.checkpoint()
            await cleaned(log)
            await filled(log, 60, 20)
            await cleaned(log)
            await append(log, keyed(b"k3", b"last"))
            expected, clean_end = await contents(log), log.clean_end_offset
        cluster.lose_metadata()
        await recovered(cluster)
        await cluster.is_clean()
        async with cluster.node() as engine:
            log = cast(CleanableLog, await partition(engine, "t"))
            assert await contents(log) == expected
            assert (log.log_end_offset, log.clean_end_offset) == (121, clean_end)
            await filled(log, 30, 5)
            await cleaned(log)
            left = await contents(log)
            assert newest(left)[b"k19"] == expected[119][1]
            assert newest(left)[b"k3"] == b"28"
            assert len(newest(left)) == len(left) == 20
        await cluster.is_clean()

    run(scenario)
