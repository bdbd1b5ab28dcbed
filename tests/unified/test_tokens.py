"""A unified log's fencing token: its file, whatever happens to it, and a node that restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from streamlog.client.aio import Admin, Partitions
from streamlog.errors import (
    Corrupt,
    OffsetConflict,
    StreamlogError,
    TokenMismatch,
    UnsupportedVersion,
)
from streamlog.log.api.abstract_log import ProduceContext
from streamlog.log.api.topic_config import parse
from streamlog.model.append_condition import AppendCondition
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import keyed
from streamlog.testing.logs.log_conformance import append, encoded, read, refused
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.unified.adoption import find_topics
from streamlog.unified.token_file import TOKEN, decode_token, encode_token
from tests.support.running_node import running_node
from tests.unified.harness import unified_log

GOLDEN = (Path(__file__).parents[1] / "golden/unified_token_v1.bin").read_bytes()


def cuts(data: bytes) -> list[bytes]:
    return [data[:size] for size in range(len(data))]


def flips(data: bytes) -> list[bytes]:
    whole = int.from_bytes(data)
    return [(whole ^ 1 << bit).to_bytes(len(data)) for bit in range(len(data) * 8)]


def test_the_bytes_of_version_1() -> None:
    assert encode_token(b"\x00one") == GOLDEN
    assert decode_token("x", GOLDEN) == b"\x00one"
    assert decode_token("x", encode_token(b"")) == b""
    assert decode_token("x", encode_token(bytes(64))) == bytes(64)


@pytest.mark.parametrize("damage", [cuts, flips])
def test_a_damaged_token_shuts_the_log_and_lets_nobody_in(
    damage: Callable[[bytes], list[bytes]], tmp_path: Path
) -> None:
    """Without its token the log would take what the token refuses."""

    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            await append(t.log, encoded([b"kept"]))
            await t.log.set_fencing_token(b"one")
            await t.log.close()
            path = tmp_path / "t-0" / TOKEN
            sound = path.read_bytes()
            for data in [*damage(sound), sound + b"\0"]:
                path.write_bytes(data)
                error = await refused(StreamlogError, t.open())
                assert isinstance(error, Corrupt | UnsupportedVersion)
                assert TOKEN in str(error)
                assert path.read_bytes() == data
            path.write_bytes(sound)
            await t.open()
            assert t.log.describe().fencing_token == b"one"

    asyncio.run(body())


def _same(tree: TornTree) -> TornTree:
    return tree


@pytest.mark.parametrize("fault", list(DiskFault))
def test_a_fault_at_any_call_leaves_the_old_token_or_the_new_one(fault: DiskFault) -> None:
    async def body() -> None:
        answered = 0
        for call in range(12):
            tree = TornTree(SeededRandom(call))
            async with unified_log(partial(_same, tree), cut_power=tree.crash) as t:
                await t.log.set_fencing_token(b"old")
                left = [call]

                def strike(_operation: str, _name: str, left: list[int] = left) -> DiskFault | None:
                    left[0] -= 1
                    return fault if left[0] == -1 else None

                tree.plan_faults(strike)
                has_changed = False
                with contextlib.suppress(StreamlogError):
                    await t.log.set_fencing_token(b"new")
                    has_changed = True
                tree.plan_faults(None)
                answered += has_changed
                await t.crashed()
                token = t.log.describe().fencing_token
                assert token == b"new" if has_changed else token in (b"old", b"new")
                await append(t.log, encoded([b"on"]))
        assert 0 < answered < 12

    asyncio.run(body())


def test_a_token_covers_what_a_lazy_topic_has_acknowledged_before_it() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(3))
        lazy = {"flush.messages": "1000000"}
        async with unified_log(lambda: tree, lazy, cut_power=tree.crash) as t:
            await append(t.log, encoded([bytes(5000)]))
            await t.log.set_fencing_token(b"one", AppendCondition(1))
            await t.crashed()
            assert t.log.log_end_offset == 1
            assert t.log.describe().fencing_token == b"one"

    asyncio.run(body())


def test_a_token_goes_with_a_partition_that_is_taken_over(tmp_path: Path) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path / "logs")) as t:
            await append(t.log, encoded([b"kept"]))
            await t.log.set_fencing_token(b"one")
        (topic,) = find_topics(tmp_path / "logs", ["t"], is_own=False)
        (found,) = topic.partitions
        other = tmp_path / "other"
        async with unified_log(lambda: SystemTree(other)) as t:
            await t.folder.adopt(found, topic.topic_id, parse({"log.type": "unified"}))
            (copy,) = other.glob("t-0.*-delete")
            assert (copy / TOKEN).read_bytes() == encode_token(b"one")

    asyncio.run(body())


def test_a_topic_that_is_made_anew_has_no_token(tmp_path: Path) -> None:
    async def body() -> None:
        async with unified_log(lambda: SystemTree(tmp_path)) as t:
            await t.log.set_fencing_token(b"one")
            await t.log.delete()
            await t.folder.close()
            await t.start()
            assert t.log.describe().fencing_token == b""

    asyncio.run(body())


def test_an_append_under_a_condition_goes_to_a_compacted_topic(tmp_path: Path) -> None:
    """Its keys are looked through in the turn of appends: the condition is tested behind it."""

    async def body() -> None:
        configs = {"log.type": "unified", "cleanup.policy": "compact"}
        async with unified_log(lambda: SystemTree(tmp_path), configs) as t:
            data = keyed(b"k", b"a")
            first = ProduceContext(condition=AppendCondition(0))
            await (await t.log.append(data, first))
            await refused(OffsetConflict, t.log.append(data, first))
            assert [one[3] for one in await read(t.log)] == [b"a"]

    asyncio.run(body())


def test_clients_of_a_node_keep_their_token_when_it_restarts(tmp_path: Path) -> None:
    async def body() -> None:
        for turn in range(3):
            async with running_node(data=str(tmp_path)) as node:
                server = node.banner.grpc
                async with Admin(server) as admin, Partitions(server) as logs:
                    if not turn:
                        await admin.create_topic("t", 1, {"log.type": "unified"})
                        await logs.append("t", 0, b"first", expected_next_offset=0)
                        await logs.set_fencing_token("t", 0, b"one", expected_token=b"")
                    assert (await logs.describe("t", 0)).fencing_token == b"one"
                    with pytest.raises(OffsetConflict):
                        await logs.append("t", 0, b"late", expected_next_offset=0)
                    with pytest.raises(TokenMismatch):
                        await logs.append("t", 0, b"other", fencing_token=b"two")
                    found = await logs.append(
                        "t", 0, b"again", expected_next_offset=turn + 1, fencing_token=b"one"
                    )
                    assert found.base_offset == turn + 1

    asyncio.run(body())
