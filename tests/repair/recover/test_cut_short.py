"""Recoveries that die at any of their calls, or that a node runs beside."""

from __future__ import annotations

from typing import Any

import pytest

from streamlog.engine.cluster import CLUSTER_KEY
from streamlog.errors import Conflict, ForeignCluster, StoreUnavailable
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.stream import Stream
from streamlog.repair.recover.recover import recover
from tests.repair.cluster import (
    Cluster,
    append,
    backed_up,
    partition,
    produce,
    read,
    recovered,
    restored,
    run,
)

CALLS = ("get", "put", "list", "head", "delete", "range", "revision", "txn", "raise_revision")


class _Fuse:
    """Around a store or KV store: all calls together, `left` are carried out, then it is dead."""

    def __init__(self) -> None:
        self.left = 0

    def around(self, inner: Any, *, answers_are_lost: bool) -> Any:
        fuse = self

        class Around:
            def __getattr__(self, name: str) -> Any:
                method = getattr(inner, name)
                if name not in CALLS:
                    return method

                async def call(*arguments: Any, **named: Any) -> Any:
                    fuse.left -= 1
                    if answers_are_lost and fuse.left == -1:
                        await method(*arguments, **named)
                    if fuse.left < 0:
                        raise StoreUnavailable("killed", operation="test")
                    return await method(*arguments, **named)

                return call

        return Around()


@pytest.mark.parametrize("answers_are_lost", [False, True])
@pytest.mark.parametrize("how", ["recover", "restore"])
def test_a_recovery_may_die_at_every_call_and_is_run_again(
    how: str, answers_are_lost: bool
) -> None:
    async def scenario() -> None:
        cluster, fuse = Cluster(), _Fuse()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 1)
            await produce(await partition(engine, "t"), b"kept")
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"0", b"1")
            await stream.trim(1)
            await engine.metadata.checkpoint()
            content = await backed_up(cluster)
            await append(stream, b"2")

        async def once() -> None:
            await (recovered(cluster) if how == "recover" else restored(cluster, content))

        store, calls, is_done = cluster.store, 0, False
        before = {info.key for info in (await store.list("checkpoint/")).objects}
        while not is_done:
            cluster.lose_metadata()
            files = {info.key for info in (await store.list("checkpoint/")).objects}
            await store.delete(sorted(files - before))
            kv, fuse.left = cluster.kv, calls
            cluster.kv = fuse.around(kv, answers_are_lost=answers_are_lost)
            cluster.store = fuse.around(store, answers_are_lost=answers_are_lost)
            try:
                await once()
                is_done = True
            except StoreUnavailable:
                calls += 1
            cluster.kv, cluster.store = kv, store
            if await kv.get(CLUSTER_KEY) is None:
                with pytest.raises(ForeignCluster):
                    async with cluster.node():
                        raise AssertionError("a node started on half of the metadata")
                await once()
            report = await cluster.fsck()
            assert report.is_clean, report.findings
            assert report.counts["partitions"] == 1
        assert calls > 20
        async with cluster.node() as engine:
            assert (await partition(engine, "t")).high_watermark == 1
            assert await read(await engine.streams.open_stream(stream.stream_id)) == {
                1: b"1",
                2: b"2",
            }

    run(scenario)


def test_a_node_that_runs_on_other_metadata_is_noticed() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node() as engine:
            stream = await engine.streams.create_and_open_stream(CreateStreamOptions())
            await append(stream, b"0")
            mine, written = cluster.kv, list[Stream]()
            cluster.lose_metadata()

            class Slow(type(cluster.offload)):  # type: ignore[misc]
                """The node stores something while footers are read."""

                async def run(self, *arguments: Any) -> Any:
                    if not written:
                        written.append(stream)
                        await append(stream, b"1")
                    return await super().run(*arguments)

            with pytest.raises(Conflict, match="stop all nodes"):
                await recover(
                    cluster.kv,
                    cluster.store,
                    clock=cluster.clock,
                    random=cluster.random,
                    offload=Slow(),
                )
            assert not (await cluster.kv.range(b"\0", b"\xff")).kvs
            cluster.kv = mine
        await cluster.is_clean()

    run(scenario)
