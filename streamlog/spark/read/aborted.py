"""Record batches out of objects, without those of aborted transactions. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.codec.batch import ScannedBatch, scan
from streamlog.model.located import AbortedSpan
from streamlog.runtime.buffers import Buffer


def without_aborted_spans(batches: Buffer, aborted: Iterable[AbortedSpan]) -> Buffer:
    """The batches that belong to none of the transactions; control batches stay.

    A span tells where its transaction ends, so a task may begin anywhere in it. Errors:
    CorruptMessage.
    """
    spans: dict[int, list[AbortedSpan]] = {}
    for span in aborted:
        spans.setdefault(span.producer_id, []).append(span)
    return b"".join(
        batch.view for batch in scan(batches, verify_crc=False) if not _is_aborted(batch, spans)
    )


def _is_aborted(batch: ScannedBatch, spans: dict[int, list[AbortedSpan]]) -> bool:
    header = batch.header
    if not header.is_transactional or header.is_control:
        return False
    return any(
        span.first_offset <= header.base_offset <= span.last_offset
        for span in spans.get(header.producer_id, ())
    )
