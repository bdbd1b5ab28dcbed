"""Registers a node's new tenure and seals the one before, in one transaction.

The transaction compares the node's key, its old fence and the object id counter as read. So two
processes with one node id seal each other, and no tenure is ever used twice. A late copy of the
request is refused, because the node's key has changed. A registration whose answer was lost is
sealed by the next attempt.

A node's compactor registers in the same way, under a node id of its own (`compactor_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamlog.errors import Invalid, MetadataUnavailable, NotFound, StreamlogError
from streamlog.kvstore.interface import Compare, Get, Put, RevisionIs, StoredKeyValue
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import fence, head, id_block, lease, node, recovery
from streamlog.metadata.keyspace import KeySpace, Tools

NODE_ID_MAX = (1 << 31) - 1
COMPACTOR = 1 << 31
"""The bit of a node id that marks the node's compactor."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A new tenure with its fence (LIVE, gen 0) and its first block of object ids.

    All of it was written at `revision`.
    """

    tenure: Tenure
    fence: fence.Fence
    object_block: int
    lease_id: int
    revision: int


def check_node_id(node_id: int) -> None:
    """Errors: Invalid."""
    if not 0 <= node_id <= NODE_ID_MAX:
        raise Invalid(f"node id {node_id} is not one of 0 to {NODE_ID_MAX}")


def compactor_of(node_id: int) -> int:
    """The node id of the node's compactor."""
    return node_id | COMPACTOR


async def register(
    keys: KeySpace,
    node_id: int,
    *,
    has_disk_wal: bool,
    address: str = "",
    window: int,
    tools: Tools,
    guard: Callable[[], Sequence[Compare]] = tuple,
) -> Registration:
    """Registers a new tenure. `guard` returns further compares; it is called before each attempt.

    Errors: MetadataUnavailable after `operation_timeout_ms`; those of `guard`.
    """
    backoff = keys.retry.bounded()
    while True:
        try:
            lease_id = await keys.kv.grant_lease(tools.config.lease_ttl_ms)
            mine = fence.Fence(True, 0, has_disk_wal, False, window)
            registered = await _attempt(keys, node_id, mine, address, lease_id, guard(), tools)
        except NotFound:
            registered = None  # the lease ended before it was used
        except StreamlogError as error:
            await backoff.after(error)
            continue
        if registered is not None:
            return registered
        if backoff.is_over:
            raise MetadataUnavailable(f"the registration of node {node_id} was overtaken each time")
        await backoff.wait()


async def _attempt(
    keys: KeySpace,
    node_id: int,
    mine: fence.Fence,
    address: str,
    lease_id: int,
    guard: Sequence[Compare],
    tools: Tools,
) -> Registration | None:
    """One attempt; None: another registration came first."""
    kv, prefix = keys.kv, keys.prefix
    node_key = node.key(prefix, node_id)
    counter_key = id_block.counter_key(prefix, id_block.OBJECTS)
    read = await kv.txn([], [Get(node_key), Get(counter_key), Get(recovery.key(prefix))])
    node_kv, counter_kv, recovery_kv = map(_first, read.responses)
    old_epoch = 0
    if node_kv is not None:
        old_epoch = node.decode(node_kv.value).node_epoch
    elif recovery_kv is not None:
        # The rebuilt metadata may have forgotten this node, whose WAL names its tenures.
        old_epoch = recovery.decode(recovery_kv.value).node_epoch_max
    block = 1 + (id_block.decode_counter(counter_kv.value) if counter_kv else 0)
    tenure, old = Tenure(node_id, old_epoch + 1), Tenure(node_id, old_epoch)
    old_key = fence.key(prefix, old)
    old_kv = await kv.get(old_key)
    entry = node.NodeEntry(
        tenure.node_epoch, mine.has_disk_wal, mine.window, address, tools.config.rack
    )
    puts = [
        Put(node_key, node.encode(entry)),
        Put(fence.key(prefix, tenure), fence.encode(mine)),
        Put(head.key(prefix, tenure), head.encode(0)),
        Put(lease.key(prefix, tenure), lease.VALUE, lease_id),
        Put(id_block.block_key(prefix, id_block.OBJECTS, block), id_block.encode_owner(tenure)),
        Put(counter_key, id_block.encode_counter(block)),
    ]
    if old_kv is not None:
        old_fence = fence.decode(old_kv.value)
        if old_fence.is_live:
            puts.append(Put(old_key, fence.encode(old_fence.sealed(tools.clock.now_ms()))))
    compares: list[Compare] = [
        *guard,
        RevisionIs(node_key, _revision(node_kv)),
        RevisionIs(old_key, _revision(old_kv)),
        RevisionIs(counter_key, _revision(counter_kv)),
    ]
    result = await kv.txn(compares, puts)
    if not result.succeeded:
        return None
    return Registration(tenure, mine, block, lease_id, result.revision)


def _first(kvs: tuple[StoredKeyValue, ...]) -> StoredKeyValue | None:
    return kvs[0] if kvs else None


def _revision(kv: StoredKeyValue | None) -> int:
    return kv.mod_revision if kv is not None else 0
