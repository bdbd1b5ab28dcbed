"""Room of batches that are in the store and wait for an earlier one's commit.

Commits keep the order of appends: one slow PUT holds up those behind it, which need no further
upload. Their room is given back before their commit, up to a bound: that much more is then in
memory than the budget says.
"""

from __future__ import annotations

from streamlog.engine.append.budget import Budget
from streamlog.engine.append.group import Group


class UploadCredit:
    """0 ≤ used_bytes ≤ bound_bytes: given back and not committed yet."""

    def __init__(self, budget: Budget, bound_bytes: int) -> None:
        self._budget = budget
        self.bound_bytes = max(bound_bytes, 0)
        self.used_bytes = 0

    def grant(self, group: Group) -> None:
        """The batch is in the store; called once at most for each."""
        free = self.bound_bytes - self.used_bytes
        if free > 0:
            freed = min(free, sum(item.charge for item in group.items))
            group.freed_bytes = freed
            self.used_bytes += freed
            self._budget.release(freed)

    def release(self, group: Group, charge: int) -> None:
        """The batch is committed: gives back what is left of its `charge`."""
        freed, group.freed_bytes = group.freed_bytes, 0
        self.used_bytes -= freed
        self._budget.release(charge - freed)
