from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.client.fake_node import FakeNode
from tests.client.transactions.producers import FAST, KINDS

MakeProducer = Callable[..., Any]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, node: FakeNode) -> Iterator[MakeProducer]:
    """Makes transactional producers of one kind, which the test's end closes."""
    with ExitStack() as stack:

        def make_one(transactional_id: str | None = "x", **settings: Any) -> Any:
            given = {**FAST, "transactional_id": transactional_id, **settings}
            producer = KINDS[request.param](node.server, **given)
            return stack.enter_context(producer)

        yield make_one
