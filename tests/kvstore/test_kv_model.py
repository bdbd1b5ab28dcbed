"""Random operations against a plain model that remembers every state."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streamlog.errors import Invalid, NotFound, RevisionCompacted
from streamlog.kvstore.interface import (
    Change,
    Compare,
    Delete,
    Get,
    KVStore,
    Operation,
    Put,
    RevisionIs,
    StoredKeyValue,
    ValueBelow,
    ValueIs,
)
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock

T = TypeVar("T")
State = dict[bytes, StoredKeyValue]

KEYS = st.sampled_from([b"a", b"a\x00", b"ab", b"b", b"b/1", b"b/2", b"c", b"\xff"])
VALUES = st.sampled_from([b"", b"1", b"2", b"x" * 300])
PUTS = st.builds(Put, KEYS, VALUES, st.sampled_from([0, 0, 0, 1, 2, 3]))
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    PUTS, PUTS, st.builds(Delete, KEYS, st.none() | KEYS), st.builds(Get, KEYS, st.none() | KEYS)
)
COMPARES: st.SearchStrategy[Compare] = st.one_of(
    st.builds(ValueIs, KEYS, st.none() | VALUES),
    st.builds(ValueBelow, KEYS, VALUES),
    st.builds(RevisionIs, KEYS, st.sampled_from([0, 0, 2, 3, 4, 5])),
)
BRANCHES = st.lists(OPERATIONS, max_size=4)


def _holds(compare: Compare, kv: StoredKeyValue | None) -> bool:
    if isinstance(compare, ValueIs):
        return (kv.value if kv is not None else None) == compare.value
    if isinstance(compare, ValueBelow):
        return kv is not None and kv.value < compare.value
    return (kv.mod_revision if kv is not None else 0) == compare.mod_revision


class Model:
    """The simplest implementation of the contract."""

    def __init__(self) -> None:
        self.revision = 1
        self.states: dict[int, State] = {1: {}}
        self.changes: list[Change] = []
        self.leases: dict[int, tuple[int, float]] = {}
        self.next_lease = 1
        self.oldest = 1
        """Oldest revision that can be read; changes before `oldest_change` are gone."""
        self.oldest_change = 1

    @property
    def now(self) -> State:
        return self.states[self.revision]

    def commit(self, state: State) -> None:
        if state == self.now:
            return
        before = self.now
        self.revision += 1
        self.states[self.revision] = state
        for key in sorted(before.keys() | state.keys()):
            if before.get(key) != state.get(key):
                self.changes.append(Change(key, state.get(key), before.get(key), self.revision))

    def txn(
        self, compares: list[Compare], then: list[Operation], otherwise: list[Operation]
    ) -> tuple[bool, list[list[StoredKeyValue]]]:
        for branch in (then, otherwise):
            written: list[bytes] = []
            for operation in branch:
                if isinstance(operation, Put):
                    written.append(operation.key)
                elif isinstance(operation, Delete):
                    written += [key for key in ALL_KEYS if in_range(key, operation)]
            if len(written) != len(set(written)):
                raise Invalid("twice")
        ok = all(_holds(compare, self.now.get(compare.key)) for compare in compares)
        branch = then if ok else otherwise
        state = dict(self.now)
        responses: list[list[StoredKeyValue]] = []
        for operation in branch:
            if isinstance(operation, Put):
                if operation.lease_id and operation.lease_id not in self.leases:
                    raise NotFound("lease")
                old = state.get(operation.key)
                responses.append([old] if old else [])
                state[operation.key] = StoredKeyValue(
                    operation.key,
                    operation.value,
                    old.create_revision if old else self.revision + 1,
                    self.revision + 1,
                    operation.lease_id,
                )
            else:
                selected = [state[key] for key in sorted(state) if in_range(key, operation)]
                responses.append(selected)
                if isinstance(operation, Delete):
                    for kv in selected:
                        del state[kv.key]
        self.commit(state)
        return ok, responses

    def end_lease(self, lease_id: int) -> None:
        del self.leases[lease_id]
        self.commit({k: kv for k, kv in self.now.items() if kv.lease_id != lease_id})

    def expire(self, now: float) -> None:
        due = sorted((d, i) for i, (_, d) in self.leases.items() if d <= now)
        for _, lease_id in due:
            self.end_lease(lease_id)


ALL_KEYS = [b"a", b"a\x00", b"ab", b"b", b"b/1", b"b/2", b"c", b"\xff"]


def in_range(key: bytes, operation: Delete | Get) -> bool:
    if operation.end is None:
        return key == operation.key
    return operation.key <= key < operation.end


class KVMachine(RuleBasedStateMachine):
    """`open_store` comes from the two classes below."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.model = Model()
        self.kv: KVStore = self.do(self.open_store())
        self.watch = self.kv.watch(b"a", b"c", from_revision=2)
        self.watched = 0

    async def open_store(self) -> KVStore:
        raise NotImplementedError

    def do(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())

    def teardown(self) -> None:
        self.do(self.kv.close())
        self.runner.close()

    @initialize()
    def grant_some(self) -> None:
        self.grant(5_000)

    @rule(compares=st.lists(COMPARES, max_size=2), then=BRANCHES, otherwise=BRANCHES)
    def txn(
        self, compares: list[Compare], then: list[Operation], otherwise: list[Operation]
    ) -> None:
        self.model.expire(self.clock.monotonic())
        try:
            ok, responses = self.model.txn(compares, then, otherwise)
        except (Invalid, NotFound) as error:
            with pytest.raises(type(error)):
                self.do(self.kv.txn(compares, then, otherwise))
            return
        result = self.do(self.kv.txn(compares, then, otherwise))
        assert (result.succeeded, result.revision) == (ok, self.model.revision)
        assert [list(kvs) for kvs in result.responses] == responses

    @rule(
        start=KEYS, end=KEYS, limit=st.integers(0, 4), back=st.integers(0, 6), at_now=st.booleans()
    )
    def read(self, start: bytes, end: bytes, limit: int, back: int, at_now: bool) -> None:
        self.model.expire(self.clock.monotonic())
        revision = None if at_now else max(1, self.model.revision - back)
        if revision is not None and revision < self.model.oldest:
            with pytest.raises(RevisionCompacted):
                self.do(self.kv.get(start, revision=revision))
            return
        state = self.model.now if revision is None else self.model.states[revision]
        assert self.do(self.kv.get(start, revision=revision)) == state.get(start)
        page = self.do(self.kv.range(start, end, limit=limit, revision=revision))
        expected = [state[key] for key in sorted(state) if start <= key < end]
        assert list(page.kvs) == (expected[:limit] if limit else expected)
        assert page.more == (0 < limit < len(expected))
        assert page.revision == (self.model.revision if revision is None else revision)

    @rule(ttl_ms=st.sampled_from([1_000, 5_000, 20_000]))
    def grant(self, ttl_ms: int) -> None:
        self.model.expire(self.clock.monotonic())
        lease_id = self.do(self.kv.grant_lease(ttl_ms))
        assert lease_id == self.model.next_lease
        self.model.next_lease += 1
        self.model.leases[lease_id] = (ttl_ms, self.clock.monotonic() + ttl_ms / 1000)

    @rule(lease_id=st.integers(1, 4), revoke=st.booleans())
    def touch_lease(self, lease_id: int, revoke: bool) -> None:
        self.model.expire(self.clock.monotonic())
        use = self.kv.revoke_lease if revoke else self.kv.keep_alive
        if lease_id not in self.model.leases:
            with pytest.raises(NotFound):
                self.do(use(lease_id))
            return
        self.do(use(lease_id))
        if revoke:
            self.model.end_lease(lease_id)
        else:
            ttl_ms = self.model.leases[lease_id][0]
            self.model.leases[lease_id] = (ttl_ms, self.clock.monotonic() + ttl_ms / 1000)

    @rule(elapsed_ms=st.sampled_from([100, 1_000, 7_000]))
    def wait(self, elapsed_ms: int) -> None:
        self.clock.advance(elapsed_ms)

    @precondition(lambda self: self.model.revision > 2)
    @rule(back=st.integers(0, 5))
    def compact(self, back: int) -> None:
        revision = max(1, self.model.revision - back)
        self.catch_up()
        self.do(self.kv.compact(revision))
        self.model.oldest = max(self.model.oldest, revision)
        self.model.oldest_change = max(self.model.oldest_change, revision)

    @rule()
    def catch_up(self) -> None:
        self.model.expire(self.clock.monotonic())
        assert self.do(self.kv.revision()) == self.model.revision
        expected = [c for c in self.model.changes[self.watched :] if b"a" <= c.key < b"c"]
        self.watched = len(self.model.changes)
        received: list[Change] = []
        while len(received) < len(expected):
            batch = self.do(anext(self.watch))
            assert all(change.revision == batch.revision for change in batch.changes)
            received += sorted(batch.changes, key=lambda change: change.key)
        assert received == expected

    @rule()
    def watch_again_from_the_oldest(self) -> None:
        self.catch_up()
        self.watch = self.kv.watch(b"a", b"c", from_revision=self.model.oldest_change)
        older = [c for c in self.model.changes if c.revision < self.model.oldest_change]
        self.watched = len(older)

    @invariant()
    def revision_agrees_when_nothing_is_due(self) -> None:
        if not any(d <= self.clock.monotonic() for _, d in self.model.leases.values()):
            assert self.do(self.kv.revision()) == self.model.revision


class MemoryMachine(KVMachine):
    async def open_store(self) -> KVStore:
        return MemoryKVStore(self.clock)


class RocksMachine(KVMachine):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.offload = ThreadOffload()
        super().__init__()

    async def open_store(self) -> KVStore:
        return await RocksKVStore.open(Path(self.folder.name) / "meta", self.clock, self.offload)

    @rule()
    def restart(self) -> None:
        self.catch_up()
        self.do(self.kv.close())
        self.kv = self.do(self.open_store())
        model = self.model
        now = self.clock.monotonic()
        model.leases = {i: (ttl_ms, now + ttl_ms / 1000) for i, (ttl_ms, _) in model.leases.items()}
        model.oldest, model.oldest_change = model.revision, model.revision + 1
        self.watch = self.kv.watch(b"a", b"c", from_revision=model.revision + 1)

    def teardown(self) -> None:
        self.do(self.kv.close())
        self.do(self.offload.close())
        self.runner.close()
        self.folder.cleanup()


@pytest.mark.parametrize(("machine", "examples"), [(MemoryMachine, 120), (RocksMachine, 25)])
def test_a_store_behaves_like_the_model(machine: type[KVMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
