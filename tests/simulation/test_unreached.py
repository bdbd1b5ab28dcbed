"""The list of lines that no history reaches: each entry names existing code, with a reason."""

from __future__ import annotations

from tests.simulation.coverage import KNOWN, MODULES, _file_of
from tests.support.command import ROOT

REASON_LENGTH_MIN = 8


def test_every_entry_names_existing_code_and_has_a_reason() -> None:
    sources = {}
    for name in MODULES:
        with open(_file_of(name), encoding="utf-8") as file:
            sources[name] = {line.strip() for line in file}
    lines = (ROOT / KNOWN).read_text().splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert entries
    for line in entries:
        key, _, reason = line.rpartition(" | ")
        module, *parts = key.split(" | ")
        assert module in sources, line
        assert len(reason) >= REASON_LENGTH_MIN, line
        known = sources[module] | {"never called", ""}
        # A line of code may hold the separator.
        assert any(
            " | ".join(parts[:split]) in known and " | ".join(parts[split:]) in known
            for split in range(1, len(parts))
        ), line
    assert len(entries) == len(set(entries)), "an entry is listed twice"
