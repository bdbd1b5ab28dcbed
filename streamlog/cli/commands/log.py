"""`streamlog log`: a partition's record batches, as Kafka's DumpLogSegments prints them.

Appends and tokens are in `log_append`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from streamlog.cli.commands.log_append import COMMANDS
from streamlog.cli.lazy import CommandGroup
from streamlog.cli.output import emit, note, size, text_or_base64
from streamlog.cli.records.kafka_segment import segment_name, write_segments
from streamlog.cli.records.record_copy import unreadable
from streamlog.cli.state import State, pass_state, remote_options
from streamlog.cli.support.new_file import new_file
from streamlog.cli.support.options import config_option, data_option, store_options
from streamlog.cli.support.partition_batches import (
    PartitionBatches,
    batches_of_files,
    batches_of_node,
)
from streamlog.codec.batch import (
    CRC_START,
    DELETE_HORIZON,
    Compression,
    ScannedBatch,
    scan,
    sequence_after,
)
from streamlog.codec.crc import crc32c
from streamlog.codec.records import iterate
from streamlog.errors import CorruptMessage, InvalidRecord


@click.group(cls=CommandGroup)
def log() -> None:
    """Look inside a partition's log, or append to it under conditions."""


for _command in COMMANDS:
    log.add_command(_command)


@log.command()
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), metavar="N", required=True)
@click.option(
    "--from", "start", type=click.IntRange(min=0), help="First offset. [default: earliest]"
)
@click.option("--records", is_flag=True, help="Show each batch's records below it.")
@click.option(
    "--segment",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the batches into FILE as a segment of Kafka's log, and show none. In a folder, "
    "files get the names that Kafka gives them.",
)
@data_option
@store_options
@config_option
@remote_options
@pass_state
def dump(
    state: State,
    topic: str,
    partition: int,
    start: int | None,
    records: bool,
    segment: Path | None,
    data: str | None,
    store: str | None,
    meta: str | None,
    file: str | None,
) -> None:
    """Show the batches of one partition of TOPIC, up to its end at the start.

    Asks the node at --server; with --data or --store (and --meta) it reads a stopped node's data.

    `position` counts the bytes of the batches shown so far. `isvalid` compares the CRC-32C of the
    bytes as they came with the one in the header. With --records, a batch whose records cannot be
    decoded is shown with the reason, the dump goes on behind it, and the exit code is 1.

    With --segment the batches are written, byte for byte and at their offsets. Kafka's
    DumpLogSegments reads such a file, and a broker that finds it in its folder TOPIC-N serves it;
    both take the first offset from the file's name.
    """
    if segment is not None and records:
        raise click.UsageError("--records shows batches, --segment writes them: give one of them")
    if meta is not None and store is None:
        raise click.UsageError("--meta needs --store")
    source: AbstractContextManager[PartitionBatches]
    if data is None and store is None:
        source = batches_of_node(state, topic, partition, start)
    else:
        from streamlog.cli.support.offline import locations_of

        locations = locations_of(data, store, meta, file)
        source = batches_of_files(locations, topic, partition, start)
    with source as batches:
        try:
            if segment is not None:
                _write(state, segment, batches)
                return
            shown = _show(state, f"{topic}-{partition}", batches, records)
        except (CorruptMessage, InvalidRecord) as error:
            raise unreadable(error, "log dump") from error
    if shown.unreadable:
        offsets = ", ".join(map(str, shown.unreadable[:OFFSETS_TOLD]))
        more = " and others" if len(shown.unreadable) > OFFSETS_TOLD else ""
        raise InvalidRecord(
            f"{len(shown.unreadable)} of {shown.batches} batches of {topic}-{partition} cannot be "
            f"decoded: those at offsets {offsets}{more}; consumers have to seek behind them"
        )


def _write(state: State, target: Path, batches: PartitionBatches) -> None:
    if not target.absolute().parent.is_dir():
        raise click.BadParameter(
            f"there is no folder {target.absolute().parent}", param_hint="--segment"
        )
    for written in write_segments(target, batches.first, batches.pieces, new_file):
        if state.json:
            emit(written._asdict() | {"path": str(written.path)})
            continue
        note(f"{written.path}: {written.batches} batches, {size(written.size_bytes)}")
        if written.path.name != segment_name(written.base_offset):
            note(f"Kafka wants the name {segment_name(written.base_offset)}")


def _show(state: State, name: str, batches: PartitionBatches, records: bool) -> _Dump:
    shown = _Dump(records=records, as_json=state.json)
    if not state.json:
        click.echo(f"Dumping {name}\nLog starting offset: {batches.first}")
    for piece in batches.pieces:
        for batch in scan(piece, verify_crc=False):
            shown.show(batch)
    return shown


OFFSETS_TOLD = 10


class _Dump:
    """Prints batches one after another; `unreadable` holds the base offsets of bad ones."""

    def __init__(self, *, records: bool, as_json: bool) -> None:
        self._records = records
        self._as_json = as_json
        self._position = 0
        self.batches = 0
        self.unreadable: list[int] = []

    def show(self, batch: ScannedBatch) -> None:
        values = batch_fields(batch, self._position)
        self._position += batch.header.size_bytes
        self.batches += 1
        records, error = _decoded(batch) if self._records else ([], "")
        if error:
            self.unreadable.append(batch.header.base_offset)
        if self._as_json:
            more = {"records": records} if self._records else {}
            emit(values | more | ({"records_error": error} if error else {}))
            return
        click.echo(" ".join(f"{name}: {_java(value)}" for name, value in values.items()))
        for record in records:
            click.echo("| " + " ".join(f"{name}: {_java(value)}" for name, value in record.items()))
        if error:
            click.echo(f"| records cannot be decoded: {error}")


def _decoded(batch: ScannedBatch) -> tuple[list[dict[str, Any]], str]:
    """The records, and why they end early; empty where they do not."""
    records = []
    try:
        for record in _records(batch):
            records.append(record)
    except (CorruptMessage, InvalidRecord) as error:
        return records, error.message
    return records, ""


def batch_fields(batch: ScannedBatch, position: int) -> dict[str, Any]:
    """The fields of one batch under Kafka's names, in Kafka's order."""
    header = batch.header
    has_horizon = bool(header.attributes & DELETE_HORIZON)
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.base_timestamp_ms if has_horizon else None,
        "position": position,
        _timestamp_type(batch): header.max_timestamp_ms,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _codec_name(header.codec),
        "crc": header.crc,
        "isvalid": crc32c(batch.view[CRC_START:]) == header.crc,
    }


def _records(batch: ScannedBatch) -> Iterator[dict[str, Any]]:
    sequence = batch.header.base_sequence
    records = iterate(batch.view, verify_crc=False)
    for index, (offset, timestamp_ms, key, value, headers) in enumerate(records):
        yield {
            "offset": offset,
            _timestamp_type(batch): timestamp_ms,
            "keySize": -1 if key is None else len(key),
            "valueSize": -1 if value is None else len(value),
            "sequence": -1 if sequence < 0 else sequence_after(sequence, index),
            "headerKeys": [name for name, _ in headers],
            **text_or_base64("key", key),
            **text_or_base64("payload", value),
        }


def _timestamp_type(batch: ScannedBatch) -> str:
    return "LogAppendTime" if batch.header.is_log_append_time else "CreateTime"


def _codec_name(codec: int) -> str:
    names = [kind.name.lower() for kind in Compression]
    return names[codec] if codec < len(names) else f"unknown({codec})"


def _java(value: object) -> str:
    """The value as Kafka's tool writes it."""
    if value is None:
        return "OptionalLong.empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value)
