"""Random operations on a store against a dict."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from streamlog.errors import AlreadyExists, Invalid, ObjectNotFound, ValueConflict
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock

T = TypeVar("T")

KEYS = st.sampled_from(["a", "a-1", "b/1", "b/10", "b/2", "b-/x", "c/d/e", "c/d.e"])
PARTS = st.lists(st.binary(max_size=40), max_size=4)
PREFIXES = st.sampled_from(["", "a", "b", "b/", "b/1", "c/d", "c/d/", "d"])


class StoreMachine(RuleBasedStateMachine):
    """`open_store` comes from the two classes below."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store: ObjectStore = self.do(self.open_store())
        self.model: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.old_etags: list[str] = ["none"]

    async def open_store(self) -> ObjectStore:
        raise NotImplementedError

    def do(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return self.runner.run(wait())

    def teardown(self) -> None:
        self.do(self.store.close())
        self.runner.close()

    def stored(self, key: str, parts: list[bytes], etag: str) -> None:
        self.forget(key)
        self.model[key] = b"".join(parts)
        self.etags[key] = etag

    def forget(self, key: str) -> None:
        self.model.pop(key, None)
        if key in self.etags:
            self.old_etags.append(self.etags.pop(key))

    @rule(key=KEYS, parts=PARTS, if_absent=st.booleans())
    def put(self, key: str, parts: list[bytes], if_absent: bool) -> None:
        self.clock.advance(len(parts))
        if if_absent and key in self.model:
            with pytest.raises(AlreadyExists):
                self.do(self.store.put(key, parts, if_absent=True))
            return
        info = self.do(self.store.put(key, parts, if_absent=if_absent))
        assert (info.key, info.size_bytes) == (key, len(b"".join(parts)))
        self.stored(key, parts, info.etag)

    @rule(key=KEYS, parts=PARTS, use_current=st.booleans(), data=st.data())
    def put_if_match(
        self, key: str, parts: list[bytes], use_current: bool, data: st.DataObject
    ) -> None:
        etag = self.etags.get(key) if use_current else None
        etag = etag or data.draw(st.sampled_from(self.old_etags))
        if key not in self.model:
            with pytest.raises(ObjectNotFound):
                self.do(self.store.put_if_match(key, parts, etag))
        elif etag != self.etags[key]:
            with pytest.raises(ValueConflict):
                self.do(self.store.put_if_match(key, parts, etag))
        else:
            info = self.do(self.store.put_if_match(key, parts, etag))
            self.stored(key, parts, info.etag)

    @rule(key=KEYS, start=st.integers(0, 60), length=st.none() | st.integers(0, 60))
    def get(self, key: str, start: int, length: int | None) -> None:
        expected = self.model.get(key)
        if expected is None:
            with pytest.raises(ObjectNotFound):
                self.do(self.store.get(key, start, length))
            with pytest.raises(ObjectNotFound):
                self.do(self.store.head(key))
            return
        info = self.do(self.store.head(key))
        assert (info.size_bytes, info.etag) == (len(expected), self.etags[key])
        if start > len(expected):
            with pytest.raises(Invalid):
                self.do(self.store.get(key, start, length))
            return
        end = None if length is None else start + length
        assert bytes(self.do(self.store.get(key, start, length))) == expected[start:end]

    @rule(keys=st.lists(KEYS, max_size=3))
    def delete(self, keys: list[str]) -> None:
        self.do(self.store.delete(keys))
        for key in keys:
            self.forget(key)

    @rule(prefix=PREFIXES, limit=st.integers(1, 5))
    def list_pages(self, prefix: str, limit: int) -> None:
        listed: list[str] = []
        token: str | None = None
        while token is not None or not listed:
            page = self.do(self.store.list(prefix, token=token, limit=limit))
            listed += [info.key for info in page.objects]
            token = page.next_token
            if token is None:
                break
            assert len(page.objects) == limit
        assert listed == sorted(key for key in self.model if key.startswith(prefix))


class MemoryMachine(StoreMachine):
    async def open_store(self) -> ObjectStore:
        return MemoryObjectStore(self.clock)


class LocalMachine(StoreMachine):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.offload = ThreadOffload()
        super().__init__()

    async def open_store(self) -> ObjectStore:
        return await LocalObjectStore.open(self.folder.name, self.offload, self.clock)

    @rule()
    def reopen(self) -> None:
        self.do(self.store.close())
        self.store = self.do(self.open_store())

    def teardown(self) -> None:
        self.do(self.store.close())
        self.do(self.offload.close())
        self.runner.close()
        self.folder.cleanup()


@pytest.mark.parametrize(("machine", "examples"), [(MemoryMachine, 100), (LocalMachine, 40)])
def test_a_store_behaves_like_a_dict(machine: type[StoreMachine], examples: int) -> None:
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
