"""The kill of the demonstration: one that comes too late is made once more."""

from __future__ import annotations

from typing import cast

import pytest

from streamlog.demo.node import NodeProcess
from streamlog.demo.scenario import KILL_ATTEMPTS, KillHitNothing, crash
from streamlog.demo.writer import RoundWriter


class _Node:
    def __init__(self) -> None:
        self.pid = 100
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1

    def start(self) -> float:
        self.pid += 1
        return 0.5


class _Writer:
    """Its requests are all answered before the first `late_kills` kills."""

    def __init__(self, node: _Node, late_kills: int) -> None:
        self._node = node
        self._late_kills = late_kills
        self.awaited_kills = 0

    def send_ahead(self) -> None: ...

    def await_one(self) -> None: ...

    def await_request(self) -> int:
        return 2

    def records_unacknowledged(self) -> int:
        return 7 if self._node.kills > self._late_kills else 0

    def await_unacknowledged(self) -> None:
        self.awaited_kills = self._node.kills


def test_a_kill_that_came_too_late_is_made_once_more() -> None:
    node = _Node()
    writer = _Writer(node, late_kills=2)
    lines: list[str] = []
    result = crash(cast(NodeProcess, node), cast(RoundWriter, writer), lines.append)
    assert (node.kills, node.pid, writer.awaited_kills) == (3, 103, 3)
    assert (result.unacknowledged_records, result.restart_s) == (7, 0.5)
    assert sum("once more" in line for line in lines) == 2
    assert sum("2 requests were under way, 7 records" in line for line in lines) == 1


def test_kills_that_hit_nothing_fail_the_run() -> None:
    node = _Node()
    writer = _Writer(node, late_kills=KILL_ATTEMPTS)
    with pytest.raises(KillHitNothing):
        crash(cast(NodeProcess, node), cast(RoundWriter, writer), lambda line: None)
    assert (node.kills, writer.awaited_kills) == (KILL_ATTEMPTS, 0)
