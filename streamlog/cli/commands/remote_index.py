"""`streamlog remote-index`: the index of a partition's remote records that KIP-405's draft has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import emit, note, table
from streamlog.cli.state import State, json_option, pass_state
from streamlog.cli.support.options import config_option, data_option, store_options

if TYPE_CHECKING:
    from streamlog.cli.support.offline import DataLocations, OfflineData
    from streamlog.format.remote_index import RemoteIndexEntry
    from streamlog.model.kv import KVClient
    from streamlog.tiered.api import TopicIdPartition
    from streamlog.tiered.reading.remote_index_build import SegmentLookup


@click.group("remote-index", cls=CommandGroup)
def remote_index() -> None:
    """Write and read an index of a partition's remote records."""


@remote_index.command()
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), metavar="N", required=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    required=True,
    help="Folder for the files; it is made, and must have none of them yet.",
)
@click.option(
    "--file-bytes",
    type=click.IntRange(min=1, max=(1 << 31) - 1),
    default=1 << 20,
    show_default=True,
    help="Where a log index ends and the next one begins.",
)
@data_option
@store_options
@config_option
@json_option
@pass_state
def build(
    state: State,
    topic: str,
    partition: int,
    out: Path,
    file_bytes: int,
    data: str | None,
    store: str | None,
    meta: str | None,
    file: str | None,
) -> None:
    """Write what the remote storage has of one partition of TOPIC.

    Stop the node first. Three files each say which remote segment has which offsets and times:
    .remotelogindex, .remoteoffsetindex and .remotetimeindex, as KIP-405's draft has them. The names
    are the first offsets. Plug-ins of --config are used as the node uses them.
    """
    import asyncio

    from streamlog.cli.support.offline import locations_of
    from streamlog.cli.support.remote_index_files import check_free, write_files
    from streamlog.format.remote_index import encode_files

    check_free(out)
    locations = locations_of(data, store, meta, file)
    entries = asyncio.run(_entries(locations, topic, partition))
    if not entries and not state.json:
        note(f"the remote storage has nothing of {topic}-{partition}")
    for written in write_files(out, encode_files(entries, file_bytes)):
        if state.json:
            emit(written._asdict() | {"path": str(written.path)})
        else:
            click.echo(f"{written.path}: {written.entries} entries, {written.size_bytes} bytes")


@remote_index.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@pass_state
def dump(state: State, folder: Path) -> None:
    """Show the entries of the files in FOLDER, and check every checksum.

    Exit code 1: a file is damaged, or the three do not agree; what comes before it is shown.
    """
    from streamlog.cli.support.remote_index_files import read_files

    rows: list[dict[str, object]] = []
    try:
        for index in read_files(folder):
            for entry, position in zip(index.entries, index.positions, strict=True):
                row = {"file": index.base_offset, "position": position, **_fields(entry)}
                rows.append(row)
                if state.json:
                    emit(row)
    finally:
        if rows and not state.json:
            table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def _fields(entry: RemoteIndexEntry) -> dict[str, object]:
    return entry._asdict() | {"rdi": entry.rdi.hex()}


async def _entries(locations: DataLocations, topic: str, partition: int) -> list[RemoteIndexEntry]:
    """Errors: DataInUse, Invalid (no cluster), ForeignCluster, UnknownTopicOrPartition,
    InvalidConfig, ObjectNotFound, WalPending, Corrupt, Unavailable."""
    from streamlog.cli.support.offline import open_offline
    from streamlog.engine.kv_client import EngineKVClient
    from streamlog.errors import ObjectNotFound, UnknownTopicOrPartition
    from streamlog.log.topics.topic_record import decode_topic, topic_key
    from streamlog.metadata.keys.space import prefix_of
    from streamlog.repair.fsck.fsck import cluster_of
    from streamlog.tiered.api import TopicIdPartition
    from streamlog.tiered.reading.remote_index_build import remote_index_entries
    from streamlog.wiring.tiers import tier_plugins

    async with open_offline(locations) as stores:
        kv = EngineKVClient(stores.kv, prefix_of(await cluster_of(stores.kv, stores.store)))
        value = await kv.get_kv(topic_key(topic))
        record = None if value is None else decode_topic(topic, value.data)
        if record is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic}", topic=topic)
        if partition >= record.partitions:
            raise UnknownTopicOrPartition(
                f"{topic} has partitions 0 to {record.partitions - 1}, not {partition}",
                topic=topic,
                partition=partition,
            )
        of = TopicIdPartition(record.topic_id, topic, partition)
        plugins = tier_plugins(stores.store, kv, locations.tiers, stores.clock, broker_id=-1)
        try:
            metadata = await _metadata_in_topic(locations, stores, kv, of) or plugins.metadata
            try:
                return await remote_index_entries(of, metadata, plugins.storage)
            except ObjectNotFound as error:
                raise ObjectNotFound(
                    f"the metadata names a remote segment that is not in the storage: {error}; "
                    "if the node's --config names another storage, give it to this command",
                    **error.fields,
                ) from error
        finally:
            await plugins.metadata.close()
            await plugins.storage.close()


async def _metadata_in_topic(
    locations: DataLocations, stores: OfflineData, kv: KVClient, of: TopicIdPartition
) -> SegmentLookup | None:
    """None: the metadata of segments is not in the topic.

    Where the settings name no manager and the topic is there, the node had a --config that this
    command did not get: one manager alone writes the topic. Errors: as of `_entries`.
    """
    from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA
    from streamlog.log.topics.topic_record import topic_key
    from streamlog.reading.offline import WalCheck, offline_topics
    from streamlog.reading.remote_metadata import remote_metadata_of
    from streamlog.tiered.config import TOPIC_BASED
    from streamlog.wiring import is_shared
    from streamlog.wiring.tiers import check_no_segments

    if locations.tiers.metadata_class in TOPIC_BASED:
        await check_no_segments(kv)
    elif locations.tiers.metadata_class or await kv.get_kv(topic_key(REMOTE_LOG_METADATA)) is None:
        return None
    topics = await offline_topics(
        stores.kv,
        stores.store,
        stores.offload,
        clock=stores.clock,
        random=stores.random,
        wal=WalCheck(nodes_may_run=is_shared(locations.meta, locations.store)),
    )
    return await remote_metadata_of(topics, of)
