"""Engines with one promise broken on purpose: the histories find each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from streamlog.codec.batch import BatchHeader
from streamlog.engine import group_commit
from streamlog.engine.group import Group
from streamlog.kvstore.interface import Compare, Operation, Put, TxnResult
from streamlog.log.meta_codec import ProducerBatch
from streamlog.log.producers import ProducerStates
from streamlog.metadata.record_sender import RecordSender
from streamlog.testing.simulation.history import WalMode, run_history
from streamlog.testing.simulation.kv import SimulationKV

SEEDS = 200

pytestmark = pytest.mark.slow


def seed_that_finds(wal: WalMode) -> int:
    """The first seed whose history fails."""
    for seed in range(SEEDS):
        try:
            run_history(seed, wal)
        except Exception:  # noqa: BLE001 - whatever it is, it was found
            return seed
    pytest.fail(f"{SEEDS} seeds found nothing")


def test_a_commit_without_the_fence_compare_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    txn = SimulationKV.txn

    async def without_fence(
        self: SimulationKV,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        if any(isinstance(op, Put) and b"/c/" in op.key for op in then):
            compares = [one for one in compares if b"/f/" not in one.key]
        return await txn(self, compares, then, otherwise)

    monkeypatch.setattr(SimulationKV, "txn", without_fence)
    seed_that_finds("object")


def test_an_ack_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = group_commit.GroupCommit._write

    async def ack_first(self: group_commit.GroupCommit, group: Group) -> None:
        group_commit.confirm(group)
        await write(self, group)

    monkeypatch.setattr(group_commit.GroupCommit, "_write", ack_first)
    seed_that_finds("disk")


def test_a_resend_taken_for_something_new_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: ProducerStates, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        return None

    monkeypatch.setattr(ProducerStates, "check", forget)
    seed_that_finds("disk")


def test_a_commit_that_forgets_that_it_was_applied_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = RecordSender._refused

    async def not_applied(self: RecordSender, frozen: Any, result: TxnResult) -> int | None:
        revision = await refused(self, frozen, result)
        if revision is not None:
            await self._follower.reach(revision)
        return None

    monkeypatch.setattr(RecordSender, "_refused", not_applied)
    seed_that_finds("object")
