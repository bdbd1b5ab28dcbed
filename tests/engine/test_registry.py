"""An engine's metrics in a registry of its caller."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import streamlog
from streamlog.errors import StreamlogError
from streamlog.wiring import Components

METRIC = "streamlog_engine_queue_bytes_bound"


def test_a_registry_shows_one_engine_after_another(tmp_path: Path) -> None:
    """A second open with the same registry, after a failed one too, once raised ValueError."""
    registry = CollectorRegistry()

    async def main() -> None:
        (tmp_path / "objects").write_text("a file where a folder is needed")
        with pytest.raises(StreamlogError):
            async with streamlog.open(
                f"local://{tmp_path}/objects",
                meta="memory://",
                wal="object",
                components=Components(registry=registry),
            ):
                raise AssertionError("it cannot be opened")
        for _ in range(2):
            async with streamlog.open("memory://", components=Components(registry=registry)):
                assert (registry.get_sample_value(METRIC) or 0) > 0
            assert registry.get_sample_value(METRIC) is None

    asyncio.run(main())
