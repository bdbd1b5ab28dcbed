"""Golden files of the formats that no other test pins: writing them, and reading them back.

A golden file never changes: a release has written these bytes. A new version gets a new file.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from streamlog.engine.cluster import cluster_id_of, encode_cluster_id
from streamlog.engine.kv_client import EngineKVClient
from streamlog.kvstore.interface import StoredKeyValue
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.rocks import format as rocks_format
from streamlog.log.topics.producer_ids import KEY as NEXT_PRODUCER
from streamlog.log.topics.producer_ids import ProducerIds
from streamlog.metadata.checkpoint.trailer import encode_trailer, read_trailer
from streamlog.metadata.keys import checkpoint
from streamlog.model.kv import Key
from streamlog.objectstore import keys
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.repair.backup import file as backup_file
from streamlog.runtime.clock import SystemClock

GOLDEN = Path(__file__).parent.parent / "golden"
CLUSTER = "0123456789abcdef0123456789abcdef"
PREFIX = f"/sl/{CLUSTER}/".encode()


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def test_object_keys() -> None:
    ids = (0, 1, 0x10, 0xFEDC_BA98_7654_3210, (1 << 64) - 1)
    lines = [keys.CLUSTER_KEY, *map(keys.data_key, ids), keys.checkpoint_key("1.2", 255)]
    assert "\n".join(lines) + "\n" == golden("object_keys_v1.txt").decode()
    assert [keys.object_id(line) for line in lines[1:-1]] == list(ids)


def test_the_trailer_of_a_delta() -> None:
    named = checkpoint.decode(golden("metadata_checkpoint_v1.bin"))
    assert named.delta is not None
    assert encode_trailer(named, CLUSTER) == golden("checkpoint_appendix_v2.bin")
    for version in (1, 2):
        assert (
            asyncio.run(_read_back(golden(f"checkpoint_appendix_v{version}.bin"), named)) == named
        )


async def _read_back(
    end: bytes, named: checkpoint.CheckpointPointer
) -> checkpoint.CheckpointPointer | None:
    store = MemoryObjectStore(SystemClock())
    assert named.delta is not None
    await store.put(named.delta.name, [b"what the reference covers", end])
    info = await store.head(named.delta.name)
    return await read_trailer(store, info, CLUSTER)


def test_golden_values_of_users_and_producer_ids() -> None:
    asyncio.run(_small_values())


async def _small_values() -> None:
    store = MemoryKVStore(SystemClock())
    client = EngineKVClient(store, PREFIX)
    await client.put_kv(Key(b"name\x00\xff", "space"), b"value\x00")
    assert await ProducerIds(client, 1000).init() == (0, 0)
    expected = {
        PREFIX + b"u/space/name\x00\xff": golden("user_value_v1.bin"),
        PREFIX + b"u/_producer/next": golden("producer_next_v1.bin"),
    }
    rows = {path: row.value for path in expected if (row := await store.get(path)) is not None}
    assert rows == expected
    read = EngineKVClient(store, PREFIX)
    value = await read.get_kv(Key(b"name\x00\xff", "space"))
    assert value is not None
    assert value.data == b"value\x00"
    assert await read.get_kv(NEXT_PRODUCER) is not None
    assert await ProducerIds(read, 1000).init() == (1000, 0)


def test_the_cluster_id_in_the_metadata_store() -> None:
    assert encode_cluster_id(CLUSTER) == golden("metadata_cluster_id_v1.bin")
    assert cluster_id_of(golden("metadata_cluster_id_v1.bin")) == CLUSTER


def test_golden_values_of_rocksdb() -> None:
    user = StoredKeyValue(b"key", b"value\x00", 3, 7, 9)
    rows = {
        rocks_format.STATE_KEY: rocks_format.encode_state(rocks_format.StoreState(7, 10, 12)),
        rocks_format.lease_key(9): rocks_format.encode_lease(10_000),
        rocks_format.leased_key(9, user.key): rocks_format.LEASED_MARK,
        rocks_format.DATA_PREFIX + user.key: rocks_format.encode_kv(user),
    }
    expected = json.loads(golden("rocks_v1.json"))
    assert {key.hex(): value.hex() for key, value in rows.items()} == expected
    stored = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in expected.items()]
    assert rocks_format.decode_state(stored[0][1]) == (7, 10, 12)
    assert rocks_format.decode_lease(*stored[1]) == (9, 10_000)
    assert rocks_format.decode_leased_key(stored[2][0]) == (9, b"key")
    assert rocks_format.decode_kv(stored[3][0][1:], stored[3][1]) == user


def test_a_backup() -> None:
    """zstd may choose other bytes: the test reads the golden file, and one that it wrote."""
    head = backup_file.BackupHead(CLUSTER, 17, 1_767_225_600_000)
    kvs = [StoredKeyValue(b"a", b"one", 1, 2), StoredKeyValue(b"b\x00", b"", 3, 3)]
    written = (
        backup_file.encode_head(head) + backup_file.encode_keys(kvs) + backup_file.encode_end()
    )
    for data in (golden("backup_v1.bin"), written):
        backup = backup_file.decode(data, "backup")
        assert (backup.head, list(backup.kvs)) == (head, kvs)
