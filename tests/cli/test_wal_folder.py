"""A log is not uploaded under the id of a node that runs elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.cli.wal_folder import check_away
from streamlog.errors import Conflict
from streamlog.wiring import is_shared
from tests.metadata.world import World


def test_a_node_that_keeps_its_lease_is_left_alone() -> None:
    async def main() -> None:
        world = World()
        await check_away(world.kv, "test", 1)
        async with world.tenure(1) as metadata:
            with pytest.raises(Conflict, match="node 1 seems to run") as raised:
                await check_away(world.kv, "test", 1)
            assert raised.value.fields["holder"] == str(metadata.tenure)
            await check_away(world.kv, "test", 2)
            # A node that ends gives its lease back.
            await metadata.close(drained=True)
            await check_away(world.kv, "test", 1)

    asyncio.run(main())


def test_metadata_of_one_process_says_by_itself_that_nobody_runs() -> None:
    assert not is_shared(None, "local:///data")
    assert not is_shared("rocksdb:///meta", "s3://bucket")
    assert is_shared("etcd://a:1", "s3://bucket")
    assert is_shared("kv://a:1", "s3://bucket")
