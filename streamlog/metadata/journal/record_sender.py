"""Sends one record transaction at a time: the same bytes until a definite answer.

1. A record is frozen from its first send on. It compares the fence and the head of its tenure. A
   record of a compaction, attach or unstage also compares the compaction counter and raises it.
2. A refusal brings the compared values:
   head ≥ seq: an earlier copy was applied, which is the same as a success now.
   fence sealed or gone: TenureFenced.
   gen or compaction counter raised: fold up to that. The record may be planned again, under the
   same number and the new gen and counter. An older copy that is still in flight compares the old
   values, which never return, so it can never be applied.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from streamlog.errors import Internal, StreamlogError, TenureFenced
from streamlog.kvstore.interface import Compare, Get, Operation, Put, TxnResult, ValueIs
from streamlog.metadata.backoff import is_transient
from streamlog.metadata.interface import Tenure
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.keys import counter, fence, head, record
from streamlog.metadata.keyspace import KeySpace, Tools

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FrozenRecord:
    """A record whose bytes are final.

    `compactions`: the compaction counter that it compares and raises; None: it does neither.
    """

    seq: int
    gen: int
    value: bytes
    compactions: int | None = None


class RecordSender:
    """Sends the records of one tenure."""

    def __init__(
        self,
        keys: KeySpace,
        follower: Follower,
        tenure: Tenure,
        own_fence: fence.Fence,
        tools: Tools,
    ) -> None:
        self._kv = keys.kv
        self._prefix = keys.prefix
        self._follower = follower
        self._tenure = tenure
        self._own_fence = own_fence
        self._clock = tools.clock
        self._retry = keys.retry
        self._metrics = tools.metrics

    async def send(self, frozen: FrozenRecord) -> int | None:
        """The record's revision; None: gen or compaction counter has changed, plan it again.

        Errors: TenureFenced, Internal.
        """
        began, backoff = self._clock.monotonic(), self._retry.endless()
        compares, puts, gets = self._transaction(frozen)
        while True:
            try:
                result = await self._kv.txn(compares, puts, gets)
            except StreamlogError as error:
                if not is_transient(error):
                    raise
                self._metrics.resends.inc()
                log.warning(
                    "record %d is sent again: %s",
                    frozen.seq,
                    error,
                    extra={"seq": frozen.seq},
                )
                await backoff.wait()
                continue
            self._metrics.commit_operations.inc(len(compares) + len(puts))
            self._metrics.commit_seconds.observe(self._clock.monotonic() - began)
            if result.succeeded:
                return result.revision
            return await self._refused(frozen, result)

    def fenced(self) -> TenureFenced:
        return TenureFenced(
            f"tenure {self._tenure} was sealed: another process took over; start this one again",
            node_id=self._tenure.node_id,
            node_epoch=self._tenure.node_epoch,
        )

    def _transaction(
        self, frozen: FrozenRecord
    ) -> tuple[list[Compare], list[Operation], list[Operation]]:
        fence_key = fence.key(self._prefix, self._tenure)
        head_key = head.key(self._prefix, self._tenure)
        live = fence.encode(replace(self._own_fence, gen=frozen.gen))
        compares: list[Compare] = [
            ValueIs(fence_key, live),
            ValueIs(head_key, head.encode(frozen.seq - 1)),
        ]
        puts: list[Operation] = [
            Put(head_key, head.encode(frozen.seq)),
            Put(record.key(self._prefix, self._tenure, frozen.seq), frozen.value),
        ]
        gets: list[Operation] = [Get(fence_key), Get(head_key)]
        if frozen.compactions is not None:
            key = counter.key(self._prefix)
            compares.append(counter.compare(self._prefix, frozen.compactions))
            puts.append(Put(key, counter.encode(frozen.compactions + 1)))
            gets.append(Get(key))
        return compares, puts, gets

    async def _refused(self, frozen: FrozenRecord, result: TxnResult) -> int | None:
        fences, heads, *counters = result.responses
        seq = head.decode(heads[0].value) if heads else None
        if seq is not None and seq >= frozen.seq:
            if seq > frozen.seq:
                raise Internal(
                    f"tenure {self._tenure} is at record {seq}, past {frozen.seq}: another process "
                    "commits under this tenure"
                )
            self._metrics.refused.labels("applied").inc()
            return heads[0].mod_revision
        seen = fence.decode(fences[0].value) if fences else None
        if seen is None or not seen.is_live:
            self._metrics.refused.labels("fenced").inc()
            self._follower.note_sealed(self._tenure, seen)
            raise self.fenced()
        raised = counters[0] if counters and counters[0] else ()
        compactions = counter.decode(raised[0].value) if raised else 0
        is_overtaken = frozen.compactions is not None and compactions > frozen.compactions
        if seq != frozen.seq - 1 or not (seen.gen > frozen.gen or is_overtaken):
            raise Internal(
                f"record {frozen.seq} of tenure {self._tenure} was refused without a reason: gen "
                f"{seen.gen} against {frozen.gen}, head {seq}, compactions {compactions} against "
                f"{frozen.compactions}"
            )
        self._metrics.refused.labels("overtaken" if is_overtaken else "moved").inc()
        await self._follower.reach(fences[0].mod_revision)
        if raised:
            await self._follower.reach(raised[0].mod_revision)
        return None
