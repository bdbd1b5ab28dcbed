"""Mutants of appends on their way: room, barriers, groups, and what the engine says of them."""

from __future__ import annotations

from typing import Any

from streamlog.engine.append import sequencer
from streamlog.engine.append.group_commit import GroupCommit
from streamlog.engine.append.queued_append import QueuedAppend
from streamlog.engine.append.sequencer import Sequencer
from streamlog.engine.engine import Engine
from streamlog.engine.streams.token_change import TokenChange
from streamlog.wal import folder as wal_folder
from streamlog.wal import writer as wal_writer
from streamlog.wal.writer import GroupWriter, Written
from tests.simulation.mutants.mutant import Mutant, Patch


def _drained_by_bytes(patch: Patch) -> None:
    patch.set(
        Engine,
        "is_drained",
        property(lambda self: self.tails.held_bytes == 0 and self.failure is None),
    )


def _left_keeps_room(patch: Patch) -> None:
    patch.set(QueuedAppend, "_abandon", lambda self: None)


def _batches_not_checked(patch: Patch) -> None:
    patch.set(sequencer, "refusal_of", lambda batch: None)


def _change_overtakes_appends(patch: Patch) -> None:
    async def all_confirmed(self: Any) -> None:
        """What was appended before the change may still be lost."""

    patch.set(TokenChange, "_all_confirmed", all_confirmed)


def _barrier_not_raised(patch: Patch) -> None:
    patch.set(Sequencer, "raise_barrier", lambda self, core: None)


def _run_acked_at_once(patch: Patch) -> None:
    def append_run(self: Any, core: Any, batches: Any, *arguments: Any) -> Any:
        run = original(self, core, batches, *arguments)
        run.confirm(len(batches))
        return run

    original = patch.set(Sequencer, "append_run", append_run)


def _run_passes_everything(patch: Patch) -> None:
    patch.set(Sequencer, "_refusal", lambda self, core: None)


def _answered_when_written(patch: Patch) -> None:
    """A group is answered by its own write, whatever becomes of those before it."""

    def ended(self: Any, write: Any, error: BaseException | None) -> None:
        if error is None and not write.call.outcome.done():
            group, sequence = write.group, self.next_sequence + self._under_way.index(write)
            told = Written(sequence, group.size_bytes, group.entry_count, write.is_activation, 0)
            write.call.outcome.set_result(told)
        original(self, write, error)

    original = patch.set(GroupWriter, "_ended", ended)


def _under_way_unsaid(patch: Patch) -> None:
    def encode(*arguments: Any, under_way: int = 0, **named: Any) -> Any:
        return original(*arguments, **named)

    original = patch.set(wal_writer, "encode_frame", encode)


def _read_past_a_gap(patch: Patch) -> None:
    """Of groups that were written together, whole ones behind a missing one are kept."""

    def plan(files: Any, **options: Any) -> Any:
        found = original(files, **options)
        if found.torn is not None and found.newest is not None:
            for frame in found.newest.frames:
                if frame.sequence > found.next_sequence and frame.is_whole:
                    found.live.append((found.newest, frame))
        return found

    original = patch.set(wal_folder, "plan_recovery", plan)


def _retried_in_disorder(patch: Patch) -> None:
    """Groups that failed behind another one are written again, the last one first."""

    async def take_back(self: Any) -> None:
        await original(self)
        self._full.reverse()

    original = patch.set(GroupCommit, "_take_back", take_back)


APPEND_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "drained by bytes",
        "a node with acknowledged batches that have no payload says that it is drained",
        "disk",
        _drained_by_bytes,
        found_by="tests/engine/test_closing_down.py"
        "::test_a_batch_without_payload_keeps_the_tenure_from_being_drained",
    ),
    Mutant(
        "who left keeps room",
        "an append whose caller has left, or that was refused, keeps its room",
        "object",
        _left_keeps_room,
    ),
    Mutant(
        "batches not checked",
        "an append is not looked at before it gets its offsets",
        "object",
        _batches_not_checked,
        is_quick=True,
    ),
    Mutant(
        "change overtakes appends",
        "a change of the token rests on appends that are not durable yet",
        "object",
        _change_overtakes_appends,
    ),
    Mutant(
        "barrier not raised",
        "appends go on while a staged commit or a change of the token is under way",
        "disk",
        _barrier_not_raised,
    ),
    Mutant(
        "run acked at once",
        "the batches of a run are answered when they are sequenced",
        "object",
        _run_acked_at_once,
        is_quick=True,
    ),
    Mutant(
        "run passes everything",
        "a run is appended to a stream that was lost, is being closed, or has a barrier",
        "object",
        _run_passes_everything,
        found_by="tests/engine/append/test_runs.py::test_a_run_does_not_pass_a_barrier",
    ),
    Mutant(
        "answered when written",
        "a group is answered before those in front of it are durable",
        "disk",
        _answered_when_written,
        found_by="tests/wal/test_groups_beside_each_other.py"
        "::test_groups_are_answered_in_their_order",
    ),
    Mutant(
        "under way unsaid",
        "a frame proves that groups are durable which are being written beside it",
        "disk",
        _under_way_unsaid,
        found_by="tests/wal/test_groups_beside_each_other.py"
        "::test_what_was_cut_is_not_read_again_behind_what_follows",
    ),
    Mutant(
        "read past a gap",
        "a recovery keeps groups behind one that is missing",
        "disk",
        _read_past_a_gap,
        found_by="tests/wal/test_groups_beside_each_other.py"
        "::test_what_was_cut_is_not_read_again_behind_what_follows",
    ),
    Mutant(
        "retried in disorder",
        "groups that failed together are written again in another order",
        "disk",
        _retried_in_disorder,
        found_by="tests/engine/append/test_groups_at_a_time.py"
        "::test_groups_behind_one_that_fails_follow_it_again_in_order",
    ),
)
