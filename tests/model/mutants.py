"""Seeded faults, each with the scenario that must find it."""

from __future__ import annotations

BY_SCENARIO: dict[str, tuple[str, ...]] = {
    "takeover": (
        "commit does not compare the fence",
        "commit compares only the fence's state",
        "commit compares only the fence's gen",
        "commit does not compare the head",
        "move does not raise the holder's gen",
        "open uses the end seen before the move",
        "a refused commit counts as not applied",
        "commit before the PUT is durable",
        "orphans are deleted by age, without a seal",
        "orphans are looked for before the seal",
    ),
    "pipeline": ("rows are stripped by holder, not by epoch",),
    "three": ("move does not compare the holder's gen",),
    "compact": ("compaction does not compare x",),
    "pins": ("pins are read before the object is dead",),
    "ckpt": (
        "checkpoint does not compare k",
        "commit compares absence of its record, not the head",
    ),
    "ckptfiles": (
        "checkpoint does not compare f/T",
        "file sweep does not read k",
        "file sweep reads k before it sees the seal",
        "a live tenure deletes its files during an attempt",
        "files are listed after the fence was seen absent",
    ),
    "wal": (
        "ack before the sync",
        "WAL released before the commit's answer",
        "a seal by another tenure says drained",
        "the seal says drained while entries are left",
        "take-over ignores the drained flag",
    ),
    "walback": (
        "opens with another epoch's entries in its WAL",
        "opens before the release is durable",
    ),
    "walswap": (
        "take-over accepts a WAL that does not name the holder",
        "replays for a tenure that the WAL does not name",
    ),
    "window": (
        "ids are stored past the window",
        "the floor rises before its record is durable",
        "the floor passes ids that were given up",
        "a tenure sweeps its own id during the PUT",
        "a sweep folds before the seal",
        "a sealed tenure is swept once only",
        "a sweep covers only one block of the tenure",
    ),
    "blocks": ("a block is taken without a compare",),
    "closing": (
        "open does not check for CLOSED",
        "open does not compare the holder's gen",
        "a reopen does not raise the own gen",
        "ALL opens closed streams",
    ),
    "forcing": (
        "a repeated close does not compare the epoch",
        "gen is used before the moves up to it are folded",
    ),
    "offers": (
        "commit does not compare x",
        "x is read after the plan",
        "outputs are not clipped",
        "outputs are offered again without a check",
        "the check asks only whether inputs are live",
    ),
    "offerfaults": (
        "every refusal counts as a change of x",
        "orphans are deleted by age, without a seal",
    ),
    "staging": (
        "an object is staged before its PUT is durable",
        "a holder attaches only its own part",
        "attach does not compare x",
        "a repeated attach is not recognised",
        "a sweep deletes staged objects",
        "unstage does not raise x",
    ),
    "epochs": ("only the last epoch counts as attached",),
    "twoleaders": ("attach does not raise x",),
    "forgotten": ("a writer is forgotten in spite of a later commit",),
    "producer": (
        "producer state is kept after fencing",
        "a duplicate is answered before it is confirmed",
        "a snapshot holds provisional state",
        "no replay after the snapshot",
        "duplicates are not recognised",
        "a time-out undoes the append",
        "fewer batches are remembered than are in flight",
    ),
    "snapshot": ("a snapshot leaves provisional batches out",),
    "rebuild": (
        "the old node does not compare the lineage",
        "the lineage is raised only with the name",
        "the rebuild does not wait",
        "the bucket is not listed again",
        "a dead object is deleted before its checkpoint",
    ),
    "rebuildagain": ("the checkpoint is stored before the wait",),
    "rebuilds": ("the lineage is raised without If-Match",),
}

SAFE = (
    ("restart", "restart does not seal the old tenure"),
    ("staging", "unstage drops attached objects"),
    ("rebuild", "a sweep compares before it lists"),
)
"""Faults that are not found: the move fences the old tenure, whose seal serves the orphan sweep
(I6). As an attach raises `x`, an unstage that was planned before it is refused. Within the grace
the old node has checked the lineage, and sends no more sweeps that it compared for before."""
