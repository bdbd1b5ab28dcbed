"""What a recovery reports of one stream, whose ranges are resolved by now. Pure.

Objects that were lost from the beginning or the end of a partition's stream leave no trace in the
ranges; `topics` reports those, because the partition's meta stream tells of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamlog.repair.findings import Finding, FindingKind, Range, Severity, some_ranges
from streamlog.repair.recover.resolve import Piece, Resolved

PUT_BACK = "if objects were lost by accident, put them back and recover again"
_OR_STAGED = (
    "; or, with wal=disk, what is missing was committed by a staged write in the last seconds "
    "before the disk was lost"
)


def findings(
    stream_id: int, resolved: Resolved, *, has_staged: bool, trims_are_known: bool
) -> Iterator[Finding]:
    """`has_staged`: staged objects may belong to the stream, and no checkpoint knows them.

    `trims_are_known`: there was a checkpoint, which knew of trims before objects were deleted.
    """
    lost = _ranges(stream_id, resolved.missing)
    if lost:
        yield Finding(
            FindingKind.OBJECT_MISSING,
            Severity.ERROR,
            f"{some_ranges(lost)} lie in objects that are gone",
            "put the objects back from a copy of the store; reads of these offsets fail",
            stream_id=stream_id,
            lost=lost,
        )
    tail = _ranges(stream_id, resolved.tail)
    if tail:
        yield _of_tail(stream_id, resolved, tail, has_staged=has_staged)
    trimmed = _ranges(stream_id, resolved.trimmed)
    if trimmed:
        # An object is deleted only after a checkpoint knows of the trim.
        is_odd = trims_are_known and resolved.trimmed_to is None
        yield Finding(
            FindingKind.TRIMMED,
            Severity.ERROR if is_odd or resolved.is_guess else Severity.WARNING,
            f"{some_ranges(trimmed)} are stored, but what follows them is not: taken for trimmed, "
            f"the stream starts at {resolved.start}",
            PUT_BACK,
            stream_id=stream_id,
            lost=trimmed,
        )


def _of_tail(
    stream_id: int, resolved: Resolved, tail: tuple[Range, ...], *, has_staged: bool
) -> Finding:
    severity, advice = Severity.ERROR, ""
    if resolved.is_in_order:
        detail = (
            f"{some_ranges(tail)} are stored behind a gap, and were written when all before them "
            "was stored: an object is lost, or, with wal=disk, what is missing lies in the node's "
            f"log alone; the meta stream ends at {resolved.end}, and what it told behind that, of "
            "trims and segments, is forgotten"
        )
        advice = f"{PUT_BACK}; a node with wal=disk replays its log when it starts"
    elif resolved.is_guess:
        detail = (
            f"{some_ranges(tail)} are stored behind a gap: they were acknowledged if what is "
            "missing was trimmed, which a checkpoint told that is gone or cannot be read"
            f"{_OR_STAGED if has_staged else ''}; the stream ends at {resolved.end}"
        )
        advice = (
            "put the newest files of checkpoint/ back from a copy of the store; a cluster that "
            "never wrote one trimmed nothing"
        )
    elif has_staged:
        severity = Severity.WARNING
        detail = (
            f"{some_ranges(tail)} are stored behind a gap, and the stream ends at {resolved.end}: "
            f"they were never acknowledged{_OR_STAGED}"
        )
        advice = (
            "put the node's metadata folder back, if there is a copy; else have the staged writers "
            "stage and commit again"
        )
    else:
        severity = Severity.NOTE
        detail = (
            f"{some_ranges(tail)} are stored behind a gap: they were never acknowledged, and the "
            f"stream ends at {resolved.end}"
        )
    return Finding(
        FindingKind.UNACKNOWLEDGED_TAIL, severity, detail, advice, stream_id=stream_id, lost=tail
    )


def _ranges(stream_id: int, pieces: Sequence[Piece]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for piece in pieces:
        if merged and merged[-1].end == piece.start:
            merged[-1] = Range(stream_id, merged[-1].start, piece.end)
        else:
            merged.append(Range(stream_id, piece.start, piece.end))
    return tuple(merged)
