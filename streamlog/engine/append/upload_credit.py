"""Releases the budget of batches that are in the store and wait for an earlier batch's commit.

Commits keep the order of appends, so one slow PUT delays the commits of all batches behind it,
although those are stored. Their charges are released before their commit, up to a bound; by that
much memory may exceed the budget.
"""

from __future__ import annotations

from streamlog.engine.append.budget import Budget
from streamlog.engine.append.group import Group


class UploadCredit:
    """0 ≤ used_bytes ≤ bound_bytes: charges released before their commit."""

    def __init__(self, budget: Budget, bound_bytes: int) -> None:
        self._budget = budget
        self.bound_bytes = max(bound_bytes, 0)
        self.used_bytes = 0

    def grant(self, group: Group) -> None:
        """Releases the charges as far as the bound allows. Called at most once for a batch."""
        free = self.bound_bytes - self.used_bytes
        if free > 0:
            freed = min(free, sum(item.charge for item in group.items))
            group.freed_bytes = freed
            self.used_bytes += freed
            self._budget.release(freed)

    def release(self, group: Group, charge: int) -> None:
        """The batch is committed: releases the rest of its `charge`."""
        freed, group.freed_bytes = group.freed_bytes, 0
        self.used_bytes -= freed
        self._budget.release(charge - freed)
