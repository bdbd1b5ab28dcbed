"""Quotas of clients in the KV store: followed by every node at once, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from streamlog.errors import Invalid, StreamlogError
from streamlog.log.broker.broker_record import encode_configs
from streamlog.log.broker.client_configs import QUOTA_NAMESPACE, quota_name
from streamlog.log.manager import LogManager
from streamlog.model.kv import Key
from streamlog.testing.logs.log_conformance import refused
from tests.log.cluster import Cluster, run


async def heard() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def put(logs: LogManager, client_id: str | None, **quotas: str) -> None:
    """Sets quotas; "" takes one away."""

    def change(old: Mapping[str, str]) -> dict[str, str]:
        return {name: text for name, text in {**old, **quotas}.items() if text}

    await logs.alter_client_configs(client_id, change)


def test_a_change_reaches_other_nodes_at_once_and_survives_a_restart() -> None:
    async def test(made: Cluster, first: LogManager) -> None:
        second = await made.node(node_id=2)
        told: list[str | None] = []
        second.client_configs.listen(told.append)
        await put(first, "etl", producer_byte_rate="5")
        await put(first, None, consumer_byte_rate="6")
        await put(first, "größe", request_percentage="7")
        await heard()
        assert told == ["etl", None, "größe"]
        for logs in (first, second):
            assert logs.client_configs.of("etl") == {"producer_byte_rate": "5"}
            assert logs.client_configs.of("other") == {}
            assert logs.client_configs.client_ids() == [None, "etl", "größe"]
        await put(second, "etl", producer_byte_rate="")
        await heard()
        assert first.client_configs.client_ids() == [None, "größe"]
        await made.crash()
        logs = await made.node()
        assert logs.client_configs.client_ids() == [None, "größe"]
        assert logs.client_configs.of(None) == {"consumer_byte_rate": "6"}

    run(test)


def test_changes_at_the_same_time_on_two_nodes_both_take_effect() -> None:
    async def test(made: Cluster, first: LogManager) -> None:
        second = await made.node(node_id=2)
        await asyncio.gather(
            put(first, "c", producer_byte_rate="1"), put(second, "c", consumer_byte_rate="2")
        )
        await heard()
        both = {"producer_byte_rate": "1", "consumer_byte_rate": "2"}
        assert first.client_configs.of("c") == second.client_configs.of("c") == both

    run(test)


def test_a_change_that_is_refused_changes_nothing() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        def wrong(_: Mapping[str, str]) -> dict[str, str]:
            raise Invalid("no")

        await put(logs, "c", producer_byte_rate="1")
        await refused(Invalid, logs.alter_client_configs("c", wrong))
        assert logs.client_configs.of("c") == {"producer_byte_rate": "1"}

    run(test)


def test_records_of_newer_versions_end_no_node_and_are_told() -> None:
    async def test(made: Cluster, logs: LogManager) -> None:
        kv = made.medium.kv
        await put(logs, "c", producer_byte_rate="1")
        await kv.put_kv(Key(quota_name("c"), QUOTA_NAMESPACE), b"\x02later")
        await kv.put_kv(Key(b"user/u", QUOTA_NAMESPACE), encode_configs({"x": "1"}))
        await kv.put_kv(Key(b"client/\xff", QUOTA_NAMESPACE), encode_configs({"x": "1"}))
        await heard()
        assert (logs.failure, logs.client_configs.of("c")) == (None, {"producer_byte_rate": "1"})
        [reason] = logs.client_configs.alarms()
        assert "client/c" in reason
        await refused(StreamlogError, put(logs, "c", producer_byte_rate="2"))
        await put(logs, "d", producer_byte_rate="3")
        assert "d" in logs.client_configs.client_ids()

    run(test)
