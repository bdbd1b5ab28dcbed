"""A call over a network: when it takes effect, when its answer comes, and how it fails.

| fault | effect | answer |
|---|---|---|
| refused | none | an error, at once |
| lost | in time | an error of unknown outcome |
| late | after the answer, past later calls and a crash | an error of unknown outcome |
| gone | none | an error of unknown outcome, after the caller's time-out |
| stuck | late: later calls overtake it | comes |
| slow | in time | comes after up to a minute |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from streamlog.testing.simulation.world.faults import LATE_EFFECT_S_MAX, SLOW_ANSWER_S_MAX
from streamlog.testing.simulation.world.incarnation import NETWORK, Incarnation, answer

T = TypeVar("T")

TIMEOUT_S = 5.0
AT_ONCE = 0.6
"""Share of calls whose answer comes at the moment of the effect: one event less to simulate."""


async def remote_call(
    node: Incarnation,
    typical_s: float,
    apply: Callable[[], Awaitable[T]],
    *,
    fault: str | None,
    unavailable: Callable[[], Exception],
    unknown: Callable[[], Exception],
) -> T:
    """`apply` takes effect between request and answer; it must not wait for anything itself.

    A caller that is cancelled or crashes leaves the request under way: it lands by its latency.
    """
    await node.wait_while_crashed()
    loop = node.loop
    done: asyncio.Future[T] = loop.create_future()
    request_s, answer_s = node.latency(typical_s / 2), node.latency(typical_s / 2)
    if fault is None:
        if node.random.random() < AT_ONCE:
            request_s, answer_s = request_s + answer_s, 0.0
    elif fault == "refused":
        loop.call_later(request_s, answer, node, done, None, unavailable())
        return await done
    elif fault == "gone":
        loop.call_later(TIMEOUT_S * node.random.random(), answer, node, done, None, unknown())
        return await done
    elif fault == "late":
        loop.call_later(request_s + answer_s, answer, node, done, None, unknown())
        request_s += LATE_EFFECT_S_MAX * node.random.random() ** 3
    elif fault == "stuck":
        request_s += LATE_EFFECT_S_MAX * node.random.random() ** 3
    elif fault == "slow":
        answer_s += SLOW_ANSWER_S_MAX * node.random.random() ** 4
    is_lost = fault in ("lost", "late")

    def land() -> None:
        call = apply()
        result: Any = None
        failure: BaseException | None = None
        try:
            call.__await__().send(None)
            failure = RuntimeError("a shared store waits for something")
        except StopIteration as stop:
            result = stop.value
        except Exception as error:  # noqa: BLE001 - the store's own answer, carried to the caller
            failure = error
        if is_lost:
            if fault == "lost":
                loop.call_later(answer_s, answer, node, done, None, unknown())
        elif answer_s == 0.0:
            answer(node, done, result, failure)
        else:
            loop.call_later(answer_s, answer, node, done, result, failure)

    loop.call_later(request_s, land, context=NETWORK)
    return await done
