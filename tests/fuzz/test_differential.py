"""Parsers of record batches: on damage behind a right CRC they agree.

`codec.records` stands on one of our twins, `codec.plain_decoder` on the format's text alone, and
aiokafka has one compiled and one in plain Python. What `codec.records` takes, the others take, too,
and the records are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from hypothesis import given
from hypothesis import strategies as st

from streamlog.codec import records
from streamlog.codec.plain_decoder import decode_plain
from streamlog.errors import CorruptMessage, InvalidRecord
from tests.fuzz.codec_parsers import BATCHES, LIMIT_BYTES, mend_batch
from tests.fuzz.examples import FUZZ
from tests.fuzz.mutations import damaged

PLAIN = BATCHES[:2]
"""Uncompressed: damage reaches the records."""


def _own(data: bytes) -> object:
    return records.decode(data, limit_bytes=LIMIT_BYTES)


def _aiokafka(
    data: bytes, parser: Callable[[bytes], Iterable[Any]] = _DefaultRecordBatchPy
) -> object:
    batch = parser(data)
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]


def _taken(parse: Callable[[bytes], object], data: bytes) -> object:
    """None: refused."""
    try:
        return parse(data)
    except (CorruptMessage, InvalidRecord):
        return None


@pytest.mark.parametrize("sample", BATCHES)
def test_samples_are_the_same_to_all(sample: bytes) -> None:
    assert _own(sample) == decode_plain(sample) == _aiokafka(sample)
    assert _own(sample) == _aiokafka(sample, DefaultRecordBatch)


@FUZZ
@given(bad=damaged(PLAIN))
def test_damaged_batches_are_the_same_to_the_plain_decoder(bad: bytes) -> None:
    mended = mend_batch(bad)
    own, plain = _taken(_own, mended), _taken(decode_plain, mended)
    if own is not None and plain is not None:
        assert own == plain


@FUZZ
@given(bad=damaged(BATCHES))
def test_damaged_batches_are_the_same_to_aiokafka(bad: bytes) -> None:
    mended = mend_batch(bad)
    own = _taken(_own, mended)
    if own is not None:
        assert _aiokafka(mended) == _aiokafka(mended, DefaultRecordBatch) == own


@FUZZ
@given(st.data())
def test_one_record_at_a_time_is_all_at_once(data: st.DataObject) -> None:
    mended = mend_batch(data.draw(damaged(BATCHES)))
    own = _taken(_own, mended)
    if own is not None:
        assert list(records.iterate(mended)) == own
