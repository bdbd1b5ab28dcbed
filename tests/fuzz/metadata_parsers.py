"""Keys and values of the KV store, and what RocksDB holds of it."""

from __future__ import annotations

from streamlog.kvstore.interface import StoredKeyValue
from streamlog.kvstore.rocks import format as rocks_format
from streamlog.metadata.interface import Recovery, StreamEpoch, Tenure
from streamlog.metadata.keys import (
    checkpoint,
    fence,
    head,
    id_block,
    late_deletes,
    lineage,
    node,
    pin,
    recovery,
    transfer,
)
from streamlog.metadata.keys.checkpoint import CheckpointPointer, FileRef, TenureMark
from streamlog.metadata.keys.fence import Fence
from streamlog.metadata.keys.node import NodeEntry
from streamlog.metadata.keys.pin import Pin
from streamlog.metadata.keys.space import number_in, prefix_of, tenure_in
from streamlog.metadata.keys.transfer import TransferRecord
from streamlog.objectstore.cluster.guard import Lineage
from tests.fuzz.format_parsers import mend_seal
from tests.fuzz.parser import Parser

T = Tenure(7, 9)
PREFIX = prefix_of("c-1")
CHECKPOINT = CheckpointPointer(
    77, {T: TenureMark(4, 1, 99)}, FileRef(T, 2, 500, 400, 0xAA), FileRef(T, 1, 300, 200, 0xBB)
)
MOVES = (
    TransferRecord(T, bytes(range(16)), [StreamEpoch(3, 4), StreamEpoch(1 << 40, 2)]),
    TransferRecord(T, bytes(16), None),
)


def _key(data: bytes) -> object:
    return tenure_in(PREFIX + data, PREFIX), number_in(data)


def _name(data: bytes) -> object:
    return checkpoint.tenure_of_name(data.decode("utf-8", "replace"))


def _lease(data: bytes) -> object:
    return rocks_format.decode_lease(data[:9], data[9:])


PARSERS = (
    Parser("key", _key, (transfer.key(b"", T, 5), fence.key(b"", T))),
    Parser("key_checkpoint_file", _name, (CHECKPOINT.files[0].name.encode(),)),
    Parser("key_fence", fence.decode, (fence.encode(Fence(False, 3, True, True, 64, 99)),)),
    Parser("key_head", head.decode, (head.encode(12),)),
    Parser(
        "key_move",
        transfer.decode,
        tuple(map(transfer.encode, MOVES)),
        mend=mend_seal,
        is_sealed=True,
    ),
    Parser(
        "key_checkpoint",
        checkpoint.decode,
        (checkpoint.encode(CHECKPOINT), checkpoint.encode(CheckpointPointer(1, {}))),
        mend=mend_seal,
        is_sealed=True,
    ),
    Parser("key_node", node.decode, (node.encode(NodeEntry(9, True, 64, "host:1", "rack-ä")),)),
    Parser("key_id_counter", id_block.decode_counter, (id_block.encode_counter(5),)),
    Parser("key_id_owner", id_block.decode_owner, (id_block.encode_owner(T),)),
    Parser("key_recovery", recovery.decode, (recovery.encode(Recovery(True, 1, 2, 3, 4)),)),
    Parser("key_lineage", lineage.decode, (lineage.encode(Lineage(3, "ab" * 16)),)),
    Parser("key_late", late_deletes.decode, (late_deletes.encode((1 << 20, 7 << 20)),)),
    Parser("key_pin", pin.decode, (pin.encode(Pin(44, "spark job")),)),
    Parser(
        "rocks_state",
        rocks_format.decode_state,
        (rocks_format.encode_state(rocks_format.StoreState(9, 4, 77)),),
    ),
    Parser("rocks_lease", _lease, (rocks_format.lease_key(7) + rocks_format.encode_lease(10_000),)),
    Parser("rocks_leased", rocks_format.decode_leased_key, (rocks_format.leased_key(7, b"k"),)),
    Parser(
        "rocks_value",
        lambda data: rocks_format.decode_kv(b"k", data),
        (rocks_format.encode_kv(StoredKeyValue(b"k", b"value", 3, 4, 7)),),
    ),
)
