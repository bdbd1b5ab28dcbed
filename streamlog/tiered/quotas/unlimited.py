"""No quota: a CopyQuota and a FetchQuota that always has room."""

from __future__ import annotations


class UnlimitedQuota:
    async def before_segment(self, *, may_wait: bool) -> bool:
        return True

    async def until_below(self, deadline: float) -> bool:
        return True

    def record(self, size_bytes: int) -> None:
        """Nothing depends on it."""
