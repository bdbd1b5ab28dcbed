from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.fake_node import FakeNode


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as running:
        yield running
