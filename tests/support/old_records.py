"""A stopped node that keeps by its own settings what the default settings would delete at once.

A topic has records from long ago, and a compacted one several of a key. The node's file says
log.retention.ms=-1 and log.cleaner.enable=false, and what is due is looked for all the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from streamlog.codec.batch import scan
from streamlog.codec.records import encode_values, iterate
from streamlog.engine.config import StreamEngineConfig
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import DEFAULTS
from streamlog.model.partition import TopicPartition
from streamlog.wiring import OpenEngine
from tests.support.node_folder import engine_of

KEEPING = LogConfig(topic_defaults=replace(DEFAULTS, retention_ms=-1), cleaner_enable=False)
OLD, COMPACTED = TopicPartition("old", 0), TopicPartition("compacted", 0)
TOPICS: Mapping[TopicPartition, Mapping[str, str]] = {
    OLD: {},
    COMPACTED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
}
COUNT = 300
AGE_MS = 30 * 86_400_000


def keeping_node(
    data: Path, config: StreamEngineConfig | None = None
) -> AbstractAsyncContextManager[OpenEngine]:
    """The node of a `--data` folder."""
    return engine_of(data, config=config, logs=KEEPING)


async def write_old_records(engine: OpenEngine) -> None:
    """COUNT records and one more in each topic."""
    now_ms = int(time.time() * 1000)
    for partition, configs in TOPICS.items():
        await engine.logs.create_topic(partition.topic, 1, configs)
        log = await engine.logs.log(partition)
        values = [b"%d" % number for number in range(COUNT)]
        await _append(log, values, now_ms - AGE_MS)
        await log.roll()
        await _append(log, [b"the newest"], now_ms)

    def look_all_the_time(configs: Mapping[str, str]) -> Mapping[str, str]:
        return {**configs, "log.retention.check.interval.ms": "1"}

    await engine.logs.alter_broker_configs(None, look_all_the_time)


async def counted_records(data: Path) -> dict[TopicPartition, int]:
    """How many records the stopped node has."""
    async with keeping_node(data) as engine:
        return {one: await _count(await engine.logs.log(one)) for one in TOPICS}


ALL = dict.fromkeys(TOPICS, COUNT + 1)


async def _append(log: AbstractLog, values: list[bytes], at_ms: int) -> None:
    data = encode_values(values, timestamp_ms=at_ms, keys=[b"key"] * len(values)).data
    await (await log.append(data))


async def _count(log: AbstractLog) -> int:
    found, offset = 0, log.log_start_offset
    while offset < log.log_end_offset:
        fetched = await log.fetch(offset, 1 << 20)
        found += sum(len(list(iterate(v))) for _, v in scan(b"".join(fetched.parts)))
        offset = fetched.next_offset
    return found
