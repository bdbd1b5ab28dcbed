"""Cuts what is committed at once into parts that a commit record takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from streamlog.errors import MessageTooLarge
from streamlog.metadata.interface import CommitEntry, Commits

T = TypeVar("T")

COUNT_MAX = 1000


def commit_parts(
    items: Sequence[T], entry_of: Callable[[Sequence[T]], CommitEntry], metadata: Commits
) -> Iterator[Sequence[T]]:
    """Parts of at most COUNT_MAX items whose entries fit into a record.

    A part of one item may not fit: its commit says so.
    """
    low = 0
    while low < len(items):
        part = items[low : low + COUNT_MAX]
        while len(part) > 1 and not _fits(entry_of(part), metadata):
            part = part[: len(part) // 2]
        yield part
        low += len(part)


def _fits(entry: CommitEntry, metadata: Commits) -> bool:
    try:
        metadata.check_fits(entry)
    except MessageTooLarge:
        return False
    return True
