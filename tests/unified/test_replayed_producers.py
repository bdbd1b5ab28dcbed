"""Producers that an open has found in the batches are remembered, and make room for others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from streamlog.errors import QuotaExceeded
from streamlog.format.kafka_files.names import LOG, file_name
from streamlog.log.api.config import LogConfig
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from tests.unified.harness import unified_log

PRODUCERS = 100


def sent(producer_id: int, sequence: int = 0) -> bytes:
    return encoded([b"x"], producer=(producer_id, 0, sequence))


@pytest.mark.parametrize("is_torn", [False, True])
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_new_producer_has_room_after_a_crash_where_the_file_did_not_change_for_long(
    tmp_path: Path, is_silent: bool, is_torn: bool
) -> None:
    """Retries are on their way while it is young."""

    async def body() -> None:
        config = LogConfig(producer_ids_max=PRODUCERS)
        async with unified_log(lambda: SystemTree(tmp_path), {}, config) as t:
            for number in range(PRODUCERS):
                await append(t.log, sent(number))
            changed_s, path = t.clock.now_ms() // 1000, tmp_path / "t-0" / file_name(0, LOG)
            await t.log.kill()
            if is_torn:
                with path.open("ab") as file:
                    file.write(b"torn")
            os.utime(path, (changed_s, changed_s))
            t.clock.advance(config.producer_idle_ms_min - (not is_silent))
            await t.open()
            await t.log.kill()
            await t.open()
            if is_silent:
                assert not (await append(t.log, sent(PRODUCERS))).is_duplicate
            else:
                with pytest.raises(QuotaExceeded):
                    await append(t.log, sent(PRODUCERS))
            for number in range(int(is_silent), PRODUCERS + is_silent):
                assert (await append(t.log, sent(number))).is_duplicate

    asyncio.run(body())


def test_who_came_last_before_a_crash_is_not_the_first_to_make_room() -> None:
    """A snapshot has the others' times."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        config = LogConfig(producer_ids_max=PRODUCERS)
        async with unified_log(lambda: tree, {}, config) as t:
            for number in range(PRODUCERS - 1):
                await append(t.log, sent(number))
            t.clock.advance(config.producer_idle_ms_min // 2)
            await t.log.roll()
            await append(t.log, sent(PRODUCERS - 1))
            await t.crashed()
            await t.reopened()
            t.clock.advance(config.producer_idle_ms_min // 2)
            assert not (await append(t.log, sent(PRODUCERS))).is_duplicate
            for number in range(1, PRODUCERS + 1):
                assert (await append(t.log, sent(number))).is_duplicate

    asyncio.run(body())


def test_batches_under_way_are_known_after_two_crashes() -> None:
    """The client may not have come through in between."""

    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree, {}) as t:
            for sequence in range(5):
                await append(t.log, sent(1, sequence))
            await t.crashed()
            t.clock.advance(1)
            await append(t.log, sent(2))
            await t.log.roll()
            await t.crashed()
            for sequence in range(5):
                assert (await append(t.log, sent(1, sequence))).is_duplicate

    asyncio.run(body())
