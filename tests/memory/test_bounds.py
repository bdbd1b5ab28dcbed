"""Resident memory stays within the bounds that the settings state."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.engine.config import StreamEngineConfig
from tests.memory.process import CONFIG, measure, run


@pytest.mark.slow
def test_tiny_appends_to_many_streams(tmp_path: Path) -> None:
    measure("tests.memory.tiny_appends", str(tmp_path), "disk").check(CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize(("wal", "payload_bytes"), [("disk", "1000000"), ("object", "10")])
def test_overload_while_the_store_is_away(wal: str, payload_bytes: str, tmp_path: Path) -> None:
    measure("tests.memory.overload", str(tmp_path), wal, payload_bytes).check(CONFIG)


@pytest.mark.slow
def test_a_million_objects(tmp_path: Path) -> None:
    folder = str(tmp_path)
    run("tests.memory.million_objects", "fill", folder)
    measured = measure("tests.memory.million_objects", "use", folder)
    measured.check(StreamEngineConfig())
    # A new base is in memory while it is written.
    measured.check(CONFIG, beside=measured.facts["base_bytes"])
