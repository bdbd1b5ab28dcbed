"""The write-ahead log on a disk that works, and on one that fails at chosen calls."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import (
    Closed,
    Corrupt,
    DiskFull,
    ForeignCluster,
    Internal,
    InvalidConfig,
    MessageTooLarge,
    StoreUnavailable,
    StreamlogError,
)
from streamlog.format.rows import Tenure
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import DiskFault
from streamlog.wal.config import WalConfig
from streamlog.wal.log import WriteAheadLog
from tests.wal.wal_helpers import (
    CLUSTER,
    SMALL,
    TIGHT,
    InlineOffload,
    begin,
    entry,
    group,
    open_wal,
    overfilled,
    payload_of,
    power_cut,
    recovered,
    turns,
)


def torn_disk() -> TornDisk:
    return TornDisk(SeededRandom(1))


def test_groups_come_back_in_order_with_everything() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        sent = [bytes([n]) * (n * 200) for n in range(1, 20)]
        assert [await wal.append(group(payload)) for payload in sent] == list(range(1, 20))
        live = wal.live_bytes
        await wal.close()
        again = await open_wal(disk)
        assert again.tenures == {Tenure(1, 1)}
        assert again.cluster_id == CLUSTER
        assert again.live_bytes == live
        groups = [g async for g in again.recover()]
        assert [(g.sequence, g.tenure) for g in groups] == [(n, Tenure(1, 1)) for n in range(1, 20)]
        assert [payload_of(g.entries) for g in groups] == sent
        expected = entry(sent[4])
        first = groups[4].entries[0]
        assert (first.stream_id, first.epoch, first.base_offset, first.record_count) == (1, 1, 0, 1)
        assert first.base_timestamp_ms == expected.base_timestamp_ms
        assert first.payload_crc32c == expected.payload_crc32c
        await again.close()

    asyncio.run(scenario())


def test_calls_at_the_same_time_are_stored_in_order() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        sent = [b"%d" % n for n in range(30)]
        sequences = await asyncio.gather(*(wal.append(group(p)) for p in sent))
        assert sequences == list(range(1, 31))
        await wal.close()
        assert await recovered(await open_wal(disk)) == list(enumerate(sent, start=1))

    asyncio.run(scenario())


def test_released_files_are_used_again_and_stale_frames_never_come_back() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk, 1, TIGHT)
        for n in range(200):
            sequence = await wal.append(group(b"%08d" % n * 500))
            wal.release(sequence - 2)
            await turns(10)
        assert sum(name.startswith("wal-0") for name in disk.list()) <= 3
        await power_cut(disk)
        again = await open_wal(disk)
        groups = await recovered(again)
        assert groups[-2:] == [(n + 1, b"%08d" % n * 500) for n in (198, 199)]
        assert len(groups) <= 15
        assert again.last_sequence == 200
        await again.close()

    asyncio.run(scenario())


def test_a_release_survives_a_clean_close() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        for n in range(5):
            await wal.append(group(b"%d" % n))
        wal.release(4)
        await wal.close()
        await power_cut(disk)
        again = await open_wal(disk)
        assert await recovered(again) == [(5, b"4")]
        assert again.released_through == 4
        with pytest.raises(Internal):
            again.release(6)
        await again.close()

    asyncio.run(scenario())


def test_a_release_that_was_persisted_survives_a_power_cut() -> None:
    async def scenario() -> None:
        disk = TornDisk(SeededRandom(5))
        wal = await begin(disk)
        for number in range(6):
            await wal.append(group(b"%d" % number))
        wal.release(4)
        await wal.persist_release()
        wal.release(5)
        await power_cut(disk)
        again = await open_wal(disk)
        assert again.released_through == 4
        assert [sequence for sequence, _ in await recovered(again)] == [5, 6]

    asyncio.run(scenario())


def test_tenures_stay_until_released_and_the_next_has_appended() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk, 1)
        await wal.append(group(b"one"))
        await wal.close()
        for epoch in (2, 3):  # begun, never appended
            wal = await begin(disk, epoch)
            assert wal.tenures == {Tenure(1, n) for n in range(1, epoch + 1)}
            await power_cut(disk)
        wal = await begin(disk, 4)
        assert await recovered(wal) == [(1, b"one")]
        assert await wal.append(group(b"two")) == 2
        for number in range(3, 8):  # over several files
            assert await wal.append(group(bytes(9000))) == number
        await turns()
        assert len(wal.tenures) == 4
        wal.release(1)
        await turns()
        assert wal.tenures == {Tenure(1, 4)}
        await power_cut(disk)
        again = await open_wal(disk)
        assert again.tenures == {Tenure(1, 4)}
        assert (2, b"two") in await recovered(again)
        await again.close()

    asyncio.run(scenario())


def test_entries_of_two_tenures_form_one_chain() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        for epoch in (1, 2, 3):
            wal = await begin(disk, epoch)
            assert len(await recovered(wal)) == 2 * (epoch - 1)
            for n in range(2):
                await wal.append(group(b"%d.%d" % (epoch, n)))
            await power_cut(disk)
        again = await open_wal(disk)
        groups = [(g.sequence, g.tenure.node_epoch) async for g in again.recover()]
        assert groups == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]
        await again.close()

    asyncio.run(scenario())


def test_a_log_of_another_cluster_is_refused() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        await (await begin(disk)).close()
        wal = await open_wal(disk)
        with pytest.raises(ForeignCluster) as caught:
            await wal.begin(Tenure(1, 2), cluster_id="other")
        assert caught.value.store_cluster == CLUSTER
        assert caught.value.meta_cluster == "other"
        await wal.close()

    asyncio.run(scenario())


def test_a_full_log_waits_for_a_release() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal, appends = await overfilled(disk)
        done = sum(append.done() for append in appends)
        assert 0 < done < 20
        assert sum(disk.open(name).size() for name in disk.list()) <= TIGHT.wal_bytes_max + 4096
        while not all(append.done() for append in appends):
            wal.release(wal.last_sequence)
            await turns(50)
        assert [append.result() for append in appends] == list(range(1, 21))
        await wal.close()

    asyncio.run(scenario())


def test_close_fails_groups_that_wait_for_room() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal, appends = await overfilled(disk)
        await wal.close()
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        stored = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert all(isinstance(outcome, int | Closed) for outcome in outcomes)
        with pytest.raises(Closed):
            await wal.append(group(b"late"))
        again = await open_wal(disk)
        assert [sequence for sequence, _ in await recovered(again)] == stored
        await again.close()

    asyncio.run(scenario())


def test_a_cancelled_append_is_stored_once_or_not_at_all() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        appends = [asyncio.ensure_future(wal.append(group(b"%d" % n))) for n in range(3)]
        await turns(1)
        appends[1].cancel()
        await turns()
        assert appends[0].result() == 1
        last = appends[2].result()
        await wal.close()
        groups = await recovered(await open_wal(disk))
        assert groups[0] == (1, b"0")
        assert groups[-1] == (last, b"2")
        assert groups[1:-1] in ([], [(2, b"1")])

    asyncio.run(scenario())


@pytest.mark.parametrize("rounds", [1, 6])
def test_large_groups_get_files_of_their_own(rounds: int) -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        sent = []
        for n in range(rounds):
            for size in (10, 20_000, 3000):
                sent.append(b"%d-%d" % (n, size) * (size // 4))
                await wal.append(group(sent[-1]))
                if len(sent) % 3 == 0:
                    await turns()
                    wal.release(max(len(sent) - 3, 0))
        await power_cut(disk)
        again = await open_wal(disk)
        assert (await recovered(again))[-3:] == [
            (len(sent) - 2 + n, payload) for n, payload in enumerate(sent[-3:])
        ]
        await again.close()

    asyncio.run(scenario())


def test_the_largest_groups_one_after_another() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk, 1, TIGHT)
        payload = bytes((wal.group_bytes_max - 4096) // 2)
        for n in range(5):
            append = asyncio.ensure_future(wal.append(group(payload)))
            await turns(300)
            wal.release(n)
            assert await append == n + 1
        with pytest.raises(MessageTooLarge):
            await wal.append(group(bytes(wal.group_bytes_max // 2)))
        assert await wal.append(group(b"goes on")) == 6
        await power_cut(disk)
        again = await open_wal(disk)
        assert (await recovered(again))[-1] == (6, b"goes on")
        await again.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fault", "error"), [(DiskFault.FULL, DiskFull), (DiskFault.IO_ERROR, StoreUnavailable)]
)
@pytest.mark.parametrize("failures", [1, 3])
def test_after_a_failed_write_the_log_goes_on(
    fault: DiskFault, error: type[StreamlogError], failures: int
) -> None:
    async def scenario() -> None:
        for seed in range(20):
            disk = TornDisk(SeededRandom(seed))
            wal = await begin(disk)
            await wal.append(group(b"before"))
            await turns()
            disk.plan_faults = lambda operation, name: fault if operation == "write" else None
            with pytest.raises(error) as caught:
                await wal.append(group(b"failed" * 1000))
            assert not caught.value.has_no_side_effects
            for _ in range(failures - 1):
                with pytest.raises(error):
                    await wal.append(group(b"failed" * 1000))
            disk.plan_faults = None
            assert await wal.append(group(b"after")) == 2
            assert await wal.append(group(b"more")) == 3
            await power_cut(disk)
            again = await open_wal(disk)
            assert await recovered(again) == [(1, b"before"), (2, b"after"), (3, b"more")]
            await again.close()

    asyncio.run(scenario())


def test_an_append_without_room_for_a_file_fails_and_a_later_one_succeeds() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        disk.plan_faults = lambda operation, name: (
            DiskFault.FULL if operation == "create" and "identity" not in name else None
        )
        wal = await begin(disk)
        with pytest.raises(DiskFull) as caught:
            await wal.append(group(b"x"))
        assert caught.value.has_no_side_effects
        disk.plan_faults = None
        assert await wal.append(group(b"y")) == 1
        await wal.close()

    asyncio.run(scenario())


def test_a_file_whose_making_was_interrupted_is_made_again() -> None:
    async def scenario() -> None:
        for seed in range(10):
            disk = TornDisk(SeededRandom(seed))
            disk.plan_faults = lambda operation, name: (
                DiskFault.POWER if operation == "create" and name.startswith("wal-0") else None
            )
            wal = await begin(disk)
            with pytest.raises(StoreUnavailable):
                await wal.append(group(b"x"))
            disk.plan_faults = None
            await power_cut(disk)
            wal = await begin(disk, 2)
            assert await recovered(wal) == []
            assert await wal.append(group(b"y")) == 1
            await wal.close()

    asyncio.run(scenario())


def test_files_of_another_size_are_replaced() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        for n in range(12):
            await wal.append(group(b"%d" % n * 3000))
        await power_cut(disk)
        smaller = WalConfig(wal_bytes_max=4 * 16384, file_bytes=16384)
        wal = await begin(disk, 2, smaller)
        assert [s for s, _ in await recovered(wal)] == list(range(1, 13))
        append = asyncio.ensure_future(wal.append(group(b"new")))
        await turns()
        wal.release(12)
        assert await append == 13
        await turns()
        wal.release(13)
        assert await wal.append(group(bytes(5000))) == 14
        await turns()
        sizes = {
            disk.open(name).size() for name in disk.list() if not name.startswith("wal-identity")
        }
        assert sizes == {16384}
        await wal.close()

    asyncio.run(scenario())


def test_settings_that_leave_no_room_are_refused() -> None:
    with pytest.raises(InvalidConfig):
        WalConfig(wal_bytes_max=1 << 20, file_bytes=1 << 20)
    with pytest.raises(InvalidConfig):
        WalConfig(file_bytes=5000)


def test_metrics_follow_groups_and_files() -> None:
    async def scenario() -> None:
        registry = CollectorRegistry()
        wal = await WriteAheadLog.open(
            torn_disk(), InlineOffload(), SMALL, registry, SeededRandom(1)
        )
        await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
        await wal.append(group(b"x" * 5000))
        await turns()
        value = registry.get_sample_value
        assert value("streamlog_wal_group_entries_sum") == 2
        assert value("streamlog_wal_group_bytes_sum") == 12288 == wal.live_bytes
        assert value("streamlog_wal_live_bytes") == 12288
        assert value("streamlog_wal_write_seconds_count") == 1
        assert value("streamlog_wal_files") == 2
        assert value("streamlog_wal_disk_bytes") == 2 * SMALL.file_bytes
        wal.release(1)
        assert value("streamlog_wal_live_bytes") == 0
        await wal.close()

    asyncio.run(scenario())


def test_a_lost_file_is_damage() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        for n in range(12):
            await wal.append(group(b"%d" % n * 3000))
        await wal.close()
        files = [name for name in disk.list() if not name.startswith("wal-identity")]
        for lost in files[:2]:
            copy = torn_disk()
            for name in disk.list():
                if name != lost:
                    size = disk.open(name).size()
                    copy.create(name, size).write_sync(0, [disk.open(name).read(0, size)])
            with pytest.raises(Corrupt) as caught:
                await open_wal(copy)
            assert "missing" in caught.value.message

    asyncio.run(scenario())


def test_every_flipped_bit_is_found_or_harmless() -> None:
    """Only the last group, which a torn write may have left, can go without an error."""

    async def outcome(disk: TornDisk) -> tuple[list[tuple[int, bytes]], Corrupt | None]:
        try:
            wal = await open_wal(disk)
        except Corrupt as error:
            return [], error
        return await recovered(wal), None

    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        sent = [(n + 1, b"%d" % n * 40) for n in range(3)]
        for _, payload in sent:
            await wal.append(group(payload))
        await wal.close()
        size = SMALL.file_bytes
        for name in disk.list():
            size = disk.open(name).size()
            for page in range(0, size, 4096):
                for position in range(page, min(page + 330, size)):
                    disk.flip(name, position, 1 << position % 8)
                    groups, error = await outcome(disk)
                    if error is not None:
                        assert error.object_key == name
                        assert int(error.start) <= position < int(error.end)
                    elif groups != sent:
                        assert groups == sent[:2]
                        assert page == 3 * 4096
                    disk.flip(name, position, 1 << position % 8)
        assert await recovered(await open_wal(disk)) == sent

    asyncio.run(scenario())


def test_overlapping_appends_keep_their_order_over_rolls_and_waits() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk, 1, TIGHT)
        sent = [b"%d." % n * (1 + n * 611 % 3000) for n in range(120)]
        waiting: list[asyncio.Future[int]] = []
        for payload in sent:
            waiting.append(asyncio.ensure_future(wal.append(group(payload))))
            await turns(len(waiting) * 7 % 5)
            if sum(not append.done() for append in waiting) > 8:
                await turns(60)
                wal.release(max(wal.last_sequence - 3, 0))
        while not all(append.done() for append in waiting):
            await turns(60)
            wal.release(wal.last_sequence - 1)
        assert [append.result() for append in waiting] == list(range(1, 121))
        await power_cut(disk)
        groups = await recovered(await open_wal(disk))
        assert groups == list(enumerate(sent, start=1))[-len(groups) :]

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["write", "create"])
def test_groups_behind_a_failed_one_fail_too_and_can_be_repeated_in_order(operation: str) -> None:
    async def scenario() -> None:
        for seed in range(10):
            disk = TornDisk(SeededRandom(seed))
            wal = await begin(disk)
            if operation == "write":
                await wal.append(group(b"0"))
                await turns()
            struck: list[str] = []

            def strike(call: str, name: str, struck: list[str] = struck) -> DiskFault | None:
                if call != operation or (struck and operation == "write"):
                    return None
                struck.append(name)
                return DiskFault.IO_ERROR

            disk.plan_faults = strike
            first = wal.last_sequence + 1
            appends = [wal.append(group(b"try %d" % n)) for n in range(4)]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            disk.plan_faults = None
            assert struck
            assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
            again = [wal.append(group(b"again %d" % n)) for n in range(4)]
            assert await asyncio.gather(*again) == list(range(first, first + 4))
            await power_cut(disk)
            groups = await recovered(await open_wal(disk))
            assert groups[-4:] == [(first + n, b"again %d" % n) for n in range(4)]
            assert len(groups) == first + 3

    asyncio.run(scenario())


def test_a_cancelled_failure_does_not_block_the_log() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        await wal.append(group(b"0"))
        await turns()
        disk.plan_faults = lambda operation, name: (
            DiskFault.IO_ERROR if operation == "write" else None
        )
        cancelled = asyncio.ensure_future(wal.append(group(b"1")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await turns()
        disk.plan_faults = None
        with pytest.raises(StoreUnavailable):
            await wal.append(group(b"2"))
        assert await wal.append(group(b"3")) == 2
        await wal.close()
        assert await recovered(await open_wal(disk)) == [(1, b"0"), (2, b"3")]

    asyncio.run(scenario())
