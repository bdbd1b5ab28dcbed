"""The tree at the top of errors.py is the tree of the classes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from streamlog import errors
from streamlog.errors import StreamlogError

LINE = re.compile(r"^ {4}(?P<branch>(?:│ {3}| {4}|├── |└── )*)(?P<name>[A-Z]\w+)(?P<star>\*?)")


def _drawn() -> Iterator[tuple[str, str | None, bool]]:
    """Class, base, whether it is marked as retryable."""
    assert errors.__doc__ is not None
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        entry = LINE.match(line)
        if entry is None:
            continue
        depth = len(entry["branch"]) // 4
        del path[depth:]
        yield entry["name"], path[-1] if path else None, bool(entry["star"])
        path.append(entry["name"])


DRAWN = {name: (base, is_retryable) for name, base, is_retryable in _drawn()}


def test_the_tree_names_every_class_once() -> None:
    assert sorted(name for name, _, _ in _drawn()) == sorted(errors.by_name())


@pytest.mark.parametrize("cls", errors.by_name().values(), ids=lambda cls: cls.__name__)
def test_the_tree_shows_the_base_and_whether_a_retry_helps(cls: type[StreamlogError]) -> None:
    base = None if cls is StreamlogError else cls.__bases__[0].__name__
    assert DRAWN[cls.__name__] == (base, cls.is_retryable)
