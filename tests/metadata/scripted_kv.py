"""A KV store whose transactions follow the test's script, and that counts their operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from streamlog.errors import Internal, MetadataUnavailable, OutcomeUnknown
from streamlog.kvstore.interface import Compare, KVStore, Operation, Put, RevisionIs, TxnResult
from streamlog.metadata.keys.space import prefix_of

PREFIX = prefix_of("test")

Sent = tuple[Sequence[Compare], Sequence[Operation]]


def writes(letter: str) -> Callable[[Sent], bool]:
    """Transactions that put a key of that letter."""
    start = PREFIX + letter.encode()
    return lambda sent: any(isinstance(w, Put) and w.key.startswith(start) for w in sent[1])


commits, moves, checkpoints = writes("c"), writes("m"), writes("k")


class ScriptedKV:
    """`plan` holds the fates of the next transactions that `matches` selects:

    "lost" applied, with the answer lost; "dropped" never applied, with an unknown outcome; "away"
    refused by the network; "hold" waits for `released`; "late" applied by `land`, with an unknown
    outcome; "refused" answered as if a compare failed; "bug" an error that is not transient.
    """

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.plan: list[str] = []
        self.matches: Callable[[Sent], bool] = commits
        self.sent: list[Sent] = []
        self.released = asyncio.Event()
        self.held = asyncio.Event()
        self._late: list[tuple[Any, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        sent = (compares, then)
        if not self.matches(sent):
            return await self._kv.txn(compares, then, otherwise)
        self.sent.append(sent)
        step = self.plan.pop(0) if self.plan else "ok"
        if step == "away":
            raise MetadataUnavailable("away")
        if step == "bug":
            raise Internal("a bug in the metadata store")
        if step == "refused":
            return await self._kv.txn([RevisionIs(b"never put", 1)], [], otherwise)
        if step == "dropped":
            raise OutcomeUnknown("dropped")
        if step == "late":
            self._late.append((compares, then, otherwise))
            raise OutcomeUnknown("late")
        if step == "hold":
            self.held.set()
            await self.released.wait()
        result = await self._kv.txn(compares, then, otherwise)
        if step == "lost":
            raise OutcomeUnknown("lost")
        return result

    async def land(self) -> list[bool]:
        """Applies the late copies; whether each one succeeded."""
        late, self._late = self._late, []
        return [(await self._kv.txn(*one)).succeeded for one in late]


class SlowLeases(ScriptedKV):
    """Answers so late that a new lease has ended."""

    is_slow = False

    async def grant_lease(self, ttl_ms: int) -> int:
        lease_id: int = await self._kv.grant_lease(ttl_ms)
        if self.is_slow:
            await self._kv.revoke_lease(lease_id)
        return lease_id
