"""Tenures race under faults: the protocol's invariants hold, and seeded faults break them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from streamlog.errors import StreamlogError
from streamlog.kvstore.interface import Compare, Operation, Put, RevisionIs
from streamlog.metadata.compaction import garbage
from streamlog.metadata.fold import fold, plan
from streamlog.metadata.journal import record_sender
from streamlog.metadata.keys.space import prefix_of
from tests.metadata.racing import Mutation, Violation, race

SEEDS = 300
MUTANT_SEEDS = 200
PREFIX = len(prefix_of("race"))


@pytest.fixture(autouse=True)
def _quiet() -> object:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_invariants_hold() -> None:
    commits = strips = compacted = conflicted = 0
    for seed in range(SEEDS):
        try:
            run = race(seed)
        except (Violation, StreamlogError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        commits, strips = commits + run.commits, strips + run.strips
        compacted, conflicted = compacted + len(run.compacted), conflicted + len(run.conflicted)
    # A race in which nothing happens would prove nothing.
    assert commits > 8 * SEEDS
    assert strips > SEEDS / 2
    assert compacted > SEEDS
    assert conflicted > SEEDS / 10


def test_a_seed_replays() -> None:
    first, second = race(5), race(5)
    assert first.acked == second.acked
    assert first.shared.history == second.shared.history


def _letter(key: bytes) -> str:
    return chr(key[PREFIX])


def _drop(written: str, compared: str, kind: type = object) -> Mutation:
    """A KV store whose transactions that write a `written` key do not compare `compared` keys."""

    def mutate(compares: Sequence[Compare], then: Sequence[Operation]) -> Sequence[Compare]:
        if not any(isinstance(one, Put) and _letter(one.key) == written for one in then):
            return compares
        return [c for c in compares if _letter(c.key) != compared or not isinstance(c, kind)]

    return mutate


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(_drop("c", "f"), id="commit does not compare the fence"),
        pytest.param(_drop("c", "h"), id="commit does not compare the head"),
        pytest.param(_drop("x", "x"), id="compaction does not compare the counter"),
        pytest.param(_drop("m", "f", RevisionIs), id="move does not compare the holder's fence"),
        pytest.param(_drop("k", "k"), id="checkpoint does not compare the old one"),
    ],
)
def test_a_missing_compare_is_found(mutation: Mutation) -> None:
    assert _first_failure(mutation) is not None


def _strip_by_holder(draft: plan._EntryDraft, info: fold.StreamHeader, epoch: int) -> bool:
    return info.holder == draft._tenure


async def _refused_is_not_applied(
    self: record_sender.RecordSender, frozen: object, result: Any
) -> None:
    heads = result.responses[1]
    await self._follower.reach(heads[0].mod_revision)


def _sweep_without_seal(self: garbage.Garbage) -> list[tuple[object, bool]]:
    return [(t, False) for t in self._follower.state.fences if t != self._follower.tenure]


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        pytest.param(plan._EntryDraft, "_is_mine", _strip_by_holder, id="strip by holder"),
        pytest.param(
            record_sender.RecordSender,
            "_refused",
            _refused_is_not_applied,
            id="a refused resend is taken for not applied",
        ),
        pytest.param(
            garbage.Garbage, "_sealed_to_sweep", _sweep_without_seal, id="orphans without a seal"
        ),
    ],
)
def test_a_wrong_reaction_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mutant: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    assert _first_failure(None) is not None


def _first_failure(mutation: Mutation | None) -> int | None:
    """The first seed that shows the mutant."""
    for seed in range(MUTANT_SEEDS):
        try:
            race(seed, mutation)
        except (AssertionError, StreamlogError):
            return seed
    return None
