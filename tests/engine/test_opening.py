"""What `streamlog.open` is given."""

from __future__ import annotations

from typing import Any

import pytest

import streamlog
from streamlog.errors import Invalid
from tests.engine.harness import error_of, run


@pytest.mark.parametrize("name", ["config", "logs", "transactions", "tiers", "components"])
@pytest.mark.parametrize("wrong", [{}, {"node_id": 1}, "text"], ids=str)
def test_settings_of_another_type_are_not_taken_for_the_defaults(name: str, wrong: object) -> None:
    async def scenario() -> None:
        given: dict[str, Any] = {name: wrong}
        error = await error_of(streamlog.open("memory://", **given).__aenter__())
        assert isinstance(error, Invalid)
        assert f"{name} is a " in str(error)

    run(scenario)
