"""Seeded faults, each with the scenario that must find it."""

from __future__ import annotations

BY_SCENARIO: dict[str, tuple[str, ...]] = {
    "takeover": (
        "no fence compare",
        "fence compares LIVE only",
        "fence compares gen only",
        "no head compare",
        "move does not bump holder gen",
        "open at the end seen before the move",
        "failed compare taken as not applied",
        "commit before the PUT is durable",
        "orphan gc by age, no seal",
        "orphan gc folds before the seal",
    ),
    "pipeline": ("strip by holder, not epoch",),
    "three": ("move does not compare holder gen",),
    "compact": ("no compaction compare",),
    "pins": ("gc reads pins before the death",),
    "ckpt": ("no checkpoint compare", "record-absent compare instead of head"),
    "ckptfiles": (
        "checkpoint does not compare f/T",
        "sweep does not look at k",
        "sweep reads k before it sees the seal",
        "live tenure deletes with an attempt open",
        "absent fence taken for retired, files listed after it",
    ),
    "wal": (
        "ack before the sync",
        "WAL released before the commit's answer",
        "whoever seals says drained",
        "drained with entries left",
        "take-over does not look at drained",
    ),
    "walback": (
        "opens with another epoch's entries in its WAL",
        "opens before the release is durable",
    ),
    "walswap": (
        "any WAL in hand will do",
        "replays for a tenure that the WAL does not name",
    ),
    "window": (
        "window not kept",
        "floor counts before its record is durable",
        "floor passes ids that were given up",
        "own sweep with a PUT under way",
        "sweep folds before the seal",
        "no second sweep",
        "sweep takes one block alone",
    ),
    "blocks": ("block taken without a compare",),
    "closing": (
        "open does not look at CLOSED",
        "open does not compare the holder's gen",
        "reopening bumps no gen",
        "ALL opens closed streams",
    ),
    "forcing": (
        "close sent again whatever the epoch is",
        "gen is taken without the moves up to it",
    ),
    "offers": (
        "commit does not compare x",
        "x is read after the plan",
        "outputs are not clipped",
        "outputs are offered again unlooked",
        "looks only whether the inputs live",
    ),
    "offerfaults": ("refusal taken for x moved", "gc by age, no seal"),
    "staging": (
        "staged before the PUT is durable",
        "attaches what it holds",
        "attach does not compare x",
        "retry is not looked for",
        "sweep takes staged objects",
        "unstage does not bump x",
    ),
    "epochs": ("only the last epoch is known",),
    "twoleaders": ("attach does not raise x",),
    "forgotten": ("forgets whatever came since",),
    "producer": (
        "state is kept across fencing",
        "duplicate answered before it is confirmed",
        "snapshot holds provisional state",
        "no replay after the snapshot",
        "no duplicates looked for",
        "a time-out takes the append back",
        "remembers fewer than are in flight",
    ),
    "snapshot": ("snapshot leaves provisional batches out",),
    "rebuild": (
        "compares nothing",
        "lineage raised with the name",
        "no grace",
        "no second listing",
        "deletes before the checkpoint",
    ),
    "rebuildagain": ("checkpoint stored before the grace",),
    "rebuilds": ("no If-Match",),
}

SAFE = (
    ("restart", "restart does not seal the old tenure"),
    ("staging", "unstage takes what was attached"),
    ("rebuild", "a sweep compares before it lists"),
)
"""Faults that are not found: the move fences the old tenure, whose seal serves the orphan sweep
(I6). As an attach raises `x`, an unstage that was planned before it is refused. Within the grace
the old node has checked the lineage, and sends no more sweeps that it compared for before."""
