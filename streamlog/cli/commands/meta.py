"""`streamlog meta`: the metadata store of a node's own disk."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from streamlog.cli.output import emit, field_list, note
from streamlog.cli.state import State, json_option, pass_state
from streamlog.cli.support.options import data_option

HAS_TORN_TAIL = 1


@click.group()
def meta() -> None:
    """Mend a node's own metadata store.

    The RocksDB in DATA/meta of a node with --data DATA.
    """


@meta.command()
@data_option
@click.option("--meta", "url", metavar="URL", help="The metadata: rocksdb:///PATH.")
@click.option(
    "--cut", "is_cut", is_flag=True, help="Cut the torn write; a copy of the log is kept."
)
@json_option
@pass_state
def repair(state: State, data: str | None, url: str | None, is_cut: bool) -> None:
    """Cut a write that a power cut tore off the end of the metadata's log.

    For a node that does not start after a power cut, since RocksDB finds its log damaged. Without
    --cut it says what it would cut, and changes nothing. Every write is synced before the next
    begins, so that only the last one can be torn, and that was never acknowledged. Refused where
    anything else is damaged (then: streamlog restore, or streamlog recover), and while the node
    runs.

    Exit code 1 when there is a torn write and it was not cut.
    """
    import asyncio

    from streamlog.kvstore.rocks import repair as rocks_repair

    folder = _folder(data, url)
    kept = revision = None
    with rocks_repair.locked(folder):
        tail = rocks_repair.find_torn_tail(folder)
        if tail is not None and is_cut:
            kept = rocks_repair.cut(folder, tail)
    if tail is None or is_cut:
        revision = asyncio.run(_open(folder))
    torn = None if tail is None else asdict(tail)
    if state.json:
        emit({"folder": folder, "torn": torn, "copy": kept, "revision": revision})
    elif tail is None:
        note(f"{folder}: no log is torn, and the metadata opens at revision {revision}")
    else:
        field_list({"folder": folder, **asdict(tail), "copy": kept, "revision": revision})
        if is_cut:
            note("cut; the node can be started. The copy is of no use to it")
        else:
            note(
                f"bytes {tail.start} to {tail.end} of {tail.file} are one write that was never "
                "acknowledged; with --cut they are cut off, and a copy of the file is kept"
            )
    if tail is not None and not is_cut:
        click.get_current_context().exit(HAS_TORN_TAIL)


def _folder(data: str | None, url: str | None) -> str:
    """Errors: UsageError."""
    from streamlog.kvstore.url import RocksUrl, parse_meta_url

    if (data is None) == (url is None):
        raise click.UsageError("which metadata? give --data DIR, or --meta rocksdb:///PATH")
    if data is not None:
        return str(Path(data, "meta").absolute())
    parsed = parse_meta_url(url or "")
    if not isinstance(parsed, RocksUrl):
        raise click.UsageError(f"{url} is no RocksDB on this disk: give rocksdb:///PATH")
    return parsed.path


async def _open(folder: str) -> int:
    """The revision at which the metadata opens. Errors: as the node's when it starts."""
    from streamlog.kvstore.url import RocksUrl
    from streamlog.runtime.clock import SystemClock
    from streamlog.runtime.offload import ThreadOffload
    from streamlog.wiring import open_metadata_store

    offload = ThreadOffload()
    try:
        kv = await open_metadata_store(str(RocksUrl(folder)), "memory://", SystemClock(), offload)
        try:
            return await kv.revision()
        finally:
            await kv.close()
    finally:
        await offload.close()
