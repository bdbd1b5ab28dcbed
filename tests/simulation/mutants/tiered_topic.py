"""Mutants of the topic `__remote_log_metadata`: what is durable of it, read of it, and refused."""

from __future__ import annotations

from typing import Any

from streamlog.codec.records import encode_values
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.runtime.clock import Clock
from streamlog.testing.simulation.local.history import TIERED_TOPIC_PLAN
from streamlog.tiered.metadata.metadata_partition import MetadataPartition
from streamlog.tiered.metadata.records import encode
from streamlog.tiered.metadata.topic_manager import TopicBasedRemoteLogMetadataManager
from tests.simulation.mutants.mutant import Mutant, Patch


def _applied_before_durable(patch: Patch) -> None:
    """A change counts when it is made, and nobody waits for its record."""

    async def write(self: Any, record: Any) -> None:
        state = await self.state()
        state.check(record)
        data = encode_values((encode(record),), timestamp_ms=self._clock.now_ms()).data
        ack = await self.log.append(data)
        state.apply(record)
        ack.add_done_callback(lambda done: done.cancelled() or done.exception())

    patch.set(MetadataPartition, "write", write)


def _not_replayed(patch: Patch) -> None:
    """A node begins to read where the topic ends."""

    def begin(self: Any, opened: AbstractLog, clock: Clock) -> None:
        original(self, opened, clock)
        self.next_offset = self._replay_end

    original = patch.set(MetadataPartition, "__init__", begin)


def _refusal_not_told(patch: Patch) -> None:
    """A record that changed nothing, because another writer was first, counts for its writer."""

    async def write(self: Any, record: Any) -> None:
        self._refused = _Forgetful()
        await original(self, record)

    original = patch.set(MetadataPartition, "write", write)


class _Forgetful(dict[int, Any]):
    def get(self, *_: Any) -> None:
        return None


def _not_written(patch: Patch) -> None:
    """The end of a copy is kept in memory alone."""

    async def update(self: Any, update: Any) -> None:
        if update.state.name == "COPY_SEGMENT_FINISHED":
            (await self._cache(update.remote_log_segment_id.topic_id_partition)).update(update)
        else:
            await original(self, update)

    original = patch.set(
        TopicBasedRemoteLogMetadataManager, "update_remote_log_segment_metadata", update
    )


def _mutant(name: str, broken: str, install: Any, *, found_by: str = "") -> Mutant:
    return Mutant(
        f"tier topic: {name}", broken, "object", install, not found_by, found_by, TIERED_TOPIC_PLAN
    )


TIERED_TOPIC_MUTANTS = (
    _mutant(
        "applied before durable",
        "a change of a segment counts before its record is durable",
        _applied_before_durable,
    ),
    _mutant("not replayed", "a node begins to read where the topic ends", _not_replayed),
    _mutant(
        "refusal not told",
        "a change that another writer had refused counts for its writer",
        _refusal_not_told,
        found_by="tests/tiered/metadata/test_metadata_partition.py",
    ),
    _mutant("end not written", "the end of a copy is in memory alone", _not_written),
)
