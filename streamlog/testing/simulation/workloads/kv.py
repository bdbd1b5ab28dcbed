"""Clients of the KV service on all nodes at once; every key is a register."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from streamlog.errors import OutcomeUnknown, StreamlogError, Unavailable, ValueConflict
from streamlog.model.kv import Key
from streamlog.testing.simulation.checker import RegisterModel, RegisterOperation, Violation
from streamlog.testing.simulation.workloads.streams import run_sessions
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

OPERATIONS_MAX = 40
"""Operations per key: the search for an order takes exponential time."""


class KVWorkload:
    """One client after another, at any serving node; two workloads share a `Register`."""

    def __init__(self, world: World, register: Register) -> None:
        self._world = world
        self._register = register
        self._random = world.fork()

    def sessions(self) -> Coroutine[Any, Any, None]:
        return run_sessions(self._world, self._random, self._session, "kv")

    async def _session(self, node: SimulationNode) -> None:
        while True:
            await asyncio.sleep(0.5 * self._random.random())
            await self._register.operate(node, self._random.random())


class Register:
    """The keys of one name, used one after another."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._models: list[RegisterModel] = []
        self._revisions: dict[tuple[str, int], str | None] = {}
        self._values = 0

    async def operate(self, node: SimulationNode, draw: float) -> None:
        """Runs one operation and notes its answer, or that none came."""
        model = self._model()
        kv, key, now = node.engine.kv, Key(model.name.encode()), self._world.loop.time
        self._world.tally.count("kv")
        operation = RegisterOperation("get", now())
        waiting = self._world.waiting(node, f"an operation on {model.name}")
        try:
            if draw < 0.4:
                model.call(operation)
                with waiting:
                    entry = await kv.get_kv(key)
                operation.value = None if entry is None else entry.data.decode()
                if entry is not None:
                    self._learn(model, entry.revision, operation.value)
            elif draw < 0.65:
                operation.kind, operation.value = "put", self._new_value()
                model.call(operation)
                with waiting:
                    put = await kv.put_kv(key, operation.value.encode())
                self._learn(model, put.revision, operation.value)
            elif draw < 0.75:
                operation.kind = "delete"
                model.call(operation)
                with waiting:
                    await kv.del_kv(key)
            else:
                revision, expected = self._newest(model)
                operation.kind, operation.value = "cas", self._new_value()
                operation.expected = expected
                model.call(operation)
                try:
                    with waiting:
                        put = await kv.compare_and_set_kv(key, operation.value.encode(), revision)
                    self._learn(model, put.revision, operation.value)
                except ValueConflict:
                    operation.has_changed = False
        except (Unavailable, OutcomeUnknown) as error:
            self._world.trace.add("kv-failed", node.name, model.name, type(error).__name__)
            if operation.kind == "get" or error.has_no_side_effects:
                model.withdraw(operation)
            return
        except StreamlogError:
            model.withdraw(operation)
            raise
        operation.answer(now())

    async def check(self, node: SimulationNode) -> None:
        """After healing: reads each key once more, then searches for an order."""
        for model in self._models:
            operation = model.call(RegisterOperation("get", self._world.now))
            entry = await node.engine.kv.get_kv(Key(model.name.encode()))
            operation.value = None if entry is None else entry.data.decode()
            operation.answer(self._world.now)
            model.finish()

    def _model(self) -> RegisterModel:
        if not self._models or len(self._models[-1].operations) >= OPERATIONS_MAX:
            self._models.append(RegisterModel(f"{self._name}{len(self._models)}"))
        return self._models[-1]

    def _new_value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    def _newest(self, model: RegisterModel) -> tuple[int, str | None]:
        revisions = [revision for name, revision in self._revisions if name == model.name]
        newest = max(revisions, default=0)
        return newest, self._revisions.get((model.name, newest))

    def _learn(self, model: RegisterModel, revision: int, value: str | None) -> None:
        earlier = self._revisions.setdefault((model.name, revision), value)
        if earlier != value:
            raise Violation(f"{model.name}: revision {revision} is {value}, was {earlier}")
