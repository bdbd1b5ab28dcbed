"""The costs of a configuration in requests, at list prices. Pure.

The number of PUTs depends on bytes and time, not on streams. So there are two bounds:
- by time: small batches are sent at a bounded rate, whatever is appended;
- by bytes: larger batches are sent at once, so dollars per GiB follow from their size: from the
  smallest one that is not small (`…_max`), and from full batches, which full load makes.
A month costs at most the sum of both, plus checkpoints, whose rate is bounded as well. Compaction
comes on top: its costs follow the appended bytes, once for each rewrite.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.engine.config import StreamEngineConfig
from streamlog.engine.read.read_ahead import get_bytes_bounds

PRICES_DATE = "2026-11"
PRICES_OF = "S3 Standard, us-east-1"
PUT_DOLLARS = 5.0 / 1_000_000
"""PUT, COPY, POST and LIST."""
GET_DOLLARS = 0.4 / 1_000_000
"""GET and HEAD. DELETE is free; so is traffic within the region."""
STORAGE_DOLLARS_PER_GIB_MONTH = 0.023

MONTH_S = 30 * 86_400
GIB = 1 << 30
_CHECKPOINT_PUTS = 3
_INPUT_GETS = 3
"""GETs of an upload that is compacted: footer and index region to plan, the index to read, data."""


@dataclass(frozen=True, slots=True)
class RequestCosts:
    """Dollars; `put_rate_max_per_s` is that of small batches.

    GETs per GiB are for sequential readers of objects whose parts are long: `…_min` for a single
    reader, `…_max` if many share the block cache. Objects that are not compacted yet cost at least
    one GET for each part of a stream. The requests of compaction are for uploads in full batches,
    rewritten once into objects of full size; no fewer are possible.
    """

    put_rate_max_per_s: float
    puts_per_month_max: float
    put_dollars_per_month_max: float
    checkpoint_dollars_per_month_max: float
    list_dollars_per_month: float
    puts_per_gib: float
    put_dollars_per_gib: float
    puts_per_gib_max: float
    put_dollars_per_gib_max: float
    gets_per_gib_min: float
    gets_per_gib_max: float
    get_dollars_per_gib_min: float
    get_dollars_per_gib_max: float
    rewrite_puts_per_gib: float
    rewrite_gets_per_gib: float
    rewrite_dollars_per_gib: float


def request_costs(config: StreamEngineConfig, *, wal: str) -> RequestCosts:
    """`wal` is disk or object."""
    if wal == "disk":
        target = smallest_put = config.upload.upload_bytes_target
        rate = 1000 / max(1, config.upload.upload_interval_ms)
    else:
        target = config.flush.flush_bytes_target
        smallest_put = min(target, config.flush.flush_bytes_overlap_remote)
        rate = config.flush.put_rate_max_per_s
    puts_per_gib, puts_per_gib_max = GIB / target, GIB / smallest_put
    smallest, largest = get_bytes_bounds(config.read)
    most, least = GIB / smallest, GIB / largest
    rewrite_puts, rewrite_gets = _rewrite_puts(config), _INPUT_GETS * puts_per_gib
    metadata = config.metadata
    checkpoints = MONTH_S * 1000 / metadata.checkpoint_interval_ms
    lists = MONTH_S * 1000 / metadata.file_sweep_interval_ms
    return RequestCosts(
        put_rate_max_per_s=rate,
        puts_per_month_max=rate * MONTH_S,
        put_dollars_per_month_max=rate * MONTH_S * PUT_DOLLARS,
        checkpoint_dollars_per_month_max=checkpoints * _CHECKPOINT_PUTS * PUT_DOLLARS,
        list_dollars_per_month=lists * PUT_DOLLARS,
        puts_per_gib=puts_per_gib,
        put_dollars_per_gib=puts_per_gib * PUT_DOLLARS,
        puts_per_gib_max=puts_per_gib_max,
        put_dollars_per_gib_max=puts_per_gib_max * PUT_DOLLARS,
        gets_per_gib_min=least,
        gets_per_gib_max=most,
        get_dollars_per_gib_min=least * GET_DOLLARS,
        get_dollars_per_gib_max=most * GET_DOLLARS,
        rewrite_puts_per_gib=rewrite_puts,
        rewrite_gets_per_gib=rewrite_gets,
        rewrite_dollars_per_gib=rewrite_puts * PUT_DOLLARS + rewrite_gets * GET_DOLLARS,
    )


def _rewrite_puts(config: StreamEngineConfig) -> float:
    """Requests for a GiB of outputs of full size: one each, or one for each part and two more."""
    size = config.compaction.object_bytes_max
    is_whole = size <= config.store.multipart_bytes_min
    requests = 1 if is_whole else 2 + -(-size // config.store.part_bytes)
    return GIB / size * requests
