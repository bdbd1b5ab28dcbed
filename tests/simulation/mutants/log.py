"""Mutants of logs and topics: the meta stream, its jobs, and logs that are open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamlog.errors import UnknownTopicOrPartition
from streamlog.log.shared.append import meta_jobs
from streamlog.log.shared.meta.codec import Checkpoint
from streamlog.log.shared.meta.state import MetaState
from streamlog.log.shared.shared_log import SharedLog
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
        """The log of the topic that is gone is used all the same."""
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
        return [one for one in records if not isinstance(one, Checkpoint)]

    patch.set(meta_jobs, "_without_old_checkpoints", without)


LOG_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "half a group counts",
        "meta records take effect though the last of their entries was never written",
        "object",
        _half_a_group_counts,
    ),
    Mutant(
        "log of a deleted topic stays",
        "a log that was being opened while its topic was deleted is not closed",
        "object",
        _not_put_back,
    ),
    Mutant(
        "stops unfinished",
        "a log that is stopped neither waits for its appends nor writes its checkpoint",
        "object",
        _stops_unfinished,
    ),
    Mutant(
        "newest checkpoint dropped",
        "producers are never in the meta stream but by its snapshots",
        "object",
        _newest_checkpoint_dropped,
    ),
)
