"""A compiled codec of another version is refused by name, before anything calls it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

import streamlog.codec
from streamlog.codec import choice
from streamlog.errors import InvalidConfig

STUB = Path(streamlog.codec.__file__).with_name("_native.pyi")


def test_an_extension_of_older_sources_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = ModuleType("streamlog.codec._native")
    old.__file__ = "/site-packages/streamlog/codec/_native.abi3.so"
    for name in choice.NEEDED:
        setattr(old, name, None)
    monkeypatch.setitem(sys.modules, old.__name__, old)
    assert choice.load("") is old
    del old.check_records
    for wanted in ("", "native"):
        with pytest.raises(InvalidConfig, match=r"_native.*lacks check_records; build it again"):
            choice.load(wanted)
    assert choice.load("pure") is None


def test_what_is_needed_is_what_the_stub_declares() -> None:
    declared = set()
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared.add(node.target.id)
    assert {name for name in declared if not name.startswith("_")} == set(choice.NEEDED)
