"""Mutants of appends on their way: room, barriers, groups, and what the engine says of them."""

from __future__ import annotations

from typing import Any

from streamlog.engine.append import sequencer
from streamlog.engine.append.queued_append import QueuedAppend
from streamlog.engine.append.sequencer import Sequencer
from streamlog.engine.engine import Engine
from streamlog.engine.streams.token_change import TokenChange
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
)
