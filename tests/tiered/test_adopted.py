"""A tiered topic that was put aside, or is half deleted, and what tools do with it: nothing of its
remote tier is lost."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from streamlog.errors import PolicyViolation, StoreUnavailable
from streamlog.log.api.tiering import TierableLog
from streamlog.log.topics.topic_record import partition_key, topic_key
from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.log_conformance import append, encoded, read
from streamlog.tiered.config import RemoteLogConfig
from streamlog.wiring import OpenEngine
from tests.support.command import run
from tests.support.node_folder import engine_of

PARTITION = TopicPartition("t", 0)
CONFIGS = {
    "log.type": "unified",
    "internal.segment.bytes": "1000",
    "local.retention.bytes": "0",
    "file.delete.delay.ms": "0",
    "retention.ms": "-1",
}
TIERED = {**CONFIGS, "remote.storage.enable": "true"}
COUNT = 20


def node(data: Path, **how: Any) -> AbstractAsyncContextManager[OpenEngine]:
    """The node of a `--data` folder."""
    tiers = RemoteLogConfig(task_interval_ms=3_600_000)
    return engine_of(data, tiers=tiers, **how)


async def move(engine: OpenEngine) -> None:
    """Has the tier do what is due, and local segments go that it has."""
    assert engine.tiers is not None
    await engine.tiers.run_tasks()
    await engine.logs.retention_tick()


async def log_of(engine: OpenEngine) -> TierableLog:
    log = await engine.logs.log(PARTITION)
    assert isinstance(log, TierableLog)
    return log


async def fill(engine: OpenEngine, configs: dict[str, str], number: int = COUNT) -> None:
    await engine.logs.create_topic(PARTITION.topic, 1, configs)
    log = await log_of(engine)
    for _ in range(number):
        await append(log, encoded([b"r" * 300]))


async def make(data: Path) -> None:
    """A topic whose first records are in the tier alone."""
    async with node(data) as engine:
        await fill(engine, TIERED)
        await move(engine)
        log = await log_of(engine)
        assert log.log_start_offset == 0 < log.local_log_start_offset


@pytest.fixture(scope="module")
def aside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a stopped node whose only topic was put aside."""
    data = tmp_path_factory.mktemp("aside")
    asyncio.run(make(data))
    asyncio.run(put_aside(data))
    return data


async def put_aside(data: Path) -> None:
    """The metadata loses the topic, not what the tier has of it."""
    async with node(data) as engine:
        await engine.kv.del_kv(topic_key(PARTITION.topic))
        await engine.kv.del_kv(partition_key(PARTITION))
    (folder,) = (data / "logs").glob("t-0*")
    folder.rename(data / "logs" / f"t-0.{0:032x}-stray")


def remote(data: Path) -> set[str]:
    """What the tier has."""
    return {one.name for one in (data / "objects").rglob("remote/**/*") if one.is_file()}


def adopt(data: Path, *more: str, source: Path | None = None) -> tuple[int, str]:
    ended = run("topic", "adopt", source or data / "logs", "--data", data, *more)
    return ended.returncode, ended.stderr.decode()


async def count_kept(data: Path) -> int:
    """How many records the topic has, when the node has done what is due."""
    async with node(data) as engine:
        log = await log_of(engine)
        await move(engine)
        return len(await read(log))


def test_what_is_in_the_tier_is_adopted_too(aside: Path, tmp_path: Path) -> None:
    shutil.copytree(aside, tmp_path, dirs_exist_ok=True)
    before = remote(tmp_path)
    assert before
    tiered = ("--topic-config", "remote.storage.enable=true")
    assert adopt(tmp_path, *tiered)[0] == 0
    assert asyncio.run(count_kept(tmp_path)) == COUNT
    assert remote(tmp_path) >= before


def test_a_tier_is_not_left_behind_unasked(aside: Path, tmp_path: Path) -> None:
    shutil.copytree(aside, tmp_path, dirs_exist_ok=True)
    code, said = adopt(tmp_path)
    assert code == 1
    assert "remote.storage.enable=true" in said
    assert [one for one in (tmp_path / "logs").glob("t-0") if one.is_dir()] == []
    assert adopt(tmp_path, "--topic-config", "remote.storage.enable=false")[0] == 0


@pytest.mark.parametrize("lost", [(), ("streamlog.stamp", "log-start-offset-checkpoint")])
def test_a_log_that_retention_has_cut_has_no_tier(tmp_path: Path, lost: tuple[str, ...]) -> None:
    """Also where another program wrote down no start: its leader epochs begin with its files."""

    async def cut() -> int:
        async with node(tmp_path / "source") as engine:
            await fill(engine, {**CONFIGS, "retention.bytes": "0"}, 2)
        async with node(tmp_path / "source") as engine:
            await engine.logs.retention_tick()
            # The first batch of an open writes the epochs.
            await append(await log_of(engine), encoded([b"r" * 300]))
            return (await log_of(engine)).log_start_offset

    async def start() -> int:
        async with node(tmp_path / "data") as engine:
            return (await log_of(engine)).log_start_offset

    expected = asyncio.run(cut())
    assert expected > 0
    logs = tmp_path / "source" / "logs"
    for name in lost:
        (logs / name).unlink()
    assert adopt(tmp_path / "data", source=logs)[0] == 0
    assert asyncio.run(start()) == expected
    shutil.rmtree(tmp_path / "data")
    tiered = ("--topic-config", "remote.storage.enable=true")
    assert adopt(tmp_path / "data", *tiered, source=logs)[0] == 0
    assert asyncio.run(start()) == expected


def test_a_start_that_a_later_topic_of_the_name_has_removed_is_where_the_files_begin(
    tmp_path: Path,
) -> None:
    async def cut() -> int:
        async with node(tmp_path) as engine:
            await fill(engine, {**CONFIGS, "retention.bytes": "0"}, 2)
            await engine.logs.retention_tick()
            return (await log_of(engine)).log_start_offset

    async def replace() -> None:
        async with node(tmp_path) as engine:
            await engine.logs.create_topic(PARTITION.topic, 1, CONFIGS)
            await engine.logs.delete_topic(PARTITION.topic)

    async def start() -> int:
        async with node(tmp_path) as engine:
            return (await log_of(engine)).log_start_offset

    expected = asyncio.run(cut())
    assert expected > 0
    asyncio.run(put_aside(tmp_path))
    asyncio.run(replace())
    code, said = adopt(tmp_path)
    assert code == 1
    assert "has removed where the log began" in said.replace("\n", " ")
    assert adopt(tmp_path, "--topic-config", "remote.storage.enable=false")[0] == 0
    assert asyncio.run(start()) == expected


def test_a_node_without_tiers_adopts_no_tiered_topic(aside: Path, tmp_path: Path) -> None:
    shutil.copytree(aside, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "node.toml"
    file.write_text('[broker]\n"remote.log.storage.system.enable" = false\n')
    tiered = ("--topic-config", "remote.storage.enable=true")
    code, said = adopt(tmp_path, *tiered, "--config", str(file))
    assert code == 1
    assert "needs a node with tiered storage" in said


@pytest.mark.parametrize("is_open", [True, False])
def test_a_tool_deletes_no_partition_that_may_have_a_tier(tmp_path: Path, is_open: bool) -> None:
    async def delete() -> None:
        async with node(tmp_path, upkeep=False) as engine:
            if is_open:
                log = await log_of(engine)
                with pytest.raises(StoreUnavailable, match="ask its node"):
                    await log.fetch(0, 1000)
            with pytest.raises(PolicyViolation, match="its node deletes it"):
                await engine.logs.delete_topic(PARTITION.topic)

    async def finish() -> None:
        async with node(tmp_path) as engine:
            assert engine.tiers is not None
            # Another of the name waits until the deletion has begun in the tier.
            await engine.logs.create_topic(PARTITION.topic, 1)
            await engine.tiers.deletions_done()

    asyncio.run(make(tmp_path))
    before = remote(tmp_path)
    asyncio.run(delete())
    assert remote(tmp_path) == before
    asyncio.run(finish())
    assert remote(tmp_path) == set()


@pytest.mark.parametrize("configs", [CONFIGS, TIERED], ids=["local", "tiered"])
def test_a_topic_that_a_tool_cannot_create_leaves_nothing(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    in_the_way = tmp_path / "logs" / "t-1"

    async def create() -> None:
        async with node(tmp_path, upkeep=False) as engine:
            in_the_way.write_bytes(b"")
            with pytest.raises(StoreUnavailable):
                await engine.logs.create_topic(PARTITION.topic, 2, configs)
            assert not (tmp_path / "logs" / "t-0").exists()
            in_the_way.unlink()
            await engine.logs.create_topic(PARTITION.topic, 2, configs)

    asyncio.run(create())
