"""Jobs without a JVM: each task of a wave runs in this process, as if it had travelled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from streamlog.spark.jobs import compaction, rounds, scrub

T = TypeVar("T")
R = TypeVar("R")


class InlineSpark:
    """What jobs ask of a session. `before_wave` is called before the tasks of each wave."""

    def __init__(self, before_wave: Callable[[], object] = lambda: None) -> None:
        self.before_wave = before_wave
        self.waves = 0
        self.tags: set[str] = set()
        self.conf = {"spark.default.parallelism": "2"}

    def addTag(self, tag: str) -> None:
        self.tags.add(tag)

    def removeTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def interruptTag(self, tag: str) -> list[str]:
        return []


def run_inline(spark: Any, work: Callable[[T], R], units: Sequence[T]) -> list[R]:
    spark.waves += 1
    spark.before_wave()
    found = []
    for unit in units:
        sent: Any = pickle.loads(pickle.dumps((work, unit), 5))  # noqa: S301 - own bytes
        found.append(sent[0](sent[1]))
    return found


def without_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compaction, rounds, scrub):
        monkeypatch.setattr(module, "run_tasks", run_inline)
