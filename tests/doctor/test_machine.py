"""Ports, limits, disk and prices."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from streamlog.codec import choice
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.doctor import machine
from streamlog.doctor.costs import GET_DOLLARS, MONTH_S, PUT_DOLLARS, request_costs
from streamlog.doctor.disk_checks import CHECKS, LOG_CHECKS, DiskSubject
from streamlog.doctor.findings import Check, CheckOutcome, CheckResult, Good, run_all
from streamlog.doctor.ports import check_port
from streamlog.engine.config import FlushConfig, ReadConfig, StreamEngineConfig, UploadConfig
from streamlog.engine.read.object_scan import ObjectScans
from streamlog.engine.read.read_ahead import Readers
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.clocks import ManualClock

CONFIG = StreamEngineConfig()
FOLDER = "local:///data"


def test_a_free_port_is_free_and_a_taken_one_names_who_has_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = check_port("port.grpc", f"127.0.0.1:{port}")
        assert found.outcome is CheckOutcome.WARN
        assert f"process {os.getpid()} (" in found.detail
    assert check_port("port.grpc", f"127.0.0.1:{port}").outcome is CheckOutcome.PASS
    assert check_port("port.grpc", "127.0.0.1:0").outcome is CheckOutcome.PASS


@pytest.mark.parametrize(
    "address",
    [
        *("nowhere", "127.0.0.1:", ":1", "127.0.0.1:70000", "192.0.2.1:0"),
        *("127.0.0.1:\u00b2", f"{'x' * 70}:1"),
    ],
)
def test_an_address_that_is_not_of_this_machine_fails(address: str) -> None:
    found = check_port("port.grpc", address)
    assert found.outcome is CheckOutcome.FAIL
    assert found.advice


def test_a_folder_that_may_not_be_looked_at_is_a_finding() -> None:
    async def look(_: None) -> Good:
        raise PermissionError(errno.EACCES, "Permission denied", "/kept")

    found = asyncio.run(Check("disk.room", look, "give this user the right").run(None))
    assert (found.outcome, found.detail) == (CheckOutcome.FAIL, "/kept: Permission denied")
    assert found.advice == "give this user the right"


def test_versions_name_python_packages_and_formats() -> None:
    found = machine.check_versions()
    assert found.outcome is CheckOutcome.INFO
    names = (
        "Python 3.",
        "streamlog-engine ",
        "grpcio ",
        "rocksdict ",
        "boto3 ",
        "newest formats: ",
    )
    for name in (*names, f"{choice.IN_USE} codec"):
        assert name in found.detail


def test_memory_is_held_against_the_bounds() -> None:
    assert machine.check_memory(CONFIG, FOLDER).outcome is CheckOutcome.PASS
    large = replace(CONFIG, read=replace(CONFIG.read, block_cache_bytes=1 << 50))
    found = machine.check_memory(large, FOLDER)
    assert found.outcome is CheckOutcome.WARN
    assert found.figures["bound_bytes"] > 1 << 50


def test_a_compactor_of_a_bucket_is_allowed_more_memory() -> None:
    """Its GETs cost money, each."""
    bounds = [machine.memory_bound(CONFIG, url) for url in (FOLDER, "s3://bucket")]
    assert bounds[1] - bounds[0] >= 224 * machine.MIB
    fixed = replace(CONFIG, compaction=CompactionConfig(compaction_memory_bytes=4 << 20))
    bounds = [machine.memory_bound(fixed, url) for url in (FOLDER, "s3://bucket")]
    assert bounds[0] == bounds[1]


def test_open_files_are_held_against_the_connections() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert machine.check_files(0, 3).outcome is CheckOutcome.PASS
    if soft != resource.RLIM_INFINITY:
        found = machine.check_files(soft // 2, 3)
        assert (found.outcome, "ulimit -n" in found.advice) == (CheckOutcome.WARN, True)


def examined(
    folder: Path, bytes_max: int = 1 << 20, checks: Sequence[Check[DiskSubject]] = CHECKS
) -> dict[str, CheckResult]:
    async def examine() -> dict[str, CheckResult]:
        offload = ThreadOffload()
        subject = DiskSubject(folder, bytes_max, SystemClock(), offload, SeededRandom(1))
        try:
            return {one.name: one async for one in run_all(checks, subject)}
        finally:
            await offload.close()

    return asyncio.run(examine())


def test_the_disk_is_measured_where_the_folder_will_be(tmp_path: Path) -> None:
    found = examined(tmp_path / "not" / "yet")
    # A RAM disk is a warning.
    assert found["disk.sync"].outcome in (CheckOutcome.PASS, CheckOutcome.WARN)
    assert found["disk.sync"].figures["sync_p99_ms"] > 0
    assert "only a power cut shows" in found["disk.sync"].detail
    assert found["disk.room"].outcome is CheckOutcome.PASS
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_fails(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    free = status.f_bavail * status.f_frsize
    assert examined(tmp_path, 8 * free)["disk.room"].outcome is CheckOutcome.FAIL
    assert examined(tmp_path, free)["disk.room"].outcome is CheckOutcome.WARN


def test_the_wals_own_files_count_as_room_for_it(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    size = 8 * status.f_bavail * status.f_frsize
    wal = tmp_path / "wal"
    wal.mkdir()
    (wal / "wal-00000001").touch()
    # It is a hole: the disk has the same room.
    os.truncate(wal / "wal-00000001", size)
    found = examined(wal, size)["disk.room"]
    assert (found.outcome, "the log has" in found.detail) == (CheckOutcome.WARN, True)


def test_the_folder_of_local_logs_is_measured_as_segments_grow(tmp_path: Path) -> None:
    found = examined(tmp_path, checks=LOG_CHECKS)
    assert found["logs.sync"].outcome in (CheckOutcome.PASS, CheckOutcome.WARN)
    assert found["logs.sync"].figures["sync_p99_ms"] > 0
    assert found["logs.room"].outcome is CheckOutcome.PASS
    assert list(tmp_path.iterdir()) == []
    status = os.statvfs(tmp_path)
    short = examined(tmp_path, 2 * status.f_bavail * status.f_frsize, LOG_CHECKS)["logs.room"]
    assert (short.outcome, "retention" in short.advice) == (CheckOutcome.WARN, True)
    assert examined(Path("/proc"), checks=LOG_CHECKS)["logs.sync"].outcome is CheckOutcome.FAIL


@pytest.mark.parametrize("below", ["", "wal"])
def test_a_file_where_the_folder_has_to_be_fails(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("in the way")
    for checks in (CHECKS, LOG_CHECKS):
        for found in examined(tmp_path / "file" / below, checks=checks).values():
            assert found.outcome is CheckOutcome.FAIL
            assert f"{tmp_path / 'file'} is no folder" in found.detail
            assert "another" in found.advice
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_folder_that_cannot_be_written_fails() -> None:
    found = examined(Path("/proc"))["disk.sync"]
    assert (found.outcome, "/proc" in found.detail) == (CheckOutcome.FAIL, True)
    assert found.advice


def test_the_cost_of_wal_object_is_bound_by_its_rate_and_by_bytes() -> None:
    cost = request_costs(CONFIG, wal="object")
    assert cost.puts_per_month_max == 10 * MONTH_S == 25_920_000
    assert cost.put_dollars_per_month_max == pytest.approx(129.6)
    assert cost.puts_per_gib == 128
    assert cost.put_dollars_per_gib == pytest.approx(128 * PUT_DOLLARS)
    assert cost.get_dollars_per_gib_min == pytest.approx(1024 / 28 * GET_DOLLARS)
    assert cost.get_dollars_per_gib_max == pytest.approx(2048 * GET_DOLLARS)
    # 512 MiB in parts of 16 MiB, and a request before and behind them.
    assert cost.rewrite_puts_per_gib == 2 * (32 + 2)
    assert cost.rewrite_gets_per_gib == 3 * 128
    assert cost.rewrite_dollars_per_gib == pytest.approx(68 * PUT_DOLLARS + 384 * GET_DOLLARS)
    whole = replace(CONFIG, compaction=CompactionConfig(object_bytes_max=32 << 20))
    assert request_costs(whole, wal="object").rewrite_puts_per_gib == 32
    slower = replace(CONFIG, flush=FlushConfig(put_rate_max_per_s=1.0))
    assert request_costs(slower, wal="object").put_dollars_per_month_max == pytest.approx(12.96)


def test_gets_per_gib_are_those_that_the_reader_sends() -> None:
    """A small block cache makes GETs smaller, whatever `read_ahead_bytes_max` says."""
    for config in (ReadConfig(), ReadConfig(block_cache_bytes=16 << 20)):
        cost = request_costs(replace(CONFIG, read=config), wal="object")
        clock = ManualClock()
        readers = Readers(config, clock, ObjectScans(config, clock))
        steps = []
        for number in range(1000):
            reader, _ = readers.at(number, 0)
            readers.moved(number, reader, 0, 1, is_at_end=False)
            reader, is_sequential = readers.at(number, 1)
            assert is_sequential
            readers.step(reader)
            steps.append(readers.step(reader))
            readers.moved(number, reader, 1, 2, is_at_end=False)
            clock.advance(10)
        assert cost.gets_per_gib_min == (1 << 30) / max(steps)
        assert cost.gets_per_gib_max == (1 << 30) / min(steps)


def test_the_cost_of_wal_disk_follows_from_its_uploads() -> None:
    cost = request_costs(CONFIG, wal="disk")
    assert (cost.put_rate_max_per_s, cost.puts_per_gib) == (1.0, 64)
    slower = replace(CONFIG, upload=UploadConfig(upload_interval_ms=10_000))
    assert request_costs(slower, wal="disk").put_dollars_per_month_max == pytest.approx(1.296)
