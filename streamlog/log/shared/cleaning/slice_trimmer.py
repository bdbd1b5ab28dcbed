"""Trims a log's streams to what its segments, and readers of replaced ones, still need.

A cleaned segment's slice lies on other streams than those of later segments, and a newer slice may
lie before an older one's. So each stream is trimmed to the lowest start of any slice on it. Slices
that are being written, were replaced a moment ago, or that a plan is made of, are held.

What a cleaning that was given up has written lies behind them, or among them. A stream is trimmed
from its start alone, so this goes with the slices before it. `has_left_over` tells of it, so that
the log is cleaned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.batch import StreamSlice
from streamlog.model.stream import Stream

Hold = tuple[tuple[int, int], ...]
"""(stream id, first offset) of what must not be trimmed."""


class SliceTrimmer:
    """`segments` are the log's, in order; `log_start` gives its start offset."""

    def __init__(
        self,
        streams: Mapping[int, Stream],
        segments: Sequence[SharedLogSegment],
        log_start: Callable[[], int],
    ) -> None:
        self._streams = streams
        self._segments = segments
        self._log_start = log_start
        self._holds: list[Hold] = []

    def hold(self, slices: Iterable[StreamSlice]) -> Hold:
        """Keeps the slices, and what lies behind them, until `release`."""
        held = tuple(_lowest((part.stream_id, part.start_offset) for part in slices).items())
        self._holds.append(held)
        return held

    def release(self, hold: Hold) -> None:
        """Does nothing where it was released before."""
        self._holds = [one for one in self._holds if one is not hold]

    @property
    def is_due(self) -> bool:
        """Whether `trim` has something to do."""
        return bool(self._due())

    async def trim(self) -> None:
        """Idempotent. Errors: those of Stream.trim."""
        for stream, start in self._due():
            await stream.trim(start)

    def has_left_over(self, stream_id: int) -> bool:
        """Whether durable data lies behind all slices of the stream, and nobody holds it."""
        stream = self._streams.get(stream_id)
        parts = [one.data for one in self._segments if one.data.stream_id == stream_id]
        is_held = any(stream_id == held for hold in self._holds for held, _ in hold)
        return (
            stream is not None
            and bool(parts)
            and not is_held
            and max(part.end_offset for part in parts) < stream.confirm_offset
        )

    def _due(self) -> list[tuple[Stream, int]]:
        starts = self._starts()
        # No slice: of cleaned segments, none is left.
        wanted = [
            (stream, starts.get(stream_id, stream.confirm_offset))
            for stream_id, stream in self._streams.items()
        ]
        return [(stream, start) for stream, start in wanted if stream.start_offset < start]

    def _starts(self) -> dict[int, int]:
        oldest = self._segments[0]
        # The stream may end with the segment, and the log begin behind it.
        start = min(max(self._log_start(), oldest.base_offset), oldest.end_offset)
        data_start = start + oldest.data_shift
        pairs = [(oldest.data.stream_id, data_start)]
        pairs += [pair for hold in self._holds for pair in hold]
        for segment in self._segments:
            parts = [segment.time, segment.txn]
            if segment is not oldest:
                parts.append(segment.data)
            pairs += [(part.stream_id, part.start_offset) for part in parts]
        return _lowest(pairs)


def _lowest(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    starts: dict[int, int] = {}
    for stream_id, start in pairs:
        starts[stream_id] = min(starts.get(stream_id, start), start)
    return starts
