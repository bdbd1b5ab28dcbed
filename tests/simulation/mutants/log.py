"""Mutants of logs and topics: the meta stream, its jobs, and logs that are open."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from streamlog.errors import UnknownTopicOrPartition
from streamlog.log.shared.durable import meta_jobs
from streamlog.log.shared.meta.codec import Checkpoint
from streamlog.log.shared.meta.state import MetaState
from streamlog.log.shared.shared_log import SharedLog
from streamlog.log.shared.shared_logs import SharedLogFactory
from streamlog.log.staged_logs import StagedLogs
from streamlog.log.topics import topic_admin
from streamlog.log.topics.log_cache import LogCache
from tests.simulation.mutants.mutant import Mutant, Patch


def _half_a_group_counts(patch: Patch) -> None:
    def apply_entry(self: Any, entry: Any) -> None:
        is_snapshot = entry.is_snapshot and not entry.is_continuing
        alone = replace(entry, is_snapshot=is_snapshot, is_continuing=False, is_continued=False)
        original(self, alone)

    original = patch.set(MetaState, "apply_entry", apply_entry)


def _not_put_back(patch: Patch) -> None:
    async def put_back(self: Any, opened: Any, topic: str) -> None:
        """The log of the deleted topic stays in use."""
        vars(self).setdefault("kept", {})[topic] = opened

    async def open_one(self: Any, partition: Any) -> Any:
        try:
            return await original(self, partition)
        except UnknownTopicOrPartition:
            opened = vars(self).get("kept", {}).pop(partition.topic, None)
            if opened is None:
                raise
            return opened

    patch.set(LogCache, "_put_back", put_back)
    original = patch.set(LogCache, "_open", open_one)


def _stops_unfinished(patch: Patch) -> None:
    async def stop(self: Any) -> None:
        await self.kill()

    patch.set(SharedLog, "stop", stop)


def _newest_checkpoint_dropped(patch: Patch) -> None:
    def without(records: Any) -> Any:
        return [record for record in records if not isinstance(record, Checkpoint)]

    patch.set(meta_jobs, "_without_old_checkpoints", without)


def _creation_not_looked_at(patch: Patch) -> None:
    async def check_created(self: Any, handles: Any) -> None:
        """Nobody asks what other nodes did."""

    patch.set(SharedLogFactory, "check_created", check_created)


def _second_commit_told_in_part(patch: Patch) -> None:
    async def commit(self: Any, writer_id: Any, epoch: Any, ids: Any, partitions: Any) -> Any:
        """Told are the partitions of the second commit's own manifest."""
        told = await original(self, writer_id, epoch, ids, partitions)
        if not told.was_committed:
            return told
        return replace(
            told, parts=tuple(part for part in told.parts if part.partition in partitions)
        )

    original = patch.set(StagedLogs, "_commit", commit)


def _denied_after_the_record(patch: Patch) -> None:
    patch.set(topic_admin, "_after_the_record", nullcontext)


LOG_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "creation not looked at",
        "a topic is told as created though another node has taken its partitions",
        "object",
        _creation_not_looked_at,
        found_by="tests/log/test_creation_taken_over.py"
        "::test_a_creation_that_was_taken_over_is_not_acknowledged",
    ),
    Mutant(
        "denied after the record",
        "an error says that nothing happened though the topic's record is written",
        "object",
        _denied_after_the_record,
        found_by="tests/log/test_told_outcomes.py"
        "::test_an_error_that_says_that_nothing_happened_is_right",
    ),
    Mutant(
        "half a group counts",
        "meta records take effect though the last of their entries was never written",
        "object",
        _half_a_group_counts,
        found_by="tests/log/test_shared_log.py"
        "::test_a_crash_between_the_pieces_of_a_checkpoint_loses_nothing",
    ),
    Mutant(
        "log of a deleted topic stays",
        "a log that was being opened while its topic was deleted is not closed",
        "object",
        _not_put_back,
        # A deletion opens the meta stream as well: of two nodes only one gets that far.
        found_by="tests/server/services/test_topic_identity.py"
        "::test_a_partition_that_opens_while_its_topic_is_deleted_elsewhere_does_not_stay",
    ),
    Mutant(
        "stops unfinished",
        "a log that is stopped neither waits for its appends nor writes its checkpoint",
        "object",
        _stops_unfinished,
        # A client has to take the error of a node that ends for an unknown outcome.
        found_by="tests/log/test_stopping.py"
        "::test_appends_under_way_when_a_node_stops_are_answered_and_checkpointed",
    ),
    Mutant(
        "newest checkpoint dropped",
        "producers are never in the meta stream but by its snapshots",
        "object",
        _newest_checkpoint_dropped,
    ),
    Mutant(
        "second commit told in part",
        "a commit that comes second leaves out partitions that its own manifest does not name",
        "disk",
        _second_commit_told_in_part,
        # A history shows it where two drivers of a job meet: one in some 5,000.
        found_by="tests/log/test_staged_logs.py"
        "::test_two_commits_of_an_epoch_tell_the_same_whatever_their_manifests_name",
    ),
)
