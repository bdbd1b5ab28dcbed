"""What a worker keeps between tasks, without a JVM."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from streamlog.errors import ForeignCluster, StoreUnavailable
from streamlog.objectstore.cluster.guard import claim
from streamlog.objectstore.keys import CLUSTER_KEY
from streamlog.reading import stores
from streamlog.spark.garbage_freeze import freeze_gc, freeze_worker_gc
from streamlog.spark.read.worker import Worker, worker

ONE, TWO = "1" * 32, "2" * 32


@pytest.fixture
def at() -> Worker:
    return worker()


def test_a_worker_outlives_a_cluster(at: Worker, tmp_path: Path) -> None:
    url = f"local://{tmp_path}"
    with pytest.raises(ForeignCluster):
        at.store(url, ONE)
    store, _ = at._stores[url]
    at.run(claim(store, ONE))
    assert at.store(url, ONE) is store
    at.run(store.delete([CLUSTER_KEY]))
    at.run(claim(store, TWO))
    assert at.store(url, TWO) is store
    with pytest.raises(ForeignCluster, match=TWO):
        at.store(url, ONE)


def test_a_store_that_cannot_be_read_is_closed_again(
    at: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = 0

    class Away:
        async def get(self, *_: object) -> bytes:
            raise StoreUnavailable("away")

        async def close(self) -> None:
            nonlocal closed
            closed += 1

    async def opened(*_: Any) -> Away:
        return Away()

    monkeypatch.setattr(stores, "open_store", opened)
    for tries in (1, 2):
        with pytest.raises(StoreUnavailable):
            at.store(f"local://{tmp_path}", ONE)
        assert closed == tries


def test_loaded_modules_leave_garbage_collection_once_per_stage() -> None:
    gc.unfreeze()
    freeze_gc("a test")
    assert gc.get_freeze_count() > 0
    made: list[list[int]] = [[]]
    freeze_gc("a test")
    assert any(one is made for one in gc.get_objects())
    freeze_gc("another test")
    assert not any(one is made for one in gc.get_objects())


def test_a_program_that_plans_keeps_its_garbage_collection() -> None:
    gc.unfreeze()
    freeze_worker_gc("a test of planning")
    assert gc.get_freeze_count() == 0
