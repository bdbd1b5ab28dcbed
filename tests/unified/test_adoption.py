"""Topics that a node's own log folder has and its metadata has not, or another log folder has."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from threading import Event
from uuid import UUID

import pytest

from streamlog.errors import Corrupt, DiskFull, Invalid, StoreUnavailable, TopicAlreadyExists
from streamlog.format.kafka_files.checkpoints import encode_offsets
from streamlog.format.kafka_files.names import (
    CLEANED_OFFSETS,
    LEADER_EPOCHS,
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    STRAY_FOLDER,
    file_name,
)
from streamlog.format.kafka_files.properties import encode_partition_metadata
from streamlog.log.topics.topic_record import (
    decode_partition,
    decode_topic,
    encode_topic,
    partition_key,
    topic_key,
)
from streamlog.model.partition import TopicPartition
from streamlog.runtime.disk import system_tree
from streamlog.runtime.disk.system_folder import SystemFolder, SystemGrowingFile
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.testing.logs.log_conformance import append, encoded, refused
from streamlog.unified import adopted_copy
from streamlog.unified.token_file import TOKEN, encode_token
from streamlog.wiring import OpenEngine
from streamlog.wiring.adoption import adopt
from tests.support.node_folder import engine_of

CONFIGS = {"log.type": "unified", "retention.ms": "-1"}
SEGMENT = file_name(0, LOG)


def node(data: Path, *, upkeep: bool = False) -> AbstractAsyncContextManager[OpenEngine]:
    return engine_of(data, upkeep=upkeep)


async def create(data: Path, name: str, counts: Sequence[int]) -> None:
    """A topic with so many records in each of its partitions."""
    async with node(data) as engine:
        await engine.logs.create_topic(name, len(counts), CONFIGS)
    await write(data, name, counts)


async def write(data: Path, name: str, counts: Sequence[int]) -> None:
    async with node(data) as engine:
        for number, count in enumerate(counts):
            for _ in range(count):
                log = await engine.logs.log(TopicPartition(name, number))
                await append(log, encoded([b"r" * 100]))


async def forget(data: Path, name: str, partitions: int = 1, *, is_put_aside: bool = False) -> None:
    """The metadata loses the topic, as a recovery leaves it; a start may put it aside."""
    async with node(data) as engine:
        await engine.kv.del_kv(topic_key(name))
        for number in range(partitions):
            await engine.kv.del_kv(partition_key(TopicPartition(name, number)))
    if is_put_aside:
        async with node(data) as engine:
            await engine.logs.delete_orphans()


async def take(
    data: Path, source: Path | None = None, names: Sequence[str] = (), *, accepts: bool = False
) -> list[str]:
    async with node(data) as engine:
        source = source or data / "logs"
        adopted = await adopt(engine, source, names, accepts_data_loss=accepts)
    return [one.name for one in adopted]


async def ends(data: Path, name: str, partitions: int = 1) -> list[int]:
    async with node(data) as engine:
        found = [TopicPartition(name, number) for number in range(partitions)]
        return [(await engine.logs.log(one)).log_end_offset for one in found]


def folders(data: Path, is_wanted: Callable[[str], bool] = lambda _: True) -> list[str]:
    return sorted(
        one.name for one in (data / "logs").iterdir() if one.is_dir() and is_wanted(one.name)
    )


def size_of(folder: Path) -> int:
    return (folder / SEGMENT).stat().st_size


def strays(data: Path) -> list[str]:
    return folders(data, lambda name: name.endswith(STRAY_FOLDER))


def test_an_adoption_that_fails_leaves_no_topic_and_may_be_repeated(tmp_path: Path) -> None:
    """A topic that stayed behind would keep a repetition from passing over its producer ids."""
    old, new = tmp_path / "old", tmp_path / "new"

    async def fill() -> int:
        async with node(old) as engine:
            await engine.logs.create_topic("t", 1, CONFIGS)
            producer_id, _ = await engine.logs.init_producer_id()
            log = await engine.logs.log(TopicPartition("t", 0))
            await append(log, encoded([b"old"], producer=(producer_id, 0, 0)))
            return producer_id

    async def body() -> None:
        known = await fill()
        token = old / "logs" / "t-0" / TOKEN
        token.write_bytes(b"\x01damaged")
        await refused(Corrupt, take(new, old / "logs"))
        async with node(new) as engine:
            assert engine.logs.topic("t") is None
        token.unlink()
        assert await take(new, old / "logs") == ["t"]
        async with node(new) as engine:
            producer_id, _ = await engine.logs.init_producer_id()
            assert producer_id > known
            log = await engine.logs.log(TopicPartition("t", 0))
            appended = await append(log, encoded([b"new"], producer=(producer_id, 0, 0)))
            assert (appended.base_offset, appended.is_duplicate) == (1, False)

    asyncio.run(body())


def test_the_newest_of_several_copies_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each adoption leaves one aside, under a name that does not say how old it is."""

    async def body() -> None:
        await create(tmp_path, "t", [1, 1])
        await forget(tmp_path, "t", 2, is_put_aside=True)
        await take(tmp_path)
        await write(tmp_path, "t", [2, 2])
        await forget(tmp_path, "t", 2, is_put_aside=True)
        # The names are random: the older one comes first in one partition.
        for number in range(2):
            aside = [tmp_path / "logs" / name for name in strays(tmp_path) if f"t-{number}" in name]
            by_size = sorted(aside, key=size_of)
            for rank, path in enumerate(by_size):
                path.rename(path.with_name(f"t-{number}.{rank ^ number:032x}-stray"))
        assert await take(tmp_path) == ["t"]
        assert await ends(tmp_path, "t", 2) == [3, 3]

    asyncio.run(body())
    assert (
        f"t-0.{1:032x}-stray is taken, whose log ends last, and not t-0.{0:032x}-stray"
        in caplog.text
    )


@pytest.mark.parametrize("is_put_aside", [False, True])
def test_bytes_behind_the_last_batch_make_a_copy_no_newer(
    tmp_path: Path, is_put_aside: bool
) -> None:
    """A crash leaves a torn write, which an open cuts off, and the first adoption left it aside.
    What is in use is newer than any that was put aside."""
    torn = b"torn" * 1000

    async def body() -> None:
        await create(tmp_path, "t", [3])
        await forget(tmp_path, "t")
        with (tmp_path / "logs" / "t-0" / SEGMENT).open("ab") as file:
            file.write(torn)
        await take(tmp_path)
        await write(tmp_path, "t", [2])
        await forget(tmp_path, "t", is_put_aside=is_put_aside)
        assert max(size_of(path) for path in (tmp_path / "logs").glob("t-0*")) > len(torn)
        assert await take(tmp_path) == ["t"]
        assert await ends(tmp_path, "t") == [5]

    asyncio.run(body())


@pytest.mark.parametrize("is_put_aside", [False, True])
def test_of_two_topics_of_a_name_the_one_in_use_is_taken_or_none(
    tmp_path: Path, is_put_aside: bool
) -> None:
    async def body() -> None:
        for count in (3, 7):
            await create(tmp_path, "t", [count])
            await forget(tmp_path, "t", is_put_aside=count == 3 or is_put_aside)
        before = folders(tmp_path)
        if is_put_aside:
            error = await refused(Invalid, take(tmp_path))
            assert all(name in str(error) for name in before)
            assert folders(tmp_path) == before
            old = min((tmp_path / "logs" / name for name in before), key=size_of)
            old.rename(tmp_path / old.name)
        assert await take(tmp_path) == ["t"]
        assert await ends(tmp_path, "t") == [7]

    asyncio.run(body())


def test_the_nodes_own_topics_that_are_there_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        for name, count in (("alive", 1), ("lost", 2), ("anew", 3)):
            await create(tmp_path, name, [count])
        for name in ("lost", "anew"):
            await forget(tmp_path, name, is_put_aside=True)
        await create(tmp_path, "anew", [4])
        error = await refused(TopicAlreadyExists, take(tmp_path, names=["alive"]))
        assert "delete" not in str(error)
        await refused(TopicAlreadyExists, take(tmp_path, names=["anew"]))
        assert await take(tmp_path) == ["lost"]
        assert [await ends(tmp_path, name) for name in ("alive", "lost", "anew")] == [[1], [2], [4]]
        (old,) = [name for name in strays(tmp_path) if name.startswith("anew")]
        assert f"{old} is left out: there is a topic anew" in caplog.text
        error = await refused(Invalid, take(tmp_path))
        assert "is there already" in str(error)

    asyncio.run(body())


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_an_adoption_of_several_topics_is_repeated_as_it_was(
    tmp_path: Path, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"

    async def body() -> None:
        await create(old, "a", [1])
        await create(old, "b", [2])
        older = old / "logs" / f"a-0.{'0' * 32}{STRAY_FOLDER}"
        shutil.copytree(old / "logs" / "a-0", older)
        (older / PARTITION_METADATA).write_bytes(encode_partition_metadata(UUID(int=1)))
        token = old / "logs" / "b-0" / TOKEN
        token.write_bytes(b"\x01damaged")
        await refused(Corrupt, take(new, old / "logs", names))
        token.unlink()
        assert await take(new, old / "logs", names) == ["b"]
        assert [await ends(new, name) for name in "ab"] == [[1], [2]]
        assert "a-0 is left out: there is a topic a" in caplog.text
        # Nothing is left to take, and a deletion would remove what was adopted.
        kind = TopicAlreadyExists if names else Invalid
        error = await refused(kind, take(new, old / "logs", names))
        assert "already" in str(error)
        assert "delete" not in str(error)
        # Another topic of the name is not the one that was to be adopted.
        await forget(new, "a", is_put_aside=True)
        await create(new, "a", [1])
        error = await refused(TopicAlreadyExists, take(new, old / "logs", names))
        assert "delete it first" in str(error)

    asyncio.run(body())


def test_an_adoption_that_was_cut_off_within_a_creation_says_how_to_end_it(tmp_path: Path) -> None:
    """A tool ends no creation or deletion: its settings may be others than the node's."""
    old, new = tmp_path / "old", tmp_path / "new"
    key, partition = topic_key("t"), TopicPartition("t", 0)

    async def body() -> None:
        await create(old, "t", [3])
        await take(new, old / "logs")
        async with node(new) as engine:
            # A kill behind the topic's record leaves it so.
            kept, handle = [await engine.kv.get_kv(one) for one in (key, partition_key(partition))]
            assert kept is not None
            assert handle is not None
            pending = (decode_partition(key.name, handle.data),)
            record = replace(decode_topic("t", kept.data), partitions=0, pending=pending)
            await engine.kv.put_kv(key, encode_topic(record))
            await engine.kv.del_kv(partition_key(partition))
        error = await refused(TopicAlreadyExists, take(new, old / "logs"))
        assert "start it once" in str(error)
        async with node(new) as engine:
            await engine.logs.repair()
        error = await refused(Invalid, take(new, old / "logs"))
        assert "is there already" in str(error)
        assert await ends(new, "t") == [3]

    asyncio.run(body())


def test_an_adoption_that_fails_leaves_the_copies_of_another_one(tmp_path: Path) -> None:
    one, other, new = tmp_path / "one", tmp_path / "other", tmp_path / "new"

    async def body() -> None:
        await create(one, "a", [3, 3])
        await create(other, "b", [2])
        (other / "logs" / "b-0" / TOKEN).write_bytes(b"\x01damaged")
        async with node(new) as engine:
            has_copied = asyncio.Event()
            both = [
                asyncio.create_task(
                    adopt(engine, one / "logs", (), lambda _name, _bytes: has_copied.set())
                )
            ]
            await has_copied.wait()
            both.append(asyncio.create_task(adopt(engine, other / "logs")))
            await asyncio.wait(both)
            assert [type(task.exception()) for task in both] == [type(None), Corrupt]
        assert await ends(new, "a", 2) == [3, 3]

    asyncio.run(body())


def test_an_adoption_that_is_cancelled_in_a_creation_ends_it_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    is_creating, may_go_on = Event(), Event()
    rename = SystemTree.rename

    def slow(tree: SystemTree, old: str, new: str) -> None:
        if new == "t-0":
            is_creating.set()
            assert may_go_on.wait(60)
        rename(tree, old, new)

    async def body() -> None:
        await create(old, "t", [3, 2])
        monkeypatch.setattr(SystemTree, "rename", slow)
        async with node(new) as engine:
            cancelled = asyncio.create_task(adopt(engine, old / "logs"))
            await asyncio.to_thread(is_creating.wait, 60)
            cancelled.cancel()
            repeated = asyncio.create_task(adopt(engine, old / "logs"))
            # Behind the first steps of both.
            asyncio.get_running_loop().call_soon(may_go_on.set)
            await asyncio.wait([cancelled, repeated])
            assert cancelled.cancelled()
            assert "is there already" in str(repeated.exception())
        assert folders(new) == ["t-0", "t-1"]
        assert await ends(new, "t", 2) == [3, 2]

    asyncio.run(body())


def test_a_partition_whose_topic_id_is_not_known_is_not_left_out_silently(tmp_path: Path) -> None:
    """A topic without its last partition looks whole."""
    old, new = tmp_path / "old", tmp_path / "new"

    async def body() -> None:
        await create(old, "t", [1, 1, 5])
        await create(old, "u", [1])
        (old / "logs" / "t-2" / PARTITION_METADATA).unlink()
        error = await refused(Invalid, take(new, old / "logs"))
        assert str(error).startswith("t-2 in ")
        await refused(Invalid, take(new, old / "logs", ["t"]))
        assert folders(new) == []
        assert await take(new, old / "logs", ["u"]) == ["u"]

    asyncio.run(body())


def test_a_partition_that_lacks_its_segment_is_put_aside_and_not_deleted(tmp_path: Path) -> None:
    async def body() -> None:
        await create(tmp_path, "t", [3])
        await forget(tmp_path, "t")
        (tmp_path / "logs" / "t-0" / SEGMENT).unlink()
        async with node(tmp_path) as engine:
            await engine.logs.delete_orphans()
        assert len(strays(tmp_path)) == 1

    asyncio.run(body())


@pytest.mark.parametrize("is_begun", [False, True])
def test_what_creations_leave_on_a_full_disk_is_not_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """A client, or an automatic creation, asks again and again."""

    class Full(SystemFolder):
        def create(self, name: str) -> SystemGrowingFile:
            if "t-0" not in str(self.path_of(name)):
                return super().create(name)
            if is_begun:
                super().create(name).close()
            raise OSError(errno.ENOSPC, "no space left")

    async def body() -> None:
        async with node(tmp_path) as engine:
            with monkeypatch.context() as full:
                full.setattr(system_tree, "SystemFolder", Full)
                for _ in range(3):
                    await refused(DiskFull, engine.logs.create_topic("t", 1, CONFIGS))
            await engine.logs.create_topic("t", 1, CONFIGS)
        assert folders(tmp_path) == ["t-0"]

    asyncio.run(body())


@pytest.mark.parametrize("has_segment", [False, True], ids=["alone", "beside a segment"])
@pytest.mark.parametrize(
    "stranger", [f"{SEGMENT}.gz", f"{SEGMENT}.deleted", file_name(5, SNAPSHOT), "before/notes"]
)
def test_a_folder_of_somebody_else_is_put_aside_and_not_deleted(
    tmp_path: Path, stranger: str, has_segment: bool
) -> None:
    async def body() -> None:
        async with node(tmp_path) as engine:
            await engine.logs.create_topic("other", 1, CONFIGS)
        file = tmp_path / "logs" / "t-0" / stranger
        file.parent.mkdir(parents=True)
        file.write_bytes(b"kept")
        if has_segment:
            (tmp_path / "logs" / "t-0" / SEGMENT).touch()
        async with node(tmp_path) as engine:
            await engine.logs.create_topic("t", 1, CONFIGS)
        (aside,) = strays(tmp_path)
        assert (tmp_path / "logs" / aside / stranger).read_bytes() == b"kept"

    asyncio.run(body())


def test_a_full_disk_is_told_by_what_to_do_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"

    class Full(SystemFolder):
        def create(self, name: str) -> SystemGrowingFile:
            if "-delete" in str(self.path_of(name)):
                raise OSError(errno.ENOSPC, "no space left")
            return super().create(name)

    async def body() -> None:
        await create(old, "t", [3])
        monkeypatch.setattr(system_tree, "SystemFolder", Full)
        error = await refused(DiskFull, take(new, old / "logs"))
        assert "adopt again" in str(error)
        assert folders(new) == []

    asyncio.run(body())


def test_nothing_is_copied_into_a_folder_that_is_in_doubt(tmp_path: Path) -> None:
    """No topic could be opened in it, and the start that ends the doubt would find orphans."""
    old, new = tmp_path / "old", tmp_path / "new"

    async def body() -> None:
        await create(old, "t", [3])
        await create(new, "u", [1])
        shutil.rmtree(new / "logs")
        taken: list[str] = []
        async with node(new) as engine:
            adoption = adopt(engine, old / "logs", (), lambda name, _: taken.append(name))
            error = await refused(StoreUnavailable, adoption)
        assert "--accept-data-loss" in str(error)
        assert taken == folders(new) == []

    asyncio.run(body())


@pytest.mark.parametrize("is_own", [True, False])
def test_a_partition_may_be_a_link_to_its_folder(tmp_path: Path, is_own: bool) -> None:
    data = tmp_path / "data"
    old = data if is_own else tmp_path / "old"

    async def body() -> None:
        await create(old, "t", [3])
        if is_own:
            await forget(old, "t")
        (old / "logs" / "t-0").rename(tmp_path / "t-0")
        (old / "logs" / "t-0").symlink_to(tmp_path / "t-0")
        assert await take(data, old / "logs") == ["t"]
        assert await ends(data, "t") == [3]

    asyncio.run(body())


def test_a_partition_without_a_log_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    async def body() -> None:
        await create(tmp_path, "t", [1, 1])
        await forget(tmp_path, "t", 2)
        (tmp_path / "logs" / "t-1" / SEGMENT).unlink()
        await refused(Corrupt, take(tmp_path))
        assert folders(tmp_path) == ["t-0", "t-1"]

    asyncio.run(body())


@pytest.mark.parametrize("is_own", [True, False])
def test_an_adoption_that_fails_leaves_the_folder_as_it_was(tmp_path: Path, is_own: bool) -> None:
    """Also where an open would change the copy: a torn tail, and no file of the leader epochs."""
    data = tmp_path / "data"
    old = data if is_own else tmp_path / "old"

    async def body() -> None:
        await create(old, "t", [3, 2])
        if is_own:
            await forget(old, "t", 2)
        (old / "logs" / "t-0" / LEADER_EPOCHS).unlink()
        with (old / "logs" / "t-0" / SEGMENT).open("ab") as file:
            file.write(b"torn" * 100)
        token = old / "logs" / "t-1" / TOKEN
        token.write_bytes(encode_token(b"one")[:-4] + b"torn")
        before = folders(data) if is_own else []
        for _ in range(2):
            error = await refused(Corrupt, take(data, old / "logs"))
            assert str(error).startswith(f"{token.parent} is not adopted")
            assert f" in {token} " in str(error)
            assert error.object_key == str(token)
            assert "-delete" not in str(error)
            assert folders(data) == before
        token.unlink()
        assert await take(data, old / "logs") == ["t"]
        assert await ends(data, "t", 2) == [3, 2]

    asyncio.run(body())


def cut_off(segment: Path) -> None:
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size * 2 // 5)


def flip(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "number", "lost", "left"),
    [(cut_off, -1, "5 to 5", 5), (flip, 2, "2 to 5", 2), (Path.unlink, 2, "2 to 2", 6)],
    ids=["its end is missing", "a batch is damaged", "a segment is missing"],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_a_log_that_lost_what_was_durable_is_refused(
    tmp_path: Path,
    damage: Callable[[Path], None],
    number: int,
    lost: str,
    left: int,
    is_own: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A recovery would take it for the end that a crash left, or for a cleaning."""
    data = tmp_path / "data"
    old = data if is_own else tmp_path / "old"

    async def body() -> None:
        async with node(old) as engine:
            # One batch in each segment.
            await engine.logs.create_topic("t", 1, {**CONFIGS, "internal.segment.bytes": "200"})
        await write(old, "t", [6])
        if is_own:
            await forget(data, "t")
        damage(sorted((old / "logs" / "t-0").glob("*.log"))[number])
        before = folders(data) if is_own else []
        error = await refused(Corrupt, take(data, old / "logs"))
        assert f"offsets {lost}:" in str(error)
        assert "--accept-data-loss" in str(error)
        assert folders(data) == before
        assert await take(data, old / "logs", accepts=True) == ["t"]
        assert await ends(data, "t") == [left]

    asyncio.run(body())
    assert f"offsets {lost} of" in caplog.text


def test_a_cancelled_adoption_ends_within_a_file_and_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    is_reading, may_go_on = Event(), Event()
    positions: list[int] = []

    class Slow(SystemFolder):
        def open(self, name: str) -> SystemGrowingFile:
            file = super().open(name)
            read = file.read

            def slow(position: int, length: int) -> bytes:
                if name == SEGMENT:
                    positions.append(position)
                    is_reading.set()
                    assert may_go_on.wait(60)
                return read(position, length)

            file.read = slow  # type: ignore[method-assign]
            return file

    async def body() -> None:
        await create(old, "t", [40])
        monkeypatch.setattr(adopted_copy, "COPY_BYTES", 100)
        monkeypatch.setattr(adopted_copy, "SystemFolder", Slow)
        async with node(new) as engine:
            adoption = asyncio.create_task(adopt(engine, old / "logs"))
            await asyncio.to_thread(is_reading.wait, 60)
            adoption.cancel()
            # Behind the adoption's next step.
            asyncio.get_running_loop().call_soon(may_go_on.set)
            await asyncio.wait([adoption])
            assert adoption.cancelled()
            assert positions == [0]
            assert folders(new) == []

    asyncio.run(body())


@pytest.mark.parametrize(("step", "ended"), [("load", []), ("snapshot_of", ["snapshot_of"])])
def test_an_adoption_that_is_cancelled_behind_the_files_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, ended: list[str]
) -> None:
    """The reading ends before the next segment; what follows it is short, and goes on."""
    old, new = tmp_path / "old", tmp_path / "new"
    has_begun, may_go_on = Event(), Event()
    work = getattr(adopted_copy, step)
    known: list[str] = []

    def slow(*arguments: object) -> object:
        has_begun.set()
        assert may_go_on.wait(60)
        result = work(*arguments)
        known.append(step)
        return result

    async def body() -> None:
        await create(old, "t", [3])
        monkeypatch.setattr(adopted_copy, step, slow)
        async with node(new) as engine:
            adoption = asyncio.create_task(adopt(engine, old / "logs"))
            await asyncio.to_thread(has_begun.wait, 60)
            adoption.cancel()
            # Behind the adoption's next step.
            asyncio.get_running_loop().call_soon(may_go_on.set)
            await asyncio.wait([adoption])
            assert adoption.cancelled()
            assert known == ended
            assert folders(new) == []
            assert [one.name for one in await adopt(engine, old / "logs")] == ["t"]
        assert await ends(new, "t") == [3]

    asyncio.run(body())


def test_a_log_that_was_cleaned_is_adopted_again_with_its_gaps(tmp_path: Path) -> None:
    """Also where its topic keeps all records now, and no cleaning comes any more."""

    async def body() -> None:
        async with node(tmp_path) as engine:
            await engine.logs.create_topic("t", 1, {**CONFIGS, "internal.segment.bytes": "200"})
        await write(tmp_path, "t", [6])
        logs = tmp_path / "logs"
        sorted((logs / "t-0").glob("*.log"))[2].unlink()
        (logs / CLEANED_OFFSETS).write_bytes(encode_offsets({TopicPartition("t", 0): 5}))
        for _ in range(2):
            await forget(tmp_path, "t")
            assert await take(tmp_path) == ["t"]
            assert await ends(tmp_path, "t") == [6]

    asyncio.run(body())


@pytest.mark.parametrize("counts", [[1, 0, 1], [1, 0, 0], [0, 0, 1]])
def test_a_topic_that_was_put_aside_keeps_its_partitions_without_records(
    tmp_path: Path, counts: list[int]
) -> None:
    async def body() -> None:
        await create(tmp_path, "t", counts)
        await create(tmp_path, "empty", [0, 0])
        await forget(tmp_path, "empty", 2)
        await forget(tmp_path, "t", 3, is_put_aside=True)
        assert len(strays(tmp_path)) == 3
        assert folders(tmp_path) == strays(tmp_path), "nobody misses a topic without records"
        assert await take(tmp_path) == ["t"]
        assert await ends(tmp_path, "t", 3) == counts

    asyncio.run(body())


def test_partitions_of_a_creation_that_was_cut_off_do_not_become_the_topics(
    tmp_path: Path,
) -> None:
    """Where another one of the topic was put aside, too: keys would go to other partitions."""

    async def body() -> None:
        await create(tmp_path, "t", [1, 1])
        await forget(tmp_path, "t", 2)
        await take(tmp_path)
        async with node(tmp_path) as engine:
            topic = engine.logs.topic("t")
            assert topic is not None
            assert engine.log_folder is not None
            # A kill before the topic's record has the new partition leaves it so.
            await engine.log_folder.create(TopicPartition("t", 2), UUID(topic.topic_id))
        async with node(tmp_path) as engine:
            await engine.logs.delete_orphans()
        assert folders(tmp_path, lambda name: name.startswith("t-2")) == []
        await forget(tmp_path, "t", 2)
        assert await take(tmp_path) == ["t"]
        assert await ends(tmp_path, "t", 2) == [1, 1]

    asyncio.run(body())


def test_a_partition_without_records_is_kept_when_the_others_were_put_aside_before(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        await create(tmp_path, "t", [1, 0])
        await forget(tmp_path, "t", 2)
        logs = tmp_path / "logs"
        (logs / "t-0").rename(logs / f"t-0.{0:032x}-stray")
        async with node(tmp_path) as engine:
            await engine.logs.delete_orphans()
        assert await take(tmp_path) == ["t"]
        assert await ends(tmp_path, "t", 2) == [1, 0]

    asyncio.run(body())
