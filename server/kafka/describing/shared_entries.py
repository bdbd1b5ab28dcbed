"""Settings as one answer shows them: topics share those that they do not set, which are made once.

A topic has some 35 settings, and an answer may be about 10,000 topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from streamlog.server.services.config_entries import ConfigEntry

M = TypeVar("M")


class SharedEntries(Generic[M]):
    """`make`: an entry as a structure of the answer."""

    def __init__(self, make: Callable[[ConfigEntry], M]) -> None:
        self._make = make
        self._made: dict[int, tuple[ConfigEntry, M]] = {}
        """By the entry's id(), which nothing else gets while the entry is kept beside it."""

    def of(self, entry: ConfigEntry) -> M:
        made = self._made.get(id(entry))
        if made is None:
            made = self._made[id(entry)] = entry, self._make(entry)
        return made[1]
