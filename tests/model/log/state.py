"""The state of the log model: keys of the KV store, memories of tenures, messages."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.explorer import spend, with_node

LIVE, SEALED = 1, 0


class Node(NamedTuple):
    """A tenure's memory, lost in a crash.

    `owned`: per stream None or (epoch, end). `pending`: batches in commit order; `is_sent`: the
    first one's transaction is under way. `claim`: of an appender, the holder it moves streams from;
    of a checkpointer, its own files that `k`, read with no attempt open, does not name.
    """

    is_up: bool
    gen: int
    seq: int
    owned: tuple[tuple[int, int] | None, ...]
    pending: tuple[Batch, ...]
    is_sent: bool
    objects: int
    claim: Any


class Batch(NamedTuple):
    """An object in flight: PUT, then commit.

    `extra` and `compare` are the trims and None of an append, the inputs and `x` of a compaction,
    the files and the old files of a checkpoint.
    """

    obj: int
    ranges: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    is_stored: bool
    extra: tuple[Any, ...]
    compare: Any


class Budget(NamedTuple):
    """How often each fault may still happen."""

    resend: int = 0
    crash: int = 0
    move: int = 0
    seal: int = 0
    trim: int = 0
    compact: int = 0
    checkpoint: int = 0
    pin: int = 0
    lost: int = 0
    restart: int = 0
    sweep: int = 0


class State(NamedTuple):
    """`fences`: (state, gen, records at the seal). `x`, `k`, `deleted`: records, as counts.

    `store`: (object, ranges). `gc_view`, `gc_pin`: what the collector has folded and read.
    `writing`: checkpoints without files on their way. `files`: those that `k` names; `file_view`:
    the sweeper's: sealed tenures, then `k`.
    """

    fences: tuple[tuple[int, int, int], ...]
    heads: tuple[int, ...]
    x: int
    log: int
    k: int
    deleted: int
    store: frozenset[tuple[int, Any]]
    nodes: tuple[Node, ...]
    net: tuple[Any, ...]
    budget: Budget
    gc_view: int = 0
    gc_pin: tuple[int, int | None] = (0, None)
    pin: int | None = None
    writing: tuple[tuple[int, int], ...] = ()
    files: tuple[int, ...] = ()
    file_view: tuple[frozenset[int], tuple[int, ...] | None] = (frozenset(), None)

    with_node = with_node
    spend = spend
