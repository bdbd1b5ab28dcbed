"""fsck of the metadata's keys: each is readable, and they agree with each other and the fold."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from streamlog.engine.cluster import CLUSTER_KEY
from streamlog.errors import Corrupt, StreamlogError
from streamlog.kvstore.interface import StoredKeyValue
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import (
    counter,
    fence,
    head,
    id_block,
    late_deletes,
    lineage,
    node,
    pin,
    recovery,
)
from streamlog.metadata.keys.fence import Fence
from streamlog.metadata.keys.id_block import IdKind
from streamlog.metadata.keys.space import number_in, tenure_in
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.view import MetadataView

T = TypeVar("T")
EVERYTHING_END = b"\xff"


@dataclass(slots=True)
class Keys:
    """The keys of tenures, nodes and ids, decoded."""

    fences: dict[Tenure, Fence] = field(default_factory=dict)
    heads: dict[Tenure, int] = field(default_factory=dict)
    nodes: dict[int, node.NodeEntry] = field(default_factory=dict)
    object_blocks: dict[int, Tenure] = field(default_factory=dict)
    stream_blocks: dict[int, Tenure] = field(default_factory=dict)
    object_counter: int = 0
    stream_counter: int = 0
    compactions: int = 0
    late_deletes: dict[Tenure, tuple[int, ...]] = field(default_factory=dict)
    """Objects that tenures gave up and deleted once; a late PUT may have stored one again."""


async def check_keys(view: MetadataView, report: RepairReport) -> Keys:
    """Reads every key of the metadata store except users' values. Errors: MetadataUnavailable."""
    keys, reader = Keys(), _KeyReader(report)
    prefix = view.prefix
    async for kv in _all_keys(view):
        report.counts["keys"] += 1
        if not kv.key.startswith(prefix):
            if kv.key != CLUSTER_KEY:
                report.add(_unknown(kv.key))
            continue
        letter, slash = kv.key[len(prefix) : len(prefix) + 1], kv.key[len(prefix) + 1 :][:1]
        if kv.key == prefix + b"k":
            continue
        if kv.key == counter.key(prefix):
            keys.compactions = reader.read(kv, counter.decode) or 0
            continue
        if kv.key == recovery.key(prefix):
            reader.read(kv, recovery.decode)
            continue
        if kv.key == lineage.key(prefix):
            reader.read(kv, lineage.decode)
            continue
        if slash != b"/":
            report.add(_unknown(kv.key))
        elif letter == b"f":
            reader.into(keys.fences, kv, lambda k: tenure_in(k, prefix), fence.decode)
        elif letter == b"h":
            reader.into(keys.heads, kv, lambda k: tenure_in(k, prefix), head.decode)
        elif letter == b"n":
            reader.into(keys.nodes, kv, lambda k: _node_id(k, prefix), node.decode)
        elif letter == b"i":
            _counter(kv, prefix, keys, reader)
        elif letter == b"b":
            _block(kv, prefix, keys, reader)
        elif letter == b"p":
            reader.read(kv, pin.decode)
        elif letter == b"o":
            reader.into(keys.late_deletes, kv, lambda k: tenure_in(k, prefix), late_deletes.decode)
        elif letter == b"l":
            reader.read(kv, lambda _, key=kv.key: tenure_in(key, prefix))  # type: ignore[misc]
        elif letter not in (b"c", b"m", b"u"):
            report.add(_unknown(kv.key))
    _check_tenures(view, keys, report)
    _check_ids(view, keys, report)
    return keys


async def _all_keys(view: MetadataView) -> AsyncIterator[StoredKeyValue]:
    async for kv in view.keys(b"\0", EVERYTHING_END):
        yield kv


class _KeyReader:
    def __init__(self, report: RepairReport) -> None:
        self.report = report

    def read(self, kv: StoredKeyValue, decode: Callable[[bytes], T]) -> T | None:
        try:
            return decode(kv.value)
        except (StreamlogError, struct.error, ValueError) as error:
            self.report.add(
                Finding(
                    FindingKind.KEY_UNREADABLE,
                    Severity.ERROR,
                    f"the metadata key {shown(kv.key)} cannot be read: {error}",
                    "restore the metadata from a backup, or rebuild it with streamlog recover",
                    key=shown(kv.key),
                )
            )
            return None

    def into(
        self,
        values: dict[T, object] | dict,  # type: ignore[type-arg]
        kv: StoredKeyValue,
        name: Callable[[bytes], T],
        decode: Callable[[bytes], object],
    ) -> None:
        value = self.read(kv, lambda data: (name(kv.key), decode(data)))
        if value is not None:
            values[value[0]] = value[1]


def _node_id(key: bytes, prefix: bytes) -> int:
    return int.from_bytes(key[len(prefix) + 2 :], "big")


def _counter(kv: StoredKeyValue, prefix: bytes, keys: Keys, reader: _KeyReader) -> None:
    for kind in (id_block.OBJECTS, id_block.STREAMS):
        if kv.key == id_block.counter_key(prefix, kind):
            blocks = reader.read(kv, id_block.decode_counter) or 0
            if kind is id_block.OBJECTS:
                keys.object_counter = blocks
            else:
                keys.stream_counter = blocks
            return
    reader.report.add(_unknown(kv.key))


def _block(kv: StoredKeyValue, prefix: bytes, keys: Keys, reader: _KeyReader) -> None:
    for kind, blocks in (
        (id_block.OBJECTS, keys.object_blocks),
        (id_block.STREAMS, keys.stream_blocks),
    ):
        start = id_block.block_prefix(prefix, kind)
        if kv.key.startswith(start) and len(kv.key) == len(start) + 8:
            reader.into(blocks, kv, number_in, id_block.decode_owner)
            return
    reader.report.add(_unknown(kv.key))


def _check_tenures(view: MetadataView, keys: Keys, report: RepairReport) -> None:
    fold = view.state.fold
    if keys.compactions != fold.compactions.counter:
        report.add(
            _mismatch(
                f"{keys.compactions} compactions were committed, and {fold.compactions.counter} "
                "are folded"
            )
        )
    for tenure in sorted(keys.fences.keys() | keys.heads.keys()):
        last_fence, seq = keys.fences.get(tenure), keys.heads.get(tenure)
        mark = fold.mark(tenure)
        if last_fence is None or seq is None:
            report.add(_mismatch(f"tenure {tenure} has a fence or a head, not both"))
            continue
        if seq != mark.seq:
            report.add(
                _mismatch(f"tenure {tenure} committed {seq} records, and {mark.seq} are folded")
            )
        if last_fence.gen != mark.gen:
            report.add(
                _mismatch(
                    f"tenure {tenure} lost streams by {last_fence.gen} transfers, and {mark.gen} "
                    "are folded"
                )
            )
        current = keys.nodes.get(tenure.node_id)
        if current is not None and tenure.node_epoch > current.node_epoch:
            report.add(
                _mismatch(
                    f"tenure {tenure} is newer than its node's epoch {current.node_epoch}",
                )
            )
    for holder, streams in sorted(fold.held.items()):
        if streams and holder not in keys.fences:
            report.add(_mismatch(f"tenure {holder} holds {len(streams)} streams and has no fence"))


def _check_ids(view: MetadataView, keys: Keys, report: RepairReport) -> None:
    for kind, blocks, handed_out in (
        (id_block.OBJECTS, keys.object_blocks, keys.object_counter),
        (id_block.STREAMS, keys.stream_blocks, keys.stream_counter),
    ):
        for block, owner in sorted(blocks.items()):
            if block > handed_out:
                report.add(_ahead(kind, f"block {block}", handed_out))
            if owner not in keys.fences:
                report.add(
                    _mismatch(
                        f"{_name(kind)} block {block} belongs to tenure {owner}, which is gone",
                        Severity.WARNING,
                    )
                )
    ids = view.state.fold.ids
    if ids and ids[-1] >> id_block.STREAMS.block_bits > keys.stream_counter:
        report.add(_ahead(id_block.STREAMS, f"stream {ids[-1]}", keys.stream_counter))


def _ahead(kind: IdKind, what: str, handed_out: int) -> Finding:
    return _mismatch(f"{what} is past the counter of {_name(kind)} blocks, {handed_out}")


def _name(kind: IdKind) -> str:
    return kind.letter.decode()


def _mismatch(detail: str, severity: Severity = Severity.ERROR) -> Finding:
    advice = "keep a backup of the metadata as it is, then rebuild it with streamlog recover"
    return Finding(
        FindingKind.KEY_MISMATCH, severity, detail, advice if severity is Severity.ERROR else ""
    )


def _unknown(key: bytes) -> Finding:
    return Finding(
        FindingKind.KEY_UNKNOWN,
        Severity.WARNING,
        f"the metadata store has the key {shown(key)}, which is not of streamlog's making",
        "nothing uses it; find out who wrote it",
        key=shown(key),
    )


def shown(key: bytes) -> str:
    """The key as text."""
    text = repr(key)[2:-1]
    return text if len(text) <= 120 else text[:120] + "…"


__all__ = ["Corrupt", "Keys", "check_keys", "shown"]
