"""Which batches a read-committed reader keeps."""

from __future__ import annotations

from streamlog.codec.batch import TRANSACTIONAL, BatchProducer, place_into, resealed, scan
from streamlog.codec.committed import committed
from streamlog.codec.control import ControlType, EndMarker, encode_end_marker
from streamlog.codec.records import decode, encode_values

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def log(*batches: tuple[bytes, int] | tuple[bytes, int, bool] | tuple[ControlType, int]) -> bytes:
    """(value, producer id, whether it is transactional) or (marker, producer id), one offset each;
    producer -1: none."""
    data = b""
    for offset, (what, producer_id, *flags) in enumerate(batches):
        if isinstance(what, ControlType):
            batch = bytearray(encode_end_marker(producer_id, 0, EndMarker(what, 0), 5))
        else:
            producer = BatchProducer(producer_id, 0, 0) if producer_id >= 0 else (-1, -1, -1)
            batch = encode_values([what], timestamp_ms=5, producer=BatchProducer(*producer)).data
            if producer_id >= 0 and (not flags or flags[0]):
                batch[22] |= TRANSACTIONAL
                resealed(batch)
        place_into(batch, 0, len(batch), offset, 0)
        data += batch
    return data


def values(data: bytes, aborted: list[tuple[int, int]]) -> list[bytes | None]:
    return [record[3] for batch in committed(scan(data), aborted) for record in decode(batch.view)]


def test_aborted_batches_and_markers_are_left_out() -> None:
    data = log(
        (b"a", 1), (b"b", 2), (b"c", -1), (ABORT, 1), (b"d", 1), (COMMIT, 2), (COMMIT, 1), (b"e", 2)
    )
    assert values(data, [(0, 1)]) == [b"b", b"c", b"d", b"e"]
    assert values(data, []) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_transaction_that_began_before_the_batches_is_dropped_up_to_its_marker() -> None:
    assert values(log((b"a", 1), (ABORT, 1), (b"b", 1)), [(-7, 1)]) == [b"b"]


def test_a_producer_may_abort_twice() -> None:
    data = log((b"a", 1), (ABORT, 1), (b"b", 1), (COMMIT, 1), (b"c", 1), (ABORT, 1))
    assert values(data, [(4, 1), (0, 1)]) == [b"b"]


def test_batches_outside_of_transactions_stay() -> None:
    data = log((b"a", 1, False), (b"b", 2), (ABORT, 2))
    assert values(data, [(0, 1), (1, 2)]) == [b"a"]
