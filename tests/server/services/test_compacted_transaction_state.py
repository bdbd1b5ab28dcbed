"""The cleaner keeps the log of the transaction coordinator short; what it holds stays the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.client.aio import Admin, Producer
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.log.api.internal_topics import TRANSACTION_STATE
from streamlog.model.partition import TopicPartition
from tests.support.running_node import RunningNode, running_node

PARTITIONS = 16
SMALL = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0", "file.delete.delay.ms": "0"}
IDS = ("one", "two")
ROUNDS = 15


async def transactions(node: RunningNode) -> None:
    for name in IDS:
        async with Producer(node.banner.grpc, transactional_id=name) as producer:
            for number in range(ROUNDS):
                await producer.begin_transaction()
                await producer.send("t", b"%d" % number)
                await producer.commit_transaction()


async def states(node: RunningNode) -> list[AbstractLog]:
    """The partitions of the coordinator's log that hold records."""
    assert node.node.engine is not None
    logs = node.node.engine.logs
    found = [await logs.log(TopicPartition(TRANSACTION_STATE, n)) for n in range(PARTITIONS)]
    return [log for log in found if log.log_end_offset]


def test_transaction_state_is_cleaned_and_read_again(tmp_path: Path) -> None:
    async def body() -> None:
        data = str(tmp_path / "data")
        async with (
            running_node(data=data, log__cleaner_backoff_ms="20") as node,
            Admin(node.banner.grpc) as admin,
        ):
            await admin.create_topic("t", 1)
            await transactions(node)
            await admin.alter_configs(topic=TRANSACTION_STATE, configs=SMALL)
            await transactions(node)
            logs = await states(node)
            async with asyncio.timeout(30):
                # 2 ids: what is left is their newest state, and the open segment.
                while sum(log.size_bytes for log in logs) > 4000:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.02)
            assert node.metric("streamlog_log_cleanings_total") > 0
            assert node.metric("streamlog_log_cleaning_errors_total") == 0
            # Nothing was copied forward: the logs begin where they did.
            assert {log.log_start_offset for log in logs} == {0}
            records = sum(log.log_end_offset for log in logs)
        async with running_node(data=data, log__cleaner_backoff_ms="20") as node:
            # The last transactions may have been completed since.
            found = sum(log.log_end_offset for log in await states(node))
            assert records <= found <= records + len(IDS)
            # The ids go on under their next epochs, and see that nothing is open.
            await transactions(node)
            assert node.node.engine is not None
            log = await node.node.engine.logs.log(TopicPartition("t", 0))
            appended = 3 * len(IDS) * ROUNDS * 2
            async with asyncio.timeout(30):
                await log.wait_for(appended - 1, Isolation.READ_COMMITTED)
            # Markers of the last transactions before the restart may be there twice.
            assert appended <= log.last_stable_offset == log.high_watermark <= appended + len(IDS)
            epochs = {one.producer_id: one.producer_epoch for one in log.producers()}
            assert len(epochs) == len(IDS)
            assert min(epochs.values()) >= 2

    asyncio.run(body())
