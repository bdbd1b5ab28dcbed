"""Seals this process's own tenure when it is closed."""

from __future__ import annotations

from dataclasses import replace

from streamlog.errors import StreamlogError
from streamlog.kvstore.interface import Get, Put, ValueIs
from streamlog.metadata.backoff import MetadataBackoff
from streamlog.metadata.interface import Tenure
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.keys import fence
from streamlog.metadata.keyspace import KeySpace
from streamlog.runtime.clock import Clock


async def seal_own(
    keys: KeySpace,
    follower: Follower,
    tenure: Tenure,
    own_fence: fence.Fence,
    *,
    drained: bool,
    clock: Clock,
    backoff: MetadataBackoff,
) -> None:
    """`own_fence`: as registered. Errors: MetadataUnavailable."""
    key = fence.key(keys.prefix, tenure)
    while not follower.has_sealed(tenure):
        own = replace(own_fence, gen=follower.gen_of(tenure))
        sealed = own.sealed(clock.now_ms(), drained=drained)
        try:
            result = await keys.kv.txn(
                [ValueIs(key, fence.encode(own))], [Put(key, fence.encode(sealed))], [Get(key)]
            )
        except StreamlogError as error:
            await backoff.after(error)
            continue
        if result.succeeded or not result.responses[0]:
            return
        if not fence.decode(result.responses[0][0].value).is_live:
            return
        await follower.reach(result.responses[0][0].mod_revision)
