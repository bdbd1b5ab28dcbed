"""A client's calls, each of which a test lets through, loses or repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from streamlog.client.channel import Call
from streamlog.client.closing import CallingClient
from tests.support.replacing import replace_method

RunOnce = Callable[[Call], Any]
Through = Callable[[RunOnce, Call], Any]


@contextmanager
def calls_through(client: CallingClient, through: Through) -> Iterator[None]:
    """Meanwhile `through(run_once, call)` has each attempt of the client's calls."""
    caller = client._caller
    run_once = caller.run_once

    def changed(call: Call, timeout_ms: float) -> Any:
        return through(lambda one: run_once(one, timeout_ms), call)

    replace_method(caller, "run_once", changed)
    yield
    replace_method(caller, "run_once", run_once)
