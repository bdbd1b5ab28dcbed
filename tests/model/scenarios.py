"""The scenarios, each with a small budget for every run of the tests and a full one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.model import closing, compactors, disk_wal, id_windows, lineage, producers, staging
from tests.model.explorer import Model
from tests.model.log import model as log
from tests.model.log.state import Budget


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    contents: str
    make: Callable[[Any, str | None], Model]
    small: Any
    full: Any

    def model(self, mutant: str | None = None, *, is_full: bool = False) -> Model:
        return self.make(self.full if is_full else self.small, mutant)


def _log(name: str, contents: str, small: log.Setup, full: log.Setup) -> Scenario:
    return Scenario(name, contents, log.LogModel, small, full)


_ONE_RESTART: dict[str, Any] = {"unborn": (2,), "restarts": ((2, 0),)}

ALL = (
    _log(
        "takeover",
        "2 tenures, 2 streams, 2 objects each, crash, seal, resend, lost answer, GC",
        log.Setup(
            "aa",
            (0, 0),
            Budget(move=1, resend=1, lost=1, seal=1),
            objects=1,
            has_collector=True,
        ),
        log.Setup(
            "aa",
            (0, 0),
            Budget(move=1, crash=1, resend=1, lost=1, seal=1),
            objects=2,
            has_collector=True,
        ),
    ),
    _log(
        "pipeline",
        "2 uploads in flight, 2 moves (A→B→A), crash, seal, resend, lost answer",
        log.Setup("aa", (0,), Budget(move=2), objects=2, in_flight=2),
        log.Setup(
            "aa",
            (0, 0),
            Budget(move=2, resend=1, lost=1, crash=1, seal=1),
            objects=2,
            in_flight=2,
        ),
    ),
    _log(
        "three",
        "3 nodes racing 3 moves, lost answer",
        log.Setup("aaa", (0,), Budget(move=3)),
        log.Setup("aaa", (0, 1), Budget(move=3, lost=1)),
    ),
    _log(
        "restart",
        "a node registers while messages of its old tenure are under way, the other moves too, GC",
        log.Setup(
            "aaa",
            (0,),
            Budget(restart=1, move=1, resend=1),
            has_collector=True,
            **_ONE_RESTART,
        ),
        log.Setup(
            "aaa",
            (0, 0),
            Budget(restart=1, move=2, resend=1, lost=1),
            has_collector=True,
            **_ONE_RESTART,
        ),
    ),
    _log(
        "compact",
        "2 compactors, trim, seal, lost answer, GC",
        log.Setup("acc", (0,), Budget(compact=2, trim=1), objects=2, has_collector=True),
        log.Setup(
            "acc",
            (0, 0),
            Budget(compact=2, trim=1, seal=1, lost=1),
            objects=2,
            has_collector=True,
        ),
    ),
    _log(
        "pins",
        "compaction, trim, seal, 2 reader pins, GC",
        log.Setup("ac", (0,), Budget(compact=1, trim=1, pin=1), objects=2, has_collector=True),
        log.Setup(
            "ac",
            (0,),
            Budget(compact=2, trim=1, pin=2, seal=1),
            objects=2,
            has_collector=True,
        ),
    ),
    _log(
        "ckpt",
        "3 racing checkpoints, move, resend, lost answer",
        log.Setup("aa", (0,), Budget(resend=1, lost=1, checkpoint=2, move=1), objects=2),
        log.Setup("aa", (0, 0), Budget(resend=1, lost=1, checkpoint=3, move=1), objects=2),
    ),
    _log(
        "ckptfiles",
        "3 tenures (one comes later, sealing the first), 3 checkpoint attempts with files, shared "
        "base, crash, resend, lost answer, sweep",
        log.Setup(
            "kkk",
            (),
            Budget(restart=1, checkpoint=2, seal=1, sweep=1, resend=1),
            **_ONE_RESTART,
        ),
        log.Setup(
            "kkk",
            (),
            Budget(restart=1, checkpoint=3, resend=1, lost=1, crash=1, seal=1, sweep=1),
            **_ONE_RESTART,
        ),
    ),
    Scenario(
        "wal",
        "a disk-WAL node starts again while the other node waits; appends, crashes, seal, orderly "
        "ends, lost answer",
        disk_wal.DiskWalModel,
        disk_wal.Setup(disk_wal.Budget(append=2, crash=1, seal=1, start=1, move=2, close=1)),
        disk_wal.Setup(
            disk_wal.Budget(append=3, crash=2, seal=1, start=2, move=3, lost=1, resend=1, close=1)
        ),
    ),
    Scenario(
        "walforce",
        "loss is accepted while the node is dead, paused or starting",
        disk_wal.DiskWalModel,
        disk_wal.Setup(
            disk_wal.Budget(append=2, crash=1, seal=1, start=1, move=2, accept_loss=1, close=1)
        ),
        disk_wal.Setup(
            disk_wal.Budget(
                append=3, crash=1, seal=1, start=2, move=3, accept_loss=1, close=1, lost=1
            )
        ),
    ),
    Scenario(
        "walback",
        "loss is accepted, the stream closed, and the node takes it back with its WAL",
        disk_wal.DiskWalModel,
        disk_wal.Setup(disk_wal.Budget(append=1, crash=2, start=2, move=3, accept_loss=1, close=1)),
        disk_wal.Setup(disk_wal.Budget(append=2, crash=2, start=2, move=3, accept_loss=1, close=2)),
    ),
    Scenario(
        "walswap",
        "the node starts with an empty disk, then with its old one",
        disk_wal.DiskWalModel,
        disk_wal.Setup(
            disk_wal.Budget(append=1, crash=1, start=2, move=2, accept_loss=1, close=1, swap=2)
        ),
        disk_wal.Setup(
            disk_wal.Budget(append=2, crash=2, start=2, move=2, accept_loss=1, close=1, swap=2)
        ),
    ),
    Scenario(
        "window",
        "a tenure's ids in 2 blocks: given up, PUT twice and late, crash, seal, both sweeps",
        id_windows.IdWindowModel,
        id_windows.Setup(1, id_windows.Budget(objects=4, give_up=1, crash=1, seal=1)),
        id_windows.Setup(1, id_windows.Budget(objects=6, give_up=2, crash=1, seal=1, put_again=1)),
    ),
    Scenario(
        "blocks",
        "2 tenures take blocks, one is sealed and swept",
        id_windows.IdWindowModel,
        id_windows.Setup(2, id_windows.Budget(objects=3, seal=1)),
        id_windows.Setup(2, id_windows.Budget(objects=4, seal=1)),
    ),
    Scenario(
        "closing",
        "2 nodes open and close 2 streams, planned from old folds; seal and ALL",
        closing.ClosingModel,
        closing.Setup((0, 0), 2, closing.Budget(open=2, close=2, seal=1, all=1)),
        closing.Setup((0, 0), 2, closing.Budget(open=3, close=3, seal=1, all=1)),
    ),
    Scenario(
        "forcing",
        "a balancer takes open streams from a live holder, and back, while a close is under way",
        closing.ClosingModel,
        closing.Setup((0, 1), 2, closing.Budget(open=3, close=2, force=2)),
        closing.Setup((0, 1), 2, closing.Budget(open=4, close=2, force=2)),
    ),
    Scenario(
        "offers",
        "compactors merge any neighbours of 3 objects, a trim to any offset, outputs offered again",
        compactors.CompactorsModel,
        compactors.Setup(3, 2, compactors.Budget(append=0, trim=1, jobs=2)),
        compactors.Setup(3, 3, compactors.Budget(append=0, trim=1, jobs=3)),
    ),
    Scenario(
        "offerfaults",
        "the same with an append, resend, lost answer, seal, GC of orphans and dead objects",
        compactors.CompactorsModel,
        compactors.Setup(
            2, 2, compactors.Budget(append=0, trim=1, jobs=2, resend=1, lost=1, seal=1)
        ),
        compactors.Setup(3, 2, compactors.Budget(append=1, trim=1, jobs=2, lost=1, seal=1)),
    ),
    Scenario(
        "staging",
        "2 staged objects, a commit requested twice, move, expiry, seal of the tasks, lost answer",
        staging.StagingModel,
        staging.Setup(staging.Budget(stage=2, ask=1, again=1, move=1, unstage=1, lost=1, seal=1)),
        staging.Setup(staging.Budget(stage=2, ask=2, again=1, unstage=1, lost=1, append=1)),
    ),
    Scenario(
        "epochs",
        "3 commits, requested by an old and a new driver",
        staging.StagingModel,
        staging.Setup(staging.Budget(stage=3, ask=3)),
        staging.Setup(staging.Budget(stage=3, ask=3, lost=1, move=1)),
    ),
    Scenario(
        "twoleaders",
        "2 staged objects for streams of two holders; an old and a new driver ask both",
        staging.StagingModel,
        staging.Setup(staging.Budget(stage=2, ask=2, again=1, lost=1), is_split=True),
        staging.Setup(staging.Budget(stage=3, ask=2, again=1, lost=1, move=1), is_split=True),
    ),
    Scenario(
        "forgotten",
        "3 commits of a writer that was forgotten, or commits again at that moment",
        staging.StagingModel,
        staging.Setup(staging.Budget(stage=3, ask=3, forget=1)),
        staging.Setup(staging.Budget(stage=3, ask=3, again=1, forget=1)),
    ),
    Scenario(
        "producer",
        "2 batches in flight, A→B→A, retries at any node, snapshot, lost answer",
        producers.ProducersModel,
        producers.Setup(2, producers.Budget(retry=1, move=2, snapshot=1, lost=1, time_out=1)),
        producers.Setup(
            2, producers.Budget(retry=2, move=2, snapshot=1, lost=1, resend=1, time_out=1)
        ),
    ),
    Scenario(
        "snapshot",
        "3 batches, more than the server remembers; snapshot, move, a late copy",
        producers.ProducersModel,
        producers.Setup(3, producers.Budget(retry=1, move=1, snapshot=1)),
        producers.Setup(3, producers.Budget(retry=1, move=2, snapshot=1, lost=1)),
    ),
    Scenario(
        "producerseal",
        "the same with resends and a seal",
        producers.ProducersModel,
        producers.Setup(2, producers.Budget(retry=2, move=1, resend=1, lost=1, seal=1)),
        producers.Setup(3, producers.Budget(retry=2, move=2, resend=1, lost=1, seal=1)),
    ),
    Scenario(
        "rebuild",
        "a rebuild while a node runs on the old metadata: compaction, append, sweeps, late deletes",
        lineage.LineageModel,
        lineage.Setup((1,), (lineage.OUTPUT,)),
        lineage.Setup((2,), (lineage.OUTPUT, lineage.NEW)),
    ),
    Scenario(
        "rebuildagain",
        "the same, crashed or given up and done again, and an append; full: a second rebuild",
        lineage.LineageModel,
        lineage.Setup((2,), (lineage.NEW,)),
        lineage.Setup((2, 1), (lineage.NEW,)),
    ),
    Scenario(
        "rebuilds",
        "two rebuilds at a time; full: beside the old node's append",
        lineage.LineageModel,
        lineage.Setup((1, 1), ()),
        lineage.Setup((1, 1), (lineage.NEW,)),
    ),
)

BY_NAME = {scenario.name: scenario for scenario in ALL}
