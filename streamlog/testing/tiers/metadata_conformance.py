"""The contract of RemoteLogMetadataManager: inherit the class and say how to open a manager.

The rules are those of `streamlog.tiered.api`, and of the overlaps that Kafka's
RemoteLogLeaderEpochState allows; each test shows one through the interface alone. What outages do
to a manager is not part of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import pytest

from streamlog.errors import Invalid, NotFound
from streamlog.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.api.segments import PARTITION_TRANSITIONS, SEGMENT_TRANSITIONS

OpenManager = Callable[[], Awaitable[RemoteLogMetadataManager]]

FIRST = TopicIdPartition(UUID(int=1 << 100), "a", 0)
SECOND = FIRST._replace(partition=1)
NEXT_LIFE = FIRST._replace(topic_id=UUID(int=2 << 100))
"""The same topic made again."""
PARTITIONS = (FIRST, SECOND, NEXT_LIFE)

_S, _P = RemoteLogSegmentState, RemotePartitionDeleteState
WAYS: Mapping[RemoteLogSegmentState, Sequence[RemoteLogSegmentState]] = {
    _S.COPY_SEGMENT_STARTED: (),
    _S.COPY_SEGMENT_FINISHED: (_S.COPY_SEGMENT_FINISHED,),
    _S.DELETE_SEGMENT_STARTED: (_S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED),
    _S.DELETE_SEGMENT_FINISHED: (
        _S.COPY_SEGMENT_FINISHED,
        _S.DELETE_SEGMENT_STARTED,
        _S.DELETE_SEGMENT_FINISHED,
    ),
}
"""Updates that bring a segment that was added to the state."""


def segment(
    number: int,
    offsets: tuple[int, int],
    epochs: Mapping[int, int] | None = None,
    partition: TopicIdPartition = FIRST,
    *,
    is_txn_index_empty: bool = False,
) -> RemoteLogSegmentMetadata:
    """A segment whose copy has begun. `offsets`: first and last, both inclusive; `epochs` None: all
    of them are of epoch 0."""
    start, end = offsets
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(partition, UUID(int=number)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=1000 + end,
        broker_id=1,
        event_timestamp_ms=1,
        segment_size_bytes=100 + number,
        state=_S.COPY_SEGMENT_STARTED,
        segment_leader_epochs={0: start} if epochs is None else epochs,
        is_txn_index_empty=is_txn_index_empty,
    )


def change(
    one: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, custom: bytes | None = None
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(one.remote_log_segment_id, 7, state, 2, custom)


async def brought_to(
    manager: RemoteLogMetadataManager,
    one: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState = _S.COPY_SEGMENT_FINISHED,
) -> RemoteLogSegmentMetadata:
    """The segment as it is known after it was added and brought to the state."""
    await manager.add_remote_log_segment_metadata(one)
    for step in WAYS[state]:
        await manager.update_remote_log_segment_metadata(change(one, step))
        one = one.updated(change(one, step))
    return one


async def finished(
    manager: RemoteLogMetadataManager, *segments: RemoteLogSegmentMetadata
) -> list[RemoteLogSegmentMetadata]:
    """The segments, copied one after the other."""
    return [await brought_to(manager, one) for one in segments]


async def put_deletion(
    manager: RemoteLogMetadataManager,
    state: RemotePartitionDeleteState,
    partition: TopicIdPartition = FIRST,
) -> RemotePartitionDeleteMetadata:
    metadata = RemotePartitionDeleteMetadata(partition, state, 9, 3)
    await manager.put_remote_partition_delete_metadata(metadata)
    return metadata


class RemoteLogMetadataManagerConformance(ABC):
    @abstractmethod
    def make(self) -> AbstractAsyncContextManager[OpenManager]:
        """An empty medium. Each call of what it gives opens a manager on it; the test closes one
        before it opens the next."""

    def run(self, body: Callable[[RemoteLogMetadataManager], Awaitable[None]]) -> None:
        """Runs `body` with a manager that answers for PARTITIONS."""

        async def opening(opened: OpenManager) -> None:
            manager = await self.answering(opened)
            await body(manager)
            await manager.close()

        self.run_reopening(opening)

    def run_reopening(self, body: Callable[[OpenManager], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self.make() as opened:
                await body(opened)

        asyncio.run(main())

    async def answering(self, opened: OpenManager) -> RemoteLogMetadataManager:
        manager = await opened()
        await manager.on_partition_leadership_changes(PARTITIONS, ())
        return manager

    # states

    def test_an_empty_manager_knows_nothing(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            assert list(await manager.list_remote_log_segments(FIRST)) == []
            assert list(await manager.list_remote_log_segments(FIRST, 0)) == []
            assert await manager.remote_log_segment_metadata(FIRST, 0, 0) is None
            assert await manager.highest_offset_for_epoch(FIRST, 0) is None
            assert await manager.next_segment_with_txn_index(FIRST, 0, 0) is None
            assert await manager.remote_log_size(FIRST, 0) == 0
            assert list(await manager.deleted_partitions()) == []

        self.run(body)

    @pytest.mark.parametrize("state", list(RemoteLogSegmentState))
    def test_a_segment_is_found_while_it_is_copied_and_listed_until_it_is_deleted(
        self, state: RemoteLogSegmentState
    ) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            known = await brought_to(manager, segment(1, (0, 50)), state)
            is_found = state is _S.COPY_SEGMENT_FINISHED
            listed = [] if state is _S.DELETE_SEGMENT_FINISHED else [known]
            found = await manager.remote_log_segment_metadata(FIRST, 0, 25)
            assert found == (known if is_found else None)
            assert list(await manager.list_remote_log_segments(FIRST)) == listed
            assert list(await manager.list_remote_log_segments(FIRST, 0)) == listed
            assert list(await manager.list_remote_log_segments(FIRST, 1)) == []
            assert await manager.remote_log_size(FIRST, 0) == (101 if is_found else 0)

        self.run(body)

    @pytest.mark.parametrize("source", list(RemoteLogSegmentState))
    def test_a_segment_goes_the_ways_of_the_table_and_no_other(
        self, source: RemoteLogSegmentState
    ) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            targets = set(RemoteLogSegmentState) - {_S.COPY_SEGMENT_STARTED}
            for number, target in enumerate(sorted(targets)):
                one = segment(number, (100 * number, 100 * number + 99))
                known = await brought_to(manager, one, source)
                is_gone = source is _S.DELETE_SEGMENT_FINISHED
                if not is_gone and (target is source or target in SEGMENT_TRANSITIONS[source]):
                    await manager.update_remote_log_segment_metadata(change(one, target))
                    continue
                before = list(await manager.list_remote_log_segments(FIRST))
                assert is_gone or known in before
                with pytest.raises(Invalid):
                    await manager.update_remote_log_segment_metadata(change(one, target, b"new"))
                assert list(await manager.list_remote_log_segments(FIRST)) == before

        self.run(body)

    def test_a_segment_that_was_not_added_is_not_found(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            await brought_to(manager, segment(1, (0, 9)))
            for state in (_S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED):
                for other in (segment(2, (0, 9)), segment(1, (0, 9), None, SECOND)):
                    with pytest.raises(NotFound):
                        await manager.update_remote_log_segment_metadata(change(other, state))

        self.run(body)

    @pytest.mark.parametrize("state", list(RemoteLogSegmentState)[1:])
    def test_a_segment_is_added_with_the_begin_of_its_copy(
        self, state: RemoteLogSegmentState
    ) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            one = segment(1, (0, 9))
            for step in WAYS[state]:
                one = one.updated(change(one, step))
            with pytest.raises(Invalid):
                await manager.add_remote_log_segment_metadata(one)
            assert list(await manager.list_remote_log_segments(FIRST)) == []

        self.run(body)

    def test_what_was_written_twice_is_there_once(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            one = segment(1, (0, 9))
            await manager.add_remote_log_segment_metadata(one)
            known = await brought_to(manager, one)
            await manager.update_remote_log_segment_metadata(change(one, known.state))
            assert list(await manager.list_remote_log_segments(FIRST)) == [known]

        self.run(body)

    def test_a_copy_that_is_given_up_is_deleted(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            one = segment(1, (0, 9))
            await manager.add_remote_log_segment_metadata(one)
            for state in (_S.DELETE_SEGMENT_STARTED, _S.DELETE_SEGMENT_FINISHED):
                await manager.update_remote_log_segment_metadata(change(one, state))
            assert list(await manager.list_remote_log_segments(FIRST)) == []
            assert await manager.highest_offset_for_epoch(FIRST, 0) is None

        self.run(body)

    def test_custom_metadata_stays_until_an_update_has_other(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            one = segment(1, (0, 9), is_txn_index_empty=True)
            await manager.add_remote_log_segment_metadata(one)
            for state, given, kept in (
                (_S.COPY_SEGMENT_FINISHED, bytes(range(128)), bytes(range(128))),
                (_S.COPY_SEGMENT_FINISHED, None, bytes(range(128))),
                (_S.DELETE_SEGMENT_STARTED, b"", b""),
            ):
                await manager.update_remote_log_segment_metadata(change(one, state, given))
                (known,) = await manager.list_remote_log_segments(FIRST)
                assert (known.custom_metadata, known.broker_id) == (kept, 2)
                assert (known.event_timestamp_ms, known.is_txn_index_empty) == (7, True)

        self.run(body)

    # offsets and leader epochs

    def test_an_offset_is_found_under_its_leader_epoch_alone(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            one, two, three, four = await finished(
                manager,
                segment(1, (0, 100), {0: 0, 1: 20, 2: 80}),
                segment(2, (101, 200), {2: 101}),
                segment(3, (201, 300), {2: 201, 3: 240}),
                segment(4, (250, 400), {3: 250, 4: 370}),
            )
            for epoch, offset, known in (
                (0, 0, one),
                (0, 19, one),
                (0, 20, None),
                (1, 19, None),
                (1, 40, one),
                (1, 110, None),
                (2, 100, one),
                (2, 101, two),
                (2, 239, three),
                (2, 240, None),
                (3, 240, three),
                (3, 250, four),
                (4, 400, four),
                (4, 401, None),
                (5, 301, None),
            ):
                found = await manager.remote_log_segment_metadata(FIRST, epoch, offset)
                assert found == known, (epoch, offset)
            for epoch, highest in ((0, 19), (1, 79), (2, 239), (3, 369), (4, 400), (5, None)):
                assert await manager.highest_offset_for_epoch(FIRST, epoch) == highest

        self.run(body)

    def test_the_highest_offset_counts_finished_copies_and_stays_behind_deletions(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            one, two = segment(1, (0, 9)), segment(2, (10, 19))
            await finished(manager, one)
            await manager.add_remote_log_segment_metadata(two)
            assert await manager.highest_offset_for_epoch(FIRST, 0) == 9
            for state in (
                _S.COPY_SEGMENT_FINISHED,
                _S.DELETE_SEGMENT_STARTED,
                _S.DELETE_SEGMENT_FINISHED,
            ):
                await manager.update_remote_log_segment_metadata(change(two, state))
                assert await manager.highest_offset_for_epoch(FIRST, 0) == 19

        self.run(body)

    def test_segments_are_listed_by_start_offset_and_epoch(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            last = await brought_to(manager, segment(1, (200, 299), {1: 200, 2: 250}))
            begun = segment(2, (100, 199), {1: 100})
            await manager.add_remote_log_segment_metadata(begun)
            first = segment(3, (0, 99), {0: 0, 1: 50})
            leaving = await brought_to(manager, first, _S.DELETE_SEGMENT_STARTED)
            for epoch, known in (
                (None, [leaving, begun, last]),
                (0, [leaving]),
                (1, [leaving, begun, last]),
                (2, [last]),
                (3, []),
            ):
                assert list(await manager.list_remote_log_segments(FIRST, epoch)) == known

        self.run(body)

    # overlaps: a new leader copies again what the one before it had copied

    @pytest.mark.parametrize(
        "later",
        [(10, 100), (10, 150), (5, 100), (5, 150)],
        ids=["same", "same_start_longer", "starts_before", "covers"],
    )
    def test_a_later_segment_that_covers_another_is_read_in_its_place(
        self, later: tuple[int, int]
    ) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            old, new = await finished(manager, segment(1, (10, 100)), segment(2, later))
            for offset in (later[0], 11, 95, later[1]):
                assert await manager.remote_log_segment_metadata(FIRST, 0, offset) == new
            assert await manager.highest_offset_for_epoch(FIRST, 0) == later[1]
            listed = list(await manager.list_remote_log_segments(FIRST))
            assert {one.remote_log_segment_id for one in listed} == {
                old.remote_log_segment_id,
                new.remote_log_segment_id,
            }

        self.run(body)

    def test_a_segment_that_covers_several_is_read_in_their_place(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            offsets = [(10, 100), (5, 150), (148, 155), (4, 200)]
            segments = [segment(number, ends) for number, ends in enumerate(offsets)]
            *_, last = await finished(manager, *segments)
            for offset in (4, 5, 11, 150, 155, 200):
                assert await manager.remote_log_segment_metadata(FIRST, 0, offset) == last
            assert await manager.remote_log_segment_metadata(FIRST, 0, 3) is None
            listed = await manager.list_remote_log_segments(FIRST, 0)
            assert [one.start_offset for one in listed] == [4, 5, 10, 148]

        self.run(body)

    def test_the_deletion_of_a_covered_segment_leaves_the_other_readable(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            for start in (10, 5):
                numbers = (start, start + 1)
                old = segment(numbers[0], (10, 100), None, SECOND if start == 5 else FIRST)
                partition = old.topic_id_partition
                _, new = await finished(
                    manager, old, segment(numbers[1], (start, 150), None, partition)
                )
                for state in (_S.DELETE_SEGMENT_STARTED, _S.DELETE_SEGMENT_FINISHED):
                    await manager.update_remote_log_segment_metadata(change(old, state))
                    for offset in (10, 100, 150):
                        found = await manager.remote_log_segment_metadata(partition, 0, offset)
                        assert found == new
                assert list(await manager.list_remote_log_segments(partition)) == [new]

        self.run(body)

    def test_a_new_leaders_epochs_do_not_hide_those_before(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            old, new = await finished(
                manager, segment(1, (0, 100), {0: 0}), segment(2, (0, 120), {0: 0, 1: 60})
            )
            assert await manager.remote_log_segment_metadata(FIRST, 1, 100) == new
            # The old leader's records 60 to 100 of epoch 0 are in no history that goes on.
            assert await manager.remote_log_segment_metadata(FIRST, 0, 59) in (old, new)
            assert await manager.highest_offset_for_epoch(FIRST, 0) == 100
            assert await manager.highest_offset_for_epoch(FIRST, 1) == 120

        self.run(body)

    # aborted transactions

    def test_the_next_segment_with_aborted_transactions_is_found(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            segments = [
                segment(number, (10 * number, 10 * number + 9), is_txn_index_empty=number != 2)
                for number in range(4)
            ]
            third = (await finished(manager, *segments))[2]
            for offset, known in ((0, third), (19, third), (20, third), (29, third), (30, None)):
                found = await manager.next_segment_with_txn_index(FIRST, 0, offset)
                assert found == known, offset
            assert await manager.next_segment_with_txn_index(FIRST, 1, 0) is None
            await manager.update_remote_log_segment_metadata(
                change(third, _S.DELETE_SEGMENT_STARTED)
            )
            assert await manager.next_segment_with_txn_index(FIRST, 0, 20) is None

        self.run(body)

    # partitions

    def test_partitions_and_lives_of_a_topic_know_nothing_of_each_other(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            known = {
                partition: await brought_to(
                    manager, segment(1, (number, 10 + number), None, partition)
                )
                for number, partition in enumerate(PARTITIONS)
            }
            await manager.update_remote_log_segment_metadata(
                change(known[SECOND], _S.DELETE_SEGMENT_STARTED)
            )
            for number, partition in enumerate(PARTITIONS):
                is_found = partition != SECOND
                found = await manager.remote_log_segment_metadata(partition, 0, 10)
                assert found == (known[partition] if is_found else None)
                assert len(await manager.list_remote_log_segments(partition)) == 1
                assert await manager.highest_offset_for_epoch(partition, 0) == 10 + number

        self.run(body)

    def test_segments_are_listed_without_the_name_of_their_topic(self) -> None:
        """As by the purge, for which a deleted topic has none."""

        async def body(manager: RemoteLogMetadataManager) -> None:
            (one,) = await finished(manager, segment(1, (0, 9)))
            nameless = FIRST._replace(topic="")
            await manager.on_partition_leadership_changes([], [nameless])
            assert list(await manager.list_remote_log_segments(nameless)) == [one]
            await manager.on_stop_partitions([nameless])

        self.run(body)

    def test_changes_that_are_made_at_once_all_count(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            segments = [
                segment(number, (10 * number, 10 * number + 9), None, PARTITIONS[number % 3])
                for number in range(60)
            ]
            await asyncio.gather(*(brought_to(manager, one) for one in segments))
            for one in segments:
                partition = one.topic_id_partition
                found = await manager.remote_log_segment_metadata(partition, 0, one.end_offset)
                assert found is not None
                assert found.remote_log_segment_id == one.remote_log_segment_id

        self.run(body)

    def test_a_partition_that_comes_back_is_known_as_before(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            known = await brought_to(manager, segment(1, (0, 9)))
            await manager.on_stop_partitions([FIRST, SECOND])
            await manager.on_partition_leadership_changes((), [FIRST])
            await manager.on_partition_leadership_changes([FIRST], ())
            assert list(await manager.list_remote_log_segments(FIRST)) == [known]
            assert await manager.remote_log_segment_metadata(FIRST, 0, 9) == known

        self.run(body)

    # deletions of partitions

    @pytest.mark.parametrize("source", [None, *RemotePartitionDeleteState])
    def test_a_deletion_goes_the_ways_of_the_table_and_no_other(
        self, source: RemotePartitionDeleteState | None
    ) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            for number, target in enumerate(RemotePartitionDeleteState):
                if source is _P.DELETE_PARTITION_FINISHED is target:
                    continue  # Who forgets what is finished cannot know that it was.
                if source is _P.DELETE_PARTITION_FINISHED and not number:
                    continue  # Nor that it began.
                partition = FIRST._replace(partition=number)
                for step in [] if source is None else list(_P)[: source + 1]:
                    await put_deletion(manager, step, partition)
                before = list(await manager.deleted_partitions())
                if target is source or target in PARTITION_TRANSITIONS[source]:
                    await put_deletion(manager, target, partition)
                    continue
                with pytest.raises(Invalid):
                    await put_deletion(manager, target, partition)
                assert list(await manager.deleted_partitions()) == before

        self.run(body)

    def test_a_deletion_is_told_until_it_ends_and_takes_the_segments_with_it(self) -> None:
        async def body(manager: RemoteLogMetadataManager) -> None:
            mine, other = await finished(
                manager, segment(1, (0, 9)), segment(2, (0, 9), None, NEXT_LIFE)
            )
            for state in (_P.DELETE_PARTITION_MARKED, _P.DELETE_PARTITION_STARTED):
                put = await put_deletion(manager, state)
                assert list(await manager.deleted_partitions()) == [put]
                assert list(await manager.list_remote_log_segments(FIRST)) == [mine]
            await put_deletion(manager, _P.DELETE_PARTITION_FINISHED)
            assert list(await manager.deleted_partitions()) == []
            assert list(await manager.list_remote_log_segments(FIRST)) == []
            assert await manager.remote_log_segment_metadata(FIRST, 0, 5) is None
            assert await manager.highest_offset_for_epoch(FIRST, 0) is None
            assert list(await manager.list_remote_log_segments(NEXT_LIFE)) == [other]

        self.run(body)

    # what outlives a manager

    def test_segments_survive_a_reopen(self) -> None:
        async def body(opened: OpenManager) -> None:
            manager = await self.answering(opened)
            states = list(RemoteLogSegmentState)
            for number, state in enumerate(states):
                epochs = {0: 10 * number, 1: 10 * number + 5}
                one = segment(number, (10 * number, 10 * number + 9), epochs)
                await brought_to(manager, one, state)
            custom = change(segment(1, (10, 19)), _S.COPY_SEGMENT_FINISHED, b"custom")
            await manager.update_remote_log_segment_metadata(custom)
            listed = list(await manager.list_remote_log_segments(FIRST))
            found = [await manager.remote_log_segment_metadata(FIRST, 1, at) for at in range(45)]
            await manager.close()
            manager = await self.answering(opened)
            assert list(await manager.list_remote_log_segments(FIRST)) == listed
            again = [await manager.remote_log_segment_metadata(FIRST, 1, at) for at in range(45)]
            assert again == found
            assert await manager.highest_offset_for_epoch(FIRST, 0) is not None
            await manager.close()

        self.run_reopening(body)

    def test_overlaps_are_the_same_after_a_reopen(self) -> None:
        async def body(opened: OpenManager) -> None:
            manager = await self.answering(opened)
            offsets = [(10, 100), (5, 150), (151, 200), (148, 210)]
            await finished(manager, *(segment(number, ends) for number, ends in enumerate(offsets)))
            found = [await manager.remote_log_segment_metadata(FIRST, 0, at) for at in range(215)]
            await manager.close()
            manager = await self.answering(opened)
            again = [await manager.remote_log_segment_metadata(FIRST, 0, at) for at in range(215)]
            assert again == found
            assert await manager.highest_offset_for_epoch(FIRST, 0) == 210
            await manager.close()

        self.run_reopening(body)

    def test_deletions_survive_a_reopen_and_go_on(self) -> None:
        async def body(opened: OpenManager) -> None:
            manager = await self.answering(opened)
            await finished(manager, segment(1, (0, 9)))
            await put_deletion(manager, _P.DELETE_PARTITION_MARKED)
            for state in _P:
                await put_deletion(manager, state, SECOND)
            put = await put_deletion(manager, _P.DELETE_PARTITION_STARTED)
            await manager.close()
            manager = await opened()  # Nobody answers for a partition whose topic is gone.
            assert list(await manager.deleted_partitions()) == [put]
            (left,) = await manager.list_remote_log_segments(FIRST)
            for left_state in (_S.DELETE_SEGMENT_STARTED, _S.DELETE_SEGMENT_FINISHED):
                await manager.update_remote_log_segment_metadata(change(left, left_state))
            await put_deletion(manager, _P.DELETE_PARTITION_FINISHED)
            assert list(await manager.deleted_partitions()) == []
            await manager.close()

        self.run_reopening(body)
