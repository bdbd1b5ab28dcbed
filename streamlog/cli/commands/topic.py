"""`streamlog topic`: create, list, describe, alter, delete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import emit, field_list, note, size, table
from streamlog.cli.parsing import INT32_MAX, pairs
from streamlog.cli.remote import admin
from streamlog.cli.state import State, json_option, pass_state, remote_options
from streamlog.cli.support.config_changes import ConfigChanges, changes_options
from streamlog.cli.support.options import config_option, place_options
from streamlog.errors import StreamlogError
from streamlog.model.fencing_token import shown_token

_configs = click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="NAME=VALUE",
    callback=pairs,
    help="A setting under Kafka's name, such as retention.ms=3600000; may be repeated.",
)


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, list, describe, alter, delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(1, INT32_MAX), help="[default: the node's num.partitions]"
)
@_configs
@remote_options
@pass_state
def create(state: State, name: str, partitions: int | None, configs: dict[str, str]) -> None:
    """Create the topic NAME."""
    with admin(state) as client:
        client.create_topic(name, partitions=partitions, configs=configs)
        if state.json:
            emit({"name": name, "created": True})
            return
        note(f"created {name}")
        try:
            in_force = {one.name: one.value for one in client.describe_configs(topic=name)}
        except StreamlogError as error:
            # The command has done what it was asked for.
            note(f"where {name} is kept could not be asked: {error}")
            return
        if kept := _where_kept(in_force):
            note(f"{name} is kept {kept}")


@topic.command("list")
@remote_options
@pass_state
def list_topics(state: State) -> None:
    """List all topics."""
    with admin(state) as client:
        topics = client.list_topics()
    if state.json:
        emit([{"name": topic.name, "partitions": topic.partitions} for topic in topics])
    else:
        table(("topic", "partitions"), [(topic.name, topic.partitions) for topic in topics])


@topic.command()
@click.argument("name")
@remote_options
@pass_state
def describe(state: State, name: str) -> None:
    """Show the topic NAME: partitions, offsets, sizes, and settings that are not the default."""
    with admin(state) as client:
        description = client.describe_topic(name)
    if state.json:
        emit(
            {
                "name": description.name,
                "topic_id": description.topic_id,
                "configs": dict(description.configs),
                "capped_configs": dict(description.capped_configs),
                "partitions": [_partition(partition) for partition in description.partitions],
            }
        )
        return
    configs = dict(description.configs)
    for config, in_force in description.capped_configs.items():
        given = configs.get(config, "the broker's default")
        configs[config] = f"{in_force} (capped: the node carries no more; given was {given})"
    kept = _where_kept(description.configs)
    field_list(
        {"topic": description.name, "id": description.topic_id}
        | dict(sorted(configs.items()))
        | ({"kept": kept} if kept else {})
    )
    click.echo()
    table(
        ("partition", "leader", "epoch", "start", "high watermark", "end", "segments", "size"),
        [
            (
                partition.partition,
                partition.leader_node,
                partition.leader_epoch,
                partition.log_start_offset,
                partition.high_watermark,
                partition.log_end_offset,
                partition.segments,
                size(partition.size_bytes),
            )
            for partition in description.partitions
        ],
    )


def _where_kept(configs: Mapping[str, str]) -> str | None:
    """What losing the leader's disk costs; None: what the node's banner says of all topics."""
    if configs.get("log.type") != "unified":
        return None
    if configs.get("remote.storage.enable") == "true":
        return (
            "in files on its leader's disk, older segments also in the object store, and no backup "
            "has it"
        )
    return "in files on its leader's disk alone: losing that disk loses it, and no backup has it"


PARTITION_FIELDS = (
    "partition",
    "leader_node",
    "leader_epoch",
    "log_start_offset",
    "high_watermark",
    "last_stable_offset",
    "log_end_offset",
    "size_bytes",
    "segments",
    "meta_stream_id",
    "data_stream_id",
    "time_stream_id",
    "txn_stream_id",
)


def _partition(message: Any) -> dict[str, int | str]:
    token = {"fencing_token": shown_token(message.fencing_token)}
    return {name: getattr(message, name) for name in PARTITION_FIELDS} | token


@topic.command()
@click.argument("name")
@remote_options
@pass_state
def delete(state: State, name: str) -> None:
    """Delete the topic NAME and all its records."""
    with admin(state) as client:
        client.delete_topic(name)
    if state.json:
        emit({"name": name, "deleted": True})
    else:
        note(f"deleted {name}")


@topic.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--topic", "names", multiple=True, metavar="NAME", help="May be repeated.")
@click.option(
    "--topic-config",
    "configs",
    multiple=True,
    metavar="NAME=VALUE",
    callback=pairs,
    help="A setting of the topics, such as cleanup.policy=compact; may be repeated.",
)
@click.option(
    "--accept-data-loss",
    "accepts_data_loss",
    is_flag=True,
    help="Take logs without records that were durable and are missing or damaged in FOLDER.",
)
@place_options
@config_option
@json_option
@pass_state
def adopt(
    state: State,
    /,
    folder: Path,
    names: tuple[str, ...],
    configs: dict[str, str],
    accepts_data_loss: bool,
    file: str | None,
    **places: str | None,
) -> None:
    """Take topics of a stopped Kafka's log folder over, or topics that were put aside.

    FOLDER has Kafka's TOPIC-N folders (log.dirs), or is this node's own log folder, for those that
    no topic has: they end in -stray, or will, as what is copied is kept there. Their files are
    copied into the log folder of the node, which is stopped too, and the topics are created with
    log.type=unified, under their topic ids and offsets. Another FOLDER stays as it is. Without
    --topic all topics are taken but those whose names begin with __.

    FOLDER does not have the settings of its topics. Unless --topic-config says otherwise, they keep
    all records: cleanup.policy=delete, retention.ms=-1, retention.bytes=-1. A tiered topic, which
    has records in remote storage alone, needs remote.storage.enable=true to keep them, or =false,
    which gives them up. Of the node's other topics nothing is deleted meanwhile.
    """
    import asyncio

    import streamlog
    from streamlog import settings
    from streamlog.server.node import with_places
    from streamlog.wiring.adoption import adopt as adopt_topics
    from streamlog.wiring.adoption import topics_to_adopt

    given = settings.load(file, None, places)
    node = with_places(given.node, "serve")
    if node.log_dir is None:
        raise click.UsageError("where are the node's logs? give --data DIR, or --log-dir DIR")
    if folder.resolve() != Path(node.log_dir).resolve():
        # What is refused is refused before a mistyped --data makes a new cluster.
        topics_to_adopt(folder, names)

    def copied(partition: str, size_bytes: int) -> None:
        if not state.json:
            note(f"copied {partition}: {size(size_bytes)}")

    async def work() -> None:
        assert node.store is not None
        async with streamlog.open(
            node.store,
            meta=node.meta,
            wal_dir=node.wal_dir,
            log_dir=node.log_dir,
            node_id=node.node_id,
            config=given.engine,
            logs=given.log,
            tiers=given.remote_log_config(),
            upkeep=False,
        ) as engine:
            adopted = await adopt_topics(
                engine, folder, names, copied, configs, accepts_data_loss=accepts_data_loss
            )
            for one in adopted:
                if state.json:
                    emit({"name": one.name, "topic_id": one.topic_id, "partitions": one.partitions})
                else:
                    note(f"adopted {one.name} with {one.partitions} partitions, id {one.topic_id}")

    asyncio.run(work())


@topic.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(1, INT32_MAX), help="The new count; only upwards."
)
@changes_options
@remote_options
@pass_state
def alter(state: State, /, name: str, partitions: int | None, **given: Any) -> None:
    """Change the settings or the partition count of the topic NAME."""
    changes = ConfigChanges.of(**given)
    if partitions is None and not changes:
        raise click.UsageError(
            "nothing to change: give --partitions, --config, --unset, --append or --subtract"
        )
    with admin(state) as client:
        if changes:
            changes.make(client, topic=name)
        if partitions is not None:
            client.create_partitions(name, partitions)
    if state.json:
        emit({"name": name, "altered": True})
    else:
        note(f"altered {name}")
