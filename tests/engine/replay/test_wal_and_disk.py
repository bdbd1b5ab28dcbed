"""An engine with wal=disk on a disk that fails as Linux disks do: what a restart shows is durable,
damage is told with what to do, and a loss that the user accepts lets the engine open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamlog.engine.config import AppendConfig, StreamEngineConfig, UploadConfig
from streamlog.errors import Corrupt, StreamlogError
from streamlog.model.stream import Stream
from streamlog.testing.torn_disk import TornDisk
from streamlog.wal.config import WalConfig
from streamlog.wiring import OpenEngine
from tests.engine.harness import batch, error_of, read_all, run, sent, until
from tests.support.disk_machine import DiskMachine

KIB = 1 << 10
CONFIG = StreamEngineConfig(
    append=AppendConfig(retry_backoff_ms=1, retry_backoff_ms_max=5, drain_timeout_ms=2000),
    upload=UploadConfig(upload_interval_ms=1_000_000_000),
    wal=WalConfig(wal_bytes_max=512 * KIB, file_bytes=32 * KIB),
)
LOSSY = StreamEngineConfig(
    append=CONFIG.append,
    upload=CONFIG.upload,
    wal=WalConfig(wal_bytes_max=512 * KIB, file_bytes=32 * KIB, accept_data_loss=True),
)


async def append(stream: Stream, *payloads: bytes) -> None:
    for payload in payloads:
        await stream.append(batch(payload))


async def reopened(engine: OpenEngine, stream_id: int) -> Stream:
    return await engine.streams.open_stream(stream_id)


@pytest.mark.parametrize("seed", range(6))
def test_a_failed_write_is_not_trusted_after_a_restart(seed: int) -> None:
    async def scenario() -> None:
        machine = DiskMachine(CONFIG, seed=seed)
        async with machine.engine(machine.kill) as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"acknowledged")
            machine.fail_writes()
            failures = engine.registry.get_sample_value
            lost = sent(stream.append(batch(b"failed")))
            await until(lambda: bool(failures("streamlog_wal_write_failures_total")))
        assert isinstance(await error_of(lost), StreamlogError)
        async with machine.engine(machine.cut_power) as engine:
            stream = await reopened(engine, stream.stream_id)
            shown = await read_all(stream)
            assert shown in ([b"acknowledged"], [b"acknowledged", b"failed"])
            await append(stream, b"behind")
        async with machine.engine() as engine:
            stream = await reopened(engine, stream.stream_id)
            assert await read_all(stream) == [*shown, b"behind"]

    run(scenario)


ONE, OTHER = [b"one 0", b"one 1" * 1000, b"one 2"], [b"other 0", b"other 1"]
HARM: dict[str, tuple[Callable[[TornDisk], None], list[list[bytes]]]] = {
    "middle append": (lambda disk: disk.flip("wal-00000001", 3 * 4096 + 500), [ONE[:1], OTHER]),
    "superblock": (lambda disk: disk.flip("wal-00000001", 20), [[], []]),
    "identity": (lambda disk: disk.flip("wal-identity", 20), [ONE, OTHER]),
    "file": (lambda disk: disk.remove("wal-00000002"), [ONE, [*OTHER, b"other 2"]]),
}
"""How a log of two streams is damaged, and what is left of them: all that can be read."""
harms = pytest.mark.parametrize("harm", HARM)


async def harmed(harm: str) -> tuple[DiskMachine, list[int]]:
    """A machine with a damaged log, and the ids of its two streams."""
    machine = DiskMachine(CONFIG)
    async with machine.engine(machine.kill) as engine:
        stream = await engine.streams.create_and_open_stream()
        other = await engine.streams.create_and_open_stream()
        await append(other, OTHER[0])
        await append(stream, *ONE)
        await append(other, OTHER[1])
        if harm == "file":
            # A file of its own, which goes; others follow it.
            await append(stream, bytes(20 * KIB), bytes(20 * KIB))
            await append(other, b"other 2")
    HARM[harm][0](machine.disk)
    return machine, [stream.stream_id, other.stream_id]


@harms
def test_an_engine_does_not_open_on_a_damaged_log_and_says_what_to_do(harm: str) -> None:
    async def scenario() -> None:
        machine, _ = await harmed(harm)
        with pytest.raises(Corrupt) as raised:
            async with machine.engine():
                pass
        for advice in ("accept_data_loss=true", "streamlog wal show torn disk", "from a copy"):
            assert advice in str(raised.value)
        assert str(raised.value.fields["object_key"]).startswith("wal-")

    run(scenario)


@harms
def test_accepting_a_loss_opens_a_damaged_log_once_and_for_all(harm: str) -> None:
    """What is acknowledged afterwards needs no second acceptance."""

    async def scenario() -> None:
        machine, ids = await harmed(harm)
        async with machine.engine(config=LOSSY) as engine:
            kept = [await read_all(await reopened(engine, stream_id)) for stream_id in ids]
            assert kept == HARM[harm][1]
            await append(await reopened(engine, ids[0]), b"new")
            await engine.drain()
        async with machine.engine() as engine:
            assert await read_all(await reopened(engine, ids[0])) == [*kept[0], b"new"]
            assert await read_all(await reopened(engine, ids[1])) == kept[1]

    run(scenario)
