"""`simulate` with the example of docs/testing-your-application.md, right and broken."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import traceback
from types import ModuleType
from typing import Any

import pytest

from streamlog.errors import Invalid, OutcomeUnknown
from streamlog.model.batch import AppendContext, single
from streamlog.testing.simulation import NO_FAULTS, Failed, Life, simulate
from streamlog.wiring import OpenEngine
from tests.support.command import ROOT


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """examples/simulated_ledger.py."""
    spec = importlib.util.spec_from_file_location(
        "simulated_ledger", ROOT / "examples" / "simulated_ledger.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def first_failure(example: ModuleType, ledger: type) -> str:
    for seed in range(60):
        try:
            example.run(seed, ledger)
        except Failed as failure:
            return str(failure)
    pytest.fail("60 seeds found nothing")


def test_the_ledger_keeps_its_promises(example: ModuleType) -> None:
    assert sum(example.run(seed) for seed in range(6)) > 50


def test_a_ledger_that_retries_an_unknown_outcome_is_found(example: ModuleType) -> None:
    class Retrying(example.Ledger):  # type: ignore[name-defined, misc]
        async def change(self, name: str, amount: int) -> bool:
            while True:
                try:
                    return bool(await super().change(name, amount))
                except OutcomeUnknown:
                    await asyncio.sleep(0.1)

    failure = first_failure(example, Retrying)
    assert "made twice" in failure or "refused, and there" in failure


def test_a_ledger_without_the_expected_offset_is_found(example: ModuleType) -> None:
    class Blind(example.Ledger):  # type: ignore[name-defined, misc]
        async def change(self, name: str, amount: int) -> bool:
            await self.read()
            if self.balance + amount < 0:
                return False
            await self._stream.append(single(f"{name}={amount}".encode()), AppendContext())
            return True

    assert "that it did not hold" in first_failure(example, Blind)


async def _append_on(engine: OpenEngine, life: Life) -> None:
    stream = await engine.streams.create_and_open_stream()
    while not life.is_healed:
        result = await stream.append(single(life.random.bytes(8)))
        life.note("appended", stream.stream_id, result.base_offset)
        await asyncio.sleep(0.05)


def test_a_seed_replays_identically() -> None:
    first, second = (simulate(_append_on, seed=7, wal="disk") for _ in range(2))
    assert first == second
    assert any("appended" in line for line in first.trace)
    assert first.lives == 5
    assert simulate(_append_on, seed=8, wal="disk").trace != first.trace


def test_without_fault_rates_only_crashes_happen() -> None:
    result = simulate(_append_on, seed=3, faults=NO_FAULTS)
    assert set(result.faults) <= {"crash", "power-cut", "torn-write"}


def test_an_error_of_the_application_carries_the_trace() -> None:
    async def fails(engine: OpenEngine, life: Life) -> None:
        life.note("about to fail")
        raise ValueError("the application's own")

    with pytest.raises(Failed, match="ValueError: the application's own") as caught:
        simulate(fails, seed=1)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "about to fail" in caught.value.trace[-1]


def test_an_error_of_a_task_that_nobody_awaits_fails_the_simulation() -> None:
    """Also where the application holds the task for ever, so that asyncio never tells."""
    held: list[asyncio.Task[None]] = []

    async def worker() -> None:
        raise KeyError("lost in a task")

    async def application(engine: OpenEngine, life: Life) -> None:
        held.append(asyncio.create_task(worker()))
        await asyncio.sleep(60)

    async def check(engine: OpenEngine, life: Life) -> None:
        """Nothing is checked."""

    with pytest.raises(Failed, match="KeyError: 'lost in a task'"):
        simulate(application, check=check, seed=1, faults=NO_FAULTS)
    with pytest.raises(Failed, match="KeyError: 'lost in a task'"):
        simulate(check, check=application, seed=1, faults=NO_FAULTS)


def test_errors_of_tasks_that_are_taken_or_pass_do_not_fail_the_simulation() -> None:
    async def worker(error: Exception) -> None:
        raise error

    async def application(engine: OpenEngine, life: Life) -> None:
        passing = asyncio.create_task(worker(OutcomeUnknown("the store was away")))
        with pytest.raises(KeyError):
            await asyncio.create_task(worker(KeyError("expected")))
        await asyncio.sleep(0.1)
        assert passing.done()

    simulate(application, seed=1)


def test_a_check_that_waits_for_what_never_comes_ends() -> None:
    async def application(engine: OpenEngine, life: Life) -> None:
        """It appends nothing."""

    async def check(engine: OpenEngine, life: Life) -> None:
        stream = await engine.streams.create_and_open_stream()
        await stream.wait_confirmed(1)

    with pytest.raises(Failed, match="the check did not end within 3600 s") as caught:
        simulate(application, check=check, seed=1, faults=NO_FAULTS)
    told = "".join(traceback.format_exception(caught.value))
    assert "await stream.wait_confirmed(1)" in told


@pytest.mark.parametrize("wrong", [{"lives": 0}, {"seed": "x"}], ids=str)
def test_what_no_simulation_can_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        simulate(_append_on, **{"seed": 1, **wrong})
